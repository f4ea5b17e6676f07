//! Health, readiness and metrics (wire-protocol, section 8.1).

use std::sync::Arc;

use bytes::Bytes;
use certs::Timestamp;
use daemon::admin::{AdminServer, AdminThread, Router, is_verbose, metrics_handler, text};
use http::{Response, StatusCode, request::Parts};
use http_body_util::Full;
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;

/// The paths of the health listener.
#[must_use]
pub fn health_router(metrics: &Arc<Metrics>, stop: &CancellationToken) -> Router {
    let ready = {
        let (metrics, stop) = (metrics.clone(), stop.clone());
        move |head: &Parts| readiness(head, &metrics, &stop)
    };
    admin_router(metrics)
        .route("/healthz", |_| text(StatusCode::OK, "ok"))
        .route("/readyz", ready.clone())
        .route("/ready", ready)
}

/// Upstream's bodies, and with `?verbose` agents and files behind them. A file that could not be taken up is no reason to be
/// unready: what worked before still does.
fn readiness(head: &Parts, metrics: &Metrics, stop: &CancellationToken) -> Response<Full<Bytes>> {
    let agents = metrics.ready_backends.get();
    let (status, body) = if stop.is_cancelled() {
        (
            StatusCode::INTERNAL_SERVER_ERROR,
            "proxy server is shutting down",
        )
    } else if agents > 0 {
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
    let files = metrics.files.current().describe(Timestamp::now());
    text(status, format!("{body}\nagents: {agents}\n{files}"))
}

/// The paths of the admin listener.
#[must_use]
pub fn admin_router(metrics: &Arc<Metrics>) -> Router {
    Router::new().route("/metrics", metrics_handler(&metrics.registry))
}

/// The two listeners' threads.
#[derive(Debug)]
pub struct Admin {
    threads: [AdminThread; 2],
    stop: CancellationToken,
}

impl Admin {
    /// Starts both; `draining` is what readiness looks at.
    ///
    /// # Errors
    /// If a thread cannot be made.
    pub fn start(
        health: AdminServer,
        admin: AdminServer,
        metrics: &Arc<Metrics>,
        draining: &CancellationToken,
    ) -> std::io::Result<Self> {
        let stop = CancellationToken::new();
        let threads = [
            health.serve("health", health_router(metrics, draining), stop.clone())?,
            admin.serve("admin", admin_router(metrics), stop.clone())?,
        ];
        Ok(Self { threads, stop })
    }

    /// Ends both. Blocks until their threads are gone.
    pub fn finish(self) {
        self.stop.cancel();
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
        let metrics = Metrics::new(watcher.status()).unwrap();
        let router = health_router(&metrics, &CancellationToken::new());
        let unready = ask(&router, "/readyz?verbose").await;
        assert_eq!(unready.0, 500);
        assert!(
            unready
                .1
                .starts_with("no connection to any proxy agent\nagents: 0\n"),
            "{unready:?}"
        );
        metrics.ready_backends.set(2);
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
                body.starts_with("ok\nagents: 2\n") && body.contains(&line),
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
