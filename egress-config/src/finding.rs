//! The rules a configuration is checked against, as data, and what breaking one says.

use std::fmt;

use crate::position::Position;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Works; could be said better.
    Note,
    /// kube-apiserver takes the file, but what it then does is hardly meant.
    Warning,
    /// kube-apiserver refuses the file.
    Error,
}

impl Severity {
    /// Stable name, for scripts.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What kube-apiserver does when a rule is broken, in the order in which it would come to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    /// It cannot decode the file and ends.
    Decode,
    /// It finds the file invalid and ends.
    Validate,
    /// It takes the file, then ends or panics while it makes its dialers.
    Start,
    /// It starts, and every dial through the selection fails.
    Dial,
    /// It works, perhaps not as meant.
    Surprise,
    /// Nothing.
    Nothing,
}

impl Effect {
    /// How bad that is.
    #[must_use]
    pub fn severity(self) -> Severity {
        match self {
            Self::Decode | Self::Validate => Severity::Error,
            Self::Start | Self::Dial | Self::Surprise => Severity::Warning,
            Self::Nothing => Severity::Note,
        }
    }

    /// Whether nothing can be dialled.
    #[must_use]
    pub fn is_fatal(self) -> bool {
        self <= Self::Dial
    }

    /// Stable name, for scripts.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Decode => "decode",
            Self::Validate => "validate",
            Self::Start => "start",
            Self::Dial => "dial",
            Self::Surprise => "surprise",
            Self::Nothing => "nothing",
        }
    }
}

macro_rules! rules {
    ($($(#[$doc:meta])* $name:ident $id:literal $effect:ident,)*) => {
        /// A rule. Its id is its number in our reference of kube-apiserver's behaviour: `R…` decide whether it can decode
        /// the file, `V…` whether it finds it valid, `B…` stop it while it makes its dialers, `L…` are ours, for what it
        /// lets through.
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

            /// What kube-apiserver does when it is broken.
            #[must_use]
            pub fn effect(self) -> Effect {
                match self { $(Self::$name => Effect::$effect,)* }
            }
        }
    };
}

rules! {
    /// There is something in the file.
    Empty "R3" Decode,
    /// The file is a mapping.
    NotMapping "R4" Decode,
    /// The file is YAML, or JSON if it begins with a brace.
    Syntax "R5" Decode,
    /// `kind` is there.
    KindMissing "R6" Decode,
    /// `apiVersion` is there.
    ApiVersionMissing "R7" Decode,
    /// `apiVersion` has at most one slash.
    ApiVersionMalformed "R8" Decode,
    /// `kind` and `apiVersion` go together, in this spelling.
    KindUnknown "R9" Decode,
    /// `kind` is the one for egress.
    KindOther "R10" Decode,
    /// Only fields that exist.
    FieldUnknown "R11" Decode,
    /// Each field once.
    FieldDuplicate "R12" Decode,
    /// Text where text belongs, and so on.
    WrongType "R13" Decode,
    /// Not Kubernetes' binary encoding.
    Protobuf "R17" Decode,
    /// `proxyProtocol` is Direct, HTTPConnect or GRPC, in this spelling.
    ProtocolUnknown "V1" Validate,
    /// Direct has no transport.
    DirectWithTransport "V2" Validate,
    /// HTTPConnect has a transport.
    HttpConnectWithoutTransport "V3" Validate,
    /// HTTPConnect has not both tcp and uds.
    TcpAndUds "V4" Validate,
    /// HTTPConnect has tcp or uds.
    TcpNorUds "V5" Validate,
    /// GRPC has a transport.
    GrpcWithoutTransport "V6" Validate,
    /// GRPC has uds.
    GrpcWithoutUds "V7" Validate,
    /// `udsName` is not empty.
    UdsNameEmpty "V8" Validate,
    /// `url` begins with a scheme kube-apiserver knows.
    UrlScheme "V9" Validate,
    /// Only https has a `tlsConfig`.
    TlsWithHttp "V10" Validate,
    /// `name` is cluster, controlplane or etcd.
    NameUnknown "V11" Validate,
    /// Each name stands once.
    NameDuplicate "V12" Validate,
    /// https has a `tlsConfig`.
    TlsMissing "V13" Validate,
    /// The CA bundle exists.
    CaBundleMissing "V14" Validate,
    /// `clientCert` is not empty.
    ClientCertEmpty "V15" Validate,
    /// The client certificate exists.
    ClientCertMissing "V16" Validate,
    /// `clientKey` is not empty.
    ClientKeyEmpty "V17" Validate,
    /// The client key exists.
    ClientKeyMissing "V18" Validate,
    /// Client certificate and key can be read and belong together.
    KeyPairUnusable "B2" Start,
    /// The CA bundle can be read and holds a certificate.
    CaBundleUnusable "B3" Start,
    /// `url` is one that Go can parse.
    UrlMalformed "B4" Start,
    /// No plain http: kube-apiserver panics on it.
    PlainHttp "L1" Start,
    /// `url` has a host and a port that can be dialled.
    UrlHostPort "L2" Dial,
    /// `udsName` can be connected to.
    UdsNameUnusable "L3" Dial,
    /// With GRPC, every `%` in `udsName` is an escape.
    UdsNameEscape "L4" Dial,
    /// One document in the file; kube-apiserver never looks at the others.
    SeveralDocuments "L5" Surprise,
    /// Paths depend on nothing, sockets are protected by file permissions.
    PathDependent "L6" Surprise,
    /// GRPC ignores tcp.
    GrpcTcpIgnored "L7" Surprise,
    /// Of `url` only host and port count.
    UrlPartsIgnored "L8" Surprise,
    /// `cluster` is there; etcd is not behind a proxy.
    SelectionUnusual "L9" Surprise,
    /// Certificates are in date and for clients.
    CertificateUnfit "L10" Dial,
    /// `tlsServerName` needs a recent kube-apiserver.
    TlsServerNameVersion "L11" Surprise,
    /// `master` is the old name of controlplane.
    MasterAlias "L12" Nothing,
    /// Without `controlplane`, webhooks by URL are dialled directly.
    ControlPlaneAbsent "L13" Nothing,
}

impl Rule {
    /// How bad breaking it is.
    #[must_use]
    pub fn severity(self) -> Severity {
        self.effect().severity()
    }
}

/// A rule broken at a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Which rule.
    pub rule: Rule,
    /// Path of the field, such as `egressSelections[0].connection.transport.uds.udsName`; empty for the whole file.
    pub path: String,
    /// Where the field's key stands, or for a field that is missing the one it should stand under; `None` for what has
    /// no place, as an empty file.
    pub position: Option<Position>,
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
        write!(f, "{} {}", self.severity(), self.rule.id())?;
        if let Some(position) = self.position {
            write!(f, " at {position}")?;
        }
        let subject = if self.path.is_empty() {
            "the file"
        } else {
            &self.path
        };
        write!(f, ": {subject} {}", self.problem)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_rule_has_an_id_of_its_own_and_exactly_what_kube_apiserver_refuses_is_an_error() {
        let ids: HashSet<_> = Rule::ALL.iter().map(|rule| rule.id()).collect();
        assert_eq!(ids.len(), Rule::ALL.len());
        for rule in Rule::ALL {
            let theirs = rule.id().starts_with(['R', 'V']);
            assert_eq!(rule.severity() == Severity::Error, theirs, "{rule:?}");
        }
        let theirs = Rule::ALL.iter().filter(|rule| rule.id().starts_with('V'));
        assert_eq!(theirs.count(), 18);
    }
}
