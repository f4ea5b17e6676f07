use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use http::StatusCode;
use prometheus::{IntCounter, Registry};

use super::*;

/// Fails a test that would hang.
const DEADLINE: Duration = Duration::from_secs(60);

struct Served {
    thread: AdminThread,
    shutdown: CancellationToken,
}

impl Served {
    fn new(router: Router) -> Self {
        let shutdown = CancellationToken::new();
        let server = AdminServer::bind("--health-port", "127.0.0.1", 0).unwrap();
        assert_ne!(server.local_addr().port(), 0);
        Self {
            thread: server.serve("health", router, shutdown.clone()).unwrap(),
            shutdown,
        }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.thread.local_addr()).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream
    }

    /// All that comes back for `request` until the server closes.
    fn exchange(&self, request: &str) -> String {
        let mut stream = self.connect();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn get(&self, path: &str) -> String {
        self.exchange(&format!(
            "GET {path} HTTP/1.1\r\nhost: x:1\r\nconnection: close\r\n\r\n"
        ))
    }

    fn stop(self) {
        self.shutdown.cancel();
        self.thread.join().unwrap();
    }
}

fn health() -> Router {
    Router::new()
        .route("/healthz", |_| text(StatusCode::OK, "ok"))
        .route("/readyz", |head| {
            let verbose = head
                .uri
                .query()
                .is_some_and(|query| query.contains("verbose"));
            text(
                StatusCode::INTERNAL_SERVER_ERROR,
                if verbose { "[-]server-connected" } else { "no" },
            )
        })
}

fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").unwrap().1
}

fn has_header(answer: &str, line: &str) -> bool {
    answer.lines().any(|found| found.eq_ignore_ascii_case(line))
}

#[test]
fn a_route_answers_with_exactly_its_body() {
    let served = Served::new(health());
    let answer = served.get("/healthz");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert_eq!(body(&answer), "ok");
    assert!(
        has_header(&answer, "content-type: text/plain; charset=utf-8"),
        "{answer}"
    );
    assert!(has_header(&answer, "content-length: 2"), "{answer}");
    assert!(
        !answer
            .to_ascii_lowercase()
            .contains("x-content-type-options"),
        "{answer}"
    );
    served.stop();
}

#[test]
fn the_status_and_the_query_are_the_handlers() {
    let served = Served::new(health());
    let answer = served.get("/readyz?verbose");
    assert!(answer.starts_with("HTTP/1.1 500 "), "{answer}");
    assert_eq!(body(&answer), "[-]server-connected");
    served.stop();
}

#[test]
fn the_method_is_not_looked_at_and_a_body_not_read() {
    let served = Served::new(health());
    let answer = served.exchange(
        "POST /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 4\r\n\r\nbody",
    );
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    let answer = served.exchange("HEAD /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    assert_eq!(body(&answer), "");
    served.stop();
}

#[test]
fn an_unknown_path_gets_gos_not_found() {
    let served = Served::new(health());
    for path in ["/", "/healthz/", "/metrics"] {
        let answer = served.get(path);
        assert!(answer.starts_with("HTTP/1.1 404 Not Found\r\n"), "{answer}");
        assert_eq!(body(&answer), "404 page not found\n");
        assert!(
            has_header(&answer, "x-content-type-options: nosniff"),
            "{answer}"
        );
        assert!(
            has_header(&answer, "content-type: text/plain; charset=utf-8"),
            "{answer}"
        );
    }
    served.stop();
}

#[test]
fn metrics_are_rendered_in_the_text_format_at_each_scrape() {
    let registry = Registry::new();
    let dials = IntCounter::new("dials_total", "Dials.").unwrap();
    registry.register(Box::new(dials.clone())).unwrap();
    let served = Served::new(Router::new().route("/metrics", metrics_handler(&registry)));
    dials.inc_by(3);
    let answer = served.get("/metrics");
    assert!(
        has_header(
            &answer,
            "content-type: text/plain; version=0.0.4; charset=utf-8"
        ),
        "{answer}"
    );
    assert_eq!(
        body(&answer),
        "# HELP dials_total Dials.\n# TYPE dials_total counter\ndials_total 3\n"
    );
    served.stop();
}

#[test]
fn a_redirect_has_its_location_and_a_link() {
    let served =
        Served::new(Router::new().route("/metrics", |_| moved_permanently("//a:1/metrics")));
    let answer = served.get("/metrics");
    assert!(
        answer.starts_with("HTTP/1.1 301 Moved Permanently\r\n"),
        "{answer}"
    );
    assert!(has_header(&answer, "location: //a:1/metrics"), "{answer}");
    assert_eq!(
        body(&answer),
        "<a href=\"//a:1/metrics\">Moved Permanently</a>.\n\n"
    );
    assert_eq!(moved_permanently("//a\n").status(), StatusCode::BAD_REQUEST);
    served.stop();
}

#[test]
fn a_head_that_is_too_large_is_refused() {
    let served = Served::new(health());
    let mut stream = served.connect();
    // The server may answer and close before all of this is written.
    let head = format!(
        "GET /healthz HTTP/1.1\r\nx: {}",
        "y".repeat(2 * MAX_HEAD_BYTES)
    );
    let written = stream.write_all(head.as_bytes());
    let mut answer = Vec::new();
    let read = stream.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer);
    // Unread bytes at the server's close may turn into a reset that overtakes the answer.
    assert!(
        answer.starts_with("HTTP/1.1 431 ") || written.is_err() || read.is_err(),
        "{answer}"
    );
    assert!(!answer.contains("200 OK"), "{answer}");
    assert_eq!(body(&served.get("/healthz")), "ok");
    served.stop();
}

#[test]
fn what_is_no_http_ends_its_own_connection_only() {
    let served = Served::new(health());
    let answer = served.exchange("\u{16}\u{3}\u{1} tls?\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    assert_eq!(body(&served.get("/healthz")), "ok");
    served.stop();
}

#[test]
fn silent_connections_keep_a_probe_waiting_only_at_the_limit_and_until_one_ends() {
    crate::limits::raise_open_files().unwrap(); // this takes more than 512
    let served = Served::new(health());
    let mut silent: Vec<_> = (1..MAX_CONNECTIONS).map(|_| served.connect()).collect();
    assert_eq!(body(&served.get("/healthz")), "ok");

    silent.push(served.connect());
    let mut waiting = served.connect();
    waiting
        .write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        .unwrap();
    silent.pop();
    let mut answer = String::new();
    waiting.read_to_string(&mut answer).unwrap();
    assert_eq!(body(&answer), "ok");
    drop(silent);
    served.stop();
}

#[test]
fn at_shutdown_idle_connections_are_closed_and_the_port_is_free_again() {
    let served = Served::new(health());
    let address = served.thread.local_addr();
    let mut kept = served.connect();
    kept.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        .unwrap();
    let mut head = [0; 12];
    kept.read_exact(&mut head).unwrap();
    assert_eq!(&head, b"HTTP/1.1 200");
    assert!(!served.thread.is_finished());
    served.stop();
    let mut rest = Vec::new();
    kept.read_to_end(&mut rest).unwrap();
    assert!(TcpStream::connect(address).is_err());
}

#[test]
fn a_port_in_use_is_an_error_that_names_the_flag() {
    let held = AdminServer::bind("--health-port", "127.0.0.1", 0).unwrap();
    let error = AdminServer::bind("--admin-port", "127.0.0.1", held.local_addr().port())
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("--admin-port: cannot listen on 127.0.0.1:"),
        "{error}"
    );
}
