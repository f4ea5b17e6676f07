//! D13 and D14: the GCE scripts of Kubernetes, and GKE, which grew out of them.

use anyhow::{Context, Result, ensure};
use e2e::{
    client::{Client, Frontend},
    exchange::{dial_and_echo, echo},
    harness::get,
    targets::Target,
};

use crate::{line::Line, site::Site};

const GRPC: &str = "
    --log-file=/var/log/konnectivity-server.log
    --logtostderr=false
    --log-file-max-size=0
    --uds-name=/etc/srv/kubernetes/konnectivity-server/konnectivity-server.socket
    --cluster-cert=/etc/srv/kubernetes/pki/apiserver.crt
    --cluster-key=/etc/srv/kubernetes/pki/apiserver.key
    --mode=grpc
    --server-port=0
    --agent-namespace=kube-system
    --agent-service-account=konnectivity-agent
    --authentication-audience=system:konnectivity-server
    --kubeconfig=/etc/srv/kubernetes/konnectivity-server/kubeconfig
    --proxy-strategies=default
    --agent-port=8132
    --health-port=8133
    --admin-port=8134
    --kubeconfig-qps=75
    --kubeconfig-burst=150
    --keepalive-time=60s
    --frontend-keepalive-time=60s
";

const HTTP_CONNECT: &str = "
    --log-file=/var/log/konnectivity-server.log
    --logtostderr=false
    --log-file-max-size=0
    --server-ca-cert=/etc/srv/kubernetes/pki/konnectivity-server/ca.crt
    --server-cert=/etc/srv/kubernetes/pki/konnectivity-server/server.crt
    --server-key=/etc/srv/kubernetes/pki/konnectivity-server/server.key
    --cluster-ca-cert=/etc/srv/kubernetes/pki/konnectivity-agent/ca.crt
    --cluster-cert=/etc/srv/kubernetes/pki/apiserver.crt
    --cluster-key=/etc/srv/kubernetes/pki/apiserver.key
    --mode=http-connect
    --server-port=8131
    --agent-namespace=
    --agent-service-account=
    --authentication-audience=
    --kubeconfig=
    --proxy-strategies=destHost,default
    --agent-port=8132
    --health-port=8133
    --admin-port=8134
    --kubeconfig-qps=75
    --kubeconfig-burst=150
    --keepalive-time=60s
    --frontend-keepalive-time=60s
";

/// Of the scripts.
const AGENT: &str = "
    --logtostderr=true
    --ca-cert=/var/run/secrets/kubernetes.io/serviceaccount/ca.crt
    --proxy-server-host=<apiserver-ip>
    --proxy-server-port=8132
    --sync-interval=5s
    --sync-interval-cap=30s
    --probe-interval=5s
    --service-account-token-path=/var/run/secrets/tokens/konnectivity-agent-token
    --agent-identifiers=ipv4=$(HOST_IP)
";

/// The part that the scripts leave away without client certificates.
const AGENT_CERTIFICATE: &str = "
    --agent-cert=/etc/srv/kubernetes/pki/konnectivity-agent/client.crt
    --agent-key=/etc/srv/kubernetes/pki/konnectivity-agent/client.key
";

/// As seen in dumps of clusters.
const GKE_AGENT: &str = "
    --logtostderr=true
    --ca-cert=/var/run/secrets/kubernetes.io/serviceaccount/ca.crt
    --proxy-server-host=<ip>
    --proxy-server-port=8132
    --health-server-port=8093
    --admin-server-port=8094
    --sync-interval=5s
    --sync-interval-cap=30s
    --sync-forever=true
    --probe-interval=5s
    --keepalive-time=60s
    --service-account-token-path=/var/run/secrets/tokens/konnectivity-agent-token
    --v=3
";

const IDLE: usize = 200;

/// Memory limits of the agents' containers, in KiB.
const GCE_LIMIT: u64 = 30 * 1024;
const GKE_LIMIT: u64 = 125 * 1024;

fn fill(site: Site) -> Site {
    site.fill("<apiserver-ip>", "127.0.0.1")
        .fill("<ip>", "127.0.0.1")
        .fill("$(HOST_IP)", "127.0.0.1")
}

pub(crate) async fn both_profiles(site: Site) -> Result<String> {
    let target = Target::echo().await?;
    let with_certificate = Line::new(AGENT).and(AGENT_CERTIFICATE);
    let profiles = [
        (GRPC, Line::new(AGENT), Frontend::GrpcUds),
        (HTTP_CONNECT, with_certificate, Frontend::HttpTls),
    ];
    for (line, agent, frontend) in profiles {
        let site = fill(site.another()?);
        let mut server = site.server(Line::new(line)).await?;
        let mut agent = site.agent(agent, server.agents()?).await?;
        server.ready().await?;
        agent.ready().await?;
        let client = site.client(&server, frontend)?;
        dial_and_echo(&client, &target.name(), 100_000)
            .await
            .context(frontend)?;
        // 8133 is health here and 8134 admin: the other way round than elsewhere.
        let admin = get(server.address("admin-port")?, "/metrics").await?;
        ensure!(admin.status == 200, "{admin:?}");
        let log = std::fs::read_to_string(site.path("/var/log/konnectivity-server.log"))?;
        ensure!(!log.is_empty(), "{frontend}: nothing in the log file");
    }
    Ok(
        "grpc and http-connect with four empty flags both start and serve, and log to their file"
            .into(),
    )
}

pub(crate) async fn memory_limits(site: Site) -> Result<String> {
    let target = Target::echo().await?;
    let site = fill(site);
    let mut server = site.server(Line::new(GRPC)).await?;
    let mut said = Vec::new();
    let agents = [("GCE", AGENT, GCE_LIMIT), ("GKE", GKE_AGENT, GKE_LIMIT)];
    for (whose, line, limit) in agents {
        let mut agent = site.agent(Line::new(line), server.agents()?).await?;
        agent.ready().await?;
        server.ready().await?;
        let client = site.client(&server, Frontend::GrpcUds)?;
        let streams = idle(&client, &target).await?;
        let used = agent.process().peak_kib()?;
        ensure!(used < limit, "{whose}: {used} KiB of {limit} KiB");
        said.push(format!("{whose} {} of {} MiB", used >> 10, limit >> 10));
        drop(streams);
        agent.process().kill()?;
    }
    Ok(format!(
        "agents with {IDLE} idle connections: {}; the server {} MiB{}",
        said.join(", "),
        server.process().peak_kib()? >> 10,
        if cfg!(debug_assertions) {
            " (peaks, unoptimised build)"
        } else {
            " (peaks)"
        }
    ))
}

/// Connections that have been used, and are idle.
async fn idle(client: &Client, target: &Target) -> Result<Vec<e2e::client::Stream>> {
    let mut streams = Vec::new();
    for _ in 0..IDLE {
        let mut stream = client.dial(&target.name()).await?;
        echo(&mut stream, 1_000).await?;
        streams.push(stream);
    }
    Ok(streams)
}
