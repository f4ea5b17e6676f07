//! rustls configurations for every listener and dialler.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{self, Ticketer, cipher_suite};
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::sign::SingleCertAndKey;
use rustls::{
    ClientConfig, RootCertStore, ServerConfig, SupportedCipherSuite, SupportedProtocolVersion,
    version,
};

use crate::dates::Timestamp;
use crate::identity::Identity;
use crate::options::TlsOptions;
use crate::pem::{LoadError, Roots};

/// ALPN of agent listeners: gRPC only, and grpc-go insists on it (wire-protocol.md T2).
pub const ALPN_AGENT: &[&[u8]] = &[b"h2"];

/// ALPN of frontends: gRPC and HTTP CONNECT may share a listener. A client that offers none, as kube-apiserver's CONNECT
/// dialler does, is accepted and told apart by its first bytes.
pub const ALPN_FRONTEND: &[&[u8]] = &[b"h2", b"http/1.1"];

/// Why no configuration came out of options and files that each were fine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// No verifier for peers' certificates can be made from the roots.
    #[error("make a certificate verifier from the CA bundle")]
    Verifier(#[source] VerifierBuilderError),
    /// No certificate of the CA bundle is in date.
    #[error("use the CA bundle")]
    Roots(#[source] LoadError),
    /// rustls refused the combination.
    #[error("make a TLS configuration")]
    Tls(#[source] rustls::Error),
}

/// The configuration of a listener.
///
/// With `client_ca` a client must present a certificate that chains to it; without, none is asked for. `alpn` is in the
/// order of our preference; a client that offers none is accepted, one that offers only others is refused with the
/// alert `no_application_protocol`. Of suites the client's order decides, since it knows whether it has AES hardware.
///
/// Session tickets are on (12 hours, keys live as long as this configuration), so that a herd of agents that comes back
/// after a network fault is cheap. A resumed session does not verify the client's certificate again; replacing the
/// configuration, as a reload does, ends all tickets.
///
/// # Errors
///
/// [`ConfigError::Roots`] if no certificate of `client_ca` is in date; the others are not reachable with an [`Identity`] and
/// [`Roots`] that loaded, short of a lack of randomness.
pub fn server_config(
    identity: &Identity,
    client_ca: Option<&Roots>,
    alpn: &[&[u8]],
    options: &TlsOptions,
) -> Result<Arc<ServerConfig>, ConfigError> {
    server_config_at(identity, client_ca, alpn, options, Timestamp::now())
}

/// As [`server_config`], with the roots that are valid at `now`.
pub(crate) fn server_config_at(
    identity: &Identity,
    client_ca: Option<&Roots>,
    alpn: &[&[u8]],
    options: &TlsOptions,
    now: Timestamp,
) -> Result<Arc<ServerConfig>, ConfigError> {
    let provider = provider_with(options);
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&versions(&provider))
        .map_err(ConfigError::Tls)?;
    let builder = match client_ca {
        Some(roots) => builder.with_client_cert_verifier(
            WebPkiClientVerifier::builder_with_provider(store(roots, now)?, provider)
                .build()
                .map_err(ConfigError::Verifier)?,
        ),
        None => builder.with_no_client_auth(),
    };
    let mut config =
        builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(identity.certified())));
    config.ticketer = Ticketer::new().map_err(ConfigError::Tls)?;
    config.alpn_protocols = owned(alpn);
    Ok(Arc::new(config))
}

/// The configuration of a dialler.
///
/// The server's chain must end in `roots` and its subjectAltName must hold the name dialled; the common name is not
/// looked at. `identity` is presented if the server asks. A server that picks no protocol of `alpn` still completes the
/// handshake: a caller that needs one (an agent needs `h2`) must check what was agreed.
///
/// # Errors
///
/// [`ConfigError::Roots`] if no certificate of `roots` is in date; the others are not reachable with [`Roots`] and an
/// [`Identity`] that loaded.
pub fn client_config(
    roots: &Roots,
    identity: Option<&Identity>,
    alpn: &[&[u8]],
    options: &TlsOptions,
) -> Result<Arc<ClientConfig>, ConfigError> {
    client_config_at(roots, identity, alpn, options, Timestamp::now())
}

/// As [`client_config`], with the roots that are valid at `now`.
pub(crate) fn client_config_at(
    roots: &Roots,
    identity: Option<&Identity>,
    alpn: &[&[u8]],
    options: &TlsOptions,
    now: Timestamp,
) -> Result<Arc<ClientConfig>, ConfigError> {
    let provider = provider_with(options);
    let verifier =
        WebPkiServerVerifier::builder_with_provider(store(roots, now)?, Arc::clone(&provider))
            .build()
            .map_err(ConfigError::Verifier)?;
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&versions(&provider))
        .map_err(ConfigError::Tls)?
        .with_webpki_verifier(verifier);
    let mut config = match identity {
        Some(identity) => builder
            .with_client_cert_resolver(Arc::new(SingleCertAndKey::from(identity.certified()))),
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = owned(alpn);
    Ok(Arc::new(config))
}

fn store(roots: &Roots, now: Timestamp) -> Result<Arc<RootCertStore>, ConfigError> {
    roots.store_at(now).map_err(ConfigError::Roots)
}

/// aws-lc-rs with every suite we use, in our order.
pub(crate) fn provider() -> CryptoProvider {
    CryptoProvider {
        cipher_suites: SUITES.to_vec(),
        ..aws_lc_rs::default_provider()
    }
}

/// AES-128-GCM first: with AES in hardware it costs 10 to 20 % less than AES-256, ChaCha a multiple (performance.md 3.8).
static SUITES: &[SupportedCipherSuite] = &[
    cipher_suite::TLS13_AES_128_GCM_SHA256,
    cipher_suite::TLS13_AES_256_GCM_SHA384,
    cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
    cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
    cipher_suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
    cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
    cipher_suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
    cipher_suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
    cipher_suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
];

fn provider_with(options: &TlsOptions) -> Arc<CryptoProvider> {
    let mut provider = provider();
    provider.cipher_suites.retain(|suite| {
        suite.tls13().is_some()
            || (!options.min_version.is_tls13() && options.cipher_suites.allows_tls12(*suite))
    });
    Arc::new(provider)
}

/// TLS 1.2 is named only while a suite for it is left, so that its clients get the alert `protocol_version`.
fn versions(provider: &CryptoProvider) -> Vec<&'static SupportedProtocolVersion> {
    if provider
        .cipher_suites
        .iter()
        .any(|suite| suite.tls13().is_none())
    {
        vec![&version::TLS13, &version::TLS12]
    } else {
        vec![&version::TLS13]
    }
}

fn owned(alpn: &[&[u8]]) -> Vec<Vec<u8>> {
    alpn.iter().map(|protocol| protocol.to_vec()).collect()
}
