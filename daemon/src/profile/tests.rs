use std::sync::atomic::{AtomicBool, Ordering};

use http::Request;
use http_body_util::BodyExt as _;

use super::*;

async fn ask(router: &Router, uri: &str) -> (u16, Bytes) {
    let request = Request::builder().uri(uri).body(()).unwrap();
    let response = router.answer(&request.into_parts().0).await;
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, body)
}

fn router() -> Router {
    add_routes(Router::new())
}

/// wire-protocol.md 8.1.
#[tokio::test]
async fn paths_answer_as_gos_do_or_say_what_there_is_instead() {
    let router = router();
    assert_eq!(ask(&router, "/debug/pprof").await.0, 301);
    assert_eq!(ask(&router, "/debug/pprof/").await.0, 200);
    assert_eq!(ask(&router, "/debug/pprof/symbol").await.0, 200);
    let unknown = (404, Bytes::from("Unknown profile\n"));
    assert_eq!(ask(&router, "/debug/pprof/cmdline").await, unknown);
    assert_eq!(ask(&router, "/debug/pprof/x/y").await, unknown);
    for (name, instead) in ELSEWHERE {
        let (status, body) = ask(&router, &format!("/debug/pprof/{name}?debug=1")).await;
        assert_eq!(status, 501);
        let body = String::from_utf8(body.to_vec()).unwrap();
        assert!(body.contains(instead), "{body}");
    }
    assert_eq!(ask(&router, "/debug").await.0, 404);
}

#[test]
fn seconds_are_read_as_go_reads_them() {
    for (query, expected) in [
        ("", 30),
        ("?seconds=5", 5),
        ("?a=b&seconds=61", 61),
        ("?seconds=0", 30),
        ("?seconds=-1", 30),
        ("?seconds=x", 30),
        ("?xseconds=5", 30),
    ] {
        let uri = format!("/debug/pprof/profile{query}");
        let request = Request::builder().uri(uri).body(()).unwrap();
        assert_eq!(seconds(&request.into_parts().0), expected, "{query}");
    }
}

/// The one test that takes a profile: the profiler is the process's. Its time is real, as that of the CPU is.
#[test]
fn one_profile_is_taken_at_a_time_and_it_names_what_ran() {
    let router = router();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let long = runtime.block_on(ask(&router, "/debug/pprof/profile?seconds=61"));
    let too_long = "seconds=61 is too long, at most 60 are taken\n";
    assert_eq!(long, (400, Bytes::from(too_long)));
    let done = AtomicBool::new(false);
    let (first, second) = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                std::hint::black_box(a_busy_function());
            }
        });
        let uri = "/debug/pprof/profile?seconds=1";
        let both = async { tokio::join!(ask(&router, uri), ask(&router, uri)) };
        let answers = runtime.block_on(both);
        done.store(true, Ordering::Relaxed);
        answers
    });
    assert_eq!(second.0, 500);
    assert!(second.1.ends_with(b"cpu profiling already in use\n"));
    assert_eq!(first.0, 200, "{:?}", first.1);
    let name = b"a_busy_function";
    let has = |name: &[u8]| first.1.windows(name.len()).any(|window| window == name);
    assert!(has(name));
    assert!(!has(b"perf_signal_handler"), "the profiler profiles itself");
}

#[inline(never)]
fn a_busy_function() -> u64 {
    (0..10_000_u64).fold(1, |a, b| {
        std::hint::black_box(a.wrapping_mul(31).wrapping_add(b))
    })
}
