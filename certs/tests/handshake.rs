//! Real handshakes over an in-memory pipe: who is let in, who is not, and what is agreed.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use certs::issue::{Authority, Issued, Leaf};
use certs::tls::{ALPN_AGENT, ALPN_FRONTEND};
use certs::{
    CipherSuites, Identity, MinVersion, Peer, Roots, TlsOptions, Validity, client_config,
    server_config,
};
use rustls::crypto::aws_lc_rs;
use rustls::{ClientConfig, HandshakeKind, ProtocolVersion, ServerConfig, version};
use rustls_pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

const SERVER: &str = "server.example";

struct World {
    authority: Authority,
    roots: Roots,
    server: Identity,
}

impl World {
    fn new() -> Self {
        Self::under("test CA")
    }

    fn under(authority: &str) -> Self {
        let authority = Authority::generate(authority).unwrap();
        Self {
            roots: authority.roots().unwrap(),
            server: authority
                .issue_server(&[SERVER, "127.0.0.1"])
                .unwrap()
                .identity()
                .unwrap(),
            authority,
        }
    }

    /// A listener that wants client certificates.
    fn mutual(&self, alpn: &[&[u8]]) -> Arc<ServerConfig> {
        server_config(
            &self.server,
            Some(&self.roots),
            alpn,
            &TlsOptions::default(),
        )
        .unwrap()
    }

    fn client(&self, issued: Option<&Issued>, alpn: &[&[u8]]) -> Arc<ClientConfig> {
        let identity = issued.map(|issued| issued.identity().unwrap());
        let options = TlsOptions::default();
        client_config(&self.roots, identity.as_ref(), alpn, &options).unwrap()
    }

    fn good_client(&self, alpn: &[&[u8]]) -> Arc<ClientConfig> {
        self.client(Some(&self.authority.issue_client("agent").unwrap()), alpn)
    }
}

type Ends = (
    io::Result<client::TlsStream<DuplexStream>>,
    io::Result<server::TlsStream<DuplexStream>>,
);

/// Handshakes and lets one byte go each way: with TLS 1.3 a client learns only then that it was refused.
async fn meet_as(name: &str, client: Arc<ClientConfig>, server: Arc<ServerConfig>) -> Ends {
    let (near, far) = tokio::io::duplex(64 * 1024);
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let client = async {
        let mut stream = TlsConnector::from(client).connect(name, near).await?;
        stream.write_all(b"?").await?;
        stream.read_u8().await?;
        Ok(stream)
    };
    let server = async {
        let mut stream = TlsAcceptor::from(server).accept(far).await?;
        stream.read_u8().await?;
        stream.write_all(b"!").await?;
        Ok(stream)
    };
    timeout(Duration::from_secs(30), async {
        tokio::join!(client, server)
    })
    .await
    .expect("a handshake between two ends of one process ends")
}

async fn meet(client: Arc<ClientConfig>, server: Arc<ServerConfig>) -> Ends {
    meet_as(SERVER, client, server).await
}

/// The rustls error by which an end gave up.
fn reason<T>(end: io::Result<T>) -> rustls::Error {
    let Err(error) = end else {
        panic!("the handshake was not refused")
    };
    *error
        .into_inner()
        .expect("rustls gives the reason")
        .downcast()
        .expect("of its own type")
}

#[tokio::test]
async fn a_client_of_our_authority_is_let_in_and_known_by_name() {
    let world = World::new();
    let (client, server) = meet(world.good_client(ALPN_AGENT), world.mutual(ALPN_AGENT)).await;
    let (_, client) = client.as_ref().unwrap().get_ref();
    let server = server.unwrap();
    let (_, server) = server.get_ref();
    assert_eq!(client.alpn_protocol(), Some(&b"h2"[..]));
    assert_eq!(server.protocol_version(), Some(ProtocolVersion::TLSv1_3));
    let peer = Peer::from_certificates(server.peer_certificates());
    assert_eq!(peer.unwrap().unwrap().to_string(), "agent");
    let peer = Peer::from_certificates(client.peer_certificates());
    assert_eq!(
        peer.unwrap().unwrap().to_string(),
        "server.example (server.example, 127.0.0.1)"
    );
}

#[tokio::test]
async fn a_server_is_known_by_its_address_too() {
    let world = World::new();
    let ends = meet_as("127.0.0.1", world.good_client(&[]), world.mutual(&[])).await;
    ends.0.unwrap();
    ends.1.unwrap();
}

#[tokio::test]
async fn a_server_dialled_by_a_name_it_does_not_have_is_refused() {
    let world = World::new();
    let ends = meet_as("other.example", world.good_client(&[]), world.mutual(&[])).await;
    let reason = reason(ends.0);
    assert!(
        matches!(
            reason,
            rustls::Error::InvalidCertificate(
                rustls::CertificateError::NotValidForNameContext { .. }
            )
        ),
        "{reason}"
    );
}

