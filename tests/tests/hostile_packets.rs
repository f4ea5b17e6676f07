//! Packets that nobody should send (R29): at worst their stream ends. The process lives, and so does everybody else.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use bytes::{Bytes, BytesMut};
use certs::{TlsOptions, server_config, tls::ALPN_AGENT};
use e2e::{
    client::{Call, Client, Connection, Endpoint, Frontend},
    exchange::{dial_and_echo, echo},
    harness::{AgentBuilder, Cluster, PATIENCE, Pki, eventually, metric},
    targets::{Target, refusing},
};
use h2::{RecvStream, SendStream};
use tokio::{net::TcpListener, task::JoinSet, time::timeout};
use tokio_rustls::TlsAcceptor;
use tunnel::{
    codec::{self, Decoded},
    grpc::{MAX_MESSAGE, MessageReader, put_prefix},
    packet::{ConnectId, DialId, Packet},
};

/// Ids that are nobody's, some at the borders of what a number can be.
const IDS: [i64; 7] = [0, -1, 1, 12_345, i64::MAX, i64::MIN, 1 << 32];

/// A message with its prefix.
fn framed(message: &[u8]) -> Vec<u8> {
    let mut bytes = BytesMut::new();
    put_prefix(&mut bytes, message.len());
    bytes.extend_from_slice(message);
    bytes.to_vec()
}

fn encoded(packet: &Packet) -> Vec<u8> {
    let mut bytes = BytesMut::new();
    codec::put_packet(&mut bytes, packet);
    bytes.to_vec()
}

/// Every kind with every id, in both directions.
fn packets() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for id in IDS {
        let (conn, dial) = (ConnectId(id), DialId(id));
        all.extend(
            [
                Packet::DialResponse {
                    error: String::new(),
                    conn,
                    dial,
                },
                Packet::DialResponse {
                    error: "no".repeat(10_000),
                    conn,
                    dial,
                },
                Packet::CloseRequest { conn },
                Packet::CloseResponse {
                    error: String::new(),
                    conn,
                },
                Packet::Data {
                    conn,
                    payload: Bytes::from_static(b"for nobody"),
                },
                Packet::CloseDial { dial },
                Packet::Drain,
            ]
            .iter()
            .map(encoded),
        );
    }
    all
}

/// What is no packet, or one whose payload does not go with its type.
fn malformed() -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = vec![framed(&[])];
    for kind in 0..=7 {
        // A type without its payload, and with each of the others'.
        all.push(framed(&[0x08, kind]));
        for field in 2..=8 {
            all.push(framed(&[0x08, kind, field << 3 | 2, 0]));
        }
    }
    // Types that nobody knows, up to the largest number there is.
    all.push(framed(&[0x08, 99]));
    all.push(framed(&[
        0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01,
    ]));
    // An empty DATA, and one that says nothing but whose it is.
    all.push(framed(&[0x08, 4, 0x22, 2, 0x08, 1]));
    all.push(framed(&[0x08, 4, 0x22, 4, 0x08, 1, 0x1a, 0]));
    all
}

/// What is no protobuf: the stream may be ended for it.
fn garbage() -> Vec<Vec<u8>> {
    let mut all = vec![
        framed(&[0xff; 11]),
        framed(&[0x08]),
        framed(&[0x12, 0x7f, 0x0a]),
        framed(&[0x0b, 0x0b, 0x0b]),
        framed(&[0x22, 0xff, 0xff, 0xff, 0xff, 0x0f]),
    ];
    for len in 1..100 {
        let mut noise = vec![0; len];
        fastrand::fill(&mut noise);
        all.push(framed(&noise));
    }
    all
}

