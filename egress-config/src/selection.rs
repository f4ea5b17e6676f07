//! What the program sees: only configurations that kube-apiserver can work with.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::str::FromStr;

use crate::url::ProxyUrl;

/// Longest path of a Unix socket in bytes: `sun_path` has 108, one is the NUL behind it. Abstract names need no NUL.
pub const MAX_UDS_BYTES: usize = 107;

/// A whole configuration: for each kind of traffic at most one way out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EgressSelector {
    api_version: ApiVersion,
    selections: BTreeMap<SelectionName, Connection>,
}

impl EgressSelector {
    /// A configuration in the current version, `v1beta1`. For a name given twice the last connection counts.
    pub fn new(selections: impl IntoIterator<Item = (SelectionName, Connection)>) -> Self {
        Self::with_version(ApiVersion::V1Beta1, selections)
    }

    pub(crate) fn with_version(
        api_version: ApiVersion,
        selections: impl IntoIterator<Item = (SelectionName, Connection)>,
    ) -> Self {
        Self {
            api_version,
            selections: selections.into_iter().collect(),
        }
    }

    /// The version the file states.
    #[must_use]
    pub fn api_version(&self) -> ApiVersion {
        self.api_version
    }

    /// How traffic of this kind leaves; `None` means that nothing is said and it goes direct.
    #[must_use]
    pub fn connection(&self, name: SelectionName) -> Option<&Connection> {
        self.selections.get(&name)
    }

    /// All selections, in the order cluster, controlplane, etcd.
    pub fn iter(&self) -> impl Iterator<Item = (SelectionName, &Connection)> {
        self.selections
            .iter()
            .map(|(&name, connection)| (name, connection))
    }
}

/// Versions of the API that kube-apiserver accepts. Their fields are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApiVersion {
    /// `apiserver.k8s.io/v1beta1`, the one to use.
    V1Beta1,
    /// `apiserver.k8s.io/v1alpha1`.
    V1Alpha1,
}

impl fmt::Display for ApiVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V1Beta1 => "apiserver.k8s.io/v1beta1",
            Self::V1Alpha1 => "apiserver.k8s.io/v1alpha1",
        })
    }
}

/// A kind of traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SelectionName {
    /// To kubelets, pods, services, webhooks by service, aggregated API servers.
    Cluster,
    /// To webhooks by URL, audit and authentication services, trace collectors. Formerly `master`.
    ControlPlane,
    /// To etcd.
    Etcd,
}

impl SelectionName {
    /// All there are.
    pub const ALL: [Self; 3] = [Self::Cluster, Self::ControlPlane, Self::Etcd];

    /// As the file writes it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cluster => "cluster",
            Self::ControlPlane => "controlplane",
            Self::Etcd => "etcd",
        }
    }
}

impl fmt::Display for SelectionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A name other than cluster, controlplane and etcd.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not one of cluster, controlplane, etcd")]
pub struct UnknownSelection;

impl FromStr for SelectionName {
    type Err = UnknownSelection;

    /// In any letter case, as kube-apiserver. `master` is for the caller, who knows whether the old name is welcome.
    fn from_str(name: &str) -> Result<Self, UnknownSelection> {
        Self::ALL
            .into_iter()
            .find(|known| known.as_str().eq_ignore_ascii_case(name))
            .ok_or(UnknownSelection)
    }
}

/// How one kind of traffic leaves kube-apiserver. gRPC exists over a Unix socket alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Connection {
    /// Without proxy.
    Direct,
    /// By HTTP CONNECT.
    HttpConnect(HttpConnect),
    /// By `ProxyService/Proxy` of the proxy-server behind this socket.
    Grpc(UdsPath),
}

impl Connection {
    /// Its `proxyProtocol`.
    #[must_use]
    pub fn protocol(&self) -> &'static str {
        match self {
            Self::Direct => "Direct",
            Self::HttpConnect(_) => "HTTPConnect",
            Self::Grpc(_) => "GRPC",
        }
    }
}

/// "HTTPConnect to https://proxy:8090", "GRPC to /run/proxy.sock", "Direct".
impl fmt::Display for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.protocol())?;
        match self {
            Self::Direct => Ok(()),
            Self::Grpc(path) | Self::HttpConnect(HttpConnect::Uds(path)) => write!(f, " to {path}"),
            Self::HttpConnect(HttpConnect::Tcp(proxy)) => write!(f, " to {}", proxy.url),
        }
    }
}

/// Where an HTTP CONNECT proxy listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HttpConnect {
    /// On a Unix socket, without TLS.
    Uds(UdsPath),
    /// On TCP, always with mutual TLS: kube-apiserver crashes at start on a plain one.
    Tcp(TcpProxy),
}

/// A proxy on TCP with the files that mutual TLS needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpProxy {
    /// Host and port.
    pub url: ProxyUrl,
    /// Certificates.
    pub tls: ClientTls,
}

