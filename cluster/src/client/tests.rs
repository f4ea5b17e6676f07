use anyhow::Result;
use e2e::kube_api::{Fault, KubeApi, Lease as Published, Resource, ServiceAccount};
use tokio::time::timeout;

use super::*;
use crate::Leases;

const PATIENCE: Duration = Duration::from_secs(60);

fn options(api: &KubeApi) -> ClientOptions {
    ClientOptions {
        kubeconfig: Some(api.kubeconfig().to_owned()),
        deadline: PATIENCE,
        ..ClientOptions::new("test")
    }
}

async fn client(api: &KubeApi) -> Client {
    Client::load(options(api)).await.unwrap()
}

async fn review(
    client: &Client,
    token: &str,
) -> Result<crate::token_review::TokenStatus, ApiError> {
    client.review_token(token, "us").await
}

#[tokio::test]
async fn a_token_is_reviewed_with_all_that_it_is_bound_to() {
    let api = KubeApi::start().unwrap();
    let account = ServiceAccount::new("ns", "sa")
        .audience("us")
        .pod("p")
        .node("n");
    let client = client(&api).await;
    let status = review(&client, &api.token(&account)).await.unwrap();
    assert!(
        status.authenticated && status.error.is_empty(),
        "{status:?}"
    );
    assert_eq!(status.user.username, "system:serviceaccount:ns:sa");
    let extra = status.user.extra.unwrap();
    assert_eq!(extra["authentication.kubernetes.io/node-name"], ["n"]);
    let others = api.token(&ServiceAccount::new("ns", "sa").audience("them"));
    let status = review(&client, &others).await.unwrap();
    assert!(
        !status.authenticated && status.error.contains("[\"us\"]"),
        "{status:?}"
    );
}

#[tokio::test]
async fn errors_say_what_went_wrong_and_repeat_no_token() {
    let api = KubeApi::start().unwrap();
    let client = client(&api).await;
    for (fault, text) in [
        (
            Fault::Status(403),
            "create tokenreviews: 403 Forbidden: so the test wants it",
        ),
        (
            Fault::Status(500),
            "create tokenreviews: 500 InternalError: so the test wants it",
        ),
        (
            Fault::Huge(1024 * 1024),
            "create tokenreviews: the answer is larger than 262144 bytes",
        ),
        (
            Fault::Nonsense,
            "create tokenreviews: the answer makes no sense: Eof at line 1",
        ),
        (Fault::Close, "create tokenreviews: "),
    ] {
        api.fail(Resource::TokenReviews, fault);
        let error = review(&client, "t0ken").await.unwrap_err().to_string();
        assert!(error.contains(text), "{fault:?}: {error}");
        assert!(
            !error.contains("t0ken") && error.lines().count() == 1,
            "{error}"
        );
    }
}

#[tokio::test]
async fn an_answer_that_does_not_come_is_given_up() {
    let api = KubeApi::start().unwrap();
    let options = ClientOptions {
        deadline: Duration::from_millis(100),
        ..options(&api)
    };
    let client = Client::load(options).await.unwrap();
    api.fail(Resource::TokenReviews, Fault::Hang);
    let error = timeout(PATIENCE, review(&client, "t"))
        .await
        .unwrap()
        .unwrap_err();
    assert!(matches!(error.cause, Cause::TimedOut { .. }), "{error}");
}

#[tokio::test]
async fn an_api_server_that_asks_for_patience_is_asked_again() {
    let api = KubeApi::start().unwrap();
    let client = client(&api).await;
    api.fail(
        Resource::TokenReviews,
        Fault::TooMany(Duration::from_secs(1)),
    );
    let heal = async {
        api.asked("create", Resource::TokenReviews, 1)
            .await
            .unwrap();
        api.heal();
    };
    let (status, ()) = tokio::join!(review(&client, "t"), heal);
    assert_eq!(status.unwrap().error, "invalid bearer token");
    // And not for ever.
    api.fail(Resource::TokenReviews, Fault::TooMany(Duration::ZERO));
    let error = review(&client, "t").await.unwrap_err();
    assert_eq!(error.code(), Some(429));
    assert!(api.count("create", Resource::TokenReviews) <= 2 + 3);
}

#[tokio::test]
async fn replaced_credentials_are_taken_up_when_the_old_ones_are_refused() {
    let api = KubeApi::start().unwrap();
    let client = client(&api).await;
    review(&client, "t").await.unwrap();
    api.rotate_credentials().unwrap();
    review(&client, "t").await.unwrap();
    // Once in a while only, so that an API server that refuses us is not asked twice each time.
    api.rotate_credentials().unwrap();
    assert_eq!(review(&client, "t").await.unwrap_err().code(), Some(401));
}

#[tokio::test]
async fn a_token_file_is_read_each_time_and_trimmed_and_its_last_content_serves_on() {
    let api = KubeApi::start().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    let kubeconfig = std::fs::read_to_string(api.kubeconfig()).unwrap();
    let inline = kubeconfig
        .lines()
        .find_map(|line| line.trim().strip_prefix("token: "))
        .unwrap();
    std::fs::write(&token, "wrong\n").unwrap();
    let path = folder.path().join("kubeconfig");
    let by_file = format!("token: another\n    tokenFile: {}", token.display());
    std::fs::write(
        &path,
        kubeconfig.replace(&format!("token: {inline}"), &by_file),
    )
    .unwrap();
    let options = ClientOptions {
        kubeconfig: Some(path),
        ..options(&api)
    };
    let client = Client::load(options).await.unwrap();
    assert_eq!(review(&client, "t").await.unwrap_err().code(), Some(401));
    std::fs::write(&token, format!("  {inline}\n\n")).unwrap();
    review(&client, "t").await.unwrap();
    std::fs::remove_file(&token).unwrap();
    review(&client, "t").await.unwrap();
}

