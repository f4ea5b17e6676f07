//! From the file as written to what makes sense, collecting every fault on the way.
//!
//! Follows the order of kube-apiserver's validator: a connection that breaks one rule is still looked at where upstream
//! looks, and no further.

use std::collections::HashMap;
use std::io;
use std::path::Path;

use crate::finding::{Finding, Rule};
use crate::load::Files;
use crate::selection::{
    ApiVersion, ClientTls, Connection, EgressSelector, FilePath, HttpConnect, SelectionName,
    TcpProxy, UdsPath, UdsPathError,
};
use crate::url::{ProxyUrl, UrlError};
use crate::wire::{self, text};

/// What came of a file: a selector unless some finding is an error.
pub(crate) fn check(
    version: ApiVersion,
    file: &wire::Configuration,
    files: Files,
) -> (Option<EgressSelector>, Vec<Finding>) {
    let mut checker = Checker {
        files,
        findings: Vec::new(),
    };
    let default = wire::Selection::default();
    let selections: Vec<_> = file
        .egress_selections
        .iter()
        .flatten()
        .map(|selection| selection.as_ref().unwrap_or(&default))
        .enumerate()
        .collect();
    let connections: Vec<_> = selections
        .iter()
        .map(|(index, selection)| {
            let path = format!("egressSelections[{index}].connection");
            let default = wire::Connection::default();
            checker.connection(&path, selection.connection.as_ref().unwrap_or(&default))
        })
        .collect();
    let names = checker.names(&selections);
    let wanted: Option<Vec<_>> = names
        .into_iter()
        .zip(connections)
        .map(|(name, connection)| name.zip(connection))
        .collect();
    checker.overview(wanted.as_deref());
    let selector = wanted.map(|selections| EgressSelector::with_version(version, selections));
    (selector, checker.findings)
}

struct Checker {
    files: Files,
    findings: Vec<Finding>,
}

impl Checker {
    fn report(&mut self, rule: Rule, path: impl Into<String>, problem: impl Into<String>) {
        self.findings.push(Finding {
            rule,
            path: path.into(),
            problem: problem.into(),
        });
    }

    /// Names after connections, as upstream. `None` for each that is unknown or stands there already.
    fn names(&mut self, selections: &[(usize, &wire::Selection)]) -> Vec<Option<SelectionName>> {
        let mut seen = HashMap::new();
        selections
            .iter()
            .map(|(index, selection)| {
                let path = format!("egressSelections[{index}].name");
                let written = text(selection.name.as_ref());
                let name = if written == "master" {
                    self.report(
                        Rule::MasterAlias,
                        &path,
                        "is \"master\", the name before Kubernetes 1.20; write controlplane",
                    );
                    "controlplane".to_owned()
                } else {
                    written.to_lowercase()
                };
                let first = *seen.entry(name.clone()).or_insert(*index);
                if first != *index {
                    self.report(
                        Rule::NameDuplicate,
                        &path,
                        format!("is \"{written}\", which egressSelections[{first}] has already; keep one of them"),
                    );
                    return None;
                }
                let known = name.parse().ok();
                if known.is_none() {
                    self.report(
                        Rule::NameUnknown,
                        &path,
                        format!("is \"{written}\"; write cluster, controlplane or etcd"),
                    );
                }
                known
            })
            .collect()
    }

    fn connection(&mut self, path: &str, connection: &wire::Connection) -> Option<Connection> {
        let transport = connection.transport.as_ref();
        let transport_path = format!("{path}.transport");
        match text(connection.proxy_protocol.as_ref()) {
            "Direct" => {
                if transport.is_some() {
                    self.report(
                        Rule::DirectWithTransport,
                        transport_path,
                        "must be absent with Direct; remove it, even if it is empty",
                    );
                    return None;
                }
                Some(Connection::Direct)
            }
            "HTTPConnect" => {
                let Some(transport) = transport else {
                    self.report(
                        Rule::HttpConnectWithoutTransport,
                        transport_path,
                        "is missing; HTTPConnect needs tcp or uds in it",
                    );
                    return None;
                };
                self.http_connect(&transport_path, transport)
                    .map(Connection::HttpConnect)
            }
            "GRPC" => {
                let Some(transport) = transport else {
                    self.report(
                        Rule::GrpcWithoutTransport,
                        transport_path,
                        "is missing; GRPC needs uds in it",
                    );
                    return None;
                };
                self.grpc(&transport_path, transport).map(Connection::Grpc)
            }
            other => {
                self.report(
                    Rule::ProtocolUnknown,
                    format!("{path}.proxyProtocol"),
                    format!("is \"{other}\"; write Direct, HTTPConnect or GRPC, in this spelling"),
                );
                None
            }
        }
    }

