//! D09: Kamaji, which runs agents at verbosity 8.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use e2e::{
    client::{Client, Frontend},
    exchange::dial_and_echo,
    targets::Target,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::Instant,
};

use crate::{
    line::Line,
    site::{Running, Site},
};

const SERVER: &str = "
    --uds-name=/run/konnectivity/konnectivity-server.socket
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
    --server-count=1
";

const AGENT: &str = "
    -v=8
    --logtostderr=true
    --ca-cert=/var/run/secrets/kubernetes.io/serviceaccount/ca.crt
    --proxy-server-host=<address>
    --proxy-server-port=8132
    --admin-server-port=8133
    --health-server-port=8134
    --service-account-token-path=/var/run/secrets/tokens/konnectivity-agent-token
";

/// What must be in no log, however it is written there.
const SECRET: &str = "payload-that-nobody-may-log";

/// Bytes of a bulk transfer, each way.
const BULK: u64 = 64 * 1024 * 1024;

/// Connections, to count lines by.
const CONNECTIONS: usize = 50;

/// Most lines of both processes that a connection may make, even at that verbosity.
const LINES_A_CONNECTION: usize = 20;

/// Most lines that a bulk transfer may make: bounded, not by the piece.
const LINES_OF_BULK: usize = 100;

/// Server and agent at one verbosity, whose logs go to files, every line of them.
struct Pair {
    server: Running,
    agent: Running,
    client: Client,
    logs: [PathBuf; 2],
}

impl Pair {
    async fn start(site: &Site, v: u8) -> Result<Self> {
        let logs = ["server", "agent"].map(|name| site.path(&format!("/{name}-{v}.log")));
        // The agent's is the manifest's own; to the server it comes as one of the user's `extraArgs`.
        let server = Line::new(SERVER).and(&format!("-v={v}"));
        let agent = Line::new(&AGENT.replace("-v=8", &format!("-v={v}")));
        let server = site.server_as(server, to(&logs[0])).await?;
        let mut agent = site.agent_as(agent, server.agents()?, to(&logs[1])).await?;
        agent.ready().await?;
        let client = site.client(&server, Frontend::GrpcUds)?;
        Ok(Self {
            server,
            agent,
            client,
            logs,
        })
    }

    fn log(&self) -> Result<String> {
        let read = |path: &Path| {
            std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))
        };
        Ok(read(&self.logs[0])? + &read(&self.logs[1])?)
    }

    fn lines(&self) -> Result<usize> {
        Ok(self.log()?.lines().count())
    }

    /// MiB a second there, and the same back.
    async fn throughput(&self, target: &Target) -> Result<f64> {
        let begin = Instant::now();
        dial_and_echo(&self.client, &target.name(), BULK).await?;
        Ok(BULK as f64 / f64::from(1 << 20) / begin.elapsed().as_secs_f64())
    }
}

/// The process writes its log there: all of it, of which the harness would keep the ends.
fn to(log: &Path) -> impl FnOnce(&mut Command) {
    move |command| {
        let mut shell = Command::new("sh");
        shell
            .args(["-c", r#"exec 2>"$0" "$@""#])
            .arg(log)
            .arg(command.get_program())
            .args(command.get_args());
        *command = shell;
    }
}

pub(crate) async fn verbosity_8(site: Site) -> Result<String> {
    let site = site.fill("<address>", "127.0.0.1");
    let target = Target::echo().await?;
    let mut pair = Pair::start(&site, 8).await?;

    let mut stream = pair.client.dial(&target.name()).await?;
    let text = format!("GET /{SECRET} HTTP/1.1\r\n\r\n");
    stream.write_all(text.as_bytes()).await?;
    let mut came = vec![0; text.len()];
    stream.read_exact(&mut came).await?;
    ensure!(came == text.as_bytes());
    stream.close().await?;

    let before = pair.lines()?;
    for _ in 0..CONNECTIONS {
        dial_and_echo(&pair.client, &target.name(), 1_000).await?;
    }
    let a_connection = (pair.lines()? - before).div_ceil(CONNECTIONS);
    ensure!(
        a_connection <= LINES_A_CONNECTION,
        "{a_connection} lines a connection"
    );
    let before = pair.lines()?;
    let loud = pair.throughput(&target).await?;
    let of_bulk = pair.lines()? - before;
    ensure!(of_bulk <= LINES_OF_BULK, "{of_bulk} lines of one transfer");

    let log = pair.log()?;
    for form in [
        SECRET.to_owned(),
        hex(SECRET),
        numbers(SECRET),
        site.token().to_owned(),
    ] {
        ensure!(!log.contains(&form), "the log has {form:?}");
    }
    pair.server.stop().await?;
    pair.agent.process().kill()?;

    let quiet = Pair::start(&site, 1).await?.throughput(&target).await?;
    Ok(format!(
        "no payload, no token logged; {a_connection} lines a connection, {of_bulk} for {} MiB; throughput {:.2} of that at -v=1",
        BULK >> 20,
        loud / quiet
    ))
}

fn hex(text: &str) -> String {
    text.bytes().map(|byte| format!("{byte:02x}")).collect()
}

/// As `{:?}` writes bytes.
fn numbers(text: &str) -> String {
    let numbers: Vec<String> = text.bytes().map(|byte| byte.to_string()).collect();
    numbers.join(", ")
}
