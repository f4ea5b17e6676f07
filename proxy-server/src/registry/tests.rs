use tunnel::{Tunnel, conn::Role, ledger::Ledger, mux::Mux, observe::Unobserved, probe::Probe};

use super::{identifiers::Identifiers, strategy::Strategy, *};

fn backend_at(agent: &str, identifiers: &str, peer: Option<&str>) -> Rc<Backend> {
    let ledger = Rc::new(Ledger::new(tunnel::ledger::DEFAULT_BUDGET));
    Backend::new(
        AgentId::new(agent),
        Identifiers::parse(identifiers).unwrap(),
        peer.map(|peer| peer.parse().unwrap()),
        Mux::new(Role::Server, ledger, Rc::new(Unobserved)),
        Probe::default(),
    )
}

fn backend(agent: &str, identifiers: &str) -> Rc<Backend> {
    backend_at(agent, identifiers, None)
}

fn registry(strategies: &str) -> Rc<Registry> {
    let metrics = Metrics::new(certs::Current::fixed(Arc::default())).unwrap();
    Registry::new(metrics, &strategies.parse().unwrap())
}

fn choose(registry: &Registry, to: &str) -> Option<Rc<Backend>> {
    registry.choose(&Destination::read(to), &[])
}

#[track_caller]
fn assert_always(registry: &Registry, to: &str, backend: &Rc<Backend>) {
    for _ in 0..50 {
        let chosen = choose(registry, to).unwrap();
        assert!(Rc::ptr_eq(&chosen, backend), "{to}: {chosen:?}");
    }
}

fn keys(registry: &Registry) -> [i64; 3] {
    Strategy::ALL.map(|strategy| registry.metrics.backends(strategy))
}

#[test]
fn a_draining_backend_is_chosen_only_when_there_is_no_other() {
    let registry = registry("default");
    assert!(choose(&registry, "t:1").is_none());
    let (draining, fresh) = (backend("a", ""), backend("b", ""));
    let registered = registry.add(draining.clone());
    assert!(registered.drain());
    assert_always(&registry, "t:1", &draining);
    let _fresh = registry.add(fresh.clone());
    assert_always(&registry, "t:1", &fresh);
    // Twice is once.
    registered.drain();
    assert_always(&registry, "t:1", &fresh);
}

#[test]
fn the_newest_proven_tunnel_of_an_agent_is_preferred_and_each_is_removed_for_itself() {
    let registry = registry("default,destHost");
    let (old, new) = (backend("a", "host=x"), backend("a", "host=x"));
    let first = registry.add(old.clone());
    let second = registry.add(new.clone());
    assert_eq!((registry.len(), keys(&registry)), (2, [1, 1, 0]));
    first.prove();
    for to in ["t:1", "x:1"] {
        assert_always(&registry, to, &old);
    }
    second.prove();
    for to in ["t:1", "x:1"] {
        assert_always(&registry, to, &new);
    }
    drop(second);
    assert_eq!((registry.len(), keys(&registry)), (1, [1, 1, 0]));
    for to in ["t:1", "x:1"] {
        assert_always(&registry, to, &old);
    }
    let third = registry.add(backend("a", ""));
    drop(first);
    assert_eq!((registry.len(), keys(&registry)), (1, [1, 0, 0]));
    drop(third);
    assert_eq!((registry.len(), keys(&registry)), (0, [0, 0, 0]));
}

/// An agent behind a load balancer opens tunnels to a server that it has one to, and ends them at once.
#[test]
fn tunnels_that_come_and_go_beside_one_that_stays_get_no_dials() {
    let registry = registry("default");
    let stays = backend("a", "");
    let place = registry.add(stays.clone());
    for is_proven in [false, true] {
        let passing: Vec<_> = (0..3).map(|_| registry.add(backend("a", ""))).collect();
        assert_always(&registry, "t:1", &stays);
        drop(passing);
        if !is_proven {
            place.prove();
        }
    }
    // Whoever is left serves at once.
    let next = backend("a", "");
    let _next = registry.add(next.clone());
    place.drain();
    assert_always(&registry, "t:1", &next);
}

#[test]
fn a_newer_tunnel_that_drains_gives_its_place_back() {
    let registry = registry("default");
    let (old, new) = (backend("a", ""), backend("a", ""));
    let _old = registry.add(old.clone());
    let new_place = registry.add(new.clone());
    new_place.prove();
    assert_always(&registry, "t:1", &new);
    new_place.drain();
    assert_always(&registry, "t:1", &old);
    assert_eq!(
        (old.state(), new.state()),
        (AgentState::Ready, AgentState::Draining)
    );
}