/// Sends everything on a stream of its own each, so that each is met in the state of a fresh stream.
async fn send_each(open: impl AsyncFn() -> Result<Call>) -> Result<()> {
    for message in packets().into_iter().chain(malformed()).chain(garbage()) {
        let mut call = open().await?;
        // The stream may be over before all is written.
        call.send_bytes(&message).await.ok();
        call.end().ok();
        timeout(PATIENCE, call.status())
            .await
            .context("neither answered nor ended")?
            .ok();
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hostile_frontend_harms_nobody() -> Result<()> {
    let target = Target::echo().await?;
    for frontend in [Frontend::GrpcUds, Frontend::GrpcTls] {
        let mut cluster = Cluster::with(frontend).await?;
        let client = cluster.client()?;
        let before = cluster.footprint()?;
        let mut innocent = client.dial(&target.name()).await?;
        echo(&mut innocent, 1_000).await?;

        let connection = client.open().await?;
        send_each(async || Ok(connection.call().await?)).await?;

        // In the midst of a connection: one of them, then a whole one.
        for message in packets().into_iter().chain(malformed()).chain(garbage()) {
            let mut call = connection.call().await?;
            call.send(&dial(&target.name(), 7)).await?;
            let answer = timeout(PATIENCE, call.receive()).await??;
            let Some(Packet::DialResponse { error, .. }) = &answer else {
                anyhow::bail!("{answer:?}");
            };
            ensure!(error.is_empty(), "{error}");
            call.send_bytes(&message).await.ok();
            call.end().ok();
        }
        // More answers than anybody would wait for.
        let mut call = connection.call().await?;
        for _ in 0..10_000 {
            let message = encoded(&Packet::CloseRequest { conn: ConnectId(3) });
            if call.send_bytes(&message).await.is_err() {
                break;
            }
        }
        drop(call);
        drop(connection);

        echo(&mut innocent, 100_000)
            .await
            .context("the innocent connection")?;
        innocent.close().await?;
        dial_and_echo(&client, &target.name(), 10_000).await?;
        ensure!(cluster.server().process().ended()?.is_none());
        ensure!(cluster.agent(0)?.process().ended()?.is_none());
        cluster.settle(before).await?;
    }
    Ok(())
}

fn dial(target: &str, id: i64) -> Packet {
    Packet::DialRequest {
        protocol: "tcp".into(),
        address: target.into(),
        dial: DialId(id),
    }
}

/// Connects as an agent does.
async fn agent_connection(cluster: &mut Cluster) -> Result<Connection> {
    let pki = Arc::clone(cluster.pki());
    let identity = pki
        .authority()
        .issue_client("konnectivity-agent")?
        .identity()?;
    let endpoint = Endpoint::tls_with_alpn(
        cluster.server().agents(),
        pki.roots(),
        Some(&identity),
        ALPN_AGENT,
    )?;
    Ok(Client::new(Frontend::GrpcTls, endpoint).open().await?)
}

async fn agent_call(connection: &Connection) -> Result<Call> {
    let request = connection
        .request("/AgentService/Connect")
        .header("agentid", "hostile")
        .body(())?;
    Ok(connection.call_with(request).await?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hostile_agent_harms_nobody() -> Result<()> {
    let target = Target::echo().await?;
    for frontend in Frontend::ALL {
        let mut cluster = Cluster::with(frontend).await?;
        let client = cluster.client()?;
        let before = cluster.footprint()?;
        let mut innocent = client.dial(&target.name()).await?;
        echo(&mut innocent, 1_000).await?;

        let connection = agent_connection(&mut cluster).await?;
        send_each(async || agent_call(&connection).await).await?;
        let mut call = agent_call(&connection).await?;
        call.send_bytes(&[0, 0x7f, 0xff, 0xff, 0xff]).await?;
        let end = timeout(PATIENCE, call.status()).await??;
        ensure!(
            end.status
                .is_some_and(|status| status.code == tunnel::grpc::Code::ResourceExhausted)
        );
        drop((call, connection));

        echo(&mut innocent, 100_000)
            .await
            .context("the innocent connection")?;
        innocent.close().await?;
        eventually("the hostile agent is forgotten", PATIENCE, async || {
            let agents = metric(
                cluster.server().health(),
                "konnectivity_network_proxy_server_ready_backends",
                "proxy_strategy=\"default\"",
            )
            .await?;
            ensure!(agents == 1.0, "{agents} agents");
            Ok(())
        })
        .await?;
        dial_and_echo(&client, &target.name(), 10_000).await?;
        ensure!(cluster.server().process().ended()?.is_none());
        cluster.settle(before).await?;
    }
    Ok(())
}

/// An agent that answers dials with nonsense, and clients that get an error or nothing, but never hang.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dials_through_a_hostile_agent_end() -> Result<()> {
    for frontend in Frontend::ALL {
        let mut cluster = Cluster::builder()
            .frontend(frontend)
            .agents(0)
            .server_flag("--backend-dial-timeout=1s")
            .start()
            .await?;
        let client = cluster.client()?;
        let connection = agent_connection(&mut cluster).await?;
        let mut call = agent_call(&connection).await?;
        // The first dial shows that the server knows the agent.
        cluster.server().ready().await?;
        for id in IDS {
            let (client, name) = (client.clone(), "127.0.0.1:1");
            let dialling = JoinSet::from_iter([async move { client.dial(name).await }]);
            let request = timeout(PATIENCE, next_dial(&mut call)).await??;
            let conn = ConnectId(id);
            // A second answer, bytes for nobody, and an end that comes twice.
            for packet in [
                Packet::DialResponse {
                    error: String::new(),
                    conn,
                    dial: DialId(request.0.wrapping_add(1)),
                },
                Packet::DialResponse {
                    error: String::new(),
                    conn,
                    dial: request,
                },
                Packet::DialResponse {
                    error: "changed my mind".into(),
                    conn,
                    dial: request,
                },
                Packet::Data {
                    conn,
                    payload: Bytes::from_static(b"hello"),
                },
                Packet::CloseResponse {
                    error: "over".into(),
                    conn,
                },
                Packet::CloseResponse {
                    error: "over".into(),
                    conn,
                },
                Packet::Data {
                    conn,
                    payload: Bytes::from_static(b"too late"),
                },
            ] {
                call.send(&packet).await?;
            }
            let outcome = timeout(PATIENCE, dialling.join_all())
                .await
                .context("a dial hangs")?
                .pop()
                .context("one dial")?;
            if let Ok(mut stream) = outcome {
                let mut came = Vec::new();
                timeout(
                    PATIENCE,
                    tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut came),
                )
                .await
                .context("a connection hangs")?
                .ok();
                ensure!(
                    b"hello".starts_with(&came),
                    "{frontend}, id {id}: {came:?} came"
                );
            }
        }
        ensure!(cluster.server().process().ended()?.is_none());
    }
    Ok(())
}

async fn next_dial(call: &mut Call) -> Result<DialId> {
    loop {
        let packet = call.receive().await?.context("the stream ended")?;
        if let Packet::DialRequest { dial, .. } = packet {
            return Ok(dial);
        }
    }
}

/// A server that an agent has connected to.
struct HostileServer {
    send: SendStream<Bytes>,
    receive: RecvStream,
    reader: MessageReader,
    /// Moves the connection's bytes.
    _driver: JoinSet<()>,
}

impl HostileServer {
    async fn accept(listener: &TcpListener, tls: &TlsAcceptor) -> Result<Self> {
        let (stream, _) = listener.accept().await?;
        let stream = tls.accept(stream).await?;
        let mut connection = h2::server::handshake(stream).await?;
        let (request, mut respond) = connection.accept().await.context("no call")??;
        let response = http::Response::builder()
            .header("content-type", "application/grpc")
            .header("serverid", "hostile")
            .header("servercount", "1")
            .body(())?;
        let send = respond.send_response(response, false)?;
        let mut driver = JoinSet::new();
        driver.spawn(async move { while connection.accept().await.is_some() {} });
        Ok(Self {
            send,
            receive: request.into_body(),
            reader: MessageReader::new(MAX_MESSAGE),
            _driver: driver,
        })
    }

    fn send(&mut self, bytes: Vec<u8>) -> Result<()> {
        Ok(self.send.send_data(bytes.into(), false)?)
    }

    async fn receive(&mut self) -> Result<Packet> {
        loop {
            if let Some(message) = self.reader.next_message()? {
                match codec::decode(&message)? {
                    Decoded::Packet(packet) => return Ok(packet),
                    Decoded::Unknown(_) => continue,
                }
            }
            let chunk = self.receive.data().await.context("the stream ended")??;
            self.receive.flow_control().release_capacity(chunk.len())?;
            self.reader.push(chunk);
        }
    }

    /// The answer to a dial; others are skipped.
    async fn answer(&mut self, id: i64) -> Result<(String, ConnectId)> {
        loop {
            if let Packet::DialResponse { error, conn, dial } = self.receive().await?
                && dial == DialId(id)
            {
                return Ok((error, conn));
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hostile_server_harms_no_agent() -> Result<()> {
    let pki = Pki::shared()?;
    let identity = pki.authority().issue_server(&["127.0.0.1"])?.identity()?;
    let config = server_config(
        &identity,
        Some(pki.roots()),
        ALPN_AGENT,
        &TlsOptions::default(),
    )?;
    let tls = TlsAcceptor::from(config);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let target = Target::echo().await?;
    let builder = AgentBuilder::new(listener.local_addr()?, Arc::clone(&pki));
    let mut agent = builder.start_unconnected().await?;
    let mut server = timeout(PATIENCE, HostileServer::accept(&listener, &tls)).await??;

    for message in packets().into_iter().chain(malformed()) {
        server.send(message)?;
    }
    // What an agent must not be talked into (W27), and what it cannot do.
    let dials: [(&str, &str); 6] = [
        ("udp", "127.0.0.1:53"),
        ("unix", "/var/run/docker.sock"),
        ("", "127.0.0.1:1"),
        ("tcp", ""),
        ("tcp", ":::::"),
        ("tcp", "\u{0}\r\n:80"),
    ];
    for (number, (protocol, address)) in (100..).zip(dials) {
        server.send(encoded(&Packet::DialRequest {
            protocol: protocol.into(),
            address: address.into(),
            dial: DialId(number),
        }))?;
        let (error, _) = timeout(PATIENCE, server.answer(number)).await??;
        ensure!(!error.is_empty(), "{protocol} {address:?} was dialled");
    }
    // One id for many dials, at targets of all kinds.
    for _ in 0..100 {
        server.send(encoded(&dial(&refusing()?.to_string(), 7)))?;
        server.send(encoded(&dial(&target.name(), 7)))?;
        server.send(encoded(&Packet::CloseDial { dial: DialId(7) }))?;
    }
    // And after all that it works.
    server.send(encoded(&dial(&target.name(), 8)))?;
    let (error, conn) = timeout(PATIENCE, server.answer(8)).await??;
    ensure!(error.is_empty() && conn.0 > 0, "{error} {conn:?}");
    server.send(encoded(&Packet::Data {
        conn,
        payload: Bytes::from_static(b"hello"),
    }))?;
    let echoed = async {
        loop {
            if let Packet::Data {
                conn: from,
                payload,
            } = server.receive().await?
                && from == conn
            {
                return anyhow::Ok(payload);
            }
        }
    };
    let echoed = timeout(PATIENCE, echoed).await??;
    ensure!(&echoed[..] == b"hello", "{echoed:?}");

    // What ends the stream ends nothing else: the agent comes back.
    for message in [vec![0, 0x7f, 0xff, 0xff, 0xff], vec![1, 0, 0, 0, 0]] {
        server.send(message)?;
        server = timeout(PATIENCE, HostileServer::accept(&listener, &tls)).await??;
    }
    server.send(encoded(&dial(&target.name(), 9)))?;
    let (error, _) = timeout(PATIENCE, server.answer(9)).await??;
    ensure!(error.is_empty(), "{error}");
    drop(server);
    eventually("nothing is left at the target", PATIENCE, async || {
        ensure!(target.open() == 0, "{} are open", target.open());
        Ok(())
    })
    .await?;
    ensure!(agent.process().ended()?.is_none());
    Ok(())
}
