//! D11 and D12: upstream's example manifests for a kind cluster of several nodes.

use anyhow::{Result, ensure};
use e2e::{
    client::Frontend,
    exchange::dial_and_echo,
    harness::{PATIENCE, Pod, eventually, free_port, metric},
    targets::Target,
};

use crate::{
    Held,
    line::Line,
    site::{Running, Site},
};

const SERVER: &str = "
    --log-file=/var/log/konnectivity-server.log
    --logtostderr=true
    --log-file-max-size=0
    --uds-name=/etc/kubernetes/konnectivity-server/konnectivity-server.socket
    --delete-existing-uds-file
    --cluster-cert=/etc/kubernetes/pki/apiserver.crt
    --cluster-key=/etc/kubernetes/pki/apiserver.key
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
    --enable-lease-controller
";

const AGENT: &str = "
    --logtostderr=true
    --ca-cert=/var/run/secrets/kubernetes.io/serviceaccount/ca.crt
    --proxy-server-host=konnectivity-server.kube-system.svc.cluster.local
    --proxy-server-port=8091
    --sync-interval=5s
    --sync-interval-cap=30s
    --probe-interval=5s
    --service-account-token-path=/var/run/secrets/tokens/konnectivity-agent-token
    --agent-identifiers=ipv4=${HOST_IP}
    --sync-forever
    --count-server-leases
";

/// The headless Service.
const SERVICE: &str = "konnectivity-server.kube-system.svc.cluster.local";

/// The control plane's nodes, and how many others there are.
const NODES: [&str; 3] = ["127.0.0.1", "127.0.0.2", "127.0.0.3"];
const AGENTS: usize = 3;

pub(crate) async fn leases_and_a_headless_service(site: Site) -> Result<Held> {
    if !Pod::is_permitted() {
        let why = "SKIPPED: no mount namespaces on this machine, so no headless Service";
        return Ok(Held::Skipped(why.to_owned()));
    }
    let site = site.server_names(&[SERVICE])?;
    // The nodes share their port numbers, so each server has to keep to its node's address.
    let port = free_port()?;
    // The sites keep their servers' files.
    let (mut servers, mut nodes) = (Vec::new(), Vec::new());
    for node in NODES {
        let line = Line::new(SERVER).and(&format!("--agent-bind-address={node}"));
        let site = site.another()?.agents_at(port);
        servers.push(site.server(line).await?);
        nodes.push(site);
    }
    let secrets = site.path("/var/run/secrets");
    site.service_account(&secrets.join("kubernetes.io/serviceaccount"))?;
    let pod = Pod::resolving(&secrets, SERVICE, &NODES)?
        .with_service_account(secrets.clone(), site.kube().address());
    let mut agents = Vec::new();
    for _ in 0..AGENTS {
        let contain = |command: &mut _| pod.contain(command);
        let mut agent = site.agent_as(Line::new(AGENT), port, contain).await?;
        agent.ready().await?;
        agents.push(agent);
    }
    eventually("every agent is at every server", PATIENCE, async || {
        for agent in &agents {
            let open = of_agent(agent, "open_server_connections").await?;
            let known = of_agent(agent, "known_server_count").await?;
            ensure!(open == 3.0 && known == 3.0, "{open} tunnels, {known} known");
        }
        for server in &servers {
            let name = "konnectivity_network_proxy_server_ready_backends";
            let ready = metric(server.health(), name, "\"default\"").await?;
            ensure!(ready == 3.0, "{ready} agents");
        }
        Ok(())
    })
    .await?;
    let target = Target::echo().await?;
    for server in &servers {
        let client = site.client(server, Frontend::GrpcUds)?;
        dial_and_echo(&client, &target.name(), 100_000).await?;
    }
    Ok(Held::Here(format!(
        "{AGENTS} agents, each at {} servers by leases and the addresses of one name",
        NODES.len()
    )))
}

async fn of_agent(agent: &Running, name: &str) -> Result<f64> {
    let name = format!("konnectivity_network_proxy_agent_{name}");
    metric(agent.health(), &name, "").await
}

pub(crate) async fn an_identifier_nobody_expanded(site: Site) -> Result<String> {
    let site = site.server_names(&["localhost"])?;
    let mut server = site.server(Line::new(SERVER)).await?;
    // One server, found by its own word: leases and the headless Service are the other row's.
    let line = AGENT
        .replace(SERVICE, "localhost")
        .replace("--count-server-leases", "");
    let mut agent = site.agent(Line::new(&line), server.agents()?).await?;
    server.ready().await?;
    agent.ready().await?;
    let target = Target::echo().await?;
    let client = site.client(&server, Frontend::GrpcUds)?;
    dial_and_echo(&client, &target.name(), 1_000).await?;
    let logs = [server.process().log(), agent.process().log()];
    let is_warning = |line: &str| line.contains("WARN") && line.contains("${HOST_IP}");
    ensure!(
        logs.iter().any(|log| log.lines().any(is_warning)),
        "no warning about ${{HOST_IP}}"
    );
    Ok("connects and serves by `default`; the literal ${HOST_IP} is a warning".into())
}
