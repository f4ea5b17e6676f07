//! Tunnels of many agents in one process: real TLS, real tunnels, nothing dialled.

use std::{
    net::SocketAddr,
    rc::Rc,
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use certs::TlsOptions;
use e2e::harness::Pki;
use h2::PingPong;
use rustls::{ClientConfig, client::Resumption, pki_types::ServerName};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    runtime,
    sync::{Semaphore, mpsc, oneshot},
    task::{JoinSet, LocalSet},
    time::{Instant, timeout},
};
use tokio_rustls::TlsConnector;
use tunnel::{
    batch::Batch,
    conn::Role,
    grpc,
    ledger::{DEFAULT_BUDGET, Ledger},
    link::{self, Link},
    mux::Mux,
    observe::Unobserved,
    probe::Probe,
    stream::{
        ALPN, Ends,
        hello::{Answer, Hello, ROLE_AGENT, VERSION, receive_answer, send_hello},
    },
};

/// How long one agent may take to connect while a thousand do.
const LIMIT: Duration = Duration::from_secs(120);

/// Orders that wait; the caller waits for each.
const ORDERS: usize = 1;

/// What kind of tunnel is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    /// Upstream's, which every server has.
    Packet,
    /// Ours.
    Stream,
}

/// How agents start their TLS sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handshake {
    /// As agents that have just been started.
    Full,
    /// With the tickets of their last connection.
    Resumed,
}

/// Agents on a thread of their own.
#[derive(Debug)]
pub struct Agents {
    orders: Option<mpsc::Sender<Order>>,
    thread: Option<JoinHandle<()>>,
}

enum Order {
    Connect {
        handshake: Handshake,
        at_once: usize,
        done: oneshot::Sender<Result<Duration>>,
    },
    Drop(oneshot::Sender<()>),
}

impl Agents {
    /// `count` agents of the server at `server`; none is connected yet.
    ///
    /// # Errors
    /// If there can be no TLS configuration, or no thread.
    pub fn new(server: SocketAddr, pki: &Pki, wire: Wire, count: usize) -> Result<Self> {
        let tls = configuration(pki, wire)?;
        let agents: Vec<_> = (0..count)
            .map(|number| Agent {
                id: format!("agent-{number}"),
                server,
                tls: fresh(&tls),
            })
            .collect();
        let (orders, received) = mpsc::channel(ORDERS);
        let thread = thread::Builder::new()
            .name("agents".to_owned())
            .spawn(move || run(agents, received))
            .context("start the agents' thread")?;
        Ok(Self {
            orders: Some(orders),
            thread: Some(thread),
        })
    }

    /// Connects all, `at_once` at the same time; how long it took until the last was there.
    ///
    /// # Errors
    /// If one is refused, or takes too long.
    pub async fn connect(&self, handshake: Handshake, at_once: usize) -> Result<Duration> {
        let (done, outcome) = oneshot::channel();
        self.order(Order::Connect {
            handshake,
            at_once,
            done,
        })
        .await?;
        outcome.await.context("the agents' thread has ended")?
    }

    /// Cuts all connections.
    ///
    /// # Errors
    /// If the thread has ended.
    pub async fn drop_all(&self) -> Result<()> {
        let (done, outcome) = oneshot::channel();
        self.order(Order::Drop(done)).await?;
        outcome.await.context("the agents' thread has ended")
    }

    async fn order(&self, order: Order) -> Result<()> {
        let orders = self.orders.as_ref().context("no thread")?;
        let sent = orders.send(order).await;
        ensure!(sent.is_ok(), "the agents' thread has ended");
        Ok(())
    }
}

impl Drop for Agents {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            // It panicked, and has said so.
            thread.join().ok();
        }
    }
}

fn run(mut agents: Vec<Agent>, mut orders: mpsc::Receiver<Order>) {
    let Ok(runtime) = runtime::Builder::new_current_thread().enable_all().build() else {
        // The first order finds nobody.
        return;
    };
    LocalSet::new().block_on(&runtime, async {
        let mut tunnels = JoinSet::new();
        while let Some(order) = orders.recv().await {
            match order {
                Order::Connect {
                    handshake,
                    at_once,
                    done,
                } => {
                    if handshake == Handshake::Full {
                        for agent in &mut agents {
                            agent.tls = fresh(&agent.tls);
                        }
                    }
                    let outcome = connect_all(&agents, at_once, &mut tunnels).await;
                    // Who asked may have gone.
                    done.send(outcome).ok();
                }
                Order::Drop(done) => {
                    tunnels.shutdown().await;
                    done.send(()).ok();
                }
            }
        }
    });
}

