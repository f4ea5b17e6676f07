//! Health, readiness and metrics (wire-protocol, section 8.1).

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use certs::Timestamp;
use daemon::{
    admin::{AdminServer, AdminThread, Router, is_verbose, metrics_handler, text},
    profile,
};
use http::{Response, StatusCode, request::Parts};
use http_body_util::Full;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::{
    metrics::Metrics,
    registry::strategy::{Strategies, Strategy},
};

/// What readiness looks at.
#[derive(Clone, Debug)]
pub struct Readiness {
    /// Those of this server.
    pub strategies: Strategies,
    /// Those that must have an agent; the first of this server if nothing is said.
    pub wanted: Option<Strategies>,
    /// Their numbers of agents.
    pub metrics: Arc<Metrics>,
    /// Cancelled at the first signal.
    pub leaving: CancellationToken,
}

/// The paths of the health listener.
#[must_use]
pub fn health_router(readiness: Readiness) -> Router {
    let router = metrics_router(&readiness.metrics);
    let ready = move |head: &Parts| readiness.answer(head);
    // `/livez` is ours; upstream has no name for liveness alone.
    router
        .route("/healthz", |_| text(StatusCode::OK, "ok"))
        .route("/livez", |_| text(StatusCode::OK, "ok"))
        .route("/readyz", ready.clone())
        .route("/ready", ready)
}

impl Readiness {
    /// Upstream's bodies, and with `?verbose` strategies and files behind them. A file that could not be taken up is no reason
    /// to be unready: what worked before still does.
    fn answer(&self, head: &Parts) -> Response<Full<Bytes>> {
        let (status, body) = if self.leaving.is_cancelled() {
            (
                StatusCode::INTERNAL_SERVER_ERROR,
                "proxy server is shutting down",
            )
        } else if self.has_agents() {
            (StatusCode::OK, "ok")
        } else {
            (
                StatusCode::INTERNAL_SERVER_ERROR,
                "no connection to any proxy agent",
            )
        };
        if !is_verbose(head) {
            return text(status, body);
        }
        let strategies = self.describe();
        let files = self.metrics.files.current().describe(Timestamp::now());
        text(status, format!("{body}\n{strategies}{files}"))
    }

    fn has_agents(&self) -> bool {
        let has = |strategy| self.metrics.backends(strategy) > 0;
        match &self.wanted {
            Some(wanted) => wanted.iter().all(has),
            None => has(self.strategies.first()),
        }
    }

    fn is_wanted(&self, strategy: Strategy) -> bool {
        match &self.wanted {
            Some(wanted) => wanted.contains(strategy),
            None => strategy == self.strategies.first(),
        }
    }

    /// A line a strategy, in order: `[+]` if it can choose somebody, else `[-]`.
    fn describe(&self) -> String {
        let line = |strategy: Strategy| {
            let count = self.metrics.backends(strategy);
            let sign = if count > 0 { '+' } else { '-' };
            let what = match strategy {
                Strategy::Default => "agents",
                Strategy::DestHost => "hosts and addresses that agents claim",
                Strategy::DefaultRoute => "agents that claim default-route",
            };
            let needed = if self.is_wanted(strategy) {
                ", needed for readiness"
            } else {
                ""
            };
            format!("[{sign}] strategy {strategy}: {count} {what}{needed}\n")
        };
        self.strategies.iter().map(line).collect()
    }
}

/// The paths of the admin listener, with profiles if they are asked for.
#[must_use]
pub fn admin_router(metrics: &Arc<Metrics>, profiling: bool) -> Router {
    let router = metrics_router(metrics);
    if profiling {
        profile::add_routes(router)
    } else {
        router
    }
}

fn metrics_router(metrics: &Arc<Metrics>) -> Router {
    Router::new().route("/metrics", metrics_handler(&metrics.registry))
}

/// The two listeners' threads.
#[derive(Debug)]
pub struct Admin {
    threads: [AdminThread; 2],
    stop: CancellationToken,
}

impl Admin {
    /// Starts both.
    ///
    /// # Errors
    /// If a thread cannot be made.
    pub fn start(
        health: AdminServer,
        admin: AdminServer,
        readiness: Readiness,
        profiling: bool,
    ) -> std::io::Result<Self> {
        let stop = CancellationToken::new();
        let metrics = readiness.metrics.clone();
        let threads = [
            health.serve("health", health_router(readiness), stop.clone())?,
            admin.serve("admin", admin_router(&metrics, profiling), stop.clone())?,
        ];
        Ok(Self { threads, stop })
    }

