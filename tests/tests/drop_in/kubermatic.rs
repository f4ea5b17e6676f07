//! D15: Kubermatic KKP, with the queue lengths that its users set.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::{client::Frontend, exchange::dial_and_echo, harness::get, targets::Target};
use tokio::{io::AsyncWriteExt, time::timeout};

use crate::{line::Line, site::Site};

const SERVER: &str = "
    --logtostderr=true
    -v=3
    --cluster-key=/etc/kubernetes/pki/<secret>.key
    --cluster-cert=/etc/kubernetes/pki/<secret>.crt
    --uds-name=/etc/kubernetes/konnectivity-server/konnectivity-server.socket
    --kubeconfig=/etc/kubernetes/kubeconfig/<file>
    --server-count=1
    --mode=grpc
    --server-port=0
    --agent-port=8132
    --admin-port=8133
    --health-port=8134
    --admin-bind-address=0.0.0.0
    --agent-namespace=kube-system
    --agent-service-account=konnectivity-agent
    --authentication-audience=system:konnectivity-server
    --delete-existing-uds-file=true
    --proxy-strategies=default
    --keepalive-time=1m
    --xfr-channel-size=300
";

const AGENT: &str = "
    --logtostderr=true
    -v=3
    --sync-forever=true
    --ca-cert=/var/run/secrets/kubernetes.io/serviceaccount/ca.crt
    --proxy-server-host=<host>
    --proxy-server-port=6443
    --admin-server-port=8133
    --health-server-port=8134
    --service-account-token-path=/var/run/secrets/tokens/<name>
    --keepalive-time=1m
    --xfr-channel-size=300
";

/// What older versions added to the agent beside the control plane: an identifier with a port inside.
const IDENTIFIERS: &str = "--agent-identifiers=host=<node>&host=<node>:443";

/// Targets that read nothing, and what is pushed into each, in bytes.
const STALLED: usize = 10;
const PUSHED: usize = 16 * 1024 * 1024;

/// Most that a process may grow by for all of them, in KiB.
const GROWTH: u64 = 48 * 1024;

pub(crate) async fn channel_sizes(site: Site) -> Result<String> {
    let site = site
        .fill("<secret>", "konnectivity")
        .fill("<file>", "kubeconfig")
        .fill("<host>", "127.0.0.1")
        .fill("<name>", "konnectivity-agent-token")
        .fill("<node>", "node-a");
    let mut server = site.server(Line::new(SERVER)).await?;
    let line = Line::new(AGENT).and(IDENTIFIERS);
    let mut agent = site.agent(line, server.agents()?).await?;
    server.ready().await?;
    agent.ready().await?;
    let admin = get(server.address("admin-port")?, "/metrics").await?;
    ensure!(admin.status == 200, "{admin:?}");
    let client = site.client(&server, Frontend::GrpcUds)?;
    let target = Target::echo().await?;
    dial_and_echo(&client, &target.name(), 1_000_000).await?;

    let before = [server.process().peak_kib()?, agent.process().peak_kib()?];
    let stalled = Target::never_reading().await?;
    let mut streams = Vec::new();
    for _ in 0..STALLED {
        streams.push(client.dial(&stalled.name()).await?);
    }
    let chunk = vec![0; 64 * 1024];
    for stream in &mut streams {
        // As much as anybody on the way takes: a writer that waits half a second is held up by back pressure.
        for _ in 0..PUSHED / chunk.len() {
            let write = stream.write_all(&chunk);
            if timeout(Duration::from_millis(500), write).await.is_err() {
                break;
            }
        }
    }
    dial_and_echo(&client, &target.name(), 1_000_000).await?;
    let after = [server.process().peak_kib()?, agent.process().peak_kib()?];
    let [server, agent] = [after[0] - before[0], after[1] - before[1]];
    ensure!(
        server < GROWTH && agent < GROWTH,
        "server {server} KiB more, agent {agent} KiB"
    );
    Ok(format!(
        "accepted; {STALLED} targets that read nothing cost the server {} MiB, the agent {} MiB, and others nothing",
        server >> 10,
        agent >> 10
    ))
}