#[tokio::test]
async fn a_server_of_another_authority_is_refused() {
    let world = World::new();
    let other = World::under("another CA");
    let ends = meet(world.good_client(&[]), other.mutual(&[])).await;
    assert_eq!(
        reason(ends.0),
        rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer)
    );
}

#[tokio::test]
async fn a_client_without_certificate_is_refused_where_one_is_required() {
    let world = World::new();
    let (client, server) = meet(world.client(None, &[]), world.mutual(&[])).await;
    assert_eq!(reason(server), rustls::Error::NoCertificatesPresented);
    assert_eq!(
        reason(client),
        rustls::Error::AlertReceived(rustls::AlertDescription::CertificateRequired)
    );
}

#[tokio::test]
async fn a_client_without_certificate_is_let_in_where_none_is_asked_for() {
    let world = World::new();
    let config = server_config(&world.server, None, &[], &TlsOptions::default()).unwrap();
    let (_, server) = meet(world.client(None, &[]), config).await;
    let server = server.unwrap();
    assert!(server.get_ref().1.peer_certificates().is_none());
}

#[tokio::test]
async fn a_client_of_another_authority_is_refused() {
    let world = World::new();
    let other = Authority::generate("another CA").unwrap();
    let stranger = other.issue_client("agent").unwrap();
    let (_, server) = meet(world.client(Some(&stranger), &[]), world.mutual(&[])).await;
    assert_eq!(
        reason(server),
        rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer)
    );
}

#[tokio::test]
async fn clients_whose_certificate_is_over_or_to_come_are_refused() {
    let world = World::new();
    for validity in [Validity::over(), Validity::to_come()] {
        let leaf = Leaf::client("agent").valid(validity);
        let issued = world.authority.issue(&leaf).unwrap();
        let (_, server) = meet(world.client(Some(&issued), &[]), world.mutual(&[])).await;
        let reason = reason(server);
        assert!(
            matches!(
                reason,
                rustls::Error::InvalidCertificate(
                    rustls::CertificateError::ExpiredContext { .. }
                        | rustls::CertificateError::NotValidYetContext { .. }
                )
            ),
            "{reason}"
        );
    }
}

#[tokio::test]
async fn a_server_certificate_does_not_serve_as_a_clients() {
    let world = World::new();
    let server_leaf = world.authority.issue_server(&["agent.example"]).unwrap();
    let (_, server) = meet(world.client(Some(&server_leaf), &[]), world.mutual(&[])).await;
    let reason = reason(server);
    assert!(
        matches!(
            reason,
            rustls::Error::InvalidCertificate(
                rustls::CertificateError::InvalidPurposeContext { .. }
            )
        ),
        "{reason}"
    );
}

/// What was agreed, or `None` if the server refused for want of a common protocol.
async fn agreed(offer: &[&[u8]], listener: &[&[u8]]) -> Option<Option<Vec<u8>>> {
    let world = World::new();
    let (client, server) = meet(world.good_client(offer), world.mutual(listener)).await;
    match (client, server) {
        (Ok(client), Ok(_)) => Some(client.get_ref().1.alpn_protocol().map(<[u8]>::to_vec)),
        (client, server) => {
            assert_eq!(reason(server), rustls::Error::NoApplicationProtocol);
            assert_eq!(
                reason(client),
                rustls::Error::AlertReceived(rustls::AlertDescription::NoApplicationProtocol)
            );
            None
        }
    }
}

#[tokio::test]
async fn alpn_outcomes_are_those_of_upstreams_listeners() {
    let (h2, h1) = (b"h2".to_vec(), b"http/1.1".to_vec());
    // A custom name first, as --alpn-proto has it: the one the listener knows is picked.
    assert_eq!(
        agreed(&[b"foo", b"h2"], ALPN_AGENT).await,
        Some(Some(h2.clone()))
    );
    assert_eq!(agreed(&[b"http/1.1"], ALPN_AGENT).await, None);
    assert_eq!(agreed(&[], ALPN_AGENT).await, Some(None));
    assert_eq!(
        agreed(&[b"h2"], ALPN_FRONTEND).await,
        Some(Some(h2.clone()))
    );
    assert_eq!(agreed(&[b"http/1.1"], ALPN_FRONTEND).await, Some(Some(h1)));
    assert_eq!(
        agreed(&[b"http/1.1", b"h2"], ALPN_FRONTEND).await,
        Some(Some(h2))
    );
    assert_eq!(agreed(&[], ALPN_FRONTEND).await, Some(None));
    assert_eq!(agreed(&[b"spdy/3"], ALPN_FRONTEND).await, None);
}

