//! Three servers, six agents and a hundred dials a second, while one after another of them is replaced, killed and frozen.
//!
//! Each server has a kube-apiserver of its own, which dials through no other: what its server cannot do for a while, it cannot
//! do either. So a server's loss is measured at its own clients, from when it is back, and must not be felt at the others'.

mod dialler;
mod fleet;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{
    harness::{PATIENCE, Pod, eventually},
    say,
    targets::Target,
};
use rustix::process::Signal;
use tokio::{
    sync::Mutex,
    time::{Instant, sleep},
};

use dialler::{Dialler, Table};
use fleet::{AGENTS, Fleet, Front, Held, SERVERS};

/// Within this, dials succeed again after each event.
const RECOVERY: Duration = Duration::from_secs(5);

/// So long without a failure is success again. What fails later than that spoils the next event, at which nobody may fail.
const WATCHED: Duration = Duration::from_secs(2);

/// How long a frozen process stays so: shorter than what its peers need to tell it from a dead one, and long enough to be missed.
const FROZEN: Duration = Duration::from_secs(4);

/// How long a connection is used after its server or agent was told to go, which is well within every grace.
const WITHIN_THE_GRACE: Duration = Duration::from_secs(2);

/// One fleet at a time is enough for two cores.
static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());

/// Everything there is, behind an address that leads to a random server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_a_balancer_every_event_is_over_within_seconds() -> Result<()> {
    let _alone = ONE_AT_A_TIME.lock().await;
    let mut run = Run::start(Front::Balancer).await?;
    for server in 0..SERVERS {
        run.roll_server(server).await?;
    }
    for agent in 0..AGENTS {
        run.roll_agent(agent).await?;
    }
    run.kill_agent(0).await?;
    run.kill_server(0).await?;
    run.freeze_agent(1).await?;
    run.freeze_server(1).await?;
    run.end().await
}

/// One of each kind, with a name that has each server's address, as a headless Service has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_an_address_for_each_server_every_event_is_over_within_seconds() -> Result<()> {
    if !Pod::is_permitted() {
        say!("SKIPPED: no mount namespaces on this machine, so no name with three addresses");
        return Ok(());
    }
    let _alone = ONE_AT_A_TIME.lock().await;
    let mut run = Run::start(Front::Addresses).await?;
    run.roll_server(0).await?;
    run.roll_agent(0).await?;
    run.kill_agent(1).await?;
    run.kill_server(1).await?;
    run.end().await
}

/// A fleet under load, and what became of the dials so far.
struct Run {
    fleet: Fleet,
    dialler: Dialler,
    target: Target,
    table: Table,
}

impl Run {
    async fn start(front: Front) -> Result<Self> {
        let target = Target::echo().await?;
        let fleet = Fleet::start(front).await?;
        let dialler = Dialler::start(fleet.clients()?, target.name());
        let mut run = Self {
            fleet,
            dialler,
            target,
            table: Table::default(),
        };
        let begin = Instant::now();
        sleep(WATCHED).await;
        run.unharmed("nothing happens", begin, None).await?;
        Ok(run)
    }

    /// A server is stopped with a grace, and another takes its place.
    async fn roll_server(&mut self, number: usize) -> Result<()> {
        let what = format!("server {number} replaced");
        let mut held = Held::dial(&[self.fleet.client(number)?], &self.target).await?;
        let begin = Instant::now();
        self.fleet.server(number)?.process().terminate()?;
        held.use_for(WITHIN_THE_GRACE)
            .await
            .with_context(|| format!("{what}: a connection that ends within the grace"))?;
        held.close().await?;
        let status = self.fleet.server(number)?.process().exit(PATIENCE).await?;
        ensure!(status.code() == Some(0), "{what}: {status}");
        self.fleet.server(number)?.restart().await?;
        self.recovered(&what, Instant::now(), Some(number)).await?;
        self.fleet.complete().await.context("R38")?;
        self.unharmed(&format!("  at the others: {what}"), begin, Some(number))
            .await
    }

    /// A server is killed, and another takes its place.
    async fn kill_server(&mut self, number: usize) -> Result<()> {
        let what = format!("server {number} killed");
        let begin = Instant::now();
        self.fleet.server(number)?.process().kill()?;
        self.fleet.server(number)?.restart().await?;
        self.recovered(&what, Instant::now(), Some(number)).await?;
        self.unharmed(&format!("  at the others: {what}"), begin, Some(number))
            .await
    }

