//! An agent that reaches its server through a proxy (field-tests.md R127, R130).

use std::net::SocketAddr;

use anyhow::{Result, ensure};
use e2e::{
    exchange::dial_and_echo,
    harness::{AgentBuilder, Cluster, NAME, PATIENCE, eventually, get},
    targets::Target,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    task::JoinSet,
};

/// `user:secret` in base64, by hand.
const CREDENTIALS: &str = "Basic dXNlcjpzZWNyZXQ=";

/// A proxy that takes every name for one server, from clients that show [`CREDENTIALS`]. Dropped, it is gone.
struct Proxy {
    address: SocketAddr,
    /// The first line of each request.
    questions: mpsc::Receiver<String>,
    _tasks: JoinSet<()>,
}

impl Proxy {
    async fn to(server: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let (asked, questions) = mpsc::channel(1000);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let asked = asked.clone();
                // A client or a server that goes away ends its own connection.
                connections.spawn(async move { serve(client, server, &asked).await.ok() });
            }
        });
        Ok(Self {
            address,
            questions,
            _tasks: tasks,
        })
    }
}

async fn serve(
    mut client: TcpStream,
    server: SocketAddr,
    asked: &mpsc::Sender<String>,
) -> Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        ensure!(client.read_buf(&mut head).await? > 0, "half a request");
    }
    let head = String::from_utf8(head)?;
    asked
        .try_send(head.lines().next().unwrap_or_default().to_owned())
        .ok();
    if !head.contains(&format!("Proxy-Authorization: {CREDENTIALS}\r\n")) {
        let answer =
            "HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic\r\n\r\n";
        client.write_all(answer.as_bytes()).await?;
        return Ok(());
    }
    let mut server = TcpStream::connect(server).await?;
    client
        .write_all(b"HTTP/1.1 200 Connection established\r\n\r\n")
        .await?;
    copy_bidirectional(&mut client, &mut server).await?;
    Ok(())
}

/// An agent that looks for its server by a name that only the proxy knows.
fn agent(cluster: &Cluster, proxy: &str) -> AgentBuilder {
    cluster
        .agent_spec()
        .flag(format!("--proxy-server-host={NAME}"))
        .variable("HTTPS_PROXY", proxy)
        .variable("NO_PROXY", "localhost,.cluster.local,10.0.0.0/8")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_behind_a_proxy_serves_dials_and_dials_its_targets_itself() -> Result<()> {
    let mut cluster = Cluster::builder().agents(0).start().await?;
    let server = cluster.server().agents();
    let mut proxy = Proxy::to(server).await?;
    let address = proxy.address;
    let spec = agent(&cluster, &format!("http://user:secret@{address}"));
    cluster.add_agent_like(spec).await?;
    let target = Target::echo().await?;
    dial_and_echo(&cluster.client()?, &target.name(), 1_000_000).await?;
    // One tunnel, and no target (R128).
    let expected = format!("CONNECT {NAME}:{} HTTP/1.1", server.port());
    ensure!(proxy.questions.try_recv()? == expected);
    ensure!(
        proxy.questions.try_recv().is_err(),
        "the proxy was asked for more than the server"
    );
    let health = cluster.agent(0)?.health();
    let details = get(health, "/readyz?verbose").await?.body;
    ensure!(
        details.contains(&format!("http://{address}")) && !details.contains("secret"),
        "{details}"
    );
    ensure!(!cluster.agent(0)?.process().log().contains("secret"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_that_refuses_is_told_with_its_status_and_without_the_password() -> Result<()> {
    let mut cluster = Cluster::builder().agents(0).start().await?;
    let proxy = Proxy::to(cluster.server().agents()).await?;
    let address = proxy.address;
    let spec = agent(&cluster, &format!("http://user:wrong-password@{address}"));
    let mut agent = spec.start_unconnected().await?;
    eventually("the log has the proxy's answer", PATIENCE, async || {
        let log = agent.process().log();
        ensure!(log.contains("407"), "{log}");
        Ok(())
    })
    .await?;
    ensure!(!agent.process().log().contains("wrong-password"));
    ensure!(get(agent.health(), "/readyz").await?.status == 503);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_variable_that_is_no_proxy_ends_the_start_and_is_named() -> Result<()> {
    let cluster = Cluster::builder().agents(0).start().await?;
    let ended = agent(&cluster, "socks5://user:secret@127.0.0.1:1080")
        .fail()
        .await?;
    ensure!(ended.code == Some(1), "{ended:?}");
    ensure!(
        ended.log.contains("HTTPS_PROXY") && !ended.log.contains("secret"),
        "{}",
        ended.log
    );
    Ok(())
}
