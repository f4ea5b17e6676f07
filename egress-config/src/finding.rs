//! The rules a configuration is checked against, as data, and what breaking one says.

use std::fmt;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Works; could be said better.
    Note,
    /// Works, but perhaps not as meant.
    Warning,
    /// kube-apiserver refuses it, crashes, or fails at every dial.
    Error,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        })
    }
}

macro_rules! rules {
    ($($(#[$doc:meta])* $name:ident $id:literal $severity:ident,)*) => {
        /// A rule. Its id is its number in our reference of kube-apiserver's behaviour: `V…` are those kube-apiserver
        /// validates, `B…` stop it while it builds its dialers, `L…` are ours, for what it lets through.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Rule { $($(#[$doc])* $name,)* }

        impl Rule {
            /// All rules, in the order of their ids.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Stable id, for scripts and tests.
            #[must_use]
            pub fn id(self) -> &'static str {
                match self { $(Self::$name => $id,)* }
            }

            /// How bad breaking it is.
            #[must_use]
            pub fn severity(self) -> Severity {
                match self { $(Self::$name => Severity::$severity,)* }
            }
        }
    };
}

rules! {
    /// `proxyProtocol` is Direct, HTTPConnect or GRPC, in this spelling.
    ProtocolUnknown "V1" Error,
    /// Direct has no transport.
    DirectWithTransport "V2" Error,
    /// HTTPConnect has a transport.
    HttpConnectWithoutTransport "V3" Error,
    /// HTTPConnect has not both tcp and uds.
    TcpAndUds "V4" Error,
    /// HTTPConnect has tcp or uds.
    TcpNorUds "V5" Error,
    /// GRPC has a transport.
    GrpcWithoutTransport "V6" Error,
    /// GRPC has uds.
    GrpcWithoutUds "V7" Error,
    /// `udsName` is not empty.
    UdsNameEmpty "V8" Error,
    /// `url` begins with a scheme kube-apiserver knows.
    UrlScheme "V9" Error,
    /// Only https has a `tlsConfig`.
    TlsWithHttp "V10" Error,
    /// `name` is cluster, controlplane or etcd.
    NameUnknown "V11" Error,
    /// Each name stands once.
    NameDuplicate "V12" Error,
    /// https has a `tlsConfig`.
    TlsMissing "V13" Error,
    /// The CA bundle exists.
    CaBundleMissing "V14" Error,
    /// `clientCert` is not empty.
    ClientCertEmpty "V15" Error,
    /// The client certificate exists.
    ClientCertMissing "V16" Error,
    /// `clientKey` is not empty.
    ClientKeyEmpty "V17" Error,
    /// The client key exists.
    ClientKeyMissing "V18" Error,
    /// `url` is one that Go can parse.
    UrlMalformed "B4" Error,
    /// No plain http: kube-apiserver panics on it.
    PlainHttp "L1" Error,
    /// `url` has a host and a port that can be dialled.
    UrlHostPort "L2" Error,
    /// `udsName` can be connected to.
    UdsNameUnusable "L3" Error,
    /// With GRPC, every `%` in `udsName` is an escape.
    UdsNameEscape "L4" Error,
    /// One document in the file; kube-apiserver never looks at the others.
    SeveralDocuments "L5" Error,
    /// Paths depend on nothing, sockets are protected by file permissions.
    PathDependent "L6" Warning,
    /// GRPC ignores tcp.
    GrpcTcpIgnored "L7" Warning,
    /// Of `url` only host and port count.
    UrlPartsIgnored "L8" Warning,
    /// `cluster` is there; etcd is not behind a proxy.
    SelectionUnusual "L9" Warning,
    /// `tlsServerName` needs a recent kube-apiserver.
    TlsServerNameVersion "L11" Warning,
    /// `master` is the old name of controlplane.
    MasterAlias "L12" Note,
}

impl Rule {
    /// Whether kube-apiserver applies this rule itself when it validates the file.
    #[must_use]
    pub fn is_kube_apiservers(self) -> bool {
        self.id().starts_with('V')
    }
}

/// A rule broken at a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Which rule.
    pub rule: Rule,
    /// Path of the field, such as `egressSelections[0].connection.transport.uds.udsName`.
    pub path: String,
    /// What is wrong and what to write instead. Reads on from the path.
    pub problem: String,
}

impl Finding {
    /// How bad it is.
    #[must_use]
    pub fn severity(&self) -> Severity {
        self.rule.severity()
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {}: {} {}",
            self.severity(),
            self.rule.id(),
            self.path,
            self.problem
        )
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_rule_has_an_id_of_its_own_and_what_kube_apiserver_refuses_is_an_error() {
        let ids: HashSet<_> = Rule::ALL.iter().map(|rule| rule.id()).collect();
        assert_eq!(ids.len(), Rule::ALL.len());
        let theirs = Rule::ALL.iter().filter(|rule| rule.is_kube_apiservers());
        assert_eq!(theirs.clone().count(), 18);
        assert!(
            theirs
                .clone()
                .all(|rule| rule.severity() == Severity::Error)
        );
    }
}
