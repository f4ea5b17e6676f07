//! Which traffic of kube-apiserver goes where (egress-selector.md, sections 1.3 and 4.1).

use std::fmt;

use crate::selection::{EgressSelector, SelectionName};

/// Kinds of traffic by the selection that decides about them, `None` for what no selection covers.
pub const TRAFFIC: &[(&str, Option<SelectionName>)] = &[
    (
        "kubelets: logs, exec, attach, port-forward, node proxy",
        Some(SelectionName::Cluster),
    ),
    ("pod and service proxy", Some(SelectionName::Cluster)),
    (
        "webhooks and CRD conversion by service",
        Some(SelectionName::Cluster),
    ),
    ("aggregated API servers", Some(SelectionName::Cluster)),
    (
        "JWT issuers with egressSelectorType: cluster",
        Some(SelectionName::Cluster),
    ),
    (
        "webhooks and CRD conversion by URL",
        Some(SelectionName::ControlPlane),
    ),
    (
        "token, authorization and audit webhooks",
        Some(SelectionName::ControlPlane),
    ),
    ("OTLP traces", Some(SelectionName::ControlPlane)),
    (
        "other kube-apiservers (from 1.36)",
        Some(SelectionName::ControlPlane),
    ),
    (
        "JWT issuers with egressSelectorType: controlplane",
        Some(SelectionName::ControlPlane),
    ),
    ("etcd", Some(SelectionName::Etcd)),
    ("--oidc-* flags, issuers without egressSelectorType", None),
    ("ImagePolicyWebhook, KMS, external token signer", None),
];

/// One kind of traffic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// What it is.
    pub traffic: &'static str,
    /// The selection that covers it.
    pub selection: Option<SelectionName>,
    /// Where it goes.
    pub way: String,
}

/// A table for people: what goes where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// Every kind of traffic once.
    pub rows: Vec<Row>,
}

impl Explanation {
    /// What a selector does.
    #[must_use]
    pub fn of(selector: &EgressSelector) -> Self {
        let row = |&(traffic, selection): &(&'static str, Option<SelectionName>)| {
            let way = match selection {
                None => "direct, always".to_owned(),
                Some(name) => selector.connection(name).map_or_else(
                    || "direct, since the selection is absent".to_owned(),
                    ToString::to_string,
                ),
            };
            Row {
                traffic,
                selection,
                way,
            }
        };
        Self {
            rows: TRAFFIC.iter().map(row).collect(),
        }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.rows.iter().map(|row| row.traffic.len()).max();
        let width = width.unwrap_or(0);
        writeln!(f, "{:width$}  {:12}  WAY", "TRAFFIC", "SELECTION")?;
        for row in &self.rows {
            let selection = row.selection.map_or("-", SelectionName::as_str);
            writeln!(f, "{:width$}  {selection:12}  {}", row.traffic, row.way)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::selection::{Connection, UdsPath};

    #[test]
    fn traffic_follows_its_selection_and_goes_direct_without_one() {
        let path = UdsPath::new("/run/a.sock").unwrap();
        let selector = EgressSelector::new([
            (SelectionName::Cluster, Connection::Grpc(path)),
            (SelectionName::Etcd, Connection::Direct),
        ]);
        let table = Explanation::of(&selector).to_string();
        let way = |traffic: &str| {
            let line = table
                .lines()
                .find(|line| line.starts_with(traffic))
                .unwrap();
            line.split("  ").last().unwrap().trim().to_owned()
        };
        assert_eq!(way("kubelets"), "GRPC to /run/a.sock");
        assert_eq!(
            way("webhooks and CRD conversion by service"),
            "GRPC to /run/a.sock"
        );
        assert_eq!(
            way("webhooks and CRD conversion by URL"),
            "direct, since the selection is absent"
        );
        assert_eq!(way("etcd"), "Direct");
        assert_eq!(way("--oidc"), "direct, always");
    }
}
