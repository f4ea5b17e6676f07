//! The file as written. Every field may be absent or `null`, which Go's decoder takes for the zero value; unknown and
//! duplicate keys are refused, as kube-apiserver does since 1.32.

use std::fmt;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// Kind and version alone, read first: a file of another kind should hear that, not that its fields are unknown.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TypeMeta {
    #[serde(default)]
    pub(crate) api_version: Option<Text>,
    #[serde(default)]
    pub(crate) kind: Option<Text>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Configuration {
    #[serde(default)]
    pub(crate) api_version: Option<Text>,
    #[serde(default)]
    pub(crate) kind: Option<Text>,
    #[serde(default)]
    pub(crate) egress_selections: Option<Vec<Option<Selection>>>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Selection {
    #[serde(default)]
    pub(crate) name: Option<Text>,
    #[serde(default)]
    pub(crate) connection: Option<Connection>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Connection {
    #[serde(default)]
    pub(crate) proxy_protocol: Option<Text>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) transport: Option<Transport>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Transport {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tcp: Option<Tcp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) uds: Option<Uds>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Tcp {
    #[serde(default)]
    pub(crate) url: Option<Text>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tls_config: Option<Tls>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Tls {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ca_bundle: Option<Text>,
    #[serde(default)]
    pub(crate) client_key: Option<Text>,
    #[serde(default)]
    pub(crate) client_cert: Option<Text>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tls_server_name: Option<Text>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Uds {
    #[serde(default)]
    pub(crate) uds_name: Option<Text>,
}

/// A string that was a string in the file. serde's own `String` would take `udsName: 5` too, which kube-apiserver refuses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub(crate) struct Text(pub(crate) String);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct StringOnly;

        impl Visitor<'_> for StringOnly {
            type Value = Text;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string (in quotes if it looks like something else)")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Text, E> {
                Ok(Text(text.to_owned()))
            }
        }

        deserializer.deserialize_any(StringOnly)
    }
}

/// Text of a field, empty if it is absent: Go's zero value.
pub(crate) fn text(field: Option<&Text>) -> &str {
    field.map_or("", |text| &text.0)
}
