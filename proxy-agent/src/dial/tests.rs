use std::io;
use std::net::{Ipv4Addr, TcpListener};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::*;

const LIMIT: Duration = Duration::from_secs(5);

async fn error(network: &str, address: &str, limit: Duration) -> String {
    let outcome = match Target::parse(network, address) {
        Ok(target) => dial(&Resolver::default(), &Policy::default(), &target, limit).await,
        Err(failure) => Err(failure),
    };
    outcome.unwrap_err().to_string()
}

/// A port of loopback that nobody listens on. The socket keeps it from being given away.
pub(crate) fn refusing() -> (Socket, SocketAddr) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).unwrap();
    socket
        .bind(&SockAddr::from(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))))
        .unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    (socket, address)
}

/// A listener whose queue is full: the kernel drops what comes, as a firewall would.
fn black_hole() -> (Vec<Socket>, SocketAddr) {
    let (listener, address) = refusing();
    listener.listen(0).unwrap();
    let mut sockets = vec![listener];
    for _ in 0..8 {
        let filler = Socket::new(
            Domain::IPV4,
            Type::STREAM.nonblocking(),
            Some(Protocol::TCP),
        )
        .unwrap();
        let connected = filler.connect(&address.into());
        assert!(connected.is_ok() || connected.unwrap_err().raw_os_error() == Some(115)); // EINPROGRESS
        sockets.push(filler);
    }
    (sockets, address)
}

#[tokio::test]
async fn a_listening_target_is_reached_by_address_by_name_and_by_no_name() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    for host in ["127.0.0.1", "localhost", ""] {
        let target = Target::parse("tcp", &format!("{host}:{}", address.port())).unwrap();
        let (stream, reached) = dial(&Resolver::default(), &Policy::default(), &target, LIMIT)
            .await
            .unwrap();
        assert_eq!(
            (stream.peer_addr().unwrap(), reached),
            (address, address),
            "{host:?}"
        );
    }
}

#[tokio::test]
async fn a_port_without_a_listener_is_refused() {
    let (_held, address) = refusing();
    assert_eq!(
        error("tcp", &address.to_string(), LIMIT).await,
        format!("dial tcp {address}: connect: connection refused")
    );
    assert_eq!(
        error("tcp4", &address.to_string(), LIMIT).await,
        format!("dial tcp4 {address}: connect: connection refused")
    );
}

#[tokio::test]
async fn a_target_that_does_not_answer_times_out() {
    let (_held, address) = black_hole();
    let started = Instant::now();
    let limit = Duration::from_millis(300);
    assert_eq!(
        error("tcp", &address.to_string(), limit).await,
        format!("dial tcp {address}: i/o timeout")
    );
    assert!(started.elapsed() >= limit);
}

/// field-tests.md R92: a dead address does not keep the others from being tried, and a failure says what was.
#[tokio::test]
async fn of_several_addresses_all_are_tried_and_told() {
    let (_held, refused) = refusing();
    let (_full, silent) = black_hole();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let alive = listener.local_addr().unwrap();
    let deadline = Instant::now() + LIMIT;
    let (_, reached) = race::connect(&[refused, silent, alive], deadline)
        .await
        .unwrap();
    assert_eq!(reached, alive);
    let deadline = Instant::now() + Duration::from_millis(300);
    let cause = race::connect(&[refused, silent], deadline)
        .await
        .unwrap_err();
    let network = Network::Tcp;
    assert_eq!(
        DialFailure { network, cause }.to_string(),
        format!("dial tcp {refused}: connect: connection refused (tried as well: {silent})")
    );
}

#[tokio::test]
async fn what_the_policy_does_not_allow_is_not_dialled() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let outcome = |policy: Policy, host: &'static str| async move {
        let target = Target::parse("tcp", &format!("{host}:{port}")).unwrap();
        let dialled = dial(&Resolver::default(), &policy, &target, LIMIT).await;
        dialled.map(drop).map_err(|failure| failure.to_string())
    };
    let allowing = |rule| Policy::parse(&[rule], &[]).unwrap();
    assert_eq!(outcome(allowing("127.0.0.0/8"), "127.0.0.1").await, Ok(()));
    assert_eq!(
        outcome(allowing("10.0.0.0/8"), "127.0.0.1").await,
        Err(format!(
            "dial tcp: refused by egress policy of this agent: no rule allows 127.0.0.1:{port}"
        ))
    );
    // By the address behind the name.
    let denying = Policy::parse(&[], &["127.0.0.0/8", "::1/128"]).unwrap();
    let refusal = outcome(denying, "localhost").await.unwrap_err();
    assert!(
        refusal.starts_with("dial tcp: refused by egress policy of this agent: rule "),
        "{refusal}"
    );
}

#[tokio::test]
async fn names_that_cannot_be_do_not_exist() {
    let long = "x".repeat(300);
    for host in [
        "127.1",
        "0x7f000001",
        "2130706433",
        "010.0.0.1",
        "nul\0.example",
        &long,
    ] {
        assert_eq!(
            error("tcp", &format!("{host}:80"), LIMIT).await,
            format!("dial tcp: lookup {host}: no such host")
        );
    }
}

#[tokio::test]
async fn a_name_that_the_system_does_not_know_does_not_exist() {
    // A label of 64 bytes: asked of the system's resolver, and refused by it without asking the network.
    let host = format!("{}.invalid", "x".repeat(64));
    assert_eq!(
        error("tcp", &format!("{host}:80"), LIMIT).await,
        format!("dial tcp: lookup {host}: no such host")
    );
}

#[tokio::test(start_paused = true)]
async fn a_lookup_that_takes_too_long_times_out() {
    let resolver = Resolver::default();
    // Every turn is taken, so the lookup waits.
    let turns = resolver.turns();
    let held = turns
        .acquire_many(u32::try_from(resolve::MAX_LOOKUPS).unwrap())
        .await
        .unwrap();
    let target = Target::parse("tcp", "localhost:80").unwrap();
    let failure = dial(&resolver, &Policy::default(), &target, LIMIT)
        .await
        .unwrap_err();
    assert_eq!(
        failure.to_string(),
        "dial tcp: lookup localhost: i/o timeout"
    );
    drop(held);
}

#[tokio::test]
async fn an_address_of_the_wrong_family_does_not_suit() {
    assert_eq!(
        error("tcp6", "127.0.0.1:80", LIMIT).await,
        "dial tcp6: address 127.0.0.1: no suitable address"
    );
}

#[tokio::test]
async fn one_address_that_answers_is_enough_and_of_failures_the_first_counts() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let good = listener.local_addr().unwrap();
    let (_held, refused) = refusing();
    let (_dropping, silent) = black_hole();
    let deadline = Instant::now() + LIMIT;
    for addresses in [[refused, good], [silent, good]] {
        assert_eq!(race::connect(&addresses, deadline).await.unwrap().1, good);
    }
    for (addresses, first) in [
        ([refused, silent], "refused"),
        ([silent, refused], "refused"),
    ] {
        let soon = Instant::now() + 2 * STAGGER;
        let cause = race::connect(&addresses, soon).await.unwrap_err();
        let text = DialFailure {
            network: Network::Tcp,
            cause,
        }
        .to_string();
        assert!(text.contains(first), "{text}");
    }
}

#[test]
fn the_words_for_a_lack_of_files_come_from_the_kernel() {
    let cause = Cause::Lookup {
        host: "h".to_owned(),
        source: io::Error::from_raw_os_error(24),
    };
    let text = DialFailure {
        network: Network::Tcp,
        cause,
    }
    .to_string();
    assert_eq!(text, "dial tcp: lookup h: too many open files");
}
