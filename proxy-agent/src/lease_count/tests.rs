use cluster::ClientOptions;
use e2e::kube_api::{Fault, KubeApi, Lease, Resource};
use tokio::time::timeout;

use super::*;

const PATIENCE: Duration = Duration::from_secs(60);

const QUICK: Pauses = Pauses {
    first: Duration::from_millis(10),
    longest: Duration::from_millis(100),
};

struct Scene {
    api: KubeApi,
    _thread: cluster::Thread,
    metrics: Arc<Metrics>,
    counts: watch::Receiver<LeaseCount>,
}

fn scene(api: KubeApi, clock: Clock) -> Scene {
    let thread = cluster::Thread::start(ClientOptions {
        kubeconfig: Some(api.kubeconfig().to_owned()),
        qps: -1.0,
        ..ClientOptions::new("test")
    })
    .unwrap();
    let options = Options {
        namespace: "kube-system".to_owned(),
        selector: "k8s-app=konnectivity-server".parse().unwrap(),
    };
    let metrics = Arc::new(Metrics::new(certs::Current::fixed(Arc::default())).unwrap());
    let counts = start_with(&thread, options, metrics.clone(), QUICK, clock);
    Scene {
        api,
        _thread: thread,
        metrics,
        counts,
    }
}

fn system_clock() -> Clock {
    Arc::new(Timestamp::now)
}

impl Scene {
    async fn until(&mut self, count: usize) {
        let wanted = |now: &LeaseCount| now.known && now.count == count;
        let last = *self.counts.borrow();
        timeout(PATIENCE, self.counts.wait_for(wanted))
            .await
            .unwrap_or_else(|_| panic!("{count} wanted, {last:?}"))
            .unwrap();
    }
}

fn lease(name: &str, ago: Duration, seconds: Option<i64>) -> Lease {
    Lease {
        namespace: "kube-system".to_owned(),
        name: name.to_owned(),
        labels: [("k8s-app".to_owned(), "konnectivity-server".to_owned())].into(),
        duration_seconds: seconds,
        renewed: Some((Timestamp::now() - ago).to_string()),
        ..Lease::default()
    }
}

/// Lists and watches that ended so.
fn counts(metrics: &Metrics, code: &str) -> (f64, f64) {
    let families = metrics.registry().gather();
    let count = |name: &str| {
        families
            .iter()
            .filter(|family| family.name().ends_with(name))
            .flat_map(prometheus::proto::MetricFamily::get_metric)
            .filter(|metric| metric.get_label().iter().any(|label| label.value() == code))
            .map(|metric| metric.get_counter().get_value())
            .sum()
    };
    (count("lease_lists_total"), count("lease_watches_total"))
}

const NOW: Duration = Duration::ZERO;
const HOUR: Duration = Duration::from_secs(3600);

#[tokio::test]
async fn valid_leases_of_the_label_are_counted_as_they_come_and_go() {
    let api = KubeApi::start().unwrap();
    api.put_lease(&lease("a", NOW, Some(3600)));
    api.put_lease(&lease("expired", HOUR, Some(30)));
    api.put_lease(&lease("no-duration", NOW, None));
    let mut other = lease("other-label", NOW, Some(3600));
    other.labels = [("k8s-app".to_owned(), "other".to_owned())].into();
    api.put_lease(&other);
    api.put_lease(&Lease {
        namespace: "default".to_owned(),
        ..lease("elsewhere", NOW, Some(3600))
    });
    let mut scene = scene(api, system_clock());
    assert!(!scene.counts.borrow().known || scene.counts.borrow().count == 1);
    scene.until(1).await;
    scene.api.put_lease(&lease("b", NOW, Some(3600)));
    scene.until(2).await;
    scene.api.put_lease(&lease("c", NOW, Some(3600)));
    scene.until(3).await;
    scene.api.delete_lease("kube-system", "a");
    scene.until(2).await;
    scene.api.delete_lease("kube-system", "b");
    scene.api.delete_lease("kube-system", "c");
    scene.until(1).await;
    assert_eq!(
        counts(&scene.metrics, "200"),
        (1.0, 1.0),
        "one list, one watch"
    );
}

#[tokio::test]
async fn a_lease_that_nobody_renews_stops_counting_without_an_event() {
    let api = KubeApi::start().unwrap();
    api.put_lease(&lease("a", NOW, Some(3600)));
    api.put_lease(&lease("b", NOW, Some(3600)));
    let mut scene = scene(api, system_clock());
    scene.until(2).await;
    scene.api.put_lease(&lease("c", NOW, Some(2)));
    scene.until(3).await;
    scene.until(2).await;
}

/// The count falls on the word of the API server only.
#[tokio::test]
async fn the_last_count_stays_while_the_api_server_cannot_be_asked() {
    let api = KubeApi::start().unwrap();
    api.put_lease(&lease("a", NOW, Some(3600)));
    let mut scene = scene(api, system_clock());
    scene.api.put_lease(&lease("b", NOW, Some(2)));
    scene.until(2).await;
    scene.api.fail(Resource::Leases, Fault::Status(500));
    // The one that ran out leads to lists, which fail.
    let lists = scene.api.count("list", Resource::Leases);
    scene
        .api
        .asked("list", Resource::Leases, lists + 3)
        .await
        .unwrap();
    assert_eq!(scene.counts.borrow().count, 2);
    scene.api.heal();
    scene.until(1).await;
    assert!(counts(&scene.metrics, "500").0 >= 2.0);
}

#[tokio::test]
async fn an_api_server_that_is_away_at_first_leaves_the_count_at_one() {
    let api = KubeApi::start().unwrap();
    api.fail(Resource::Leases, Fault::Close);
    api.put_lease(&lease("a", NOW, Some(3600)));
    api.put_lease(&lease("b", NOW, Some(3600)));
    let mut scene = scene(api, system_clock());
    scene.api.asked("list", Resource::Leases, 3).await.unwrap();
    assert_eq!(*scene.counts.borrow(), LeaseCount::INITIAL);
    scene.api.heal();
    scene.until(2).await;
}

#[tokio::test]
async fn forgotten_history_leads_to_a_new_list() {
    let api = KubeApi::start().unwrap();
    api.put_lease(&lease("a", NOW, Some(3600)));
    let mut scene = scene(api, system_clock());
    scene.until(1).await;
    scene.api.asked("watch", Resource::Leases, 1).await.unwrap();
    scene.api.compact();
    scene.api.put_lease(&lease("b", NOW, Some(3600)));
    scene.until(2).await;
    assert!(scene.api.count("list", Resource::Leases) >= 2);
}

#[tokio::test]
async fn an_agent_whose_clock_is_ahead_counts_servers_that_it_sees_renew() {
    let api = KubeApi::start().unwrap();
    for name in ["a", "b", "dead"] {
        api.put_lease(&lease(name, Duration::from_secs(20), Some(30)));
    }
    let mut scene = scene(api, Arc::new(|| Timestamp::now() + HOUR));
    scene.until(1).await;
    scene.api.asked("watch", Resource::Leases, 1).await.unwrap();
    for name in ["a", "b"] {
        scene.api.put_lease(&lease(name, NOW, Some(30)));
    }
    scene.until(2).await;
}
