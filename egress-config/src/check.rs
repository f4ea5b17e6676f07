//! From the file as written to what makes sense, collecting every fault on the way.
//!
//! Follows the order of kube-apiserver's validator: a connection that breaks one rule is still looked at where upstream
//! looks, and no further.

use std::collections::HashMap;

use crate::certificates;
use crate::decode::quotable;
use crate::finding::{Finding, Rule};
use crate::load::Files;
use crate::position::Lines;
use crate::selection::{
    ApiVersion, ClientTls, Connection, EgressSelector, FilePath, HttpConnect, SelectionName,
    TcpProxy, UdsPath, UdsPathError,
};
use crate::url::{ProxyUrl, UrlError};
use crate::wire::{self, Field, Place, Selection};

/// What came of the selections of a file: a selector unless something makes it impossible to have one.
pub(crate) fn check(
    version: Option<ApiVersion>,
    selections: &Field<Vec<Selection>>,
    lines: &Lines<'_>,
    files: Files,
) -> (Option<EgressSelector>, Vec<Finding>) {
    let mut checker = Checker {
        files,
        lines,
        findings: Vec::new(),
    };
    if selections.is_wrong() {
        return (None, Vec::new());
    }
    let listed = selections.set().map(Vec::as_slice).unwrap_or_default();
    let connections: Vec<_> = listed
        .iter()
        .enumerate()
        .map(|(index, selection)| {
            let path = format!("egressSelections[{index}].connection");
            let connection = selection.connection.set()?;
            checker.connection(&path, selection.connection.at, connection)
        })
        .collect();
    let names = checker.names(listed);
    let wanted: Option<Vec<_>> = names
        .into_iter()
        .zip(connections)
        .map(|(name, connection)| name.zip(connection))
        .collect();
    if let Some(wanted) = &wanted {
        checker.overview(selections.at, listed, wanted);
    }
    let selector = version
        .zip(wanted)
        .map(|(version, selections)| EgressSelector::with_version(version, selections));
    (selector, checker.findings)
}

struct Checker<'a> {
    files: Files,
    lines: &'a Lines<'a>,
    findings: Vec<Finding>,
}

