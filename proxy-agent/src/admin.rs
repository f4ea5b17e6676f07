//! What probes and scrapes are told (wire-protocol.md 8.2), on the admin servers' threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use certs::Timestamp;
use daemon::admin::{Router, is_verbose, metrics_handler, moved_permanently, text};
use daemon::profile;
use http::request::Parts;
use http::{Response, StatusCode, header};
use http_body_util::Full;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::metrics::Metrics;
use crate::standing::Standing;

/// How long the sync loop may say nothing before the process counts as stuck: longer than its longest attempt, 30 s.
pub(crate) const STUCK_AFTER: Duration = Duration::from_secs(90);

/// When the sync loop was last seen alive.
#[derive(Debug)]
pub(crate) struct Heartbeat {
    start: Instant,
    /// Milliseconds from `start`.
    last: AtomicU64,
}

impl Heartbeat {
    /// Alive now.
    pub(crate) fn new() -> Self {
        Self {
            start: Instant::now(),
            last: AtomicU64::new(0),
        }
    }

    /// Alive now.
    pub(crate) fn beat(&self) {
        self.last.store(self.since_start(), Ordering::Relaxed);
    }

    /// Whether the last beat was too long ago.
    pub(crate) fn is_stuck(&self) -> bool {
        let silent = self
            .since_start()
            .saturating_sub(self.last.load(Ordering::Relaxed));
        Duration::from_millis(silent) > STUCK_AFTER
    }