/// A client that speaks TLS 1.2 alone, with the stock provider.
fn tls12_client(world: &World) -> Arc<ClientConfig> {
    let issued = world.authority.issue_client("agent").unwrap();
    let mut roots = rustls::RootCertStore::empty();
    let pem = world.authority.certificate_pem();
    let der = rustls_pki_types::pem::PemObject::from_pem_slice(pem.as_bytes()).unwrap();
    roots.add(der).unwrap();
    ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_protocol_versions(&[&version::TLS12])
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(issued.chain(), issued.key())
        .unwrap()
        .into()
}

fn with_options(world: &World, options: &TlsOptions) -> Arc<ServerConfig> {
    server_config(&world.server, Some(&world.roots), &[], options).unwrap()
}

#[tokio::test]
async fn a_client_of_tls_1_2_is_served_unless_1_3_is_the_minimum() {
    let world = World::new();
    let (_, server) = meet(tls12_client(&world), world.mutual(&[])).await;
    let server = server.unwrap();
    assert_eq!(
        server.get_ref().1.protocol_version(),
        Some(ProtocolVersion::TLSv1_2)
    );

    let options = TlsOptions {
        min_version: MinVersion::TLS13,
        ..TlsOptions::default()
    };
    let (client, _) = meet(tls12_client(&world), with_options(&world, &options)).await;
    assert_eq!(
        reason(client),
        rustls::Error::AlertReceived(rustls::AlertDescription::ProtocolVersion)
    );
}

#[tokio::test]
async fn a_suite_that_was_chosen_is_the_one_that_tls_1_2_uses() {
    let world = World::new();
    for name in [
        "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
    ] {
        let options = TlsOptions {
            cipher_suites: CipherSuites::parse(&[name]).unwrap(),
            ..TlsOptions::default()
        };
        let (_, server) = meet(tls12_client(&world), with_options(&world, &options)).await;
        let server = server.unwrap();
        let suite = server.get_ref().1.negotiated_cipher_suite().unwrap();
        assert_eq!(format!("{:?}", suite.suite()), name);
    }
}

#[tokio::test]
async fn cbc_suites_alone_leave_tls_1_3_as_with_go() {
    let world = World::new();
    let options = TlsOptions {
        cipher_suites: CipherSuites::parse(&["TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA"]).unwrap(),
        ..TlsOptions::default()
    };
    let (_, server) = meet(world.good_client(&[]), with_options(&world, &options)).await;
    server.unwrap();
    let (client, _) = meet(tls12_client(&world), with_options(&world, &options)).await;
    assert_eq!(
        reason(client),
        rustls::Error::AlertReceived(rustls::AlertDescription::ProtocolVersion)
    );
}

#[tokio::test]
async fn our_two_ends_agree_on_aes_128_gcm() {
    let world = World::new();
    let (_, server) = meet(world.good_client(&[]), world.mutual(&[])).await;
    let server = server.unwrap();
    let suite = server.get_ref().1.negotiated_cipher_suite().unwrap();
    assert_eq!(suite.suite(), rustls::CipherSuite::TLS13_AES_128_GCM_SHA256);
}

#[tokio::test]
async fn a_client_that_comes_back_resumes_its_session() {
    let world = World::new();
    let (client, listener) = (world.good_client(&[]), world.mutual(&[]));
    let kinds = [HandshakeKind::Full, HandshakeKind::Resumed];
    for kind in kinds {
        let (_, server) = meet(Arc::clone(&client), Arc::clone(&listener)).await;
        let server = server.unwrap();
        let connection = server.get_ref().1;
        assert_eq!(connection.handshake_kind(), Some(kind));
        assert!(connection.peer_certificates().is_some());
    }
}

#[tokio::test]
async fn a_new_configuration_does_not_resume_sessions_of_the_old_one() {
    let world = World::new();
    let client = world.good_client(&[]);
    for _ in 0..2 {
        let (_, server) = meet(Arc::clone(&client), world.mutual(&[])).await;
        let kind = server.unwrap().get_ref().1.handshake_kind();
        assert_eq!(kind, Some(HandshakeKind::Full));
    }
}

#[tokio::test]
async fn rsa_certificates_serve_too() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let identity = Identity::load(&dir.join("rsa.crt"), &dir.join("rsa.pkcs1.key")).unwrap();
    let roots = Roots::load(&dir.join("rsa.crt")).unwrap();
    let options = TlsOptions::default();
    let listener = server_config(&identity, None, &[], &options).unwrap();
    let dialler = client_config(&roots, None, &[], &options).unwrap();
    let (client, server) = meet_as("rsa.example", dialler, listener).await;
    client.unwrap();
    server.unwrap();
}
