use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

use super::*;

fn proxy(value: &str) -> Proxy {
    let server = ServerAddress::new("server.example", 8091);
    let variable = |name: &str| (name == "HTTPS_PROXY").then(|| value.to_owned());
    Proxy::from_environment(&server, variable).unwrap().unwrap()
}

/// What the proxy is asked, and what comes of its answer.
async fn ask(value: &str, answer: &[&[u8]]) -> (String, Result<(), String>) {
    let (ours, mut theirs) = duplex(64 * 1024);
    let proxy = proxy(value);
    let server = ServerAddress::new("server.example", 8091);
    let deadline = Instant::now() + Duration::from_secs(20);
    let serve = async {
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            theirs.read_buf(&mut request).await.unwrap();
        }
        for piece in answer {
            theirs.write_all(piece).await.unwrap();
            tokio::task::yield_now().await;
        }
        (String::from_utf8(request).unwrap(), theirs)
    };
    let (outcome, (request, _open)) = tokio::join!(proxy.pass(ours, &server, deadline), serve);
    let outcome = outcome.map(drop);
    (request, outcome.map_err(|error| error.to_string()))
}

#[tokio::test(start_paused = true)]
async fn a_proxy_is_asked_for_the_server_by_name_with_credentials() {
    let pieces = [
        &b"HTTP/1.1 200 Connection established\r\nVia: 1"[..],
        b".1 squid\r\n\r\n",
    ];
    let (request, outcome) = ask("http://user:secret@squid:3128", &pieces).await;
    assert_eq!(outcome, Ok(()));
    let lines: Vec<_> = request.lines().collect();
    assert_eq!(lines[0], "CONNECT server.example:8091 HTTP/1.1");
    assert_eq!(lines[1], "Host: server.example:8091");
    // `user:secret`, by hand.
    assert_eq!(lines[3], "Proxy-Authorization: Basic dXNlcjpzZWNyZXQ=");
    let (request, _) = ask("squid", &[b"HTTP/1.0 200 OK\r\n\r\n"]).await;
    assert!(!request.contains("Proxy-Authorization"), "{request}");
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_one_line_with_status_and_cure_and_without_the_password() {
    for (answer, text) in [
        (
            &b"HTTP/1.1 407 Nope\r\nProxy-Authenticate: Basic\r\n\r\n<html>"[..],
            "proxy http://squid:3128 answered 407 Proxy Authentication Required to CONNECT server.example:8091: \
             it wants other credentials than HTTPS_PROXY has",
        ),
        (
            b"HTTP/1.1 502 Bad Gateway\r\n\r\n",
            "proxy http://squid:3128 answered 502 Bad Gateway to CONNECT server.example:8091: it does not reach the server",
        ),
        (
            b"SSH-2.0-x\r\n",
            "proxy http://squid:3128 answered CONNECT with something else than HTTP: invalid HTTP version",
        ),
        (
            b"HTTP/1.1 200 OK\r\n\r\nhello",
            "proxy http://squid:3128 answered CONNECT with something else than HTTP: bytes follow the head of its answer",
        ),
    ] {
        let (_, outcome) = ask("http://user:secret@squid:3128", &[answer]).await;
        assert_eq!(outcome, Err(text.to_owned()));
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_without_end_is_bounded_in_bytes_and_in_time() {
    let field = format!("X: {}\r\n", "y".repeat(1000));
    let mut head = b"HTTP/1.1 200 OK\r\n".to_vec();
    for _ in 0..20 {
        head.extend_from_slice(field.as_bytes());
    }
    let (_, outcome) = ask("squid", &[&head]).await;
    assert!(outcome.unwrap_err().ends_with("its head does not end"));
    let (_, outcome) = ask("squid", &[b"HTTP/1.1 200 OK\r\n"]).await;
    assert_eq!(
        outcome,
        Err("no answer to CONNECT from proxy http://squid:80 in time".to_owned())
    );
}

#[test]
fn debug_shows_no_credentials() {
    let shown = format!("{:?}", proxy("http://user:secret@squid:3128"));
    assert_eq!(shown, "Proxy(http://squid:3128)");
}

#[tokio::test]
async fn an_https_proxy_is_asked_within_tls_and_must_prove_itself() {
    for (name, is_trusted) in [("squid.example", true), ("other.example", false)] {
        let authority = certs::Authority::generate("CA of the proxy").unwrap();
        let identity = authority.issue_server(&[name]).unwrap().identity().unwrap();
        let options = TlsOptions::default();
        let theirs = certs::server_config(&identity, None, &[], &options).unwrap();
        let roots = authority.roots().unwrap();
        let ours = certs::client_config(&roots, None, &[], &options).unwrap();
        let proxy = Proxy {
            url: proxy("http://squid.example:3129").url,
            tls: Some((ours, ServerName::try_from("squid.example").unwrap())),
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serve = async {
            let (stream, _) = listener.accept().await.unwrap();
            let accepted = tokio_rustls::TlsAcceptor::from(theirs).accept(stream).await;
            let Ok(mut stream) = accepted else { return };
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                if stream.read_buf(&mut request).await.unwrap_or(0) == 0 {
                    return;
                }
            }
            let answer = b"HTTP/1.1 200 OK\r\n\r\n";
            stream.write_all(answer).await.unwrap();
        };
        let deadline = Instant::now() + Duration::from_secs(60);
        let server = ServerAddress::new("server.example", 8091);
        let ask = async {
            let stream = TcpStream::connect(address).await.unwrap();
            match proxy.secure(stream, deadline).await? {
                Secured::Tls(stream) => proxy.pass(stream, &server, deadline).await.map(drop),
                Secured::Plain(_) => panic!("no TLS"),
            }
        };
        let (outcome, ()) = tokio::join!(ask, serve);
        match outcome {
            Ok(()) => assert!(is_trusted),
            Err(error) => assert!(
                !is_trusted && matches!(error, ProxyError::Tls { .. }),
                "{error}"
            ),
        }
    }
}
