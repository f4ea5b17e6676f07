//! D17: a hardened systemd unit, which names a suite of TLS 1.3 where Go knows only those of 1.2.

use anyhow::{Context, Result, ensure};
use e2e::{client::Frontend, exchange::dial_and_echo, targets::Target};
use rustls::{
    ClientConfig, ProtocolVersion, RootCertStore, SupportedProtocolVersion,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
    version::{TLS12, TLS13},
};
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::{
    line::Line,
    site::{Running, Site},
};

const SERVER: &str = "
    --log-file=/var/log/konnectivity-server.log
    --logtostderr=true
    --log-file-max-size=0
    --uds-name=/etc/kubernetes/konnectivity-server/konnectivity-server.socket
    --delete-existing-uds-file
    --cluster-cert=/etc/kubernetes/pki/kubernetes.pem
    --cluster-key=/etc/kubernetes/pki/kubernetes-key.pem
    --server-port=0
    --agent-port=8091
    --health-port=8092
    --admin-port=8093
    --keepalive-time=1h
    --mode=grpc
    --agent-namespace=kube-system
    --agent-service-account=konnectivity-agent
    --authentication-audience=system:konnectivity-server
    --kubeconfig=/etc/kubernetes/admin.conf
    --cipher-suites=TLS_AES_256_GCM_SHA384,TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384
    --proxy-strategies=destHost,default
    --server-count=3
    --enable-profiling=false
";

const AGENT: &str = "
    --logtostderr=true
    --ca-cert=/var/run/secrets/kubernetes.io/serviceaccount/ca.crt
    --proxy-server-host=127.0.0.1
    --proxy-server-port=8091
    --service-account-token-path=/var/run/secrets/tokens/konnectivity-agent-token
    --agent-identifiers=ipv4=127.0.0.1
";

pub(crate) async fn tls_1_3_among_the_suites(site: Site) -> Result<String> {
    let mut server = site.server(Line::new(SERVER)).await?;
    for (version, expected) in [
        (&TLS12, ProtocolVersion::TLSv1_2),
        (&TLS13, ProtocolVersion::TLSv1_3),
    ] {
        let (version, suite) = handshake(&site, &server, version).await?;
        ensure!(version == expected, "{version:?}");
        if version == ProtocolVersion::TLSv1_2 {
            ensure!(
                suite.ends_with("AES_256_GCM_SHA384"),
                "{suite} is not listed"
            );
        }
    }
    let mut agent = site.agent(Line::new(AGENT), server.agents()?).await?;
    server.ready().await?;
    agent.ready().await?;
    let target = Target::echo().await?;
    let client = site.client(&server, Frontend::GrpcUds)?;
    dial_and_echo(&client, &target.name(), 1_000).await?;
    Ok("starts; agents' port speaks TLS 1.2 with the listed suites, and 1.3".into())
}

/// Version and suite that the server's agent port agrees to.
async fn handshake(
    site: &Site,
    server: &Running,
    version: &'static SupportedProtocolVersion,
) -> Result<(ProtocolVersion, String)> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&site.pki().ca)?)?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[version])?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let address = server.address("agent-port")?;
    let stream = TcpStream::connect(address).await?;
    let connector = TlsConnector::from(Arc::new(config));
    let stream = connector
        .connect(ServerName::from(address.ip()), stream)
        .await
        .with_context(|| format!("{version:?}"))?;
    let (_, connection) = stream.get_ref();
    Ok((
        connection.protocol_version().context("no version")?,
        format!(
            "{:?}",
            connection
                .negotiated_cipher_suite()
                .context("no suite")?
                .suite()
        ),
    ))
}