#[test]
fn a_suspect_comes_last_until_it_gives_a_sign_of_life() {
    let registry = registry("destHost,default");
    let (suspect, draining) = (backend("a", "host=x"), backend("b", ""));
    let _guard = registry.add(suspect.clone());
    suspect.suspect();
    // Better than nobody.
    assert_always(&registry, "x:1", &suspect);
    assert!(
        registry
            .choose_alive(&Destination::read("x:1"), &[])
            .is_none()
    );
    let other = registry.add(draining.clone());
    other.drain();
    assert_always(&registry, "x:1", &draining);
    let Tunnel::Packet(mux) = &suspect.tunnel else {
        panic!("not the tunnel it was given");
    };
    mux.on_chunk(1);
    assert_eq!(suspect.rank(), Rank::Willing);
    assert_always(&registry, "x:1", &suspect);
}

#[test]
fn strategies_are_asked_in_order_and_each_only_for_its_own() {
    let registry = registry("destHost,defaultRoute,default");
    let plain = backend("plain", "");
    let route = backend("route", "default-route=true");
    let node = backend("node", "host=node-1&ipv4=10.0.0.7&ipv6=fd00::7");
    let _plain = registry.add(plain.clone());
    assert_always(&registry, "10.0.0.7:10250", &plain);
    let route_place = registry.add(route.clone());
    assert_always(&registry, "10.0.0.7:10250", &route);
    let node_place = registry.add(node.clone());
    for to in [
        "10.0.0.7:10250",
        "NODE-1:10250",
        "node-1.:1",
        "[fd00:0:0::7]:443",
        "[::ffff:10.0.0.7]:443",
        "fd00::7",
    ] {
        assert_always(&registry, to, &node);
    }
    assert_always(&registry, "10.0.0.8:10250", &route);
    assert_eq!(keys(&registry), [3, 3, 1]);
    assert_eq!(registry.metrics.ready_backend_connections.get(), 3);
    drop((route_place, node_place));
    assert_always(&registry, "10.0.0.7:10250", &plain);
    assert_eq!(keys(&registry), [1, 0, 0]);
}

#[test]
fn an_agent_of_the_port_comes_before_one_of_the_host() {
    let registry = registry("destHost");
    let (host, port) = (backend("a", "host=node"), backend("b", "host=node:443"));
    let _guards = (registry.add(host.clone()), registry.add(port.clone()));
    assert_always(&registry, "node:443", &port);
    assert_always(&registry, "node:80", &host);
    let tried = [port];
    let chosen = registry.choose(&Destination::read("node:443"), &tried);
    assert!(Rc::ptr_eq(&chosen.unwrap(), &host));
}

#[test]
fn what_was_tried_is_not_chosen_again() {
    let registry = registry("default");
    let backends: Vec<_> = (0..40).map(|i| backend(&i.to_string(), "")).collect();
    let _places: Vec<_> = backends
        .iter()
        .map(|backend| registry.add(backend.clone()))
        .collect();
    let to = Destination::read("t:1");
    // Random tries alone would miss the one that is left.
    let chosen = registry.choose(&to, &backends[1..]).unwrap();
    assert!(Rc::ptr_eq(&chosen, &backends[0]));
    assert!(registry.choose(&to, &backends).is_none());
}

/// R85: a strategy without a backend for the dial, in any place of any list.
#[test]
fn every_list_of_strategies_serves_agents_with_any_identifiers() {
    let lists = [
        "default",
        "destHost",
        "defaultRoute",
        "default,destHost",
        "destHost,default",
        "default,defaultRoute",
        "defaultRoute,default",
        "destHost,defaultRoute",
        "defaultRoute,destHost",
        "default,destHost,defaultRoute",
        "default,defaultRoute,destHost",
        "destHost,default,defaultRoute",
        "destHost,defaultRoute,default",
        "defaultRoute,default,destHost",
        "defaultRoute,destHost,default",
    ];
    let many = (0..100).map(|i| format!("ipv4=10.0.0.{i}"));
    let many = many.collect::<Vec<_>>().join("&");
    let sets = ["", "ipv4=${HOST_IP}", "host=x&default-route=true", "x=y"];
    for list in lists {
        let registry = registry(list);
        let mut places = Vec::new();
        for (i, identifiers) in sets.into_iter().chain([many.as_str()]).enumerate() {
            // Of each agent two tunnels.
            for _ in 0..2 {
                places.push(registry.add(backend(&i.to_string(), identifiers)));
                for to in ["x:1", "10.0.0.7:1", "", "[", "unknown:1"] {
                    let chosen = choose(&registry, to);
                    let any = list.contains("default,") || list.ends_with("default");
                    assert!(chosen.is_some() || !any, "{list}: nobody for {to}");
                }
            }
        }
        assert!(choose(&registry, "10.0.0.7:1").is_some(), "{list}");
        while !places.is_empty() {
            places.swap_remove(fastrand::usize(..places.len()));
            let _any = choose(&registry, "x:1");
        }
        assert_eq!(keys(&registry), [0, 0, 0], "{list}");
        assert!(choose(&registry, "x:1").is_none());
    }
}

