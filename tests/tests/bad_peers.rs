//! Peers that do everything wrong: the right status where there is one, and nothing else disturbed, nothing left behind.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use certs::{
    Authority, Identity, Validity,
    issue::{Issued, Leaf},
    tls::ALPN_AGENT,
};
use e2e::{
    client::{Client, DialAnswer, Endpoint, Frontend, Socket},
    exchange::dial_and_echo,
    harness::{Cluster, Footprint, PATIENCE, eventually, metric},
    targets::Target,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, UnixStream},
    task::JoinSet,
    time::{Instant, timeout},
};
use tunnel::grpc::{Code, MAX_MESSAGE, put_prefix};

const REFUSED: &str = "konnectivity_network_proxy_server_refused_connections_total";

/// A cluster under test, and what it must be able to do afterwards.
struct Subject {
    cluster: Cluster,
    target: Target,
    before: Footprint,
}

impl Subject {
    async fn start(frontend: Frontend) -> Result<Self> {
        let mut cluster = Cluster::with(frontend).await?;
        let target = Target::echo().await?;
        dial_and_echo(&cluster.client()?, &target.name(), 1_000).await?;
        let before = cluster.footprint()?;
        cluster.settle(before).await?;
        Ok(Self {
            before: cluster.footprint()?,
            cluster,
            target,
        })
    }

    fn client(&self) -> Result<Client> {
        self.cluster.client()
    }

    async fn socket(&self) -> Result<Socket> {
        Ok(self.client()?.connect().await?)
    }

    /// Nothing is disturbed and nothing left behind.
    async fn is_unharmed(&mut self) -> Result<()> {
        dial_and_echo(&self.client()?, &self.target.name(), 10_000).await?;
        self.cluster.settle(self.before).await
    }
}

/// Reads to the end, however it ends.
async fn rest(socket: &mut Socket) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    timeout(PATIENCE, socket.read_to_end(&mut bytes))
        .await
        .context("the connection is not closed")?
        .ok();
    Ok(bytes)
}

async fn plain(address: SocketAddr) -> Result<Socket> {
    Ok(Box::new(TcpStream::connect(address).await?))
}

/// Sends `bytes` and returns the answer to them.
async fn answer_to(subject: &Subject, bytes: &[u8]) -> Result<(DialAnswer, String)> {
    let mut socket = subject.socket().await?;
    // The answer may come, and the connection end, before all has been written.
    socket.write_all(bytes).await.ok();
    socket.flush().await.ok();
    let answer = timeout(PATIENCE, DialAnswer::read(&mut socket)).await??;
    let mut body = answer.behind.clone();
    body.extend(rest(&mut socket).await?);
    Ok((answer, String::from_utf8(body)?))
}

#[tokio::test]
async fn what_is_no_connect_gets_its_status() -> Result<()> {
    let long = format!(
        "CONNECT 127.0.0.1:1 HTTP/1.1\r\nHost: a\r\nX-Long: {}\r\n\r\n",
        "x".repeat(64 * 1024)
    );
    let many = format!(
        "CONNECT 127.0.0.1:1 HTTP/1.1\r\n{}\r\n",
        "A: b\r\n".repeat(2_000)
    );
    let cases: [(&[u8], u16, &str); 7] = [
        (
            b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
            405,
            "this proxy only supports CONNECT passthrough\n",
        ),
        (b"NONSENSE\r\n\r\n", 400, "400 Bad Request"),
        (
            b"CONNECT /path HTTP/1.1\r\n\r\n",
            400,
            "missing required Host header",
        ),
        (b"\x00\x01\x02\x03\r\n\r\n", 400, "400 Bad Request"),
        (
            b"CONNECT 127.0.0.1 HTTP/1.1\r\nHost: a\r\n\r\n",
            502,
            "missing port in address",
        ),
        (long.as_bytes(), 431, ""),
        (many.as_bytes(), 431, ""),
    ];
    for frontend in [Frontend::HttpUds, Frontend::HttpTls] {
        let mut subject = Subject::start(frontend).await?;
        for (bytes, status, body) in &cases {
            let what = String::from_utf8_lossy(bytes.get(..40).unwrap_or(bytes)).into_owned();
            let (answer, came) = answer_to(&subject, bytes)
                .await
                .with_context(|| format!("{frontend}: {what:?}"))?;
            ensure!(
                answer.status == *status && came.contains(body),
                "{frontend}: {what:?} got {answer:?}"
            );
            // R119: what a strict reader makes of it.
            let length = answer
                .head
                .lines()
                .find_map(|line| line.strip_prefix("Content-Length: "));
            if let Some(length) = length {
                ensure!(length.trim().parse() == Ok(came.len()), "{answer:?}");
            }
        }
        subject.is_unharmed().await?;
    }
    Ok(())
}

