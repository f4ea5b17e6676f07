//! `egress-config check` against real servers: it comes as far as kube-apiserver would, and says why not further.

use std::{path::Path, time::Duration};

use anyhow::{Context, Result, ensure};
use certs::{Authority, issue::Replace};
use e2e::{
    client::Frontend,
    harness::{Cluster, PATIENCE},
    targets::{Target, refusing},
};
use egress_config::{
    ClientTls, Connection, FilePath, HttpConnect, ProxyUrl, TcpProxy, UdsPath,
    probe::{Step, probe},
};

fn text(path: &Path) -> Result<&str> {
    path.to_str().context("a path that is no UTF-8")
}

fn file(path: &Path) -> Result<FilePath> {
    FilePath::new(text(path)?).context("no path")
}

/// What kube-apiserver's file would say of this cluster.
fn connection(cluster: &mut Cluster, frontend: Frontend) -> Result<Connection> {
    if let Some(socket) = cluster.server().socket() {
        let path = UdsPath::new(text(socket)?)?;
        return Ok(if frontend.is_grpc() {
            Connection::Grpc(path)
        } else {
            Connection::HttpConnect(HttpConnect::Uds(path))
        });
    }
    let address = cluster.server().address().context("no address")?;
    let pki = cluster.pki();
    Ok(Connection::HttpConnect(HttpConnect::Tcp(TcpProxy {
        url: ProxyUrl::parse(&format!("https://{address}"))?.url,
        tls: ClientTls {
            ca_bundle: Some(file(&pki.ca)?),
            client_cert: file(&pki.apiserver.certificate)?,
            client_key: file(&pki.apiserver.key)?,
            server_name: None,
        },
    })))
}

fn names(steps: &[Step]) -> Vec<&'static str> {
    steps.iter().map(|step| step.name).collect()
}

/// Why the last step failed; all before it succeeded.
fn failure(steps: &[Step]) -> Result<(&'static str, String)> {
    let (last, before) = steps.split_last().context("no step")?;
    ensure!(before.iter().all(|step| step.outcome.is_ok()), "{steps:?}");
    let reason = last.outcome.clone().err();
    Ok((last.name, reason.with_context(|| format!("{steps:?}"))?))
}

/// What kube-apiserver can be configured for, with the steps of each.
const FRONTENDS: [(Frontend, &[&str]); 3] = [
    (Frontend::GrpcUds, &["connect", "HTTP/2", "DIAL_REQ"]),
    (Frontend::HttpUds, &["connect", "CONNECT"]),
    (
        Frontend::HttpTls,
        &["certificates", "connect", "TLS", "CONNECT"],
    ),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_step_to_a_target_succeeds_and_a_refused_one_is_told() -> Result<()> {
    let target = Target::echo().await?;
    let refusing = refusing()?.to_string();
    for (frontend, expected) in FRONTENDS {
        let mut cluster = Cluster::with(frontend).await?;
        let connection = connection(&mut cluster, frontend)?;

        let steps = probe(&connection, Some(&target.name()), PATIENCE).await;
        assert_eq!(names(&steps), expected);
        assert!(steps.iter().all(|step| step.outcome.is_ok()), "{steps:?}");

        let steps = probe(&connection, None, PATIENCE).await;
        assert_eq!(names(&steps), expected[..expected.len() - 1]);
        assert!(steps.iter().all(|step| step.outcome.is_ok()), "{steps:?}");

        let steps = probe(&connection, Some(&refusing), PATIENCE).await;
        let (name, reason) = failure(&steps)?;
        assert_eq!(Some(&name), expected.last());
        assert!(reason.contains(&refusing), "{reason}");
    }
    assert!(target.accepted() >= FRONTENDS.len());
    Ok(())
}

#[tokio::test]
async fn without_an_agent_the_last_step_fails() -> Result<()> {
    for (frontend, expected) in FRONTENDS {
        let mut cluster = Cluster::builder()
            .frontend(frontend)
            .agents(0)
            .start()
            .await?;
        let connection = connection(&mut cluster, frontend)?;
        let steps = probe(&connection, Some("192.0.2.1:443"), PATIENCE).await;
        let (name, reason) = failure(&steps)?;
        assert_eq!(Some(&name), expected.last());
        assert!(reason.contains("192.0.2.1:443"), "{reason}");
    }
    Ok(())
}

#[tokio::test]
async fn a_wrong_authority_on_either_side_fails_the_handshake_or_what_follows() -> Result<()> {
    let mut cluster = Cluster::with(Frontend::HttpTls).await?;
    let right = connection(&mut cluster, Frontend::HttpTls)?;
    let Connection::HttpConnect(HttpConnect::Tcp(right)) = right else {
        anyhow::bail!("not TCP");
    };
    let folder = tempfile::tempdir()?;
    let other = Authority::generate("other")?;
    let ca = other.write(folder.path(), "ca", Replace::No)?.certificate;
    let client =
        other
            .issue_client("kube-apiserver")?
            .write(folder.path(), "client", Replace::No)?;

    let mut proxy = right.clone();
    proxy.tls.ca_bundle = Some(file(&ca)?);
    let wrong = Connection::HttpConnect(HttpConnect::Tcp(proxy));
    let steps = probe(&wrong, None, PATIENCE).await;
    let (name, reason) = failure(&steps)?;
    assert_eq!(name, "TLS");
    assert!(reason.contains("UnknownIssuer"), "{reason}");

    let mut proxy = right.clone();
    proxy.tls.server_name = Some("other.example".to_owned());
    let wrong = Connection::HttpConnect(HttpConnect::Tcp(proxy));
    let (name, reason) = failure(&probe(&wrong, None, PATIENCE).await)?;
    assert_eq!(name, "TLS");
    assert!(reason.contains("other.example"), "{reason}");

    // Under TLS 1.3 a server says what it thinks of our certificate behind the handshake.
    let mut proxy = right;
    proxy.tls.client_cert = file(&client.certificate)?;
    proxy.tls.client_key = file(&client.key)?;
    let wrong = Connection::HttpConnect(HttpConnect::Tcp(proxy));
    let steps = probe(&wrong, Some("192.0.2.1:443"), PATIENCE).await;
    let (name, _) = failure(&steps)?;
    assert_eq!(name, "CONNECT");
    Ok(())
}

#[tokio::test]
async fn a_missing_socket_and_a_silent_proxy_are_told_apart() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let socket = folder.path().join("socket");
    let path = UdsPath::new(text(&socket)?)?;
    let grpc = Connection::Grpc(path.clone());
    let (name, reason) = failure(&probe(&grpc, None, PATIENCE).await)?;
    assert_eq!(name, "connect");
    assert!(reason.contains("No such file"), "{reason}");

    // Accepts, in its backlog, and never says a word.
    let _silent = std::os::unix::net::UnixListener::bind(&socket)?;
    let short = Duration::from_millis(200);
    let (name, reason) = failure(&probe(&grpc, None, short).await)?;
    assert_eq!(name, "HTTP/2");
    assert!(reason.contains("nothing came within 200ms"), "{reason}");
    let connect = Connection::HttpConnect(HttpConnect::Uds(path));
    let (name, reason) = failure(&probe(&connect, Some("192.0.2.1:443"), short).await)?;
    assert_eq!(name, "CONNECT");
    assert!(reason.contains("nothing came within 200ms"), "{reason}");
    Ok(())
}