    /// Ends both, within `limit`: whoever takes longer than that for an answer goes with the process.
    pub async fn finish(self, limit: Duration) {
        self.stop.cancel();
        let started = Instant::now();
        while !self.threads.iter().all(AdminThread::is_finished) {
            if started.elapsed() >= limit {
                return tracing::debug!("left a response of an admin listener unfinished");
            }
            sleep(Duration::from_millis(1)).await;
        }
        for thread in self.threads {
            if let Err(error) = thread.join() {
                tracing::error!(%error, "an admin listener ended badly");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use certs::{ServerFiles, TlsOptions, Watcher, tls::ALPN_AGENT};
    use http::Request;
    use http_body_util::BodyExt as _;

    use super::*;
    use crate::testing;

    async fn ask(router: &Router, uri: &str) -> (u16, String) {
        let request = Request::builder().uri(uri).body(()).unwrap();
        let response = router.respond(&request.into_parts().0);
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    fn router(
        strategies: &str,
        wanted: Option<&str>,
        files: certs::Current<Arc<certs::Status>>,
    ) -> (Arc<Metrics>, Router) {
        let metrics = Metrics::new(files).unwrap();
        let readiness = Readiness {
            strategies: strategies.parse().unwrap(),
            wanted: wanted.map(|wanted| wanted.parse().unwrap()),
            metrics: metrics.clone(),
            leaving: CancellationToken::new(),
        };
        (metrics, health_router(readiness))
    }

    #[tokio::test]
    async fn the_first_strategy_decides_and_the_details_name_each() {
        let files = certs::Current::fixed(Arc::default());
        let (metrics, router) = router("destHost,default", None, files);
        metrics.set_backends(Strategy::Default, 3);
        assert_eq!(
            ask(&router, "/readyz").await,
            (500, "no connection to any proxy agent".to_owned())
        );
        let (_, details) = ask(&router, "/readyz?verbose").await;
        assert!(
            details.starts_with(
                "no connection to any proxy agent\n\
                 [-] strategy destHost: 0 hosts and addresses that agents claim, needed for readiness\n\
                 [+] strategy default: 3 agents\n"
            ),
            "{details}"
        );
        metrics.set_backends(Strategy::DestHost, 1);
        assert_eq!(ask(&router, "/readyz").await, (200, "ok".to_owned()));
        for path in ["/healthz", "/livez"] {
            assert_eq!(ask(&router, path).await, (200, "ok".to_owned()));
        }
    }

    /// R64: agents of the control plane alone make no server ready that is told to wait for a default route.
    #[tokio::test]
    async fn a_server_can_wait_for_several_strategies() {
        let files = certs::Current::fixed(Arc::default());
        let wanted = Some("destHost,defaultRoute");
        let (metrics, router) = router("destHost,defaultRoute", wanted, files);
        metrics.set_backends(Strategy::DestHost, 2);
        let (status, details) = ask(&router, "/readyz?verbose").await;
        assert_eq!(status, 500);
        assert!(
            details
                .contains("[-] strategy defaultRoute: 0 agents that claim default-route, needed"),
            "{details}"
        );
        metrics.set_backends(Strategy::DefaultRoute, 1);
        assert_eq!(ask(&router, "/readyz").await, (200, "ok".to_owned()));
    }

    #[tokio::test]
    async fn a_server_that_leaves_is_alive_and_not_ready() {
        let metrics = Metrics::new(certs::Current::fixed(Arc::default())).unwrap();
        metrics.set_backends(Strategy::Default, 1);
        let leaving = CancellationToken::new();
        let router = health_router(Readiness {
            strategies: Strategies::default(),
            wanted: None,
            metrics,
            leaving: leaving.clone(),
        });
        assert_eq!(ask(&router, "/readyz").await.0, 200);
        leaving.cancel();
        assert_eq!(
            ask(&router, "/ready").await,
            (500, "proxy server is shutting down".to_owned())
        );
        assert_eq!(ask(&router, "/healthz").await.0, 200);
    }

    #[tokio::test]
    async fn a_stale_file_changes_the_details_and_a_metric_and_not_readiness() {
        let files = testing::files();
        let mut watcher = Watcher::new();
        let set = ServerFiles {
            certificate: files.path("server.crt"),
            key: files.path("server.key"),
            client_ca: Some(files.path("ca.crt")),
        };
        watcher
            .server(set, ALPN_AGENT, &TlsOptions::default())
            .unwrap();
        let (metrics, router) = router("default", None, watcher.status());
        let unready = ask(&router, "/readyz?verbose").await;
        assert_eq!(unready.0, 500);
        assert!(
            unready
                .1
                .starts_with("no connection to any proxy agent\n[-] strategy default: 0 agents, needed for readiness\n"),
            "{unready:?}"
        );
        metrics.set_backends(Strategy::Default, 2);
        let ca = files.path("ca.crt");
        for (content, line) in [
            (None, format!("{}: ok; expires in ", ca.display())),
            (Some("broken"), format!("{}: stale since ", ca.display())),
        ] {
            if let Some(content) = content {
                std::fs::write(&ca, content).unwrap();
                watcher.poll_once(Timestamp::now());
                watcher.poll_once(Timestamp::now());
            }
            assert_eq!(ask(&router, "/readyz").await, (200, "ok".to_owned()));
            let (status, body) = ask(&router, "/ready?verbose").await;
            assert_eq!(status, 200);
            assert!(
                body.starts_with("ok\n[+] strategy default: 2 agents, needed for readiness\n")
                    && body.contains(&line),
                "{body}"
            );
        }
        let (_, series) = ask(&router, "/metrics").await;
        for line in [
            format!(
                "file_reloads_total{{file=\"{}\",outcome=\"refused\"}} 1",
                ca.display()
            ),
            format!("file_stale{{file=\"{}\"}} 1", ca.display()),
            format!("certificate_expiry_seconds{{file=\"{}\"}} ", ca.display()),
        ] {
            let line = format!("\nkonnectivity_network_proxy_server_{line}");
            assert!(series.contains(&line), "no {line} in {series}");
        }
    }
}
