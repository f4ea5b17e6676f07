use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::LocalSet;
use tunnel::grpc::Code;
use tunnel::{credit, keepalive};

use super::*;
use crate::client_set::Connect as _;
use crate::fake_server::{FakeServers, Manner, PEER};

async fn connect(manner: Manner) -> (Rc<FakeServers>, Result<Tunnel, ConnectError>) {
    let servers = FakeServers::new([manner]);
    let connecting = servers.clone();
    let outcome = LocalSet::new()
        .run_until(async move { connecting.connect(Via::Address(PEER)).await })
        .await;
    (servers, outcome)
}

fn headers(headers: &[(&'static str, &str)]) -> Manner {
    Manner::Serve(
        headers
            .iter()
            .map(|(name, value)| (*name, (*value).to_owned()))
            .collect(),
    )
}

async fn error(manner: Manner) -> String {
    chain(&connect(manner).await.1.unwrap_err())
}

#[tokio::test]
async fn a_server_is_told_who_we_are_and_says_who_it_is() {
    let (servers, outcome) = connect(Manner::server("server-1", 3)).await;
    let tunnel = outcome.unwrap();
    assert_eq!(
        tunnel.greeting(),
        &Greeting {
            server_id: "server-1".to_owned(),
            server_count: 3,
            forwards: false,
        }
    );
    let backend = servers.last();
    let request = &backend.request;
    assert_eq!(request.uri().path(), "/AgentService/Connect");
    assert_eq!(request.uri().authority().unwrap(), "server.example");
    assert_eq!(request.headers()["agentid"], "agent-1");
    assert_eq!(request.headers()["agentidentifiers"], "");
    assert_eq!(request.headers()["content-type"], "application/grpc");
    assert!(
        request.headers()["user-agent"]
            .to_str()
            .unwrap()
            .starts_with("adit-agent/")
    );
    assert!(!request.headers().contains_key("authorization"));
}

/// wire-protocol.md T9.
#[tokio::test]
async fn a_server_of_ours_is_pinged_more_often_than_upstreams_tolerates() {
    let upstream = connect(Manner::server("a", 1)).await.1.unwrap();
    let credit = credit::announcement().to_str().unwrap().to_owned();
    let ours = [
        ("serverid", "a"),
        ("servercount", "1"),
        ("adit-credit", &credit),
    ];
    let ours = connect(headers(&ours)).await.1.unwrap();
    assert_eq!(upstream.keepalive, keepalive::UPSTREAM_INTERVAL);
    assert_eq!(ours.keepalive, keepalive::DEFAULT_INTERVAL);
}

#[tokio::test]
async fn a_refusal_comes_with_the_servers_status() {
    let status = Status::new(
        Code::Unknown,
        "expected one agent ID in the context, got []",
    );
    assert_eq!(
        error(Manner::Refuse(status)).await,
        "server refused the call: Unknown: expected one agent ID in the context, got []"
    );
}

#[tokio::test]
async fn headers_of_no_server_are_refused() {
    assert_eq!(
        error(headers(&[])).await,
        "expected one server ID in the context, got []"
    );
    let twice = [("serverid", "a"), ("serverid", "b"), ("servercount", "1")];
    assert_eq!(
        error(headers(&twice)).await,
        "expected one server ID in the context, got [a b]"
    );
    let twice = [
        ("serverid", "a"),
        ("servercount", "1"),
        ("servercount", "2"),
    ];
    assert_eq!(
        error(headers(&twice)).await,
        "expected one server count, got 2"
    );
    let word = [("serverid", "a"), ("servercount", "many")];
    assert_eq!(
        error(headers(&word)).await,
        "server count \"many\" is not a number"
    );
}

#[tokio::test]
async fn a_count_below_one_is_one() {
    for count in [0, -3] {
        let tunnel = connect(Manner::server("s", count)).await.1.unwrap();
        assert_eq!(tunnel.greeting().server_count, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_sends_no_headers_is_given_up() {
    assert_eq!(
        error(Manner::Ignore).await,
        "no greeting of the server within 10s"
    );
}

#[tokio::test(start_paused = true)]
async fn a_port_that_speaks_no_tls_is_given_up() {
    assert_eq!(error(Manner::Hang).await, "no TLS handshake within 20s");
}

#[tokio::test]
async fn a_server_without_alpn_is_refused() {
    assert_eq!(
        error(Manner::NoAlpn).await,
        "server chose nothing by ALPN, neither adit/1 nor h2"
    );
}

#[tokio::test]
async fn a_server_under_another_name_is_refused() {
    let mut servers = FakeServers::new([Manner::server("s", 1)]);
    let connector = &mut Rc::get_mut(&mut servers).unwrap().connector;
    connector.server_name = "other.example".try_into().unwrap();
    let connecting = servers.clone();
    let outcome = LocalSet::new()
        .run_until(async move { connecting.connect(Via::Address(PEER)).await })
        .await;
    let text = chain(&outcome.unwrap_err());
    assert!(
        text.starts_with("TLS handshake: ") && text.contains("certificate"),
        "{text}"
    );
}

/// field-tests.md R127: TLS to the server goes through the proxy untouched.
#[tokio::test]
async fn a_tunnel_goes_through_the_proxy_that_the_environment_names() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://user:secret@{}", listener.local_addr().unwrap());
    let mut servers = FakeServers::new([Manner::server("a", 1)]);
    let connector = &mut Rc::get_mut(&mut servers).unwrap().connector;
    let variable = |name: &str| (name == "HTTPS_PROXY").then(|| url.clone());
    connector.proxy = Proxy::from_environment(&connector.server, variable).unwrap();
    let behind = servers.clone();
    let local = LocalSet::new();
    local.spawn_local(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            stream.read_buf(&mut head).await.unwrap();
        }
        assert!(head.starts_with(b"CONNECT server.example:8091 HTTP/1.1\r\n"));
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
        behind.accept(stream).await;
    });
    let connecting = async {
        let connector = &servers.connector;
        assert_eq!(connector.routes().await.unwrap(), [Via::Proxy]);
        connector.connect(Via::Proxy).await
    };
    let tunnel = local.run_until(connecting).await.unwrap();
    assert_eq!(tunnel.greeting().server_id, "a");
}

/// field-tests.md R131.
#[tokio::test]
async fn a_literal_address_is_one_route_in_every_form() {
    let mut servers = FakeServers::new([]);
    let connector = &mut Rc::get_mut(&mut servers).unwrap().connector;
    for (host, address) in [
        ("::1", "[::1]:8091"),
        ("[::1]", "[::1]:8091"),
        ("127.0.0.1", "127.0.0.1:8091"),
        // The loopback link has number 1 on every Linux.
        ("fe80::1%lo", "[fe80::1%1]:8091"),
    ] {
        connector.server = ServerAddress::new(host, 8091);
        let routes = connector.routes().await.unwrap();
        assert_eq!(routes, [Via::Address(address.parse().unwrap())], "{host}");
    }
}

#[tokio::test]
async fn a_server_that_closes_without_a_word_has_closed_and_nothing_worse() {
    let servers = FakeServers::new([Manner::server("a", 1)]);
    let connecting = servers.clone();
    let end = LocalSet::new()
        .run_until(async move {
            let tunnel = connecting.connect(Via::Address(PEER)).await.unwrap();
            connecting.last().cut.cancel();
            tunnel.run(|_| {}, std::future::pending()).await
        })
        .await;
    assert!(matches!(end, TunnelEnd::Closed), "{end:?}");
}
