//! The processes that are measured.

use anyhow::{Context, Result, ensure};
use benches::usage::{Cpu, Memory};
use e2e::{
    client::Frontend,
    harness::{Cluster, Footprint, PATIENCE, eventually},
};

use crate::cli::{Cli, Kind};

/// One server and one agent.
pub(crate) async fn start(kind: Kind, cli: &Cli) -> Result<Cluster> {
    let tunnel = format!("--tunnel-protocol={}", kind.name());
    let budget = format!("--memory-budget={}", cli.memory_budget);
    Cluster::builder()
        .frontend(Frontend::HttpUds)
        .server_flag(tunnel.clone())
        .server_flag(budget.clone())
        .agent_flag(tunnel)
        .agent_flag(budget)
        .quiet()
        .start()
        .await
        .with_context(|| format!("start a cluster with {} tunnels", kind.name()))
}

/// Something of the server and of its first agent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Both<T> {
    pub(crate) server: T,
    pub(crate) agent: T,
}

impl<T> Both<T> {
    pub(crate) fn each(&self) -> [(&'static str, &T); 2] {
        [("server", &self.server), ("agent", &self.agent)]
    }
}

fn ids(cluster: &mut Cluster) -> Result<Both<u32>> {
    Ok(Both {
        server: cluster.server().process().id(),
        agent: cluster.agent(0)?.process().id(),
    })
}

pub(crate) fn memory(cluster: &mut Cluster) -> Result<Both<Memory>> {
    let ids = ids(cluster)?;
    Ok(Both {
        server: Memory::of(ids.server)?,
        agent: Memory::of(ids.agent)?,
    })
}

pub(crate) fn cpu(cluster: &mut Cluster) -> Result<Both<Cpu>> {
    let ids = ids(cluster)?;
    Ok(Both {
        server: Cpu::of(ids.server)?,
        agent: Cpu::of(ids.agent)?,
    })
}

/// Waits until nothing more is open than `before`. That no connection is left is not waited for, as [`Cluster::settle`] does: those of
/// the load are.
pub(crate) async fn settle(cluster: &mut Cluster, before: Footprint) -> Result<()> {
    eventually("stalled connections are gone", 2 * PATIENCE, async || {
        let now = cluster.footprint()?;
        ensure!(
            now.server_files <= before.server_files && now.agent_files <= before.agent_files,
            "{now:?} are open, {before:?} before"
        );
        Ok(())
    })
    .await
}