#[tokio::test]
async fn bytes_behind_a_head_reach_the_target() -> Result<()> {
    for frontend in [Frontend::HttpUds, Frontend::HttpTls] {
        let mut subject = Subject::start(frontend).await?;
        let mut socket = subject.socket().await?;
        let request = format!(
            "CONNECT {} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nearly",
            subject.target.address()
        );
        socket.write_all(request.as_bytes()).await?;
        socket.flush().await?;
        let answer = DialAnswer::read(&mut socket).await?;
        ensure!(answer.status == 200, "{answer:?}");
        let mut echoed = answer.behind;
        while echoed.len() < 5 {
            ensure!(socket.read_buf(&mut echoed).await? > 0, "closed");
        }
        ensure!(echoed == b"early", "{echoed:?}");
        drop(socket);
        subject.is_unharmed().await?;
    }
    Ok(())
}

#[tokio::test]
async fn random_bytes_harm_nobody_on_any_port() -> Result<()> {
    for frontend in [Frontend::GrpcUds, Frontend::HttpTls] {
        let mut subject = Subject::start(frontend).await?;
        let mut ports = vec![
            subject.cluster.server().agents(),
            subject.cluster.server().health(),
            subject.cluster.server().admin(),
            subject.cluster.agent(0)?.health(),
            subject.cluster.agent(0)?.admin(),
        ];
        ports.extend(subject.cluster.server().address());
        for round in 0..20 {
            let mut noise = vec![0; 10 + round * 50];
            fastrand::fill(&mut noise);
            let mut sockets = vec![subject.socket().await?];
            for &port in &ports {
                sockets.push(plain(port).await?);
            }
            for mut socket in sockets {
                socket.write_all(&noise).await.ok();
                // Many a byte is the begin of something: our end decides it.
                socket.shutdown().await.ok();
                rest(&mut socket).await?;
            }
        }
        subject.is_unharmed().await?;
    }
    Ok(())
}

#[tokio::test]
async fn tls_to_a_plain_port_and_the_reverse_just_end() -> Result<()> {
    let mut subject = Subject::start(Frontend::GrpcTls).await?;
    let pki = Arc::clone(subject.cluster.pki());
    for port in [
        subject.cluster.server().health(),
        subject.cluster.agent(0)?.health(),
    ] {
        let endpoint = Endpoint::tls(port, pki.roots(), None, Frontend::GrpcTls)?;
        let outcome = timeout(PATIENCE, endpoint.connect()).await?;
        ensure!(outcome.is_err(), "a health port speaks TLS");
    }
    let tls_ports = [
        subject.cluster.server().agents(),
        subject.cluster.server().address().context("TCP")?,
    ];
    for port in tls_ports {
        for bytes in [
            &b"CONNECT 127.0.0.1:1 HTTP/1.1\r\n\r\n"[..],
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0",
        ] {
            let mut socket = plain(port).await?;
            socket.write_all(bytes).await?;
            let answer = rest(&mut socket).await?;
            ensure!(!answer.starts_with(b"HTTP"), "{answer:?}");
        }
    }
    subject.is_unharmed().await?;

    // A ClientHello on the Unix socket.
    let mut subject = Subject::start(Frontend::HttpUds).await?;
    let path = subject.cluster.server().socket().context("UDS")?.clone();
    let stream = UnixStream::connect(path).await?;
    let config = certs::client_config(pki.roots(), None, ALPN_AGENT, &Default::default())?;
    let name = rustls::pki_types::ServerName::try_from("localhost")?;
    let mut connecting = Box::pin(tokio_rustls::TlsConnector::from(config).connect(name, stream));
    // It has no blank line, so the server waits for more, up to its limit: the client goes first.
    ensure!(
        timeout(Duration::from_millis(200), &mut connecting)
            .await
            .map_or(true, |outcome| outcome.is_err()),
        "the socket speaks TLS"
    );
    drop(connecting);
    subject.is_unharmed().await
}

