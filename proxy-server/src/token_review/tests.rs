use std::time::SystemTime;

use cluster::ClientOptions;
use e2e::kube_api::{Fault, KubeApi, Resource, ServiceAccount};
use http::{HeaderMap, HeaderValue, header::AUTHORIZATION};

use super::*;

const PATIENCE: Duration = Duration::from_secs(60);

struct Scene {
    api: KubeApi,
    thread: cluster::Thread,
    reviewer: Reviewer,
    metrics: Arc<ServerMetrics>,
}

fn scene() -> Scene {
    let api = KubeApi::start().unwrap();
    let thread = cluster::Thread::start(ClientOptions {
        kubeconfig: Some(api.kubeconfig().to_owned()),
        qps: -1.0,
        ..ClientOptions::new("test")
    })
    .unwrap();
    let metrics = ServerMetrics::new(certs::Current::fixed(Arc::default())).unwrap();
    let options = Options {
        namespace: "kube-system".to_owned(),
        service_account: "konnectivity-agent".to_owned(),
        audience: "system:konnectivity-server".to_owned(),
    };
    let reviewer = Reviewer::start(&thread, options, metrics.clone());
    Scene {
        api,
        thread,
        reviewer,
        metrics,
    }
}

impl Scene {
    async fn review(&self, token: &str) -> Result<Arc<Reviewed>, String> {
        let mut headers = HeaderMap::new();
        let value = HeaderValue::from_str(&format!("Bearer {token}")).unwrap();
        headers.insert(AUTHORIZATION, value);
        self.reviewer
            .review(Presented::Headers(&headers))
            .await
            .map_err(|status| {
                assert_eq!(status.code, Code::Unknown);
                status.message
            })
    }

    fn asked(&self) -> usize {
        self.api.count("create", Resource::TokenReviews)
    }
}

#[tokio::test]
async fn a_good_token_is_asked_about_once_and_remembered() {
    let scene = scene();
    let token = scene.api.token(&ServiceAccount::agent().pod("p").node("n"));
    for _ in 0..100 {
        let reviewed = scene.review(&token).await.unwrap();
        assert_eq!(reviewed.node_name.as_deref(), Some("n"));
    }
    assert_eq!(scene.asked(), 1);
    assert_eq!(scene.metrics.token_reviews.count(Outcome::Accepted), 100);
    assert_eq!(scene.metrics.token_reviews.hits(), (99, 0));
}

#[tokio::test]
async fn those_that_come_with_one_token_at_once_share_one_request() {
    let scene = scene();
    let token = scene.api.token(&ServiceAccount::agent());
    scene.api.fail(Resource::TokenReviews, Fault::Hang);
    let all = async {
        let reviews = (0..MAX_WAITING).map(|_| scene.review(&token));
        let mut reviews: Vec<_> = reviews.map(Box::pin).collect();
        // Every question is asked before the answer is given.
        std::future::poll_fn(|cx| {
            for review in &mut reviews {
                assert!(review.as_mut().poll(cx).is_pending());
            }
            std::task::Poll::Ready(())
        })
        .await;
        // One more finds no place.
        let error = scene.review(&token).await.unwrap_err();
        assert!(
            error.contains("too many token reviews are waiting"),
            "{error}"
        );
        scene
            .api
            .asked("create", Resource::TokenReviews, 1)
            .await
            .unwrap();
        scene.api.heal();
        for review in reviews {
            review.await.unwrap();
        }
    };
    timeout(PATIENCE, all).await.unwrap();
    assert_eq!(scene.asked(), 1);
    assert_eq!(scene.metrics.token_reviews.hits().1, 1);
}

#[tokio::test]
async fn a_token_is_not_remembered_past_its_own_end() {
    let scene = scene();
    let end = SystemTime::now() + Duration::from_secs(3);
    let token = scene.api.token(&ServiceAccount::agent().expires(end));
    scene.review(&token).await.unwrap();
    let refused = async {
        while scene.review(&token).await.is_ok() {
            tokio::task::yield_now().await;
        }
        assert!(SystemTime::now() >= end - Duration::from_millis(1));
    };
    timeout(PATIENCE, refused).await.unwrap();
}