/// Files of mutual TLS, as paths on kube-apiserver's machine. Relative ones are against its working directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientTls {
    /// Roots for the proxy's certificate; `None` means the system's.
    pub ca_bundle: Option<FilePath>,
    /// kube-apiserver's own certificate chain.
    pub client_cert: FilePath,
    /// Its key.
    pub client_key: FilePath,
    /// Name to expect in the proxy's certificate instead of the URL's host. Needs kube-apiserver 1.36.
    pub server_name: Option<String>,
}

/// Path of a file on kube-apiserver's machine, as text since that is what the configuration can hold. Never empty.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FilePath(String);

impl FilePath {
    /// A path, `None` for the empty one.
    #[must_use]
    pub fn new(path: impl Into<String>) -> Option<Self> {
        Some(path.into()).filter(|path| !path.is_empty()).map(Self)
    }

    /// As the file system takes it.
    #[must_use]
    pub fn as_path(&self) -> &Path {
        Path::new(&self.0)
    }
}

impl fmt::Display for FilePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A Unix socket's path that can be connected to: not empty, at most [`MAX_UDS_BYTES`], no scheme, no slash at its end.
/// A leading `@` stands for an abstract name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct UdsPath(String);

/// Why a `udsName` can never be connected to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UdsPathError {
    /// The empty string.
    #[error("is empty; write the path of the proxy-server's socket, its --uds-name")]
    Empty,
    /// `unix://…`, which other programs use and this one takes for a folder named `unix:`.
    #[error("begins with unix:; write the bare path, without scheme")]
    Scheme,
    /// A folder, as it looks.
    #[error("ends with a slash; write the path of the socket itself, not of its folder")]
    TrailingSlash,
    /// A NUL character.
    #[error("holds a NUL character; remove it")]
    Nul,
    /// Longer than the system takes.
    #[error(
        "is {bytes} bytes long, but a socket path has at most {max}; move the socket to a shorter path"
    )]
    TooLong {
        /// Its length in bytes.
        bytes: usize,
        /// The limit.
        max: usize,
    },
}

impl UdsPath {
    /// Checks a path, without looking at the file system.
    ///
    /// # Errors
    ///
    /// [`UdsPathError`], each of which makes every dial fail.
    pub fn new(path: impl Into<String>) -> Result<Self, UdsPathError> {
        let path = path.into();
        let max = MAX_UDS_BYTES + usize::from(path.starts_with('@'));
        if path.is_empty() {
            Err(UdsPathError::Empty)
        } else if path.starts_with("unix:") {
            Err(UdsPathError::Scheme)
        } else if path.contains('\0') {
            Err(UdsPathError::Nul)
        } else if path.ends_with('/') {
            Err(UdsPathError::TrailingSlash)
        } else if path.len() > max {
            Err(UdsPathError::TooLong {
                bytes: path.len(),
                max,
            })
        } else {
            Ok(Self(path))
        }
    }

    /// The path as written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it is a name in the abstract namespace, which no file permissions protect.
    #[must_use]
    pub fn is_abstract(&self) -> bool {
        self.0.starts_with('@')
    }

    /// Whether it depends on kube-apiserver's working directory.
    #[must_use]
    pub fn is_relative(&self) -> bool {
        !self.is_abstract() && !self.0.starts_with('/')
    }

    /// Whether every `%` begins an escape of two hexadecimal digits. gRPC reads the path as a URI and fails each dial
    /// otherwise; HTTP CONNECT does not mind.
    #[must_use]
    pub fn escapes_are_valid(&self) -> bool {
        self.0.split('%').skip(1).all(|rest| {
            let mut digits = rest.bytes();
            let mut hex = || digits.next().is_some_and(|byte| byte.is_ascii_hexdigit());
            hex() && hex()
        })
    }
}

impl fmt::Display for UdsPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_path_of_107_bytes_is_taken_and_of_108_refused() {
        let longest = format!("/{}", "a".repeat(106));
        UdsPath::new(longest.clone()).unwrap();
        assert_eq!(
            UdsPath::new(longest.clone() + "a"),
            Err(UdsPathError::TooLong {
                bytes: 108,
                max: 107
            })
        );
        UdsPath::new(longest.replacen('/', "@", 1) + "a").unwrap();
    }

    #[test]
    fn escapes_need_two_hexadecimal_digits() {
        for (path, valid) in [
            ("/run/a", true),
            ("/run/%2Fa%20", true),
            ("/run/100%", false),
            ("/run/%g0", false),
            ("/run/%2", false),
            ("/run/%é", false),
        ] {
            assert_eq!(
                UdsPath::new(path).unwrap().escapes_are_valid(),
                valid,
                "{path}"
            );
        }
    }

    #[test]
    fn names_are_read_in_any_letter_case() {
        assert_eq!("Cluster".parse(), Ok(SelectionName::Cluster));
        assert_eq!("CONTROLPLANE".parse(), Ok(SelectionName::ControlPlane));
        assert_eq!("master".parse::<SelectionName>(), Err(UnknownSelection));
    }
}
