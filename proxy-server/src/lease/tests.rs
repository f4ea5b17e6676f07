use cluster::ClientOptions;
use e2e::kube_api::{Fault, KubeApi, Lease, Resource};
use tokio::time::timeout;

use super::*;

const PATIENCE: Duration = Duration::from_secs(60);

const QUICK: Timing = Timing {
    renew: Duration::from_millis(50),
    collect: Duration::from_millis(50),
};

fn thread(api: &KubeApi) -> cluster::Thread {
    cluster::Thread::start(ClientOptions {
        kubeconfig: Some(api.kubeconfig().to_owned()),
        qps: -1.0,
        ..ClientOptions::new("test")
    })
    .unwrap()
}

fn options(server_id: &str) -> Options {
    Options {
        namespace: "kube-system".to_owned(),
        labels: "k8s-app=konnectivity-server,x=y".parse().unwrap(),
        server_id: server_id.to_owned(),
    }
}

fn metrics() -> Arc<Metrics> {
    Metrics::new(certs::Current::fixed(Arc::default())).unwrap()
}

fn start(thread: &cluster::Thread, server_id: &str, metrics: &Arc<Metrics>) -> Published {
    let clock: Clock = Arc::new(Timestamp::now);
    let live = watch::channel(0).0;
    Published::start_with(
        thread,
        options(server_id),
        metrics.clone(),
        QUICK,
        clock,
        live,
    )
    .unwrap()
}

/// Of another server, renewed `ago`, lasting `seconds`.
fn others(name: &str, ago: Duration, seconds: Option<i64>) -> Lease {
    Lease {
        namespace: "kube-system".to_owned(),
        name: name.to_owned(),
        labels: options("").labels.as_map().clone(),
        holder: Some("other".to_owned()),
        duration_seconds: seconds,
        renewed: Some((Timestamp::now() - ago).to_string()),
        ..Lease::default()
    }
}

#[test]
fn a_server_id_that_makes_no_name_is_refused_with_its_flag() {
    assert_eq!(name("0a1b").unwrap(), "konnectivity-proxy-server-0a1b");
    let error = name("Server_1").unwrap_err().to_string();
    assert!(
        error.starts_with("--server-id \"Server_1\" cannot be used with --enable-lease-controller"),
        "{error}"
    );
}

#[tokio::test]
async fn a_lease_is_published_renewed_and_withdrawn() {
    let api = KubeApi::start().unwrap();
    let thread = thread(&api);
    let published = start(&thread, "s1", &metrics());
    let leases = api
        .leases_until("a Lease", |leases| leases.len() == 1)
        .await
        .unwrap();
    let first = leases.first().unwrap();
    assert_eq!(first.name, "konnectivity-proxy-server-s1");
    assert_eq!(&first.labels, options("s1").labels.as_map());
    assert_eq!(
        (first.holder.as_deref(), first.duration_seconds),
        (Some("s1"), Some(30))
    );
    assert!(first.renewed.is_some() && first.acquired.is_none());
    let is_renewed = |leases: &[Lease]| leases.iter().any(|lease| lease.renewed != first.renewed);
    api.leases_until("a renewal", is_renewed).await.unwrap();
    timeout(PATIENCE, published.withdraw()).await.unwrap();
    assert!(api.leases().is_empty());
    assert!(thread.finish(PATIENCE).await);
    assert!(api.leases().is_empty(), "W25: it does not come back");
}

#[tokio::test]
async fn servers_that_live_are_counted_with_this_one() {
    let api = KubeApi::start().unwrap();
    let thread = thread(&api);
    api.put_lease(&others("alive", Duration::ZERO, Some(3600)));
    let (live, mut told) = watch::channel(0);
    let clock: Clock = Arc::new(Timestamp::now);
    let _published =
        Published::start_with(&thread, options("s1"), metrics(), QUICK, clock, live).unwrap();
    for count in [2, 3, 1] {
        let counted = timeout(PATIENCE, told.wait_for(|told| *told == count)).await;
        assert!(counted.unwrap().is_ok());
        match count {
            2 => api.put_lease(&others("another", Duration::ZERO, Some(3600))),
            _ => {
                api.delete_lease("kube-system", "alive");
                api.delete_lease("kube-system", "another");
            }
        }
    }
}