    /// A server stands still. Its own clients can only wait.
    async fn freeze_server(&mut self, number: usize) -> Result<()> {
        let what = format!("server {number} frozen for {FROZEN:?}");
        let begin = Instant::now();
        self.fleet.server(number)?.process().signal(Signal::STOP)?;
        sleep(FROZEN).await;
        self.fleet.server(number)?.process().signal(Signal::CONT)?;
        self.recovered(&what, Instant::now(), Some(number)).await?;
        self.unharmed(&format!("  at the others: {what}"), begin, Some(number))
            .await
    }

    /// A new agent comes, then an old one is told to go. Nobody is to notice.
    async fn roll_agent(&mut self, number: usize) -> Result<()> {
        let what = format!("agent {number} replaced");
        let clients = self.fleet.clients()?;
        let mut held = Held::dial(&clients, &self.target).await?;
        let begin = Instant::now();
        self.fleet.add_agent().await?;
        let mut old = self.fleet.remove_agent(number)?;
        old.process().terminate()?;
        held.use_for(WITHIN_THE_GRACE)
            .await
            .with_context(|| format!("{what}: a connection that ends within the grace"))?;
        held.close().await?;
        let status = old.process().exit(PATIENCE).await?;
        ensure!(status.code() == Some(0), "{what}: {status}");
        self.unharmed(&what, begin, None).await
    }

    /// An agent is killed, and later another comes.
    async fn kill_agent(&mut self, number: usize) -> Result<()> {
        let begin = Instant::now();
        self.fleet.remove_agent(number)?.process().kill()?;
        self.recovered(&format!("agent {number} killed"), begin, None)
            .await?;
        self.fleet.add_agent().await
    }

    /// An agent stands still, and goes on.
    async fn freeze_agent(&mut self, number: usize) -> Result<()> {
        let what = format!("agent {number} frozen for {FROZEN:?}");
        let begin = Instant::now();
        self.fleet.agent(number)?.process().signal(Signal::STOP)?;
        sleep(FROZEN).await;
        self.fleet.agent(number)?.process().signal(Signal::CONT)?;
        self.recovered(&what, begin, None).await
    }

    /// Waits until dials at the server, or at all of them, have succeeded for a while, and asserts that none failed that began later
    /// than [`RECOVERY`] after `event`.
    async fn recovered(&mut self, what: &str, event: Instant, server: Option<usize>) -> Result<()> {
        let effect = loop {
            sleep(WATCHED).await;
            let watched = event.elapsed();
            let effect = self
                .dialler
                .effect(event, |at| server.is_none_or(|server| server == at))
                .await?;
            if effect.recovery + WATCHED <= watched || watched > 2 * RECOVERY {
                break effect;
            }
        };
        self.table.add(what, &effect);
        ensure!(
            effect.recovery <= RECOVERY,
            "{what}: dials failed until {:?} later: {:#?}",
            effect.recovery,
            effect.reasons
        );
        Ok(())
    }

    /// Asserts that no dial failed since `begin`, at no server but `except`.
    async fn unharmed(&mut self, what: &str, begin: Instant, except: Option<usize>) -> Result<()> {
        let effect = self.dialler.effect(begin, |at| Some(at) != except).await?;
        self.table.add(what, &effect);
        ensure!(effect.dials > 0, "{what}: nobody dialled");
        ensure!(
            effect.failures == 0,
            "{what}: {} of {} dials failed: {:#?}",
            effect.failures,
            effect.dials,
            effect.reasons
        );
        Ok(())
    }

    /// Stops dialling, and compares what is counted with what is there.
    async fn end(mut self) -> Result<()> {
        let hung = self.dialler.stop().await?;
        ensure!(hung.is_empty(), "beyond their deadline: {hung:#?}");
        let held = Held::dial(&self.fleet.clients()?, &self.target).await?;
        let (fleet, target) = (&mut self.fleet, &self.target);
        eventually("gauges tell what is there", 2 * PATIENCE, async || {
            ensure!(target.open() == held.len(), "{} targets", target.open());
            fleet.check_gauges(held.len() / SERVERS).await
        })
        .await?;
        held.close().await?;
        eventually("all is over", 2 * PATIENCE, async || {
            ensure!(target.open() == 0, "{} targets", target.open());
            fleet.check_gauges(0).await
        })
        .await?;
        fleet.check_logs()
    }
}