#[tokio::test]
async fn what_is_wrong_with_a_kubeconfig_is_said_with_its_name() {
    let api = KubeApi::start().unwrap();
    let good = std::fs::read_to_string(api.kubeconfig()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kubeconfig");
    for (text, error) in [
        ("a: [", "parse kubeconfig"),
        ("apiVersion: v1\nkind: Config\n", "current context"),
        (
            &good.replace("    server:", "    proxy-url: http://p:1\n    server:"),
            "proxy-url is not supported",
        ),
        (
            &good.replace("token: ", "token: \"a\\nb\" # "),
            "characters that cannot be sent",
        ),
        (&good.replace("ca.crt", "no.crt"), "no.crt"),
    ] {
        std::fs::write(&path, text).unwrap();
        let options = ClientOptions {
            kubeconfig: Some(path.clone()),
            ..options(&api)
        };
        let found = Client::load(options).await.unwrap_err().to_string();
        assert!(
            found.starts_with(&format!("--kubeconfig {}: ", path.display())),
            "{found}"
        );
        assert!(found.contains(error), "{error}: {found}");
    }
}

#[tokio::test]
async fn leases_are_written_if_unchanged_listed_by_label_and_deleted_if_unchanged() {
    let api = KubeApi::start().unwrap();
    let leases = Leases::new(client(&api).await, "ns");
    assert!(leases.get("a").await.unwrap_err().is_not_found());
    let mut object = k8s_openapi::api::coordination::v1::Lease::default();
    object.metadata.name = Some("a".to_owned());
    object.metadata.labels = Some([("k".to_owned(), "v".to_owned())].into());
    let first = leases.create(&object).await.unwrap();
    assert!(leases.create(&object).await.unwrap_err().is_conflict());
    let second = leases.update("a", &first).await.unwrap();
    assert!(leases.update("a", &first).await.unwrap_err().is_conflict());
    assert_eq!(leases.get("a").await.unwrap(), second);
    assert!(leases.list("k=other").await.unwrap().leases.is_empty());
    let list = leases.list("k=v").await.unwrap();
    let [lease] = list.leases.as_slice() else {
        panic!("{list:?}")
    };
    let old = first.metadata.resource_version.as_deref();
    assert!(leases.delete("a", old).await.unwrap_err().is_conflict());
    leases.delete("a", Some(&lease.version)).await.unwrap();
    assert!(api.leases().is_empty());
}

#[tokio::test]
async fn a_watch_tells_what_happens_until_history_is_forgotten() {
    let api = KubeApi::start().unwrap();
    let leases = Leases::new(client(&api).await, "ns");
    let lease = |name: &str, value: &str| Published {
        namespace: "ns".to_owned(),
        name: name.to_owned(),
        labels: [("k".to_owned(), value.to_owned())].into(),
        ..Published::default()
    };
    let list = leases.list("k=v").await.unwrap();
    let mut watch = leases.watch("k=v", &list.version, 300).await.unwrap();
    api.put_lease(&lease("a", "v"));
    api.put_lease(&lease("b", "other"));
    let first = timeout(PATIENCE, watch.next()).await.unwrap().unwrap();
    assert!(
        matches!(&first, Some(Event::Applied(lease)) if lease.name == "a"),
        "{first:?}"
    );
    api.delete_lease("ns", "a");
    let gone = timeout(PATIENCE, watch.next()).await.unwrap().unwrap();
    assert!(
        matches!(&gone, Some(Event::Deleted(lease)) if lease.name == "a"),
        "{gone:?}"
    );
    api.bookmark();
    let mark = timeout(PATIENCE, watch.next()).await.unwrap().unwrap();
    assert!(
        matches!(&mark, Some(Event::Bookmark(lease)) if !lease.version.is_empty()),
        "{mark:?}"
    );
    api.compact();
    let error = timeout(PATIENCE, watch.next()).await.unwrap().unwrap_err();
    assert!(error.is_gone(), "{error}");
    let mut watch = leases.watch("", "", 0).await.unwrap();
    assert_eq!(
        timeout(PATIENCE, watch.next()).await.unwrap().unwrap(),
        None
    );
}

#[tokio::test]
async fn a_thread_gives_its_tasks_time_and_then_ends() {
    let api = KubeApi::start().unwrap();
    let thread = crate::Thread::start(options(&api)).unwrap();
    let (client, stop) = (thread.client(), thread.stop().clone());
    let (said, heard) = tokio::sync::oneshot::channel();
    thread.spawn(async move {
        stop.cancelled().await;
        said.send(client.review_token("t", "us").await.is_ok())
            .unwrap();
    });
    assert!(thread.finish(PATIENCE).await);
    assert!(heard.await.unwrap());
    let thread = crate::Thread::start(options(&api)).unwrap();
    thread.spawn(std::future::pending());
    assert!(!thread.finish(Duration::from_millis(1)).await);
}