impl Checker<'_> {
    fn report(
        &mut self,
        rule: Rule,
        path: impl Into<String>,
        at: Place,
        problem: impl Into<String>,
    ) {
        self.findings.push(Finding {
            rule,
            path: path.into(),
            position: at.map(|at| self.lines.position(at)),
            problem: problem.into(),
        });
    }

    /// Names after connections, as upstream. `None` for each that is unknown or stands there already.
    fn names(&mut self, selections: &[Selection]) -> Vec<Option<SelectionName>> {
        let mut seen = HashMap::new();
        selections
            .iter()
            .enumerate()
            .map(|(index, selection)| {
                let path = format!("egressSelections[{index}].name");
                let at = selection.name.at;
                let written = selection.name.text()?;
                let name = if written == "master" {
                    self.report(
                        Rule::MasterAlias,
                        &path,
                        at,
                        "is \"master\", the name before Kubernetes 1.20; write controlplane",
                    );
                    "controlplane".to_owned()
                } else {
                    written.to_lowercase()
                };
                let first = *seen.entry(name.clone()).or_insert(index);
                if first != index {
                    self.report(
                        Rule::NameDuplicate,
                        &path,
                        at,
                        format!(
                            "{}, which egressSelections[{first}] has already; keep one of them",
                            quoted(written)
                        ),
                    );
                    return None;
                }
                let known = name.parse().ok();
                if known.is_none() {
                    self.report(
                        Rule::NameUnknown,
                        &path,
                        at,
                        format!("{}; write cluster, controlplane or etcd", quoted(written)),
                    );
                }
                known
            })
            .collect()
    }

    fn connection(
        &mut self,
        path: &str,
        at: Place,
        connection: &wire::Connection,
    ) -> Option<Connection> {
        let transport = &connection.transport;
        let transport_path = format!("{path}.transport");
        match connection.proxy_protocol.text()? {
            "Direct" => {
                if !transport.is_absent() {
                    self.report(
                        Rule::DirectWithTransport,
                        &transport_path,
                        transport.at,
                        "must be absent with Direct; remove it, even if it is empty",
                    );
                    return None;
                }
                Some(Connection::Direct)
            }
            "HTTPConnect" => {
                if transport.is_absent() {
                    self.report(
                        Rule::HttpConnectWithoutTransport,
                        &transport_path,
                        at,
                        "is missing; HTTPConnect needs tcp or uds in it",
                    );
                }
                self.http_connect(&transport_path, transport.at, transport.set()?)
                    .map(Connection::HttpConnect)
            }
            "GRPC" => {
                if transport.is_absent() {
                    self.report(
                        Rule::GrpcWithoutTransport,
                        &transport_path,
                        at,
                        "is missing; GRPC needs uds in it",
                    );
                }
                self.grpc(&transport_path, transport.at, transport.set()?)
                    .map(Connection::Grpc)
            }
            other => {
                self.report(
                    Rule::ProtocolUnknown,
                    format!("{path}.proxyProtocol"),
                    connection.proxy_protocol.at,
                    format!(
                        "{}; write Direct, HTTPConnect or GRPC, in this spelling",
                        quoted(other)
                    ),
                );
                None
            }
        }
    }

    fn http_connect(
        &mut self,
        path: &str,
        at: Place,
        transport: &wire::Transport,
    ) -> Option<HttpConnect> {
        let (tcp, uds) = (&transport.tcp, &transport.uds);
        match (tcp.is_absent(), uds.is_absent()) {
            (false, false) => {
                self.report(
                    Rule::TcpAndUds,
                    path,
                    at,
                    "has both tcp and uds; keep the one that the proxy-server listens on",
                );
                None
            }
            (true, true) => {
                self.report(
                    Rule::TcpNorUds,
                    path,
                    at,
                    "has neither tcp nor uds; add the one that the proxy-server listens on",
                );
                None
            }
            (false, true) => self
                .tcp(&format!("{path}.tcp"), tcp.set()?)
                .map(HttpConnect::Tcp),
            (true, false) => self
                .uds(&format!("{path}.uds"), uds.set()?)
                .map(HttpConnect::Uds),
        }
    }

    fn grpc(&mut self, path: &str, at: Place, transport: &wire::Transport) -> Option<UdsPath> {
        if transport.uds.is_absent() {
            self.report(
                Rule::GrpcWithoutUds,
                format!("{path}.uds"),
                at,
                "is missing; kube-apiserver speaks GRPC over a Unix socket alone, so add it, or use HTTPConnect for TCP",
            );
        }
        let uds = transport.uds.set()?;
        if !transport.tcp.is_absent() {
            self.report(
                Rule::GrpcTcpIgnored,
                format!("{path}.tcp"),
                transport.tcp.at,
                "is ignored with GRPC; remove it",
            );
        }
        let name = self.uds(&format!("{path}.uds"), uds)?;
        if !name.escapes_are_valid() {
            self.report(
                Rule::UdsNameEscape,
                format!("{path}.uds.udsName"),
                uds.uds_name.at,
                "has a % that is no escape of two hexadecimal digits; gRPC reads the path as a URI and every dial fails, so rename the socket",
            );
        }
        Some(name)
    }

    fn uds(&mut self, path: &str, uds: &wire::Uds) -> Option<UdsPath> {
        let path = format!("{path}.udsName");
        let at = uds.uds_name.at;
        match UdsPath::new(uds.uds_name.text()?) {
            Ok(name) => {
                if name.is_abstract() {
                    self.report(
                        Rule::PathDependent,
                        path,
                        at,
                        "is an abstract socket, which no file permissions protect from others in the network namespace; write a path",
                    );
                } else if name.is_relative() {
                    self.report(Rule::PathDependent, path, at, RELATIVE);
                }
                Some(name)
            }
            Err(error) => {
                let rule = match error {
                    UdsPathError::Empty => Rule::UdsNameEmpty,
                    _ => Rule::UdsNameUnusable,
                };
                self.report(rule, path, at, error.to_string());
                None
            }
        }
    }

    fn tcp(&mut self, path: &str, tcp: &wire::Tcp) -> Option<TcpProxy> {
        let (url_path, url_at) = (format!("{path}.url"), tcp.url.at);
        let (tls_path, tls_at) = (format!("{path}.tlsConfig"), tcp.tls_config.at);
        let text = tcp.url.text()?;
        if text.starts_with("http://") {
            self.report(
                Rule::PlainHttp,
                url_path,
                url_at,
                "begins with http://, on which kube-apiserver panics at start; write https:// with a tlsConfig, or use uds",
            );
            if !tcp.tls_config.is_absent() {
                self.report(
                    Rule::TlsWithHttp,
                    tls_path,
                    tls_at,
                    "must be absent with http://; keep it and write https://",
                );
            }
            return None;
        }
        let url = match ProxyUrl::parse(text) {
            Ok(parsed) => {
                if parsed.has_ignored_parts {
                    self.report(
                        Rule::UrlPartsIgnored,
                        url_path,
                        url_at,
                        format!(
                            "has parts that are ignored; write {}, which is all that counts",
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
                self.report(rule, url_path, url_at, error.to_string());
                // Without a scheme it is not known whether TLS was meant.
                if rule == Rule::UrlScheme {
                    return None;
                }
                None
            }
        };
        if tcp.tls_config.is_absent() {
            self.report(
                Rule::TlsMissing,
                tls_path.clone(),
                tls_at,
                "is missing; https:// needs clientCert and clientKey in it, and caBundle unless the system's roots will do",
            );
        }
        let tls = self.tls(&tls_path, tcp.tls_config.set()?);
        Some(TcpProxy {
            url: url?,
            tls: tls?,
        })
    }

    fn tls(&mut self, path: &str, tls: &wire::Tls) -> Option<ClientTls> {
        let ca_path = format!("{path}.caBundle");
        let ca_bundle = match tls.ca_bundle.text().map(FilePath::new) {
            None => None,
            Some(None) => Some(None),
            Some(Some(file)) => self
                .file(
                    ca_path.clone(),
                    tls.ca_bundle.at,
                    file,
                    Rule::CaBundleMissing,
                )
                .map(Some),
        };
        let client_cert = self.required_file(
            format!("{path}.clientCert"),
            &tls.client_cert,
            Rule::ClientCertEmpty,
            Rule::ClientCertMissing,
        );
        let client_key = self.required_file(
            format!("{path}.clientKey"),
            &tls.client_key,
            Rule::ClientKeyEmpty,
            Rule::ClientKeyMissing,
        );
        if !tls.tls_server_name.is_absent() {
            self.report(
                Rule::TlsServerNameVersion,
                format!("{path}.tlsServerName"),
                tls.tls_server_name.at,
                "needs kube-apiserver 1.36; from 1.32 an older one refuses the file, before that it ignores the field",
            );
        }
        if self.files == Files::MustExist {
            if let Some(Some(bundle)) = &ca_bundle {
                let found = certificates::ca_bundle(bundle);
                self.certificates(path, tls, found);
            }
            if let (Some(certificate), Some(key)) = (&client_cert, &client_key) {
                let found = certificates::client(certificate, key);
                self.certificates(path, tls, found);
            }
        }
        Some(ClientTls {
            ca_bundle: ca_bundle?,
            client_cert: client_cert?,
            client_key: client_key?,
            server_name: Some(tls.tls_server_name.text()?)
                .filter(|name| !name.is_empty())
                .map(str::to_owned),
        })
    }

    fn certificates(&mut self, path: &str, tls: &wire::Tls, faults: Vec<certificates::Fault>) {
        for fault in faults {
            let at = match fault.field {
                certificates::CA_BUNDLE => tls.ca_bundle.at,
                certificates::CLIENT_KEY => tls.client_key.at,
                _ => tls.client_cert.at,
            };
            self.report(
                fault.rule,
                format!("{path}.{}", fault.field),
                at,
                fault.problem,
            );
        }
    }

    fn required_file(
        &mut self,
        path: String,
        file: &Field<String>,
        empty: Rule,
        missing: Rule,
    ) -> Option<FilePath> {
        let Some(name) = FilePath::new(file.text()?) else {
            self.report(
                empty,
                path,
                file.at,
                "is missing; kube-apiserver always shows a certificate, so write the path of a PEM file",
            );
            return None;
        };
        self.file(path, file.at, name, missing)
    }

    fn file(&mut self, path: String, at: Place, file: FilePath, missing: Rule) -> Option<FilePath> {
        if file.as_path().is_relative() {
            self.report(Rule::PathDependent, path.clone(), at, RELATIVE);
        }
        // As upstream: what cannot be looked at does not exist.
        if self.files == Files::MustExist
            && let Err(error) = file.as_path().metadata()
        {
            let problem = format!(
                "names {}, which cannot be found ({error}); write the path as kube-apiserver sees it",
                quotable(&file.to_string())
            );
            self.report(missing, path, at, problem);
            return None;
        }
        Some(file)
    }

    /// What the set as a whole lacks.
    fn overview(
        &mut self,
        at: Place,
        listed: &[Selection],
        selections: &[(SelectionName, Connection)],
    ) {
        let lacks = |wanted| !selections.iter().any(|(name, _)| *name == wanted);
        if lacks(SelectionName::Cluster) {
            self.report(
                Rule::SelectionUnusual,
                "egressSelections",
                at,
                "has no cluster, so that kubelets, pods and services are dialled directly; add it unless that is meant",
            );
        }
        if lacks(SelectionName::ControlPlane) {
            self.report(
                Rule::ControlPlaneAbsent,
                "egressSelections",
                at,
                "has no controlplane, so that webhooks by URL are dialled directly; add it if they live behind the proxy",
            );
        }
        for (index, ((name, connection), written)) in selections.iter().zip(listed).enumerate() {
            if *name == SelectionName::Etcd && *connection != Connection::Direct {
                self.report(
                    Rule::SelectionUnusual,
                    format!("egressSelections[{index}].connection"),
                    written.connection.at,
                    "sends etcd through a proxy, without which kube-apiserver does not become ready; leave etcd out unless that is meant",
                );
            }
        }
    }
}

/// What the text of a field is.
fn quoted(text: &str) -> String {
    if text.is_empty() {
        "is missing or empty".to_owned()
    } else {
        format!("is \"{}\"", quotable(text))
    }
}

const RELATIVE: &str = "is a relative path, which depends on kube-apiserver's working directory; write an absolute one";