#[tokio::test]
async fn a_bad_token_is_remembered_for_a_moment_only() {
    let scene = scene();
    let error = scene.review("stranger").await.unwrap_err();
    assert_eq!(
        error,
        "Failed to validate authentication token, err:lookup failed: invalid bearer token"
    );
    let again = async {
        while scene.asked() < 3 {
            scene.review("stranger").await.unwrap_err();
        }
    };
    let start = tokio::time::Instant::now();
    timeout(PATIENCE, again).await.unwrap();
    assert!(start.elapsed() >= REFUSAL_REMEMBERED);
}

#[tokio::test]
async fn the_wrong_account_namespace_or_audience_is_told_so() {
    let scene = scene();
    for (account, text) in [
        (
            ServiceAccount::new("default", "konnectivity-agent")
                .audience("system:konnectivity-server"),
            "lookup failed: incoming request from \"default\" namespace. Expected \"kube-system\"",
        ),
        (
            ServiceAccount::new("kube-system", "default").audience("system:konnectivity-server"),
            "lookup failed: incoming request from \"default\" service account. Expected \"konnectivity-agent\"",
        ),
        (
            ServiceAccount::new("kube-system", "konnectivity-agent").audience("others"),
            "lookup failed: [invalid bearer token, token audiences",
        ),
    ] {
        let error = scene.review(&scene.api.token(&account)).await.unwrap_err();
        let whole = format!("Failed to validate authentication token, err:{text}");
        assert!(error.starts_with(&whole), "{error}");
    }
    assert_eq!(scene.metrics.token_reviews.count(Outcome::Denied), 3);
}

#[tokio::test]
async fn an_api_server_that_fails_is_told_of_and_asked_again_at_once() {
    let scene = scene();
    let token = scene.api.token(&ServiceAccount::agent());
    for (fault, text) in [
        (Fault::Status(401), "create tokenreviews: 401 Unauthorized"),
        (Fault::Status(403), "create tokenreviews: 403 Forbidden"),
        (
            Fault::TooMany(Duration::from_secs(600)),
            "create tokenreviews: 429 TooManyRequests",
        ),
        (Fault::Status(500), "create tokenreviews: 500 InternalError"),
        (
            Fault::Nonsense,
            "create tokenreviews: the answer makes no sense",
        ),
        (
            Fault::Huge(1024 * 1024),
            "create tokenreviews: the answer is larger than",
        ),
        (Fault::Close, "create tokenreviews: "),
    ] {
        scene.api.fail(Resource::TokenReviews, fault);
        let error = scene.review(&token).await.unwrap_err();
        let whole = format!(
            "Failed to validate authentication token, err:Failed to authenticate request. err:{text}"
        );
        assert!(error.starts_with(&whole), "{error}");
        assert!(!error.contains(&token));
    }
    scene.api.heal();
    scene.review(&token).await.unwrap();
    assert_eq!(scene.metrics.token_reviews.count(Outcome::Failed), 7);
}

#[tokio::test]
async fn the_end_of_the_thread_ends_who_waits() {
    let scene = scene();
    scene.api.fail(Resource::TokenReviews, Fault::Hang);
    let token = scene.api.token(&ServiceAccount::agent());
    let waiting = scene.review(&token);
    let (thread, api) = (&scene.thread, &scene.api);
    let stopping = async {
        api.asked("create", Resource::TokenReviews, 1)
            .await
            .unwrap();
        thread.stop().cancel();
    };
    let (answer, ()) = timeout(PATIENCE, async { tokio::join!(waiting, stopping) })
        .await
        .unwrap();
    assert!(answer.unwrap_err().contains("the review was given up"));
}
