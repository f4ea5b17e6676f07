//! A selector as kube-apiserver's file has it.

use serde::Serialize;

use crate::meta::KIND;
use crate::selection::{ClientTls, Connection, EgressSelector, HttpConnect, UdsPath};

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Configuration {
    api_version: String,
    kind: &'static str,
    egress_selections: Vec<Selection>,
}

#[derive(Debug, Serialize)]
struct Selection {
    name: String,
    connection: Written,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Written {
    proxy_protocol: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    transport: Option<Transport>,
}

/// Exactly one of them.
#[derive(Debug, Serialize)]
struct Transport {
    #[serde(skip_serializing_if = "Option::is_none")]
    tcp: Option<Tcp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    uds: Option<Uds>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Uds {
    uds_name: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Tcp {
    url: String,
    tls_config: Tls,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Tls {
    #[serde(skip_serializing_if = "Option::is_none")]
    ca_bundle: Option<String>,
    client_key: String,
    client_cert: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    tls_server_name: Option<String>,
}

impl Configuration {
    pub(crate) fn of(selector: &EgressSelector) -> Self {
        let selections = selector.iter().map(|(name, connection)| Selection {
            name: name.to_string(),
            connection: written(connection),
        });
        Self {
            api_version: selector.api_version().to_string(),
            kind: KIND,
            egress_selections: selections.collect(),
        }
    }
}

fn written(connection: &Connection) -> Written {
    let transport = match connection {
        Connection::Direct => None,
        Connection::Grpc(path) | Connection::HttpConnect(HttpConnect::Uds(path)) => Some(uds(path)),
        Connection::HttpConnect(HttpConnect::Tcp(proxy)) => Some(Transport {
            tcp: Some(Tcp {
                url: proxy.url.to_string(),
                tls_config: tls(&proxy.tls),
            }),
            uds: None,
        }),
    };
    Written {
        proxy_protocol: connection.protocol(),
        transport,
    }
}

fn uds(path: &UdsPath) -> Transport {
    Transport {
        tcp: None,
        uds: Some(Uds {
            uds_name: path.to_string(),
        }),
    }
}

fn tls(tls: &ClientTls) -> Tls {
    Tls {
        ca_bundle: tls.ca_bundle.as_ref().map(ToString::to_string),
        client_key: tls.client_key.to_string(),
        client_cert: tls.client_cert.to_string(),
        tls_server_name: tls.server_name.clone(),
    }
}
