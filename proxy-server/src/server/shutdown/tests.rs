use std::future::{Future, pending};

use tokio::{
    task::{LocalSet, spawn_local},
    time::sleep,
};
use tunnel::mux::Event;

use super::*;
use crate::{
    dial::DialError,
    metrics::Gauged,
    testing::{FakeAgent, core},
};

/// A server whose tasks are these tests' own.
struct Server {
    core: Rc<Core>,
    clients: Tasks,
    tunnels: Tasks,
}

impl Server {
    fn new() -> Self {
        Self {
            core: core(),
            clients: Tasks::default(),
            tunnels: Tasks::default(),
        }
    }

    /// How long leaving took.
    async fn leave(&self, grace: Duration) -> Duration {
        let since = Instant::now();
        let accepting = Tasks::default();
        let stop = self.core.stop.clone();
        accepting.spawn(async move { stop.cancelled().await });
        let shutdown = Shutdown {
            core: self.core.clone(),
            accepting,
            clients: self.clients.clone(),
            tunnels: self.tunnels.clone(),
        };
        shutdown.run(grace).await;
        since.elapsed()
    }

    /// An agent that accepts every dial, and a client that holds a connection through it for so long.
    async fn connect(&self, holds: Duration) -> FakeAgent {
        let mut accepted = Vec::new();
        let on_dial = move |mux: &Rc<tunnel::mux::Mux>, dial, _: String| {
            accepted.extend(mux.accept(dial));
        };
        let (agent, mut events) = FakeAgent::new(&self.core, "a", "", Box::new(on_dial));
        self.tunnels.spawn(async move {
            while events.recv().await.is_some() {}
            pending().await
        });
        let dialled = self.core.dial("tcp", "t:1").await.unwrap();
        self.clients.spawn(async move {
            sleep(holds).await;
            drop(dialled);
        });
        agent
    }
}

async fn on_a_worker(test: impl Future<Output = ()>) {
    LocalSet::new().run_until(test).await;
}

const GRACE: Duration = Duration::from_secs(30);

#[tokio::test(start_paused = true)]
async fn what_agents_forward_may_end_too() {
    on_a_worker(async {
        let server = Server::new();
        let forward = Gauged::new(&server.core.metrics.forward_connections);
        server.tunnels.spawn(async move {
            sleep(Duration::from_secs(3)).await;
            drop(forward);
        });
        let took = server.leave(GRACE).await;
        let about = Duration::from_secs(3)..Duration::from_secs(4);
        assert!(about.contains(&took), "{took:?}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_server_leaves_when_the_last_connection_has_ended() {
    on_a_worker(async {
        let server = Server::new();
        let _agent = server.connect(Duration::from_secs(3)).await;
        let took = server.leave(GRACE).await;
        assert!(
            (Duration::from_secs(3)..Duration::from_secs(4)).contains(&took),
            "{took:?}"
        );
        assert!(server.clients.is_empty() && server.tunnels.is_empty());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_does_not_end_is_cut_at_the_deadline() {
    on_a_worker(async {
        for grace in [Duration::ZERO, Duration::from_nanos(1), GRACE] {
            let server = Server::new();
            let _agent = server.connect(Duration::MAX).await;
            let took = server.leave(grace).await;
            assert!(
                took >= grace && took - grace < Duration::from_millis(50),
                "{took:?}"
            );
            assert_eq!(server.core.metrics.established.get(), 0);
            assert!(server.clients.is_empty() && server.tunnels.is_empty());
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn clients_without_a_connection_hold_nothing_up() {
    on_a_worker(async {
        let server = Server::new();
        for _ in 0..50 {
            server.clients.spawn(pending());
            server.tunnels.spawn(pending());
        }
        let took = server.leave(Duration::MAX).await;
        assert!(took < Duration::from_secs(1), "{took:?}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn agents_hear_of_it_and_new_dials_are_refused_while_old_ones_are_waited_for() {
    on_a_worker(async {
        let server = Rc::new(Server::new());
        let (agent, mut events) = FakeAgent::new(&server.core, "a", "", Box::new(|_, _, _| {}));
        let core = server.core.clone();
        let waiting = spawn_local(async move { core.dial("tcp", "t:1").await });
        let Some(Event::Dial { dial, .. }) = events.recv().await else {
            panic!("no dial")
        };
        let leaving = spawn_local({
            let server = server.clone();
            async move { server.leave(GRACE).await }
        });
        assert_eq!(events.recv().await, Some(Event::Drain));
        let refused = server.core.dial("tcp", "t:2").await.unwrap_err();
        assert!(matches!(refused, DialError::ShuttingDown), "{refused}");
        assert!(!leaving.is_finished());
        let connection = agent.mux.accept(dial).unwrap();
        let dialled = waiting.await.unwrap().unwrap();
        sleep(Duration::from_secs(2)).await;
        assert!(!leaving.is_finished());
        drop((dialled, connection));
        assert!(leaving.await.unwrap() < Duration::from_secs(3));
    })
    .await;
}
