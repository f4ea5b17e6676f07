//! Kind and version, which kube-apiserver looks for before anything else.

use crate::decode::{Decoder, EMPTY, quotable};
use crate::finding::Rule;
use crate::node::{Entry, Value};
use crate::selection::ApiVersion;
use crate::wire::Place;

pub(crate) const KIND: &str = "EgressSelectorConfiguration";

const WRITE_KIND: &str = "write kind: EgressSelectorConfiguration";
const WRITE_VERSION: &str = "write apiVersion: apiserver.k8s.io/v1beta1";

/// Other kinds that kube-apiserver can decode, by their versions.
const OTHER_KINDS: &[(&str, &[&str])] = &[
    ("apiserver.k8s.io/v1alpha1", &["AdmissionConfiguration"]),
    (
        "apiserver.config.k8s.io/v1",
        &[
            "AdmissionConfiguration",
            "AuthenticationConfiguration",
            "AuthorizationConfiguration",
            "EncryptionConfiguration",
            "TracingConfiguration",
        ],
    ),
    ("apiserver.config.k8s.io/v1beta1", CONFIG_KINDS),
    ("apiserver.config.k8s.io/v1alpha1", CONFIG_KINDS),
];

const CONFIG_KINDS: &[&str] = &[
    "AuthenticationConfiguration",
    "AuthorizationConfiguration",
    "TracingConfiguration",
];

/// The version, if kind and version are ours. The internal version, which kube-apiserver takes by accident, is not.
pub(crate) fn version(
    decoder: &mut Decoder<'_>,
    root: Place,
    entries: &[&Entry],
) -> Option<ApiVersion> {
    if entries.is_empty() {
        decoder.report(Rule::Empty, "", root, EMPTY);
        return None;
    }
    let api_version = look_up(decoder, "apiVersion", entries);
    let kind = look_up(decoder, "kind", entries);
    let (Some((api_version, version_at)), Some((kind, kind_at))) = (api_version, kind) else {
        return None;
    };
    let (version_at, kind_at) = (version_at.or(root), kind_at.or(root));
    let known = [ApiVersion::V1Beta1, ApiVersion::V1Alpha1]
        .into_iter()
        .find(|known| known.to_string() == api_version);
    if kind.is_empty() {
        decoder.report(
            Rule::KindMissing,
            "kind",
            kind_at,
            format!("is missing; {WRITE_KIND}"),
        );
    } else if kind != KIND {
        let is_other = OTHER_KINDS
            .iter()
            .any(|(version, kinds)| *version == api_version && kinds.contains(&kind));
        let rule = if is_other {
            Rule::KindOther
        } else {
            Rule::KindUnknown
        };
        let problem = format!("is \"{}\"; {WRITE_KIND}, in this spelling", quotable(kind));
        decoder.report(rule, "kind", kind_at, problem);
    }
    if known.is_none() {
        let (rule, problem) = version_fault(api_version);
        decoder.report(rule, "apiVersion", version_at, problem);
    }
    known.filter(|_| kind == KIND)
}

fn version_fault(written: &str) -> (Rule, String) {
    let slashes = written.matches('/').count();
    let has_version = !matches!(written, "" | "/") && (slashes != 1 || !written.ends_with('/'));
    if slashes > 1 {
        let problem = format!(
            "is \"{}\", which has more than one slash; {WRITE_VERSION}",
            quotable(written)
        );
        (Rule::ApiVersionMalformed, problem)
    } else if has_version {
        let problem = format!(
            "is \"{}\", which has no such kind; {WRITE_VERSION}, in this spelling",
            quotable(written)
        );
        (Rule::KindUnknown, problem)
    } else {
        (
            Rule::ApiVersionMissing,
            format!("is missing; {WRITE_VERSION}"),
        )
    }
}

/// Text of a field, empty if absent. `None` after reporting that it is something else.
///
/// This first look does not mind letter case, that of the fields then does. Of several spellings the last counts, in YAML
/// after sorting.
fn look_up<'n>(
    decoder: &mut Decoder<'_>,
    name: &str,
    entries: &[&'n Entry],
) -> Option<(&'n str, Place)> {
    let mut spellings: Vec<_> = entries
        .iter()
        .filter(|entry| entry.key.eq_ignore_ascii_case(name))
        .collect();
    if decoder.is_yaml {
        spellings.sort_by_key(|entry| &entry.key);
    }
    let mut found = ("", None);
    let mut is_text = true;
    for entry in spellings {
        match &entry.value.value {
            Value::Text(text) => found = (text.as_str(), entry.at),
            Value::Null => found.1 = found.1.or(entry.at),
            other => {
                decoder.wrong_type(&entry.key, entry.at, other, "text");
                is_text = false;
            }
        }
    }
    is_text.then_some(found)
}
