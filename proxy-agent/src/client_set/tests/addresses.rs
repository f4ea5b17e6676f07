//! Several addresses, and addresses that come and go.

use super::*;

fn one_each(world: &World, ids: &[&str], count: i64) {
    for (number, id) in (1..).zip(ids) {
        let manner = Manner::server(id, count);
        world.servers.behave_at(address(number), [manner]);
    }
}

#[tokio::test(start_paused = true)]
async fn each_address_gets_a_tunnel_at_once_whatever_the_others_do() {
    run(async {
        let addresses = [1, 2, 3, 4].map(address);
        let world = World::at(&addresses, SYNC, []);
        one_each(&world, &["a", "b"], 2);
        world.servers.behave_at(address(3), [Manner::Hang]);
        world
            .servers
            .behave_at(address(4), [Manner::server("d", 2)]);
        let started = Instant::now();
        world.tunnels(3).await;
        assert!(started.elapsed() < Duration::from_secs(1));
        // More than the wanted number: each address is a server of its own.
        assert_eq!(world.reached(), (3, 2));
        // One that is dead is tried ever more rarely, and those that work not at all.
        sleep(Duration::from_secs(3600)).await;
        let before = world.attempts();
        sleep(Duration::from_secs(600)).await;
        assert!((5..=20).contains(&(world.attempts() - before)));
        let settled = [1, 2, 4].map(|number| world.attempts_at(address(number)));
        assert_eq!(settled, [1, 1, 1]);
        let troubles = world.standing.borrow().troubles.clone();
        assert_eq!(troubles.len(), 1);
        assert_eq!(troubles[0].0, "10.0.0.3:8091");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_second_address_of_one_server_is_left_alone() {
    run(async {
        let world = World::at(&[1, 2].map(address), SYNC, []);
        one_each(&world, &["a", "a"], 1);
        world.tunnels(1).await;
        sleep(Duration::from_secs(3600)).await;
        assert_eq!(world.attempts(), 2);
        // wire-protocol.md W38: the operator has been told.
        assert!(world.clients.same_ids.borrow().contains("a"));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_address_of_each_family_may_lead_to_the_same_server() {
    run(async {
        let six = "[fd00::1]:8091".parse().unwrap();
        let world = World::at(&[address(1), six], SYNC, []);
        one_each(&world, &["a"], 1);
        world.servers.behave_at(six, [Manner::server("a", 1)]);
        world.until(|world| world.attempts() == 2).await;
        world.tunnels(1).await;
        sleep(Duration::from_secs(60)).await;
        assert!(world.clients.same_ids.borrow().is_empty());
    })
    .await;
}

/// field-tests.md R61.
#[tokio::test(start_paused = true)]
async fn an_address_that_is_added_is_found_within_half_a_minute_and_its_removal_is_no_loop() {
    run(async {
        let world = World::at(&[1, 2].map(address), SYNC, []);
        one_each(&world, &["a", "b", "c"], 2);
        world.tunnels(2).await;
        world.servers.resolve_to(&[1, 2, 3].map(address));
        let added = Instant::now();
        world.tunnels(3).await;
        assert!(added.elapsed() <= search::LOOKUP_INTERVAL + Duration::from_secs(1));
        world.servers.resolve_to(&[1, 2].map(address));
        sleep(2 * search::LOOKUP_INTERVAL).await;
        // Its tunnel lives on.
        assert_eq!(world.metrics.tunnels(), 3);
        world.servers.last().cut.cancel();
        world.tunnels(2).await;
        sleep(Duration::from_secs(3600)).await;
        assert_eq!(world.attempts(), 3);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_address_that_comes_back_while_its_tunnel_lives_is_left_alone() {
    run(async {
        let world = World::at(&[1, 2].map(address), SYNC, []);
        one_each(&world, &["a", "b"], 2);
        world.tunnels(2).await;
        for addresses in [&[address(1)][..], &[address(2)], &[1, 2].map(address)] {
            world.servers.resolve_to(addresses);
            sleep(2 * search::LOOKUP_INTERVAL).await;
        }
        assert_eq!(world.attempts(), 2);
        assert_eq!(world.metrics.tunnels(), 2);
    })
    .await;
}

/// field-tests.md R43.
#[tokio::test(start_paused = true)]
async fn a_server_that_has_moved_is_looked_for_where_its_name_leads_now() {
    run(async {
        let world = World::at(&[address(1)], SYNC, []);
        one_each(&world, &["a", "a"], 1);
        world.tunnels(1).await;
        sleep(2 * SHORT_LIVED).await;
        world.servers.behave_at(address(1), [Manner::Hang]);
        world.servers.resolve_to(&[address(2)]);
        let lost = Instant::now();
        world.servers.last().cut.cancel();
        world
            .until(|world| world.attempts_at(address(2)) == 1)
            .await;
        world.tunnels(1).await;
        assert!(
            lost.elapsed() < Duration::from_secs(5),
            "{:?}",
            lost.elapsed()
        );
        assert_eq!(world.attempts_at(address(2)), 1);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_name_that_does_not_resolve_keeps_its_addresses_and_is_told() {
    run(async {
        let world = World::at(&[], SYNC, []);
        one_each(&world, &["a"], 1);
        world
            .until(|world| !world.standing.borrow().troubles.is_empty())
            .await;
        world.servers.resolve_to(&[address(1)]);
        world.tunnels(1).await;
        assert!(world.standing.borrow().troubles.is_empty());
        world.servers.resolve_to(&[]);
        sleep(2 * SHORT_LIVED).await;
        world.servers.last().cut.cancel();
        world.until(|world| world.attempts() == 2).await;
        world.tunnels(1).await;
        world
            .until(|world| world.standing.borrow().troubles.len() == 1)
            .await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn many_addresses_share_the_attempts_of_one() {
    run(async {
        let addresses: Vec<_> = (1..=16).map(address).collect();
        let world = World::at(&addresses, SYNC, [Manner::server("a", 3)]);
        world.tunnels(1).await;
        sleep(Duration::from_secs(10)).await;
        assert!(world.busiest_second() <= 36, "{}", world.busiest_second());
        let before = world.attempts();
        sleep(Duration::from_secs(1)).await;
        assert!(world.attempts() - before <= 21);
    })
    .await;
}

/// field-tests.md R49: the loop lives while its attempts end.
#[tokio::test(start_paused = true)]
async fn a_search_whose_attempt_does_not_end_counts_as_stuck() {
    run(async {
        let world = World::at(&[address(1)], SYNC, [Manner::Hang]);
        sleep(Duration::from_secs(3600)).await;
        let now = Instant::now();
        assert!(!world.clients.is_stuck(now));
        world
            .until(|world| world.clients.routes()[0].attempting_since().is_some())
            .await;
        let later = Instant::now() + crate::admin::STUCK_AFTER + Duration::from_secs(1);
        assert!(world.clients.is_stuck(later));
    })
    .await;
}
