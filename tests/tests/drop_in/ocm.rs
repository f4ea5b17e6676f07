//! D16: Open Cluster Management, one server for many clusters.

use anyhow::{Context, Result, ensure};
use e2e::{
    client::{Client, Frontend},
    exchange::echo,
    harness::{PATIENCE, eventually, metric},
    targets::Target,
};

use crate::{line::Line, site::Site};

const SERVER: &str = "
    --server-count=1
    --proxy-strategies=destHost
    --server-ca-cert=/etc/server-ca-pki/ca.crt
    --server-cert=/etc/server-pki/tls.crt
    --server-key=/etc/server-pki/tls.key
    --cluster-ca-cert=/etc/server-ca-pki/ca.crt
    --cluster-cert=/etc/agent-pki/tls.crt
    --cluster-key=/etc/agent-pki/tls.key
    --health-port=8092
    --cipher-suites=TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256
    --tls-min-version=VersionTLS12
";

const AGENT: &str = "
    --proxy-server-host=<entry>
    --proxy-server-port=8091
    --agent-identifiers=host=<cluster-name>&host=<service>
    --ca-cert=/etc/tls/ca.crt
    --agent-cert=/etc/tls/tls.crt
    --agent-key=/etc/tls/tls.key
";

/// Clusters by name. Names that every resolver knows stand for the service names of the newer agents, as a name that is an
/// identifier alone cannot be dialled by an agent here.
const CLUSTERS: [(&str, &str); 2] = [("cluster-a", "127.0.0.2"), ("cluster-b", "127.0.0.3")];

const DIALS: usize = 10;

pub(crate) async fn clusters_by_name(site: Site) -> Result<String> {
    let site = site.fill("<entry>", "127.0.0.1");
    let mut server = site.server(Line::new(SERVER)).await?;
    let mut agents = Vec::new();
    for (name, service) in CLUSTERS {
        let line = AGENT
            .replace("<cluster-name>", name)
            .replace("<service>", service);
        let mut agent = site.agent(Line::new(&line), server.agents()?).await?;
        agent.ready().await?;
        agents.push(agent);
    }
    server.ready().await?;
    let client = site.client(&server, Frontend::GrpcTls)?;

    for (name, service) in CLUSTERS {
        let target = Target::echo_on(service).await?;
        for _ in 0..DIALS {
            let mut stream = client.dial(&target.name()).await?;
            echo(&mut stream, 1_000).await?;
            stream.close().await?;
            // The cluster's own name, in any case of letters: its agent is asked, and says what becomes of it there.
            let told = refusal(&client, &format!("{}:443", name.to_uppercase())).await?;
            ensure!(told.contains("lookup"), "{name}: {told}");
        }
        ensure!(target.accepted() == DIALS);
    }
    for (agent, (name, _)) in agents.iter().zip(CLUSTERS) {
        let count = async |what: &str| metric(agent.health(), what, "").await;
        let good = count("konnectivity_network_proxy_agent_dial_duration_seconds_count").await?;
        let bad = count("konnectivity_network_proxy_agent_endpoint_dial_failure_total").await?;
        let expected = DIALS as f64;
        ensure!(
            good == expected && bad == expected,
            "{name}: {good} and {bad} dials, not {expected} of each"
        );
    }

    let told = refusal(&client, "cluster-c:443").await?;
    ensure!(told.contains("No agent available"), "{told}");
    let first = agents.first_mut().context("two agents")?;
    first.process().kill()?;
    eventually("cluster-a is gone", PATIENCE, async || {
        let told = refusal(&client, "cluster-a:443").await?;
        ensure!(told.contains("No agent available"), "{told}");
        Ok(())
    })
    .await?;
    Ok("each name goes to its own agent only; an unknown one, and one whose agent is gone: \"No agent available\"".into())
}

async fn refusal(client: &Client, target: &str) -> Result<String> {
    let failure = client.dial(target).await.err();
    let failure = failure.with_context(|| format!("{target} was connected"))?;
    Ok(format!("{:#}", anyhow::Error::from(failure)))
}
