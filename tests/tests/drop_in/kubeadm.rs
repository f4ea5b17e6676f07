//! D10: the task "Set up Konnectivity service" of the Kubernetes documentation.

use anyhow::{Context, Result, ensure};
use e2e::{
    client::Frontend,
    exchange::{dial_and_echo, echo},
    harness::{PATIENCE, get},
    kube_api::{Resource, ServiceAccount},
    targets::Target,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use crate::{line::Line, site::Site};

pub(crate) const SERVER: &str = "
    --logtostderr=true
    --uds-name=/etc/kubernetes/konnectivity-server/konnectivity-server.socket
    --cluster-cert=/etc/kubernetes/pki/apiserver.crt
    --cluster-key=/etc/kubernetes/pki/apiserver.key
    --mode=grpc
    --server-port=0
    --agent-port=8132
    --admin-port=8133
    --health-port=8134
    --agent-namespace=kube-system
    --agent-service-account=konnectivity-agent
    --kubeconfig=/etc/kubernetes/konnectivity-server.conf
    --authentication-audience=system:konnectivity-server
";

pub(crate) const AGENT: &str = "
    --logtostderr=true
    --ca-cert=/var/run/secrets/kubernetes.io/serviceaccount/ca.crt
    --proxy-server-host=<address>
    --proxy-server-port=8132
    --admin-server-port=8133
    --health-server-port=8134
    --service-account-token-path=/var/run/secrets/tokens/konnectivity-agent-token
";

/// Lines that the container writes while its log is followed.
const LINES: usize = 200;

pub(crate) async fn exec_and_logs(site: Site) -> Result<String> {
    // The page has the reader put in an address, and make a certificate for it.
    let site = site
        .fill("<address>", "127.0.0.1")
        .server_names(&["127.0.0.1"])?;
    let mut server = site.server(Line::new(SERVER)).await?;
    let mut agent = site.agent(Line::new(AGENT), server.agents()?).await?;
    server.ready().await?;
    agent.ready().await?;
    let client = site.client(&server, Frontend::GrpcUds)?;

    // The server has asked about the agent's token, and takes nobody in whose token is not of the right account.
    site.kube()
        .asked("create", Resource::TokenReviews, 1)
        .await?;
    let stranger = site
        .another()?
        .token_of(&ServiceAccount::new("default", "stranger"));
    let stranger = stranger.agent(Line::new(AGENT), server.agents()?).await?;
    site.kube()
        .asked("create", Resource::TokenReviews, 2)
        .await?;
    let ready = get(stranger.health(), "/readyz").await?;
    ensure!(ready.status == 503, "the stranger is in: {ready:?}");

    // exec: both directions at will, for as long as the session is.
    let session = Target::echo().await?;
    let mut stream = client.dial(&session.name()).await?;
    for len in [1, 80, 1_000_000, 1] {
        echo(&mut stream, len).await.context("exec")?;
    }
    stream.close().await?;

    // logs -f: a request, then lines as they come, and the end by the kubelet.
    let log = Target::serve("127.0.0.1", async |mut stream: TcpStream| {
        let mut request = [0; 4];
        stream.read_exact(&mut request).await?;
        for number in 0..LINES {
            stream
                .write_all(format!("line {number}\n").as_bytes())
                .await?;
            stream.flush().await?;
            tokio::task::yield_now().await;
        }
        stream.shutdown().await
    })
    .await?;
    let mut stream = client.dial(&log.name()).await?;
    stream.write_all(b"GET\n").await?;
    let mut lines = String::new();
    timeout(PATIENCE, stream.read_to_string(&mut lines))
        .await
        .context("the log has no end")??;
    let expected: String = (0..LINES)
        .map(|number| format!("line {number}\n"))
        .collect();
    ensure!(lines == expected, "{} bytes of log", lines.len());

    // get, top, webhooks: short ones, many at once.
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let (client, name) = (client.clone(), session.name());
        tasks.spawn(async move { dial_and_echo(&client, &name, 10_000).await });
    }
    while let Some(outcome) = tasks.join_next().await {
        outcome??;
    }
    Ok("gRPC over the Unix socket, certificate with an address, tokens reviewed: an exec session, a followed log, 20 requests at once".into())
}
