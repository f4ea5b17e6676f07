//! D05 to D08: HyperShift, HTTP CONNECT over mutual TLS, with words of flags in both forms.

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use e2e::{
    client::{Client, Endpoint, Frontend},
    exchange::{dial_and_echo, echo},
    harness::{PATIENCE, eventually, get, metric},
    targets::Target,
};

use crate::{
    line::Line,
    router::Router,
    site::{Running, Site},
};

pub(crate) const SERVER: &str = "
    --logtostderr=true
    --log-file-max-size=0
    --cluster-cert /etc/konnectivity/cluster/tls.crt
    --cluster-key /etc/konnectivity/cluster/tls.key
    --cluster-ca-cert /etc/konnectivity/ca/ca.crt
    --server-cert /etc/konnectivity/server/tls.crt
    --server-key /etc/konnectivity/server/tls.key
    --server-ca-cert /etc/konnectivity/ca/ca.crt
    --server-port 8090
    --agent-port 8091
    --health-port 2041
    --admin-port=8093
    --mode=http-connect
    --proxy-strategies=destHost,defaultRoute
    --keepalive-time 30s
    --frontend-keepalive-time 30s
    --server-count 1
    --tls-min-version=VersionTLS12
    --cipher-suites=TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256
";

const CONTROL_PLANE_AGENT: &str = "
    --logtostderr=true
    --ca-cert /etc/konnectivity/ca/ca.crt
    --agent-cert /etc/konnectivity/agent/tls.crt
    --agent-key /etc/konnectivity/agent/tls.key
    --proxy-server-host <konnectivity-server>
    --proxy-server-port 8091
    --health-server-port 2041
    --agent-identifiers ipv4=<service-ip-1>&ipv4=<service-ip-2>&ipv4=<service-ip-3>
    --keepalive-time 30s
    --probe-interval 5s
    --sync-interval 5s
    --sync-interval-cap 30s
    --v 3
";

pub(crate) const DATA_PLANE_AGENT: &str = "
    --logtostderr=true
    --ca-cert /etc/konnectivity/ca/ca.crt
    --agent-cert /etc/konnectivity/agent/tls.crt
    --agent-key /etc/konnectivity/agent/tls.key
    --proxy-server-host <konnectivity-server>
    --proxy-server-port 443
    --health-server-host 127.0.0.1
    --health-server-port 2041
    --agent-identifiers=default-route=true
    --keepalive-time 30s
    --probe-interval 5s
    --sync-interval 5s
    --sync-interval-cap 30s
    --v 3
    --sync-forever
";

/// The service addresses of the control plane's agent.
const LISTED: [&str; 3] = ["127.0.0.2", "127.0.0.3", "127.0.0.4"];

const DIALS: usize = 10;

/// Dials that an agent has connected, ever.
const DIALLED: &str = "konnectivity_network_proxy_agent_dial_duration_seconds_count";

fn fill(site: Site) -> Site {
    // The Service's name; what stands for it must resolve here, and be a name and no address.
    let mut site = site.fill("<konnectivity-server>", "localhost");
    for (number, address) in LISTED.into_iter().enumerate() {
        site = site.fill(&format!("<service-ip-{}>", number + 1), address);
    }
    site
}

pub(crate) async fn mutual_tls_on_both_sides(site: Site) -> Result<String> {
    let site = fill(site);
    let target = Target::echo().await?;
    let server = site.server(Line::new(SERVER)).await?;
    let mut agent = site
        .agent(Line::new(DATA_PLANE_AGENT), server.agents()?)
        .await?;
    agent.ready().await?;
    let client = site.client(&server, Frontend::HttpTls)?;
    dial_and_echo(&client, &target.name(), 100_000).await?;
    // Without an agent for the first strategy the server is not ready, as upstream's is not: these manifests ask `healthz` alone.
    let ready = get(server.health(), "/readyz").await?;
    let healthy = get(server.health(), "/healthz").await?;
    ensure!(ready.status == 500 && healthy.status == 200, "{ready:?}");

    let address = server.address("server-port")?;
    let roots = site.pki().roots();
    let stranger = Client::new(
        Frontend::HttpTls,
        Endpoint::tls(address, roots, None, Frontend::HttpTls)?,
    );
    let refused = stranger.dial(&target.name()).await;
    let refused = refused.err().context("served without a certificate")?;
    let told = format!("{:#}", anyhow::Error::from(refused)).to_lowercase();
    ensure!(told.contains("certificate"), "{told}");
    ensure!(target.accepted() == 1, "the stranger reached the target");
    Ok("starts; CONNECT with a client certificate 200, without one refused by TLS".into())
}