    fn since_start(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// Health, readiness and metrics. `/livez` is ours.
pub(crate) fn health_router(
    metrics: &Arc<Metrics>,
    heartbeat: &Arc<Heartbeat>,
    standing: &watch::Receiver<Standing>,
) -> Router {
    let health = || {
        let heartbeat = heartbeat.clone();
        move |_: &Parts| health(&heartbeat)
    };
    let ready = || {
        let (metrics, standing) = (metrics.clone(), standing.clone());
        move |head: &Parts| readiness(head, &metrics, &standing)
    };
    Router::new()
        .route("/healthz", health())
        .route("/livez", health())
        .route("/readyz", ready())
        .route("/ready", ready())
        .route("/metrics", metrics_handler(metrics.registry()))
}

/// Where the metrics are; with `--enable-profiling`, profiles.
pub(crate) fn admin_router(health_port: u16, profiling: bool) -> Router {
    let router = Router::new().route("/metrics", move |head| {
        moved_permanently(&format!("//{}:{health_port}/metrics", requested_host(head)))
    });
    if profiling {
        profile::add_routes(router)
    } else {
        router
    }
}

/// `ok` also without a tunnel: a restart of the agent brings no server back.
fn health(heartbeat: &Heartbeat) -> Response<Full<Bytes>> {
    if heartbeat.is_stuck() {
        return text(
            StatusCode::SERVICE_UNAVAILABLE,
            "the agent's main thread is stuck",
        );
    }
    text(StatusCode::OK, "ok")
}

/// Upstream's bodies; with `?verbose` behind them how this agent stands with each server, and the state of each file. A file that
/// could not be taken up is no reason to be unready: what worked before still does.
fn readiness(
    head: &Parts,
    metrics: &Metrics,
    standing: &watch::Receiver<Standing>,
) -> Response<Full<Bytes>> {
    let is_ready = metrics.tunnels() > 0;
    let is_verbose = is_verbose(head);
    let (status, body) = match (is_ready, is_verbose) {
        (true, false) => (StatusCode::OK, "ok"),
        (true, true) => (
            StatusCode::OK,
            "[+]ping ok\n[+]server-connected ok\ncheck passed\n",
        ),
        (false, _) => (
            StatusCode::SERVICE_UNAVAILABLE,
            "[+]ping ok\n[-]server-connected failed: no servers connected\n",
        ),
    };
    if !is_verbose {
        return text(status, body);
    }
    // Cloned, so that the worker never waits for a page to be written.
    let standing = standing.borrow().clone();
    let standing = standing.describe(Instant::now());
    let files = metrics.files().describe(Timestamp::now());
    text(status, format!("{body}{standing}{files}"))
}

/// The host that a request was sent to, without its port, IPv6 in brackets.
fn requested_host(head: &Parts) -> &str {
    let host = head
        .headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok())
        .unwrap_or_default();
    match (host.rfind(':'), host.rfind(']')) {
        (Some(colon), bracket) if bracket.is_none_or(|bracket| bracket < colon) => {
            host.get(..colon).unwrap_or_default()
        }
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use http::Request;
    use http_body_util::BodyExt as _;

    use super::*;

    struct World {
        standing: watch::Sender<Standing>,
        metrics: Arc<Metrics>,
        heartbeat: Arc<Heartbeat>,
        router: Router,
    }

    impl World {
        fn new() -> Self {
            let metrics = Arc::new(Metrics::new(certs::Current::fixed(Arc::default())).unwrap());
            let heartbeat = Arc::new(Heartbeat::new());
            let (standing, shown) = watch::channel(Standing::default());
            let router = health_router(&metrics, &heartbeat, &shown);
            Self {
                standing,
                metrics,
                heartbeat,
                router,
            }
        }

        async fn ask(&self, uri: &str) -> (u16, String) {
            answer(&self.router, uri, "h").await
        }
    }

    async fn answer(router: &Router, uri: &str, host: &str) -> (u16, String) {
        let request = Request::builder()
            .uri(uri)
            .header("host", host)
            .body(())
            .unwrap();
        let response = router.respond(&request.into_parts().0);
        let status = response.status().as_u16();
        if let Some(location) = response.headers().get("location") {
            return (status, location.to_str().unwrap().to_owned());
        }
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    /// wire-protocol.md 8.2, byte for byte.
    #[tokio::test]
    async fn the_agent_is_ready_while_it_has_a_tunnel() {
        let world = World::new();
        let not_ready = (
            503,
            "[+]ping ok\n[-]server-connected failed: no servers connected\n".to_owned(),
        );
        assert_eq!(world.ask("/readyz").await, not_ready);
        let why = ("10.0.0.1:8091".to_owned(), "connection refused".to_owned());
        world.standing.send_modify(|standing| {
            standing.wanted = 3;
            standing.troubles.push(why);
        });
        let details = "servers: reached 0 of 3\n10.0.0.1:8091: connection refused\n";
        assert_eq!(
            world.ask("/ready?verbose").await,
            (503, format!("{}{details}", not_ready.1))
        );
        let tunnel = world.metrics.tunnel_opened();
        for path in ["/readyz", "/ready", "/readyz?verbosely=1"] {
            assert_eq!(world.ask(path).await, (200, "ok".to_owned()));
        }
        let verbose = (
            200,
            format!("[+]ping ok\n[+]server-connected ok\ncheck passed\n{details}"),
        );
        for path in ["/readyz?verbose", "/ready?a=b&verbose=0"] {
            assert_eq!(world.ask(path).await, verbose);
        }
        drop(tunnel);
        assert_eq!(world.ask("/readyz").await, not_ready);
    }

    #[tokio::test]
    async fn each_file_shows_in_the_details_and_a_stale_one_changes_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        std::fs::write(&file, "a").unwrap();
        let mut watcher = certs::Watcher::new();
        watcher.token(&file).unwrap();
        let metrics = Arc::new(Metrics::new(watcher.status()).unwrap());
        let (_, standing) = watch::channel(Standing::default());
        let router = health_router(&metrics, &Arc::new(Heartbeat::new()), &standing);
        let _tunnel = metrics.tunnel_opened();
        let before = "[+]ping ok\n[+]server-connected ok\ncheck passed\nservers: reached 0 of 1\n";
        let details = answer(&router, "/readyz?verbose", "h").await;
        let fresh = format!("{before}{}: ok\n", file.display());
        assert_eq!(details, (200, fresh));
        std::fs::write(&file, "").unwrap();
        for _ in 0..2 {
            watcher.poll_once(Timestamp::now());
        }
        let plain = answer(&router, "/readyz", "h").await;
        assert_eq!(plain, (200, "ok".to_owned()));
        let (status, details) = answer(&router, "/readyz?verbose", "h").await;
        let stale = format!("{before}{}: stale since ", file.display());
        assert!(status == 200 && details.starts_with(&stale), "{details}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_agent_is_healthy_without_a_tunnel_until_its_loop_is_stuck() {
        let world = World::new();
        let healthy = (200, "ok".to_owned());
        tokio::time::advance(STUCK_AFTER).await;
        assert_eq!(world.ask("/healthz").await, healthy);
        tokio::time::advance(Duration::from_secs(1)).await;
        for path in ["/healthz", "/livez"] {
            assert_eq!(world.ask(path).await.0, 503);
        }
        world.heartbeat.beat();
        assert_eq!(world.ask("/healthz").await, healthy);
    }

    #[tokio::test]
    async fn metrics_are_served_and_the_admin_port_leads_to_them() {
        let world = World::new();
        let (status, body) = world.ask("/metrics").await;
        assert_eq!(status, 200);
        assert!(
            body.contains("\nkonnectivity_network_proxy_agent_open_server_connections 0\n"),
            "{body}"
        );
        let admin = admin_router(8093, false);
        for (host, location) in [
            ("node:8094", "//node:8093/metrics"),
            ("node", "//node:8093/metrics"),
            ("[::1]:8094", "//[::1]:8093/metrics"),
            ("[::1]", "//[::1]:8093/metrics"),
        ] {
            assert_eq!(
                answer(&admin, "/metrics", host).await,
                (301, location.to_owned())
            );
        }
        for path in ["/healthz", "/debug/pprof/"] {
            let nothing = (404, "404 page not found\n".to_owned());
            assert_eq!(answer(&admin, path, "h").await, nothing);
        }
        let profiling = admin_router(8093, true);
        assert_eq!(answer(&profiling, "/debug/pprof/", "h").await.0, 200);
    }
}
