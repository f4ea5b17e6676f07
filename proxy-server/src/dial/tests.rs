//! Dials through agents whose tunnels run in memory. Time is paused: a sleep ends when nothing else is left to do.

use std::future::Future;

use tokio::{
    task::{LocalSet, spawn_local, yield_now},
    time::sleep,
};
use tunnel::{
    dial::Refusal,
    mux::{Event, Mux},
    packet::DialId,
};

use super::*;
use crate::{
    config::DIAL_TIMEOUT,
    metrics::AgentState,
    registry::strategy::Strategy,
    testing::{FakeAgent, core},
};

async fn on_a_worker(test: impl Future<Output = ()>) {
    LocalSet::new().run_until(test).await;
}

/// An agent that answers every dial at once.
fn answering(core: &Rc<Core>, id: &str) -> (FakeAgent, tokio::sync::mpsc::Receiver<Event>) {
    let on_dial = |mux: &Rc<Mux>, dial: DialId, _: String| {
        // The connection's end is dropped: it closes at once.
        drop(mux.accept(dial));
    };
    FakeAgent::new(core, id, "", Box::new(on_dial))
}

/// An agent that answers no dial.
fn mute(core: &Rc<Core>, id: &str) -> (FakeAgent, tokio::sync::mpsc::Receiver<Event>) {
    FakeAgent::new(core, id, "", Box::new(|_, _, _| {}))
}

fn dialling(core: &Rc<Core>) -> tokio::task::JoinHandle<Result<Dialled, DialError>> {
    let core = core.clone();
    spawn_local(async move { core.dial("tcp", "t:1").await })
}

fn retries(core: &Core, cause: &str) -> f64 {
    let families = core.metrics.registry.gather();
    let name = "konnectivity_network_proxy_server_dial_retries_total";
    let family = families
        .iter()
        .find(|family| family.name() == name)
        .unwrap();
    let series = family.get_metric().iter();
    let of_cause = |metric: &&prometheus::proto::Metric| metric.get_label()[0].value() == cause;
    series
        .clone()
        .find(of_cause)
        .unwrap()
        .get_counter()
        .get_value()
}

