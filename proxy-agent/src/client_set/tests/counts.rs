//! How many servers are looked for, and those that are about to leave.

use super::*;

/// field-tests.md R41: the cap of the back-off plays no part.
#[tokio::test(start_paused = true)]
async fn servers_that_leases_tell_of_are_found_soon_after_a_long_rest() {
    run(async {
        let config = SyncConfig {
            cap: Duration::from_secs(300),
            ..SYNC
        };
        let (publish, leases) = watch::channel(LeaseCount {
            count: 1,
            known: true,
        });
        let world = World::counting(
            CountSource::Leases(leases),
            &[PEER],
            config,
            [Manner::server("a", 1)],
        );
        world.tunnels(1).await;
        sleep(Duration::from_secs(600)).await;
        assert_eq!(world.attempts(), 1);
        world
            .servers
            .behave(["a", "b", "a", "c"].map(|id| Manner::server(id, 1)));
        let told = Instant::now();
        publish.send_replace(LeaseCount {
            count: 3,
            known: true,
        });
        world.tunnels(3).await;
        assert!(
            told.elapsed() < Duration::from_secs(10),
            "{:?}",
            told.elapsed()
        );
        assert_eq!(world.reached(), (3, 3));
        drop(publish);
        sleep(Duration::from_secs(600)).await;
        assert_eq!(world.attempts(), 5);
    })
    .await;
}

/// field-tests.md R57.
#[tokio::test(start_paused = true)]
async fn a_server_with_an_old_number_does_not_end_the_search() {
    run(async {
        let manners = [("a", 3), ("b", 1), ("c", 1)].map(|(id, count)| Manner::server(id, count));
        let world = World::new(SYNC, manners);
        world.tunnels(3).await;
        sleep(2 * SHORT_LIVED).await;
        // The one that knows better goes, and is looked for until its number is forgotten.
        let knowing = world.servers.backends.borrow()[0].clone();
        knowing.cut.cancel();
        world.until(|world| world.reached() == (2, 3)).await;
        world.until(|world| world.reached() == (2, 1)).await;
        let before = world.attempts();
        assert!(before > 10, "{before}");
        sleep(MEMORY).await;
        assert_eq!(world.attempts(), before);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_duplicate_brings_its_servers_number_up_to_date() {
    run(async {
        let world = World::new(SYNC, [Manner::server("a", 2), Manner::server("a", 1)]);
        world.until(|world| world.reached() == (1, 1)).await;
        let attempts = world.attempts();
        assert_eq!(attempts, 2);
        sleep(Duration::from_secs(3600)).await;
        assert_eq!(world.attempts(), attempts);
    })
    .await;
}

/// field-tests.md R58.
#[tokio::test(start_paused = true)]
async fn with_sync_forever_a_set_that_is_complete_costs_one_connection_a_minute() {
    run(async {
        let config = SyncConfig {
            forever: true,
            ..SYNC
        };
        let world = World::new(config, ["a", "b", "a"].map(|id| Manner::server(id, 2)));
        world.tunnels(2).await;
        let before = world.attempts();
        sleep(Duration::from_secs(3600)).await;
        let extra = world.attempts() - before;
        assert!((40..=60).contains(&extra), "{extra}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_drains_is_replaced_at_once_and_its_tunnel_lives_on() {
    run(async {
        let world = World::new(SYNC, [Manner::server("a", 1), Manner::server("b", 1)]);
        world.tunnels(1).await;
        sleep(2 * SHORT_LIVED).await;
        let old = world.servers.last();
        let drained = Instant::now();
        old.mux.send_drain();
        world.tunnels(2).await;
        assert!(drained.elapsed() < Duration::from_millis(200));
        assert_eq!(world.reached(), (1, 1));
        sleep(Duration::from_secs(600)).await;
        assert!(!old.mux.is_lost());
        let attempts = world.attempts();
        old.cut.cancel();
        world.tunnels(1).await;
        // Its end changes nothing any more.
        sleep(Duration::from_secs(600)).await;
        assert_eq!(world.attempts(), attempts);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_drained_server_that_comes_back_under_its_id_is_taken() {
    run(async {
        let world = World::new(SYNC, [Manner::server("a", 1)]);
        world.tunnels(1).await;
        sleep(2 * SHORT_LIVED).await;
        let old = world.servers.last();
        old.mux.send_drain();
        world.until(|world| world.attempts() == 2).await;
        world.until(|world| world.reached() == (1, 1)).await;
        // What is over at the old one ends it.
        world.until(|_| old.mux.is_lost()).await;
        assert_eq!(world.metrics.tunnels(), 1);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_drains_again_and_again_is_not_called_in_a_busy_loop() {
    run(async {
        let world = World::new(SYNC, [Manner::server("a", 1)]);
        let started = Instant::now();
        while started.elapsed() < Duration::from_secs(60) {
            world.until(|world| world.reached().0 == 1).await;
            world.servers.last().mux.send_drain();
            world.until(|world| world.reached().0 == 0).await;
        }
        assert!(world.attempts() < 25, "{}", world.attempts());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn when_the_agent_leaves_its_tunnels_end_in_order() {
    run(async {
        let world = World::new(SYNC, [Manner::server("a", 2), Manner::server("b", 2)]);
        world.tunnels(2).await;
        world.tasks.stop().cancel();
        world.until(|world| world.drains() == [1, 1]).await;
        world.clients.leave();
        let ended = world.tasks.finish(Duration::from_secs(60)).await;
        assert_eq!(ended, tunnel::drain::Drained::Clean);
        assert_eq!(world.metrics.tunnels(), 0);
        world
            .until(|world| {
                let backends = world.servers.backends.borrow();
                backends.iter().all(|backend| backend.mux.is_lost())
            })
            .await;
    })
    .await;
}
