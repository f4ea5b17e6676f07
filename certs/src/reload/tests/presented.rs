//! What a listener shows after a reload.

use super::*;

#[test]
fn the_product_in_use_is_made_of_the_new_files() {
    let mut world = World::new();
    let issued = world.renewed();
    world.write_pair(&issued);
    world.expect_reload();
    assert_eq!(presented(&world.server.current()), issued.chain());
}

/// The chain that a listener shows to a client that trusts anything: read off a handshake in memory.
fn presented(server: &Arc<ServerConfig>) -> Vec<CertificateDer<'static>> {
    use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
    use rustls::pki_types::{ServerName, UnixTime};
    use rustls::{ClientConnection, DigitallySignedStruct, ServerConnection, SignatureScheme};
    use std::sync::Mutex;

    #[derive(Debug, Default)]
    struct Recorder(Mutex<Vec<CertificateDer<'static>>>);

    impl ServerCertVerifier for Recorder {
        fn verify_server_cert(
            &self,
            own: &CertificateDer<'_>,
            others: &[CertificateDer<'_>],
            _: &ServerName<'_>,
            _: &[u8],
            _: UnixTime,
        ) -> Result<ServerCertVerified, rustls::Error> {
            let all = std::iter::once(own).chain(others);
            *self.0.lock().unwrap() = all.map(|one| one.clone().into_owned()).collect();
            Ok(ServerCertVerified::assertion())
        }

        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            Ok(HandshakeSignatureValid::assertion())
        }

        fn verify_tls13_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            Ok(HandshakeSignatureValid::assertion())
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            vec![SignatureScheme::ECDSA_NISTP256_SHA256]
        }
    }

    let recorder = Arc::new(Recorder::default());
    let mut config = ClientConfig::builder_with_provider(Arc::new(crate::tls::provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::clone(&recorder) as Arc<dyn ServerCertVerifier>)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let name = ServerName::try_from(NAMES[0]).unwrap();
    let mut client = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut server = ServerConnection::new(Arc::clone(server)).unwrap();
    // The client shows no certificate and is refused in the end; by then it has seen the server's.
    for _ in 0..3 {
        let mut wire = Vec::new();
        client.write_tls(&mut wire).unwrap();
        server.read_tls(&mut wire.as_slice()).unwrap();
        let _refused = server.process_new_packets();
        let mut wire = Vec::new();
        server.write_tls(&mut wire).unwrap();
        client.read_tls(&mut wire.as_slice()).unwrap();
        let _refused = client.process_new_packets();
    }
    let seen = recorder.0.lock().unwrap();
    seen.clone()
}
