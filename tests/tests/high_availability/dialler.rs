//! A hundred dials a second, and what becomes of them.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result};
use e2e::{client::Client, exchange::echo, harness::eventually, say};
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval, timeout},
};

/// Pause between two dials, at all servers together.
const PACE: Duration = Duration::from_millis(10);

/// No dial takes longer, with its small exchange: the server's own limit of 15 seconds on a dial, and what a machine with too
/// much to do may add.
const DEADLINE: Duration = Duration::from_secs(25);

/// One dial, with an exchange and a close.
#[derive(Clone, Debug)]
struct Attempt {
    server: usize,
    begin: Instant,
    /// Unless it is under way.
    end: Option<End>,
}

#[derive(Clone, Debug)]
struct End {
    took: Duration,
    failure: Option<String>,
}

/// What an event did to dials.
#[derive(Debug, Default)]
pub(crate) struct Effect {
    pub(crate) dials: usize,
    pub(crate) failures: usize,
    /// How long after the event the last dial began that failed.
    pub(crate) recovery: Duration,
    /// The longest that one took, whatever became of it.
    pub(crate) slowest: Duration,
    /// Why they failed, and how many.
    pub(crate) reasons: BTreeMap<String, usize>,
}

/// Dials in turns at all servers, whatever has become of the dials before.
#[derive(Debug)]
pub(crate) struct Dialler {
    attempts: Arc<Mutex<Vec<Attempt>>>,
    stop: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

impl Dialler {
    pub(crate) fn start(clients: Vec<Client>, target: String) -> Self {
        let attempts = Arc::new(Mutex::new(Vec::new()));
        let (stop, stopped) = watch::channel(false);
        let mut tasks = JoinSet::new();
        tasks.spawn(run(clients, target, Arc::clone(&attempts), stopped));
        Self {
            attempts,
            stop,
            tasks,
        }
    }

    /// Ends it, waits for the dials under way, and tells which took longer than any may.
    pub(crate) async fn stop(&mut self) -> Result<Vec<String>> {
        self.stop.send_replace(true);
        while let Some(ended) = self.tasks.join_next().await {
            ended.context("the dialler panicked")?;
        }
        let attempts = self.lock();
        let hung = attempts.iter().filter(|attempt| {
            let end = attempt.end.as_ref();
            end.is_none_or(|end| end.took >= DEADLINE)
        });
        Ok(hung.map(|attempt| format!("{attempt:?}")).collect())
    }

    /// What became of the dials at servers that `counts` which began by now and ended after `event`. Waits for those under way.
    pub(crate) async fn effect(
        &self,
        event: Instant,
        counts: impl Fn(usize) -> bool,
    ) -> Result<Effect> {
        let now = Instant::now();
        eventually("all dials have ended", 2 * DEADLINE, async || {
            let mut effect = Effect::default();
            for attempt in self.lock().iter() {
                if attempt.begin > now || !counts(attempt.server) {
                    continue;
                }
                let end = attempt.end.as_ref();
                let end = end.with_context(|| format!("not {attempt:?}"))?;
                if attempt.begin + end.took < event {
                    continue;
                }
                effect.dials += 1;
                effect.slowest = effect.slowest.max(end.took);
                if let Some(failure) = &end.failure {
                    effect.failures += 1;
                    let after = attempt.begin.saturating_duration_since(event);
                    effect.recovery = effect.recovery.max(after);
                    *effect.reasons.entry(failure.clone()).or_default() += 1;
                }
            }
            Ok(effect)
        })
        .await
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Attempt>> {
        self.attempts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn run(
    clients: Vec<Client>,
    target: String,
    attempts: Arc<Mutex<Vec<Attempt>>>,
    mut stopped: watch::Receiver<bool>,
) {
    let mut ticks = interval(PACE);
    // After a pause of the machine, go on in time instead of all at once.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut dials = JoinSet::new();
    let mut servers = (0..clients.len()).cycle().zip(clients.iter().cycle());
    loop {
        tokio::select! {
            _ = ticks.tick() => {
                let Some((server, client)) = servers.next() else { return };
                let (client, target) = (client.clone().with_patience(DEADLINE), target.clone());
                let begin = Instant::now();
                let number = {
                    let mut attempts = attempts.lock().unwrap_or_else(PoisonError::into_inner);
                    attempts.push(Attempt { server, begin, end: None });
                    attempts.len() - 1
                };
                let attempts = Arc::clone(&attempts);
                dials.spawn(async move {
                    let outcome = timeout(DEADLINE, exchange(&client, &target)).await;
                    let outcome = outcome.unwrap_or_else(|_| Err(anyhow::anyhow!("hung")));
                    let end = End {
                        took: begin.elapsed(),
                        failure: outcome.err().map(|error| format!("{error:#}")),
                    };
                    let mut attempts = attempts.lock().unwrap_or_else(PoisonError::into_inner);
                    if let Some(attempt) = attempts.get_mut(number) {
                        attempt.end = Some(end);
                    }
                });
            }
            Some(_) = dials.join_next() => {}
            _ = stopped.changed() => break,
        }
    }
    while dials.join_next().await.is_some() {}
}

async fn exchange(client: &Client, target: &str) -> Result<()> {
    let mut stream = client.dial(target).await.context("dial")?;
    echo(&mut stream, 100).await.context("exchange")?;
    stream.close().await.context("close")
}

/// What every event did, for whoever reads the tests' output: it prints itself at its end.
#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: Vec<String>,
}

impl Table {
    pub(crate) fn add(&mut self, what: &str, effect: &Effect) {
        let Effect {
            dials,
            failures,
            recovery,
            slowest,
            ..
        } = effect;
        self.rows.push(format!(
            "{what:<45} {dials:>5} {failures:>8} {:>8.2} s {:>7.2} s",
            recovery.as_secs_f32(),
            slowest.as_secs_f32()
        ));
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<45} dials failures  recovery   slowest", "event")?;
        f.write_str(&self.rows.join("\n"))
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        say!("{self}");
    }
}