async fn connect_all(
    agents: &[Agent],
    at_once: usize,
    tunnels: &mut JoinSet<()>,
) -> Result<Duration> {
    let start = Instant::now();
    let permits = Arc::new(Semaphore::new(at_once.max(1)));
    let mut connecting = JoinSet::new();
    for agent in agents {
        let (agent, permits) = (agent.clone(), Arc::clone(&permits));
        connecting.spawn_local(async move {
            let _permit = permits.acquire_owned().await?;
            let name = agent.id.clone();
            match timeout(LIMIT, agent.connect()).await {
                Ok(tunnel) => tunnel.with_context(|| format!("connect {name}")),
                Err(_) => bail!("{name} is not connected after {LIMIT:?}"),
            }
        });
    }
    while let Some(connected) = connecting.join_next().await {
        let tunnel = connected??;
        tunnels.spawn_local(tunnel);
    }
    Ok(start.elapsed())
}

fn configuration(pki: &Pki, wire: Wire) -> Result<Arc<ClientConfig>> {
    let identity = pki
        .authority()
        .issue_client("konnectivity-agent")?
        .identity()?;
    let alpn: &[&[u8]] = match wire {
        Wire::Packet => &[b"h2"],
        Wire::Stream => &[ALPN],
    };
    Ok(certs::client_config(
        pki.roots(),
        Some(&identity),
        alpn,
        &TlsOptions::default(),
    )?)
}

/// The same without tickets. Each agent is a process in the field, with tickets of its own.
fn fresh(tls: &ClientConfig) -> Arc<ClientConfig> {
    let mut tls = tls.clone();
    tls.resumption = Resumption::in_memory_sessions(1);
    Arc::new(tls)
}

#[derive(Clone, Debug)]
struct Agent {
    id: String,
    server: SocketAddr,
    tls: Arc<ClientConfig>,
}

type Running = std::pin::Pin<Box<dyn Future<Output = ()>>>;

impl Agent {
    /// What carries the tunnel once the server has welcomed it.
    async fn connect(self) -> Result<Running> {
        let stream = TcpStream::connect(self.server).await?;
        stream.set_nodelay(true)?;
        let name = ServerName::from(self.server.ip());
        let connector = TlsConnector::from(Arc::clone(&self.tls));
        let stream = connector.connect(name, stream).await.context("TLS")?;
        if stream.get_ref().1.alpn_protocol() == Some(ALPN) {
            self.stream(stream).await
        } else {
            self.packet(stream).await
        }
    }

    async fn stream<T>(self, mut stream: T) -> Result<Running>
    where
        T: AsyncRead + AsyncWrite + Unpin + 'static,
    {
        let hello = Hello {
            version: VERSION,
            role: ROLE_AGENT.to_owned(),
            agent_id: self.id,
            identifiers: String::new(),
            token: None,
            software: "adit-benches".to_owned(),
            features: Vec::new(),
        };
        send_hello(&mut stream, &hello).await?;
        match receive_answer(&mut stream).await? {
            Answer::Welcome(_) => {}
            Answer::Refused(status) => bail!("refused: {status}"),
        }
        let ends = Ends {
            ledger: Rc::new(Ledger::new(DEFAULT_BUDGET)),
            observer: Rc::new(Unobserved),
            probe: Probe::default(),
        };
        let mut link = ends.agent(stream).await?;
        Ok(Box::pin(async move {
            drop(link.run(drop).await);
        }))
    }

    async fn packet<T>(self, stream: T) -> Result<Running>
    where
        T: AsyncRead + AsyncWrite + Unpin + 'static,
    {
        let (mut requests, mut connection) =
            link::client_builder().handshake::<_, Batch>(stream).await?;
        let ping_pong: Option<PingPong> = connection.ping_pong();
        let mut request = grpc::request("127.0.0.1", "/AgentService/Connect", "adit-benches")?;
        let headers = request.headers_mut();
        headers.insert("agentid", self.id.parse()?);
        headers.insert("agentidentifiers", http::HeaderValue::from_static(""));
        let (response, send) = requests.send_request(request, false)?;
        let response = tokio::select! {
            response = response => response?,
            ended = &mut connection => bail!("connection ended: {ended:?}"),
        };
        let ledger = Rc::new(Ledger::new(DEFAULT_BUDGET));
        let mux = Mux::new(Role::Agent, ledger, Rc::new(Unobserved));
        let mut link = Link::new(mux, send, response.into_body());
        Ok(Box::pin(async move {
            // As an agent that lives: nobody pings here, but the other side may look whether somebody could.
            let _ping_pong = ping_pong;
            tokio::select! {
                end = link.run(drop) => drop(end),
                ended = connection => drop(ended),
            }
        }))
    }
}
