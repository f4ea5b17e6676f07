//! From a kubeconfig or a service account to something that sends requests.
//!
//! `kube` reads kubeconfigs and service accounts, runs credential plugins and makes TLS. Its finished stack is not used: it
//! retries by itself, writes every failure into the log as an error, and reads answers without a bound. Tokens are our
//! part: `kube` takes no token with a newline behind it, as most files have.
//!
//! Proxies of the environment are not used, as the Kubernetes API is next to us; a kubeconfig's `proxy-url` is refused.

use std::{
    fs::File,
    io::Read as _,
    path::PathBuf,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use http::{HeaderValue, Request, Response, header::AUTHORIZATION};
use hyper_util::{
    client::legacy::{Builder, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use kube::{
    Config,
    client::{Body, ClientBuilder, ConfigExt as _},
    config::{KubeConfigOptions, Kubeconfig},
};
use secrecy::ExposeSecret as _;
use tower::{BoxError, util::MapErr};

use crate::{
    error::{Cause, chain},
    options::ClientOptions,
};

/// A TCP connection has to be there within this time.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// A connection that nobody uses is closed after this time.
const IDLE_LIMIT: Duration = Duration::from_secs(60);

/// Idle connections that are kept.
const MAX_IDLE: usize = 8;

/// Largest token file that is read, in bytes.
const MAX_TOKEN: u64 = 64 * 1024;

/// Why there is no way to the API server, before anything was sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The kubeconfig cannot be used.
    #[error("--kubeconfig {}: {reason}", path.display())]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// We are in no Pod, or it has no service account.
    #[error("no --kubeconfig is given, and the Pod's own service account cannot be used: {reason}")]
    InCluster {
        /// What is missing.
        reason: String,
    },
    /// The thread or its runtime cannot be made.
    #[error("start the thread for the Kubernetes API")]
    Thread(#[source] std::io::Error),
}

/// A way to the API server with one state of our credentials.
pub(crate) struct Connection {
    client: kube::Client,
    bearer: Bearer,
}

enum Bearer {
    /// `kube` adds what there is: a plugin's token, basic auth, nothing beside a certificate.
    Others,
    Fixed(HeaderValue),
    File {
        path: PathBuf,
        /// If the file cannot be read, the last one may still be good (as client-go).
        last: Mutex<Option<HeaderValue>>,
    },
}

impl Connection {
    /// Reads everything anew. Call on the runtime that the connection is to live on; may run a plugin, so it can block.
    pub(crate) async fn load(options: &ClientOptions) -> Result<Self, ConfigError> {
        let config = match &options.kubeconfig {
            Some(path) => kubeconfig(path)
                .await
                .map_err(|reason| ConfigError::Kubeconfig {
                    path: path.clone(),
                    reason,
                })?,
            None => Config::incluster().map_err(|error| ConfigError::InCluster {
                reason: chain(&error),
            })?,
        };
        Self::new(config).map_err(|reason| match &options.kubeconfig {
            Some(path) => ConfigError::Kubeconfig {
                path: path.clone(),
                reason,
            },
            None => ConfigError::InCluster { reason },
        })
    }

    fn new(mut config: Config) -> Result<Self, String> {
        // What kube's own stack does as well; whoever was first has set the same.
        if rustls::crypto::CryptoProvider::get_default().is_none() {
            drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
        }
        let token_file = config.auth_info.token_file.take();
        let token = config.auth_info.token.take();
        let bearer = match (token_file, token) {
            // The file wins, as in client-go.
            (Some(path), _) => {
                let path = PathBuf::from(path);
                let first = read_token(&path).map_err(|reason| format!("token file: {reason}"))?;
                Bearer::File {
                    path,
                    last: Mutex::new(Some(first)),
                }
            }
            (None, Some(token)) => Bearer::Fixed(bearer(token.expose_secret())?),
            (None, None) => Bearer::Others,
        };
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT_LIMIT));
        tcp.set_keepalive(Some(Duration::from_secs(30)));
        let tls = config
            .rustls_https_connector_with_connector(tcp)
            .map_err(|error| chain(&error))?;
        let sender = Builder::new(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_LIMIT)
            .pool_max_idle_per_host(MAX_IDLE)
            .build(tls);
        // The layers have this type of error in common.
        let sender = MapErr::new(sender, BoxError::from);
        let builder = ClientBuilder::new(sender, config.default_namespace.clone()).with_layer(
            &config
                .extra_headers_layer()
                .map_err(|error| chain(&error))?,
        );
        let base = config.base_uri_layer();
        let client = match config.auth_layer().map_err(|error| chain(&error))? {
            Some(auth) => builder.with_layer(&auth).with_layer(&base).build(),
            None => builder.with_layer(&base).build(),
        };
        Ok(Self { client, bearer })
    }

    /// Sends a request whose target is the path alone. Cancel safe: a request that is dropped takes its connection with it.
    pub(crate) async fn send(&self, mut request: Request<Body>) -> Result<Response<Body>, Cause> {
        let token = match &self.bearer {
            Bearer::Others => None,
            Bearer::Fixed(token) => Some(token.clone()),
            Bearer::File { path, last } => {
                let read = read_token(path);
                let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
                match read {
                    Ok(token) => *last = Some(token),
                    Err(reason) => {
                        tracing::debug!(file = %path.display(), reason, "the last token serves on");
                    }
                }
                last.clone()
            }
        };
        if let Some(token) = token {
            request.headers_mut().insert(AUTHORIZATION, token);
        }
        self.client
            .send(request)
            .await
            .map_err(|error| match error {
                kube::Error::Auth(error) => Cause::Credentials(chain(&error)),
                error => Cause::Transport(without_labels(&error)),
            })
    }
}

/// Without the words that `kube` puts in front of everything.
fn without_labels(error: &kube::Error) -> String {
    match error {
        kube::Error::HyperError(error) => chain(error),
        kube::Error::Service(error) => chain(error.as_ref()),
        error => chain(error),
    }
}

async fn kubeconfig(path: &std::path::Path) -> Result<Config, String> {
    let file = Kubeconfig::read_from(path).map_err(|error| chain(&error))?;
    let has_proxy = |cluster: &kube::config::NamedCluster| {
        let url = cluster
            .cluster
            .as_ref()
            .and_then(|c| c.proxy_url.as_deref());
        url.is_some_and(|url| !url.is_empty())
    };
    if file.clusters.iter().any(has_proxy) {
        return Err("proxy-url is not supported".to_owned());
    }
    Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
        .await
        .map_err(|error| chain(&error))
}

fn read_token(path: &std::path::Path) -> Result<HeaderValue, String> {
    let mut text = String::new();
    File::open(path)
        .and_then(|file| file.take(MAX_TOKEN).read_to_string(&mut text))
        .map_err(|error| format!("{}: {error}", path.display()))?;
    bearer(&text).map_err(|reason| format!("{}: {reason}", path.display()))
}

fn bearer(token: &str) -> Result<HeaderValue, String> {
    let token = token.trim();
    if token.is_empty() {
        return Err("the token is empty".to_owned());
    }
    let mut value = HeaderValue::from_str(&format!("Bearer {token}"))
        .map_err(|_| "the token has characters that cannot be sent".to_owned())?;
    value.set_sensitive(true);
    Ok(value)
}