    fn http_connect(&mut self, path: &str, transport: &wire::Transport) -> Option<HttpConnect> {
        match (&transport.tcp, &transport.uds) {
            (Some(_), Some(_)) => {
                self.report(
                    Rule::TcpAndUds,
                    path,
                    "has both tcp and uds; keep the one that the proxy-server listens on",
                );
                None
            }
            (None, None) => {
                self.report(Rule::TcpNorUds, path, "has neither tcp nor uds; add one");
                None
            }
            (Some(tcp), None) => self.tcp(&format!("{path}.tcp"), tcp).map(HttpConnect::Tcp),
            (None, Some(uds)) => self.uds(&format!("{path}.uds"), uds).map(HttpConnect::Uds),
        }
    }

    fn grpc(&mut self, path: &str, transport: &wire::Transport) -> Option<UdsPath> {
        let Some(uds) = &transport.uds else {
            self.report(
                Rule::GrpcWithoutUds,
                format!("{path}.uds"),
                "is missing; kube-apiserver speaks GRPC over a Unix socket alone, so add it, or use HTTPConnect for TCP",
            );
            return None;
        };
        if transport.tcp.is_some() {
            self.report(
                Rule::GrpcTcpIgnored,
                format!("{path}.tcp"),
                "is ignored with GRPC; remove it",
            );
        }
        let name = self.uds(&format!("{path}.uds"), uds)?;
        if !name.escapes_are_valid() {
            self.report(
                Rule::UdsNameEscape,
                format!("{path}.uds.udsName"),
                "has a % that is no escape of two hexadecimal digits; gRPC reads the path as a URI, so rename the socket",
            );
            return None;
        }
        Some(name)
    }

    fn uds(&mut self, path: &str, uds: &wire::Uds) -> Option<UdsPath> {
        let path = format!("{path}.udsName");
        match UdsPath::new(text(uds.uds_name.as_ref())) {
            Ok(name) => {
                if name.is_abstract() {
                    self.report(
                        Rule::PathDependent,
                        path,
                        "is an abstract socket: no file permissions protect it, and everybody in the network namespace may use it",
                    );
                } else if name.is_relative() {
                    self.report(Rule::PathDependent, path, RELATIVE);
                }
                Some(name)
            }
            Err(error) => {
                let rule = match error {
                    UdsPathError::Empty => Rule::UdsNameEmpty,
                    _ => Rule::UdsNameUnusable,
                };
                self.report(rule, path, error.to_string());
                None
            }
        }
    }