#[tokio::test(start_paused = true)]
async fn a_dial_whose_tunnel_is_lost_goes_to_another_agent_at_once() {
    on_a_worker(async {
        let core = core();
        let (lost, mut dials) = mute(&core, "a");
        let dialling = dialling(&core);
        assert!(matches!(dials.recv().await, Some(Event::Dial { .. })));
        let _other = answering(&core, "b");
        let since = Instant::now();
        lost.lose().await;
        let dialled = dialling.await.unwrap().unwrap();
        assert_eq!(dialled.agent, AgentId::new("b"));
        assert_eq!(since.elapsed(), Duration::ZERO);
        assert_eq!(retries(&core, "tunnel_lost"), 1.0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_tunnel_without_another_agent_fails_the_dial_at_once() {
    on_a_worker(async {
        let core = core();
        let (lost, mut dials) = mute(&core, "a");
        let dialling = dialling(&core);
        dials.recv().await;
        let since = Instant::now();
        lost.lose().await;
        let error = dialling.await.unwrap().unwrap_err();
        assert!(matches!(error, DialError::Lost { .. }), "{error}");
        assert_eq!(since.elapsed(), Duration::ZERO);
        assert_eq!(retries(&core, "tunnel_lost"), 0.0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_dial_leaves_an_agent_that_gives_no_sign_of_life() {
    on_a_worker(async {
        let core = core();
        let (frozen, mut frozen_events) = mute(&core, "frozen");
        let since = Instant::now();
        let dialling = dialling(&core);
        frozen_events.recv().await;
        frozen.freeze(true);
        let _other = answering(&core, "b");
        let dialled = dialling.await.unwrap().unwrap();
        assert_eq!(dialled.agent, AgentId::new("b"));
        let took = since.elapsed();
        assert!(took >= 2 * SILENCE && took < 3 * SILENCE, "{took:?}");
        assert_eq!(retries(&core, "no_sign_of_life"), 1.0);
        assert_eq!(frozen.backend.state(), AgentState::Suspect);
        for _ in 0..20 {
            let dialled = core.dial("tcp", "t:1").await.unwrap();
            assert_eq!(dialled.agent, AgentId::new("b"));
        }
        // What waited for it says that nobody waits for the dial any more; then it speaks and is trusted again.
        frozen.freeze(false);
        let cancelled = frozen_events.recv().await;
        assert!(
            matches!(cancelled, Some(Event::CancelDial(_))),
            "{cancelled:?}"
        );
        frozen.mux.send_drain();
        sleep(SILENCE).await;
        assert_eq!(frozen.backend.state(), AgentState::Ready);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_lives_is_not_left_for_a_slow_target() {
    on_a_worker(async {
        let core = core();
        let agents = [mute(&core, "a"), mute(&core, "b")];
        let since = Instant::now();
        let dialling = dialling(&core);
        while !dialling.is_finished() {
            sleep(SILENCE / 2).await;
            for (agent, _) in &agents {
                // Any packet will do.
                agent.mux.refuse(DialId(-1), "nobody asked".to_owned());
            }
        }
        let error = dialling.await.unwrap().unwrap_err();
        assert!(matches!(error, DialError::TimedOut { .. }), "{error}");
        assert!(since.elapsed() < DIAL_TIMEOUT + SILENCE);
        let dials = agents.map(|(_, mut events)| {
            let first = events.try_recv().ok();
            matches!(first, Some(Event::Dial { .. }))
        });
        assert_ne!(dials[0], dials[1], "both were asked, or none");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_dial_stays_with_the_only_agent_until_there_is_another() {
    on_a_worker(async {
        let core = core();
        let (frozen, mut events) = mute(&core, "a");
        let waiting = dialling(&core);
        events.recv().await;
        frozen.freeze(true);
        sleep(5 * SILENCE).await;
        assert!(!waiting.is_finished());
        let _other = answering(&core, "b");
        let dialled = waiting.await.unwrap().unwrap();
        assert_eq!(dialled.agent, AgentId::new("b"));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn one_deadline_holds_for_all_tries() {
    on_a_worker(async {
        let core = core();
        let agents: Vec<_> = ["a", "b", "c", "d"].map(|id| mute(&core, id)).into();
        for (agent, _) in &agents {
            agent.freeze(true);
        }
        let since = Instant::now();
        let error = core.dial("tcp", "t:1").await.unwrap_err();
        assert!(matches!(error, DialError::TimedOut { .. }), "{error}");
        assert_eq!(since.elapsed(), DIAL_TIMEOUT);
        let asked = agents.iter();
        let asked = asked.filter(|(agent, _)| agent.backend.state() == AgentState::Suspect);
        assert_eq!(asked.count(), MAX_TRIES);
        assert_eq!(core.metrics.pending_dials.get(), 0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_agents_refusal_is_final() {
    on_a_worker(async {
        let core = core();
        let refusing = |id| {
            let on_dial = |mux: &Rc<Mux>, dial: DialId, _: String| {
                mux.refuse(dial, "connection refused".to_owned());
            };
            FakeAgent::new(&core, id, "", Box::new(on_dial))
        };
        let mut agents = ["a", "b"].map(refusing);
        let error = core.dial("tcp", "t:1").await.unwrap_err();
        assert!(matches!(error, DialError::Refused { .. }), "{error}");
        let asked = agents
            .each_mut()
            .map(|(_, events)| events.try_recv().is_ok());
        assert_ne!(asked[0], asked[1]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_dial_is_sent_to_three_agents_at_most() {
    on_a_worker(async {
        let core = core();
        let mut agents: Vec<_> = (0..5).map(|id| mute(&core, &id.to_string())).collect();
        let dialling = dialling(&core);
        let mut asked = 0;
        while !dialling.is_finished() {
            yield_now().await;
            let has_dial = |(_, events): &mut (FakeAgent, _)| {
                let events: &mut tokio::sync::mpsc::Receiver<Event> = events;
                events.try_recv().is_ok()
            };
            if let Some(at) = agents.iter_mut().position(has_dial) {
                asked += 1;
                agents.swap_remove(at).0.lose().await;
            }
        }
        let error = dialling.await.unwrap().unwrap_err();
        assert!(matches!(error, DialError::Lost { .. }), "{error}");
        assert_eq!(asked, MAX_TRIES);
        assert_eq!(retries(&core, "tunnel_lost"), 2.0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_leaves_and_one_without_agents_say_so() {
    on_a_worker(async {
        let core = core();
        let error = core.dial("tcp", "t:1").await.unwrap_err();
        assert!(matches!(error, DialError::NoAgent), "{error}");
        let _agent = answering(&core, "a");
        core.stop.cancel();
        let error = core.dial("tcp", "t:1").await.unwrap_err();
        assert!(matches!(error, DialError::ShuttingDown), "{error}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_egress_policy_is_asked_before_any_agent() {
    on_a_worker(async {
        let mut core = core();
        Rc::get_mut(&mut core).unwrap().egress = Policy::parse(&["t:1"], &[]).unwrap();
        let (_agent, mut events) = answering(&core, "a");
        for (target, text) in [
            (
                "u:1",
                "refused by egress policy of the proxy server: no rule allows u:1",
            ),
            (
                "t:2",
                "refused by egress policy of the proxy server: no rule allows t:2",
            ),
            (
                "t:http",
                "refused by egress policy of the proxy server: t:http has no port number",
            ),
        ] {
            let error = core.dial("tcp", target).await.unwrap_err();
            assert_eq!(error.to_string(), text);
            assert_eq!(error.http_status().as_u16(), 403);
        }
        assert!(events.try_recv().is_err());
        assert!(core.dial("tcp", "T:1").await.is_ok());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_deadline_beyond_the_clock_is_one() {
    on_a_worker(async {
        let mut core = core();
        Rc::get_mut(&mut core).unwrap().dial_timeout = Duration::MAX;
        let _agent = answering(&core, "a");
        assert!(core.dial("tcp", "t:1").await.is_ok());
    })
    .await;
}

/// W18: after a time in which agents come, go, freeze and refuse, and clients give up, nothing is counted any more.
#[tokio::test(start_paused = true)]
async fn gauges_are_true_after_chaos() {
    on_a_worker(async {
        let core = core();
        let mut agents = Vec::new();
        let mut dials = Vec::new();
        for step in 0..600 {
            match fastrand::u8(..8) {
                0 => {
                    let on_dial = |mux: &Rc<Mux>, dial: DialId, _: String| match fastrand::u8(..3) {
                        0 => drop(mux.accept(dial)),
                        1 => mux.refuse(dial, "no".to_owned()),
                        _ => {}
                    };
                    let id = fastrand::u8(..6).to_string();
                    let (agent, mut events) = FakeAgent::new(&core, &id, "", Box::new(on_dial));
                    spawn_local(async move { while events.recv().await.is_some() {} });
                    agents.push(agent);
                }
                1 if !agents.is_empty() => {
                    let at = fastrand::usize(..agents.len());
                    agents.swap_remove(at).lose().await;
                }
                2 if !agents.is_empty() => {
                    agents[fastrand::usize(..agents.len())].freeze(fastrand::bool());
                }
                3 if !dials.is_empty() => {
                    let dial: tokio::task::JoinHandle<_> =
                        dials.swap_remove(fastrand::usize(..dials.len()));
                    dial.abort();
                }
                4 => sleep(Duration::from_millis(fastrand::u64(..700))).await,
                _ => dials.push(dialling(&core)),
            }
            if step % 7 == 0 {
                yield_now().await;
            }
        }
        for agent in agents {
            agent.lose().await;
        }
        for dial in dials {
            drop(dial.await);
        }
        core.registry.update_gauges();
        let metrics = &core.metrics;
        let gauges = [
            metrics.pending_dials.get(),
            metrics.established.get(),
            metrics.ready_backend_connections.get(),
            metrics.backends(Strategy::Default),
        ];
        assert_eq!((gauges, core.registry.len()), ([0; 4], 0));
    })
    .await;
}

#[test]
fn only_what_no_agent_has_tried_is_tried_again() {
    let again = |cause: dial::DialError| retry_after(&cause).is_some();
    assert!(again(dial::DialError::TunnelLost));
    assert!(again(dial::DialError::TooManyDials));
    assert!(again(dial::DialError::Refused(Refusal {
        kind: RefusalKind::TooMany,
        text: "too many dials".to_owned(),
    })));
    for cause in [
        dial::DialError::Refused(Refusal::failed("no")),
        dial::DialError::Abandoned,
        dial::DialError::AddressTooLong,
        dial::DialError::TooManyConnections,
    ] {
        assert!(!again(cause.clone()), "{cause}");
    }
}