#[tokio::test]
async fn what_others_do_to_a_lease_is_made_good() {
    let api = KubeApi::start().unwrap();
    let thread = thread(&api);
    let _published = start(&thread, "s1", &metrics());
    let first = api
        .leases_until("a Lease", |leases| leases.len() == 1)
        .await
        .unwrap();
    let mut changed = first.first().unwrap().clone();
    // Whatever version the renewer has seen, it is not this one.
    changed.labels = [("a".to_owned(), "b".to_owned())].into();
    changed.duration_seconds = None;
    api.put_lease(&changed);
    let is_good = |leases: &[Lease]| {
        leases.iter().any(|lease| {
            &lease.labels == options("s1").labels.as_map() && lease.duration_seconds == Some(30)
        })
    };
    api.leases_until("our labels", is_good).await.unwrap();
    api.delete_lease("kube-system", &changed.name);
    api.leases_until("a new Lease", is_good).await.unwrap();
}

#[tokio::test]
async fn an_api_server_that_fails_at_first_gets_a_lease_later() {
    let api = KubeApi::start().unwrap();
    api.fail(Resource::Leases, Fault::Status(500));
    let thread = thread(&api);
    let metrics = metrics();
    let published = start(&thread, "s1", &metrics);
    api.asked("get", Resource::Leases, 2).await.unwrap();
    assert!(api.leases().is_empty());
    api.heal();
    api.leases_until("a Lease", |leases| leases.len() == 1)
        .await
        .unwrap();
    timeout(PATIENCE, published.withdraw()).await.unwrap();
}

#[tokio::test]
async fn leases_that_nobody_renews_are_deleted_and_no_others() {
    let api = KubeApi::start().unwrap();
    let hour = Duration::from_secs(3600);
    api.put_lease(&others("dead", hour, Some(1)));
    api.put_lease(&others("broken", hour, Some(-1)));
    api.put_lease(&others("alive", Duration::ZERO, Some(3600)));
    let mut foreign = others("foreign", hour, Some(1));
    foreign.labels.remove("x");
    api.put_lease(&foreign);
    let thread = thread(&api);
    let metrics = metrics();
    let published = start(&thread, "s1", &metrics);
    let is_dead = |lease: &Lease| lease.name == "dead";
    let is_collected = |leases: &[Lease]| !leases.iter().any(is_dead);
    api.leases_until("the dead one's end", is_collected)
        .await
        .unwrap();
    // The round is over when the next one has begun.
    let lists = api.count("list", Resource::Leases);
    api.asked("list", Resource::Leases, lists + 1)
        .await
        .unwrap();
    timeout(PATIENCE, published.withdraw()).await.unwrap();
    let left: Vec<_> = api.leases().into_iter().map(|lease| lease.name).collect();
    // The broken one lasts until it was silent for 30 s.
    assert_eq!(left, ["alive", "broken", "foreign"]);
    assert_eq!(metrics.culled_leases.get(), 1);
}

/// A clock that is far ahead, or another server's that is far behind.
#[tokio::test]
async fn no_clock_makes_us_delete_the_lease_of_a_server_that_renews() {
    let api = KubeApi::start().unwrap();
    let thread = thread(&api);
    let healthy = start(&thread, "s1", &metrics());
    api.leases_until("a Lease", |leases| leases.len() == 1)
        .await
        .unwrap();
    api.put_lease(&others("dead", Duration::from_secs(3600), Some(1)));
    let ahead: Clock = Arc::new(|| Timestamp::now() + Duration::from_secs(3600));
    let skewed_metrics = metrics();
    let live = watch::channel(0).0;
    let skewed = Published::start_with(
        &thread,
        options("s2"),
        skewed_metrics.clone(),
        QUICK,
        ahead,
        live,
    )
    .unwrap();
    let is_collected = |leases: &[Lease]| !leases.iter().any(|lease| lease.name == "dead");
    api.leases_until("the dead one's end", is_collected)
        .await
        .unwrap();
    let names: Vec<_> = api.leases().into_iter().map(|lease| lease.name).collect();
    assert!(
        names.contains(&"konnectivity-proxy-server-s1".to_owned()),
        "{names:?}"
    );
    timeout(PATIENCE, skewed.withdraw()).await.unwrap();
    timeout(PATIENCE, healthy.withdraw()).await.unwrap();
    assert!(skewed_metrics.culled_leases.get() <= 1);
}