/// An identity that a listener must refuse, and what is wrong with it.
fn bad_identities(
    authority: &Authority,
    leaf: &Leaf,
) -> Result<Vec<(&'static str, Option<Identity>)>> {
    let identity = |issued: Issued| anyhow::Ok(Some(issued.identity()?));
    Ok(vec![
        ("none", None),
        (
            "another authority's",
            identity(Authority::generate("adit e2e")?.issue(leaf)?)?,
        ),
        (
            "expired",
            identity(authority.issue(&leaf.clone().valid(Validity::over()))?)?,
        ),
        (
            "not yet valid",
            identity(authority.issue(&leaf.clone().valid(Validity::to_come()))?)?,
        ),
        (
            "a server's",
            identity(authority.issue_server(&["localhost"])?)?,
        ),
    ])
}

#[tokio::test]
async fn a_peer_with_a_bad_certificate_is_refused_and_counted() -> Result<()> {
    for frontend in [Frontend::HttpTls, Frontend::GrpcTls] {
        let mut subject = Subject::start(frontend).await?;
        let pki = Arc::clone(subject.cluster.pki());
        let health = subject.cluster.server().health();
        let address = subject.cluster.server().address().context("TCP")?;
        let agents = subject.cluster.server().agents();
        let leaf = Leaf::client("kube-apiserver");
        let bad = bad_identities(pki.authority(), &leaf)?;
        let count = f64::from(u32::try_from(bad.len())?);
        for (what, identity) in &bad {
            let endpoint = Endpoint::tls(address, pki.roots(), identity.as_ref(), frontend)?;
            let dial = Client::new(frontend, endpoint)
                .dial(&subject.target.name())
                .await;
            ensure!(
                dial.is_err(),
                "{frontend}: served a client whose certificate is {what}"
            );

            let endpoint =
                Endpoint::tls_with_alpn(agents, pki.roots(), identity.as_ref(), ALPN_AGENT)?;
            ensure!(
                !is_served(&endpoint).await?,
                "served an agent whose certificate is {what}"
            );
        }
        for listener in ["listener=\"frontend\"", "listener=\"agent\""] {
            eventually("every refusal is counted", PATIENCE, async || {
                let refused = metric(health, REFUSED, listener).await?;
                ensure!(refused == count, "{refused} of {count} at {listener}");
                Ok(())
            })
            .await?;
        }
        subject.is_unharmed().await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_peer_with_the_wrong_alpn_is_refused() -> Result<()> {
    let mut subject = Subject::start(Frontend::GrpcTls).await?;
    let pki = Arc::clone(subject.cluster.pki());
    let identity = pki
        .authority()
        .issue_client("konnectivity-agent")?
        .identity()?;
    let agents = subject.cluster.server().agents();
    // None at all is what kube-apiserver's CONNECT offers, and wrong for an agent.
    let alpns: [&[&[u8]]; 3] = [&[b"http/1.1"], &[b"spdy/3"], &[]];
    for alpn in alpns {
        let endpoint = Endpoint::tls_with_alpn(agents, pki.roots(), Some(&identity), alpn)?;
        ensure!(
            !is_served(&endpoint).await?,
            "served an agent with {alpn:?}"
        );
    }
    let address = subject.cluster.server().address().context("TCP")?;
    let endpoint = Endpoint::tls_with_alpn(
        address,
        pki.roots(),
        Some(pki.apiserver_identity()),
        &[b"spdy/3"],
    )?;
    ensure!(!is_served(&endpoint).await?, "served a client with spdy/3");
    subject.is_unharmed().await
}

/// Whether an endpoint speaks HTTP/2 with us, that is sends its SETTINGS.
async fn is_served(endpoint: &Endpoint) -> Result<bool> {
    let serve = async {
        let mut socket = endpoint.connect().await?;
        socket
            .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
            .await?;
        socket.flush().await?;
        socket.read_u8().await
    };
    Ok(timeout(PATIENCE, serve)
        .await
        .context("neither served nor refused")?
        .is_ok())
}

#[tokio::test]
async fn a_grpc_call_that_is_wrong_gets_its_status() -> Result<()> {
    for frontend in [Frontend::GrpcUds, Frontend::GrpcTls] {
        let mut subject = Subject::start(frontend).await?;
        let connection = subject.client()?.open().await?;

        let request = connection.request("/AgentService/Connect").body(())?;
        let end = connection.call_with(request).await?.status().await?;
        ensure!(
            code(&end) == Some(Code::Unimplemented),
            "wrong path: {end:?}"
        );

        let mut request = connection.request("/ProxyService/Proxy").body(())?;
        request
            .headers_mut()
            .insert("content-type", "application/json".parse()?);
        let end = connection.call_with(request).await?.status().await?;
        ensure!(
            end.http.map(|status| status.as_u16()) == Some(415),
            "JSON: {end:?}"
        );

        // To the byte: 4 MiB are not too long. An unknown field of bytes fills them.
        let mut longest = bytes::BytesMut::new();
        put_prefix(&mut longest, MAX_MESSAGE);
        longest.extend_from_slice(&[0xfa, 0x01, 0xfa, 0xff, 0xff, 0x01]);
        longest.resize(5 + MAX_MESSAGE, 0);
        let streams: [(&str, &[u8], Code); 4] = [
            ("compressed", &[1, 0, 0, 0, 1, 0], Code::Unimplemented),
            ("too long", &[0, 0, 0x40, 0, 1], Code::ResourceExhausted),
            ("4 MiB", &longest, Code::Ok),
            ("cut short", &[0, 0, 0], Code::Internal),
        ];
        for (what, bytes, expected) in streams {
            let mut call = connection.call().await?;
            call.send_bytes(bytes).await?;
            // An error means that the server has ended it already.
            call.end().ok();
            let end = timeout(PATIENCE, call.status()).await??;
            ensure!(code(&end) == Some(expected), "{what}: {end:?}");
        }
        drop(connection);
        subject.is_unharmed().await?;
    }
    Ok(())
}

fn code(end: &e2e::client::End) -> Option<Code> {
    end.status.as_ref().map(|status| status.code)
}

/// The one test that waits: half a minute, which is how long a client may take to say what it wants.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_slow_to_say_what_it_wants_is_cut() -> Result<()> {
    let mut waiting: JoinSet<Result<()>> = JoinSet::new();
    let mut subjects = Vec::new();
    for frontend in [Frontend::HttpUds, Frontend::HttpTls] {
        let mut subject = Subject::start(frontend).await?;
        let mut sockets = Vec::new();
        for begin in [
            &b""[..],
            b"C",
            b"CONNECT 127.0.0.1:1 HTTP/1.1\r\nHost: a\r\n",
            b"PRI * HTTP/2.0\r\n",
        ] {
            let mut socket = subject.socket().await?;
            socket.write_all(begin).await?;
            socket.flush().await?;
            sockets.push((socket, true));
        }
        // Without a handshake.
        sockets.push((plain(subject.cluster.server().agents()).await?, false));
        if let Some(address) = subject.cluster.server().address() {
            sockets.push((plain(address).await?, false));
        }
        for (mut socket, drips) in sockets {
            waiting.spawn(async move {
                let start = Instant::now();
                // A byte now and then must not help.
                loop {
                    let mut byte = [0];
                    match timeout(Duration::from_secs(2), socket.read(&mut byte)).await {
                        Ok(Ok(0) | Err(_)) => break,
                        Ok(Ok(_)) => {}
                        Err(_) if start.elapsed() < Duration::from_secs(90) => {
                            if drips {
                                socket.write_all(b"x").await.ok();
                                socket.flush().await.ok();
                            }
                        }
                        Err(_) => bail!("still served"),
                    }
                }
                Ok(())
            });
        }
        subjects.push(subject);
    }
    for subject in &mut subjects {
        dial_and_echo(&subject.client()?, &subject.target.name(), 10_000).await?;
    }
    while let Some(outcome) = waiting.join_next().await {
        outcome??;
    }
    for subject in &mut subjects {
        subject.is_unharmed().await?;
    }
    Ok(())
}