#[test]
fn the_less_loaded_of_two_is_chosen_and_the_busiest_of_all_never() {
    let registry = registry("default");
    let (busy, idle) = (backend("busy", ""), backend("idle", ""));
    let dials: Vec<_> = (0..50)
        .map(|_| busy.tunnel.dial("tcp", "target:1"))
        .collect();
    let places = [registry.add(busy.clone()), registry.add(idle.clone())];
    assert_eq!(registry.pending_dials(), dials.len());
    assert_always(&registry, "t:1", &idle);
    let third = registry.add(backend("third", ""));
    for _ in 0..200 {
        assert!(!Rc::ptr_eq(&choose(&registry, "t:1").unwrap(), &busy));
    }
    // And so where all have to be looked at, as nobody is willing.
    for place in &places {
        place.drain();
    }
    drop(third);
    assert_always(&registry, "t:1", &idle);
}

#[test]
fn the_gauges_of_states_are_true_after_any_order_of_events() {
    let registry = registry("default");
    let mut places = Vec::new();
    for step in 0..2000 {
        match fastrand::u8(..4) {
            0 | 1 => {
                let agent = fastrand::u8(..5).to_string();
                places.push(registry.add(backend(&agent, "")));
            }
            2 if !places.is_empty() => {
                places.swap_remove(fastrand::usize(..places.len()));
            }
            _ if !places.is_empty() => {
                places[fastrand::usize(..places.len())].drain();
            }
            _ => {}
        }
        if places.len() > 30 {
            places.clear();
        }
        let preferred = places.iter().filter(|place| place.backend().is_preferred());
        let mut agents: Vec<_> = preferred.map(|place| &place.backend().agent).collect();
        let count = agents.len();
        agents.sort_by_key(|agent| agent.as_str());
        agents.dedup();
        assert_eq!(agents.len(), count, "step {step}: two preferred of one id");
        assert_eq!(registry.len(), places.len());
        if let Some(chosen) = choose(&registry, "t:1") {
            assert!(chosen.is_preferred() || count == 0, "step {step}");
        }
    }
    registry.update_gauges();
    places.clear();
    registry.update_gauges();
    assert_eq!(keys(&registry), [0, 0, 0]);
}

#[test]
fn a_choice_among_thousands_looks_at_few() {
    let registry = registry("default");
    let backends: Vec<_> = (0..5000).map(|i| backend(&i.to_string(), "")).collect();
    let _places: Vec<_> = backends
        .iter()
        .map(|backend| registry.add(backend.clone()))
        .collect();
    for backend in backends.iter().step_by(2) {
        backend.suspect();
    }
    let to = Destination::read("t:1");
    let looks = backend::LOOKS.get();
    for _ in 0..1000 {
        let chosen = registry.choose(&to, &[]).unwrap();
        assert_eq!(chosen.rank(), Rank::Willing);
    }
    // Half of them are no use, so a choice takes four looks on average, and the assertion one.
    let looks = backend::LOOKS.get() - looks;
    assert!(looks < 10 * 1000, "{looks}");
}

mod contest {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn two_machines_with_one_id_are_told_of_once_and_one_that_moves_is_not() {
        let registry = registry("default");
        let mut places = Vec::new();
        let told = |registry: &Registry| registry.state.borrow().agents.is_contested("a");
        for (step, peer) in ["10.0.0.1", "10.0.0.2", "10.0.0.1"].into_iter().enumerate() {
            places.push(registry.add(backend_at("a", "", Some(peer))));
            assert!(!told(&registry), "step {step}");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        places.push(registry.add(backend_at("a", "", Some("10.0.0.2"))));
        assert!(told(&registry));
        places.clear();
        // Renewals through a load balancer, days apart.
        for day in 0..10 {
            let peer = format!("10.0.1.{day}");
            places.push(registry.add(backend_at("a", "", Some(&peer))));
            tokio::time::sleep(Duration::from_secs(86_400)).await;
            assert!(!told(&registry), "day {day}");
        }
    }
}
