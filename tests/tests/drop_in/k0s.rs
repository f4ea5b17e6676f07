//! D01 to D04: k0s, whose controller starts the server as a child process, from a map of flags.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use e2e::{
    client::{Frontend, Stream},
    exchange::{dial_and_echo, echo},
    harness::{PATIENCE, eventually, get},
    targets::Target,
};
use rustls::pki_types::ServerName;
use tokio::{net::TcpStream, task::JoinSet};
use tokio_rustls::TlsConnector;

use crate::{
    line::Line,
    site::{Running, Site},
};

const SERVER: &str = "
    --uds-name=/run/k0s/konnectivity-server/konnectivity-server.sock
    --cluster-cert=/var/lib/k0s/pki/server.crt
    --cluster-key=/var/lib/k0s/pki/server.key
    --kubeconfig=/var/lib/k0s/pki/konnectivity.conf
    --mode=grpc
    --server-port=0
    --agent-port=8132
    --admin-port=8133
    --health-bind-address=localhost
    --health-port=8092
    --graceful-shutdown-timeout=1ns
    --agent-namespace=kube-system
    --agent-service-account=konnectivity-agent
    --authentication-audience=system:konnectivity-server
    --logtostderr=true
    --stderrthreshold=1
    --v=1
    --enable-profiling=false
    --delete-existing-uds-file=true
    --server-count=1
    --server-id=4f9d5b8c0e6a41d2
    --proxy-strategies=destHost,defaultRoute,default
    --cipher-suites=TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256
";

const GRACE: &str = "--graceful-shutdown-timeout=1ns";

const AGENT: &str = "
    --logtostderr=true
    --ca-cert=/var/run/secrets/kubernetes.io/serviceaccount/ca.crt
    --proxy-server-host=<external address>
    --proxy-server-port=8132
    --service-account-token-path=/var/run/secrets/tokens/konnectivity-agent-token
    --agent-identifiers=host=$(NODE_IP)
    --agent-id=$(NODE_IP)
";

/// Starts from a map come in every order.
const ORDERS: usize = 20;

/// 10 a second for 60 seconds, without the pauses.
const HEALTH_CHECKS: usize = 600;
const CHECKS_AT_ONCE: usize = 10;

/// Connections that are open when a server is stopped.
const OPEN: usize = 50;

/// Tries at an end in time: the machine may be busy with something else for one of them.
const TRIES: usize = 3;

fn agent() -> Line {
    // The placeholder has a space in it, which a start line cannot have.
    Line::new(&AGENT.replace("<external address>", "127.0.0.1"))
}

pub(crate) async fn any_order_of_flags(site: Site) -> Result<String> {
    let site = site.fill("$(NODE_IP)", "127.0.0.1");
    let target = Target::echo().await?;
    for number in 0..ORDERS {
        let line = Line::new(SERVER).shuffled();
        let what = format!("order {number}: {line}");
        let mut server = site.server(line).await.with_context(|| what.clone())?;
        let health = get(server.health(), "/healthz").await?;
        ensure!(health.status == 200, "{what}: {health:?}");
        let ready = get(server.health(), "/readyz").await?;
        ensure!(ready.status == 500, "without an agent: {ready:?}");
        let _agent = site.agent(agent().shuffled(), server.agents()?).await?;
        server.ready().await.with_context(|| what.clone())?;
        // By destHost, as the agent's host is the target's.
        let client = site.client(&server, Frontend::GrpcUds)?;
        dial_and_echo(&client, &target.name(), 1_000)
            .await
            .with_context(|| what.clone())?;
    }
    Ok(format!(
        "{ORDERS} random orders start; healthy at once, ready with the first agent"
    ))
}

pub(crate) async fn health_checks_of_a_load_balancer(site: Site) -> Result<String> {
    let mut server = site.server(Line::new(SERVER)).await?;
    let before = server.process().open_files()?;
    let address = server.address("agent-port")?;
    // Without ALPN and without looking at what comes: HAProxy's `check check-ssl verify none`.
    let options = certs::TlsOptions::default();
    let config = certs::client_config(site.pki().roots(), None, &[], &options)?;
    let connector = TlsConnector::from(config);
    let mut checks = JoinSet::new();
    for number in 0..HEALTH_CHECKS {
        if checks.len() == CHECKS_AT_ONCE {
            checks.join_next().await.context("some run")???;
        }
        let connector = connector.clone();
        checks.spawn(async move {
            let stream = TcpStream::connect(address).await?;
            // Every fourth is of a balancer that looks for an open port only.
            if number % 4 != 0 {
                let name = ServerName::from(address.ip());
                drop(connector.connect(name, stream).await?);
            }
            Ok::<_, anyhow::Error>(())
        });
    }
    while let Some(check) = checks.join_next().await {
        check??;
    }
    eventually("every descriptor is closed", PATIENCE, async || {
        let now = server.process().open_files()?;
        ensure!(now <= before, "{now} are open, {before} before");
        Ok(())
    })
    .await?;
    let log = server.process().log();
    let loud: Vec<&str> = log.lines().filter(|line| is_loud(line)).collect();
    ensure!(loud.is_empty(), "at error level: {loud:#?}");
    Ok(format!(
        "{HEALTH_CHECKS} connects and TLS handshakes, dropped: no line at error level, no descriptor left"
    ))
}

/// A line of the level ERROR, in the log's text format.
fn is_loud(line: &str) -> bool {
    line.split_whitespace().nth(1) == Some("ERROR")
}

pub(crate) async fn stop_with_a_grace_of_a_nanosecond(site: Site) -> Result<String> {
    let took = stop(&site, Line::new(SERVER), Duration::from_secs(1)).await?;
    Ok(format!("{OPEN} connections open: exit 0 in {took:.0?}"))
}

pub(crate) async fn stop_without_a_grace(site: Site) -> Result<String> {
    let line = Line::new(&SERVER.replace(GRACE, ""));
    ensure!(line.value("graceful-shutdown-timeout").is_none());
    let took = stop(&site, line, Duration::from_secs(5)).await?;
    Ok(format!("{OPEN} connections open: exit 0 in {took:.0?}"))
}

/// Stops servers that are in use, until one was fast enough.
async fn stop(site: &Site, line: Line, within: Duration) -> Result<Duration> {
    let target = Target::echo().await?;
    let mut took = Duration::MAX;
    for _ in 0..TRIES {
        let (mut server, _agent, _streams) = in_use(site, line.clone(), &target).await?;
        took = took.min(server.stop().await?);
        if took < within {
            return Ok(took);
        }
    }
    anyhow::bail!("{took:?} in the best of {TRIES} tries")
}

async fn in_use(
    site: &Site,
    line: Line,
    target: &Target,
) -> Result<(Running, Running, Vec<Stream>)> {
    let server = site.server(line).await?;
    let line = agent().map(|_, value| Ok(value.replace("$(NODE_IP)", "127.0.0.1")))?;
    let mut agent = site.agent(line, server.agents()?).await?;
    agent.ready().await?;
    let client = Arc::new(site.client(&server, Frontend::GrpcUds)?);
    let mut streams = Vec::new();
    for _ in 0..OPEN {
        let mut stream = client.dial(&target.name()).await?;
        echo(&mut stream, 100).await?;
        streams.push(stream);
    }
    Ok((server, agent, streams))
}