pub(crate) async fn two_kinds_of_agents(site: Site) -> Result<String> {
    let site = fill(site);
    let mut server = site.server(Line::new(SERVER)).await?;
    let agents = server.agents()?;
    let mut listed = site.agent(Line::new(CONTROL_PLANE_AGENT), agents).await?;
    let mut rest = site.agent(Line::new(DATA_PLANE_AGENT), agents).await?;
    server.ready().await?;
    listed.ready().await?;
    rest.ready().await?;
    let client = site.client(&server, Frontend::HttpTls)?;

    let mut services = Vec::new();
    for address in LISTED {
        services.push(Target::echo_on(address).await?);
    }
    let node = Target::echo_on("127.0.0.1").await?;
    for _ in 0..DIALS {
        for service in &services {
            dial_and_echo(&client, &service.name(), 1_000).await?;
        }
        dial_and_echo(&client, &node.name(), 1_000).await?;
    }
    let through = dialled(&listed).await?;
    ensure!(
        through == DIALS * LISTED.len(),
        "{through} through the first"
    );
    let through = dialled(&rest).await?;
    ensure!(through == DIALS, "{through} through the second");

    listed.process().kill()?;
    for service in &services {
        eventually("the other takes over", PATIENCE, async || {
            dial_and_echo(&client, &service.name(), 1_000).await
        })
        .await?;
    }
    ensure!(dialled(&rest).await? >= DIALS + LISTED.len());
    Ok(format!(
        "{DIALS} × 3 listed addresses by their agent, all else by the default route, and the listed ones too after the first was killed"
    ))
}

async fn dialled(agent: &Running) -> Result<usize> {
    let count = metric(agent.health(), DIALLED, "").await?;
    Ok(format!("{count}").parse()?)
}

pub(crate) async fn empty_proxy_variables(site: Site) -> Result<String> {
    let site = fill(site);
    let target = Target::echo().await?;
    let server = site.server(Line::new(SERVER)).await?;
    let empty = ["HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"];
    let mut agent = site
        .agent_as(Line::new(DATA_PLANE_AGENT), server.agents()?, |command| {
            command.envs(empty.map(|name| (name, "")));
        })
        .await?;
    agent.ready().await?;
    let client = site.client(&server, Frontend::HttpTls)?;
    dial_and_echo(&client, &target.name(), 1_000).await?;
    Ok("HTTP_PROXY, HTTPS_PROXY and NO_PROXY empty: connects directly".into())
}

pub(crate) async fn behind_an_sni_router(site: Site) -> Result<String> {
    let site = fill(site);
    let target = Target::echo().await?;
    let server = site.server(Line::new(SERVER)).await?;
    let backend: SocketAddr = server.address("agent-port")?;
    let mut router = Router::to("localhost", backend).await?;
    let mut agent = site
        .agent(Line::new(DATA_PLANE_AGENT), router.address().port())
        .await?;
    agent.ready().await?;
    let hello = router.hello().await?;
    ensure!(hello.name.as_deref() == Some("localhost"), "{hello:?}");
    ensure!(hello.protocols.iter().any(|name| name == "h2"), "{hello:?}");
    let client = site.client(&server, Frontend::HttpTls)?;
    let mut stream = client.dial(&target.name()).await?;
    echo(&mut stream, 1_000_000).await?;
    Ok(format!(
        "connects by SNI {:?} and ALPN {:?}",
        hello.name.unwrap_or_default(),
        hello.protocols
    ))
}