    fn tcp(&mut self, path: &str, tcp: &wire::Tcp) -> Option<TcpProxy> {
        let url_path = format!("{path}.url");
        let tls_path = format!("{path}.tlsConfig");
        let text = text(tcp.url.as_ref());
        if text.starts_with("http://") {
            self.report(
                Rule::PlainHttp,
                url_path,
                "begins with http://, on which kube-apiserver panics at start; write https:// with a tlsConfig, or use uds",
            );
            if tcp.tls_config.is_some() {
                self.report(Rule::TlsWithHttp, tls_path, "must be absent with http://");
            }
            return None;
        }
        let url = match ProxyUrl::parse(text) {
            Ok(parsed) => {
                if parsed.has_ignored_parts {
                    self.report(
                        Rule::UrlPartsIgnored,
                        url_path,
                        format!(
                            "has parts that are ignored; {} is all that counts",
                            parsed.url
                        ),
                    );
                }
                Some(parsed.url)
            }
            Err(error) => {
                let rule = match error {
                    UrlError::Scheme => Rule::UrlScheme,
                    UrlError::Malformed { .. } => Rule::UrlMalformed,
                    _ => Rule::UrlHostPort,
                };
                self.report(rule, url_path, error.to_string());
                // Without a scheme it is not known whether TLS was meant.
                if rule == Rule::UrlScheme {
                    return None;
                }
                None
            }
        };
        let Some(tls) = &tcp.tls_config else {
            self.report(
                Rule::TlsMissing,
                tls_path,
                "is missing; https:// needs clientCert and clientKey in it, and caBundle unless the system's roots will do",
            );
            return None;
        };
        let tls = self.tls(&tls_path, tls);
        Some(TcpProxy {
            url: url?,
            tls: tls?,
        })
    }

    fn tls(&mut self, path: &str, tls: &wire::Tls) -> Option<ClientTls> {
        let ca_bundle = match FilePath::new(text(tls.ca_bundle.as_ref())) {
            None => Some(None),
            Some(file) => self
                .file(format!("{path}.caBundle"), file, Rule::CaBundleMissing)
                .map(Some),
        };
        let client_cert = self.required_file(
            format!("{path}.clientCert"),
            text(tls.client_cert.as_ref()),
            Rule::ClientCertEmpty,
            Rule::ClientCertMissing,
        );
        let client_key = self.required_file(
            format!("{path}.clientKey"),
            text(tls.client_key.as_ref()),
            Rule::ClientKeyEmpty,
            Rule::ClientKeyMissing,
        );
        if tls.tls_server_name.is_some() {
            self.report(
                Rule::TlsServerNameVersion,
                format!("{path}.tlsServerName"),
                "needs kube-apiserver 1.36; from 1.32 an older one refuses the file, before that it ignores the field",
            );
        }
        Some(ClientTls {
            ca_bundle: ca_bundle?,
            client_cert: client_cert?,
            client_key: client_key?,
            server_name: Some(text(tls.tls_server_name.as_ref()))
                .filter(|name| !name.is_empty())
                .map(str::to_owned),
        })
    }

    fn required_file(
        &mut self,
        path: String,
        file: &str,
        empty: Rule,
        missing: Rule,
    ) -> Option<FilePath> {
        let Some(file) = FilePath::new(file) else {
            self.report(
                empty,
                path,
                "is missing; kube-apiserver always shows a certificate",
            );
            return None;
        };
        self.file(path, file, missing)
    }

    fn file(&mut self, path: String, file: FilePath, missing: Rule) -> Option<FilePath> {
        if file.as_path().is_relative() {
            self.report(Rule::PathDependent, path.clone(), RELATIVE);
        }
        if self.files == Files::MustExist && is_missing(file.as_path()) {
            self.report(missing, path, format!("names {file}, which does not exist"));
            return None;
        }
        Some(file)
    }

    /// What the set as a whole lacks. `None` where some selection is faulty: then it is not known.
    fn overview(&mut self, selections: Option<&[(SelectionName, Connection)]>) {
        let Some(selections) = selections else { return };
        if !selections
            .iter()
            .any(|(name, _)| *name == SelectionName::Cluster)
        {
            self.report(
                Rule::SelectionUnusual,
                "egressSelections",
                "has no cluster; kubelets, pods and services are then dialled directly",
            );
        }
        for (index, (name, connection)) in selections.iter().enumerate() {
            if *name == SelectionName::Etcd && *connection != Connection::Direct {
                self.report(
                    Rule::SelectionUnusual,
                    format!("egressSelections[{index}].connection"),
                    "sends etcd through a proxy; without that proxy kube-apiserver does not become ready",
                );
            }
        }
    }
}

const RELATIVE: &str = "is a relative path, which depends on kube-apiserver's working directory; write an absolute one";

/// As upstream: only "there is no such file" counts, not "I may not look".
fn is_missing(file: &Path) -> bool {
    file.metadata()
        .is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}
