//! `--enable-profiling`: `/debug/pprof/` on the admin port, as `go tool pprof` asks for it (wire-protocol.md 8.1).
//!
//! There is a CPU profile, of the whole process and all its threads. Go's other profiles tell of Go's runtime; asked for
//! them, we say what there is instead. Profiling costs a signal a hundredth of a second of CPU time and only while one is taken.

mod cpu;
mod encode;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_DISPOSITION, CONTENT_TYPE, HeaderValue};
use http::request::Parts;
use http::{Response, StatusCode};
use http_body_util::Full;
use tokio::sync::Semaphore;

use crate::admin::{Router, moved_permanently, text};

/// How long a profile is taken if the request does not say: Go's default.
pub const DEFAULT_SECONDS: u64 = 30;

/// The longest profile, in seconds; it bounds how long samples are collected.
pub const MAX_SECONDS: u64 = 60;

const INDEX: &str = "<!DOCTYPE html>\n<title>/debug/pprof/</title>\n<p>Profiles of this process:</p>\n<ul>\n\
    <li><a href=\"profile?seconds=30\">profile</a>: where the CPU time goes, for <code>go tool pprof</code>; \
    <code>seconds</code> from 1 to 60</li>\n</ul>\n\
    <p>Memory is in <code>process_resident_memory_bytes</code> and <code>…_buffered_bytes</code> of <a href=\"/metrics\">metrics</a>; \
    Go's other profiles have no counterpart.</p>\n";

/// Profiles of Go that a tool may ask for, and what tells as much here.
const ELSEWHERE: [(&str, &str); 7] = [
    (
        "heap",
        "the memory in use is in the metrics process_resident_memory_bytes and buffered_bytes",
    ),
    (
        "allocs",
        "allocations are not sampled; the memory in use is in the metric process_resident_memory_bytes",
    ),
    (
        "goroutine",
        "there are no goroutines; connections are in the metrics, threads in process_threads",
    ),
    (
        "threadcreate",
        "threads are counted in the metric process_threads",
    ),
    (
        "block",
        "nothing blocks on the data path; the CPU profile is at /debug/pprof/profile",
    ),
    (
        "mutex",
        "there are no locks on the data path; the CPU profile is at /debug/pprof/profile",
    ),
    (
        "trace",
        "there is no runtime to trace; the CPU profile is at /debug/pprof/profile",
    ),
];

/// Adds the paths to the router of an admin port. Call only with `--enable-profiling`: a profile tells who can reach
/// the port what the process does.
#[must_use]
pub fn add_routes(router: Router) -> Router {
    let slot = Arc::new(Semaphore::new(1));
    let mut router = router
        .route("/debug/pprof", |_| moved_permanently("/debug/pprof/"))
        .route("/debug/pprof/", |_| {
            typed("text/html; charset=utf-8", INDEX.into())
        })
        // Profiles carry their symbols: no address needs to be looked up.
        .route("/debug/pprof/symbol", |_| {
            text(StatusCode::OK, "num_symbols: 0\n")
        })
        .route_below("/debug/pprof/", |_| {
            text(StatusCode::NOT_FOUND, "Unknown profile\n")
        })
        .slow_route("/debug/pprof/profile", move |head| {
            let slot = Arc::clone(&slot);
            let seconds = seconds(head);
            async move { profile(seconds, &slot).await }
        });
    for (name, instead) in ELSEWHERE {
        router = router.route(&format!("/debug/pprof/{name}"), move |_| {
            let body = format!("no {name} profile here: {instead}\n");
            text(StatusCode::NOT_IMPLEMENTED, body)
        });
    }
    router
}

/// Dropping the future, as when the client goes away, ends the profile.
async fn profile(seconds: u64, slot: &Semaphore) -> Response<Full<Bytes>> {
    if seconds > MAX_SECONDS {
        let body = format!("seconds={seconds} is too long, at most {MAX_SECONDS} are taken\n");
        return text(StatusCode::BAD_REQUEST, body);
    }
    let Ok(_taken) = slot.try_acquire() else {
        return text(
            StatusCode::INTERNAL_SERVER_ERROR,
            "Could not enable CPU profiling: cpu profiling already in use\n",
        );
    };
    tracing::info!(seconds, "taking a CPU profile");
    match cpu::take(Duration::from_secs(seconds)).await {
        Ok(profile) => {
            let mut response = typed("application/octet-stream", profile.into());
            let name = HeaderValue::from_static("attachment; filename=\"profile\"");
            response.headers_mut().insert(CONTENT_DISPOSITION, name);
            response
        }
        Err(error) => text(
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("Could not enable CPU profiling: {error}\n"),
        ),
    }
}

/// `?seconds=`, as Go reads it: what is missing, zero or no number is the default.
fn seconds(head: &Parts) -> u64 {
    let pairs = head.uri.query().unwrap_or_default().split('&');
    pairs
        .filter_map(|pair| pair.strip_prefix("seconds="))
        .next()
        .and_then(|value| value.parse().ok())
        .filter(|&seconds| seconds > 0)
        .unwrap_or(DEFAULT_SECONDS)
}

fn typed(content_type: &'static str, body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    let content_type = HeaderValue::from_static(content_type);
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

#[cfg(test)]
mod tests;
