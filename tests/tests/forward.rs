//! Connections from a node to the control plane: `--forward` of an agent, `--forward-target` and `--forward-allow` of its server.

use std::io;

use anyhow::{Context, Result, ensure};
use e2e::{
    harness::{Cluster, PATIENCE, eventually, free_port, metric},
    payload::{Payload, Received},
    targets::{Target, refusing},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, UnixStream},
    time::timeout,
};

const OPEN: &str = "konnectivity_network_proxy_agent_forward_connections";
const AT_SERVER: &str = "konnectivity_network_proxy_server_forward_connections";
const REFUSED: &str = "konnectivity_network_proxy_agent_forward_failures_total";
const FAILED: &str = "konnectivity_network_proxy_server_forward_failures_total";

/// A server that forwards `api` to `target` for everybody that is verified as something, `secret` for nobody, and an agent with a
/// listener for each of the `names`, whose ports come back.
async fn cluster(target: &str, names: &[&str], flags: &[&str]) -> Result<(Cluster, Vec<u16>)> {
    let mut builder = Cluster::builder()
        .server_flag(format!("--forward-target=api={target}"))
        .server_flag(format!("--forward-target=secret={target}"))
        .server_flag("--forward-allow=api=*");
    for flag in flags {
        builder = builder.server_flag(*flag);
    }
    let mut ports = Vec::new();
    for name in names {
        let port = free_port()?;
        builder = builder.agent_flag(format!("--forward=127.0.0.1:{port}={name}"));
        ports.push(port);
    }
    Ok((builder.start().await?, ports))
}

async fn connect(port: u16) -> Result<TcpStream> {
    TcpStream::connect(("127.0.0.1", port))
        .await
        .context("connect to the agent's listener")
}

/// The connection ends without a byte, and not as one that its target has closed.
async fn is_reset(port: u16) -> Result<()> {
    let answer = async {
        // So soon that connecting may hear of it.
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.read(&mut [0; 16]).await
    };
    let error = timeout(PATIENCE, answer).await?.err();
    let error = error.context("the agent's listener gave an answer")?;
    ensure!(error.kind() == io::ErrorKind::ConnectionReset, "{error}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_of_a_node_reach_the_servers_target_over_tcp_and_a_unix_socket() -> Result<()> {
    let target = Target::echo().await?;
    let folder = tempfile::tempdir()?;
    let socket = folder.path().join("api.sock");
    let (mut cluster, ports) = cluster(&target.name(), &["api"], &[]).await?;
    let unix = format!("--forward=unix:{}=api", socket.display());
    cluster.kill_agent(0)?;
    // With the listener that it has already.
    let spec = cluster.agent_spec().flag(unix);
    cluster.add_agent_like(spec).await?;
    let payload = Payload::random(3_000_000);
    for _ in 0..3 {
        let (mut read, mut write) = connect(ports[0]).await?.into_split();
        let (written, received) = tokio::join!(
            async {
                payload.write_to(&mut write).await?;
                write.shutdown().await
            },
            Received::read(&mut read)
        );
        written?;
        payload.check(&received)?;
        let (mut read, mut write) = UnixStream::connect(&socket).await?.into_split();
        let (written, received) = tokio::join!(
            async {
                payload.write_to(&mut write).await?;
                write.shutdown().await
            },
            Received::read(&mut read)
        );
        written?;
        payload.check(&received)?;
    }
    // Nothing of it is left, at either end.
    let (server, agent) = (cluster.server().health(), cluster.agent(0)?.health());
    eventually("the gauges fall", PATIENCE, async || {
        let open = (
            metric(agent, OPEN, "").await?,
            metric(server, AT_SERVER, "").await?,
        );
        ensure!(open == (0.0, 0.0), "{open:?}");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_unknown_forbidden_or_unreachable_is_reset_and_told() -> Result<()> {
    let unreachable = refusing()?;
    let names = ["api", "secret", "nobody-knows"];
    let (mut cluster, ports) = cluster(&unreachable.to_string(), &names, &[]).await?;
    for port in ports {
        is_reset(port).await?;
    }
    let (server, agent) = (cluster.server().health(), cluster.agent(0)?.health());
    let refused = metric(agent, REFUSED, "reason=\"refused\"").await?;
    ensure!(refused == 3.0, "{refused} refused at the agent");
    for reason in ["dial", "not_allowed", "unknown"] {
        let count = metric(server, FAILED, &format!("reason=\"{reason}\"")).await?;
        ensure!(count == 1.0, "{count} {reason}");
    }
    let log = cluster.agent(0)?.process().log();
    ensure!(log.contains("connection refused"), "{log}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_may_have_so_many_connections_and_no_more() -> Result<()> {
    let target = Target::echo().await?;
    let flags = ["--forward-max-connections=2"];
    let (_cluster, ports) = cluster(&target.name(), &["api"], &flags).await?;
    let mut held = Vec::new();
    for _ in 0..2 {
        let mut stream = connect(ports[0]).await?;
        stream.write_all(b"x").await?;
        stream.read_exact(&mut [0]).await?;
        held.push(stream);
    }
    is_reset(ports[0]).await?;
    drop(held.pop());
    eventually("there is room again", PATIENCE, async || {
        let mut stream = connect(ports[0]).await?;
        stream.write_all(b"x").await?;
        stream.read_exact(&mut [0]).await?;
        Ok(())
    })
    .await
}

/// Upstream's servers forward nothing, nor does one that is told to speak upstream's protocol alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_server_that_forwards_a_connection_is_reset_at_once() -> Result<()> {
    let target = Target::echo().await?;
    let flags = ["--tunnel-protocol=packet"];
    let (mut cluster, ports) = cluster(&target.name(), &["api"], &flags).await?;
    is_reset(ports[0]).await?;
    let agent = cluster.agent(0)?.health();
    let count = metric(agent, REFUSED, "reason=\"no_tunnel\"").await?;
    ensure!(count == 1.0, "{count}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_is_a_reset_in_both_directions() -> Result<()> {
    let (seen, mut ends) = tokio::sync::mpsc::channel(4);
    let target = Target::serve("127.0.0.1", move |mut stream| {
        let seen = seen.clone();
        async move {
            let mut first = [0];
            stream.read_exact(&mut first).await?;
            stream.write_all(&first).await?;
            if first == *b"r" {
                stream.read_exact(&mut first).await?;
                stream.set_zero_linger()?;
                return Ok(());
            }
            let end = stream.read(&mut first).await;
            seen.send(end).await.map_err(io::Error::other)
        }
    })
    .await?;
    let (_cluster, ports) = cluster(&target.name(), &["api"], &[]).await?;
    let mut client = connect(ports[0]).await?;
    client.write_all(b"c").await?;
    client.read_exact(&mut [0]).await?;
    client.set_zero_linger()?;
    drop(client);
    let end = timeout(PATIENCE, ends.recv()).await?.context("no end")?;
    let error = end.err().context("an orderly end")?;
    ensure!(error.kind() == io::ErrorKind::ConnectionReset, "{error}");
    let mut client = connect(ports[0]).await?;
    client.write_all(b"r").await?;
    client.read_exact(&mut [0]).await?;
    client.write_all(b"!").await?;
    let read = timeout(PATIENCE, client.read(&mut [0])).await?;
    let error = read.err().context("an orderly end")?;
    ensure!(error.kind() == io::ErrorKind::ConnectionReset, "{error}");
    Ok(())
}
