//! Which agent a dial goes to.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use e2e::{
    client::{Client, DialFailure, Frontend},
    exchange::{dial_and_echo, echo},
    harness::{
        Agent, AgentBuilder, Cluster, PATIENCE, Pki, Server, ServerBuilder, eventually, get, metric,
    },
    targets::Target,
};
use rustix::process::Signal;
use tokio::{net::TcpListener, task::JoinSet};

const DIALLED: &str = "konnectivity_network_proxy_agent_dial_duration_seconds_count";

/// A server with these strategies, and one agent with each of these identifiers.
async fn start(strategies: &str, identifiers: &[&str]) -> Result<(Server, Vec<Agent>)> {
    let pki = Pki::shared()?;
    let server = ServerBuilder::new(Frontend::GrpcUds, Arc::clone(&pki))
        .flag(format!("--proxy-strategies={strategies}"))
        .quiet()
        .start()
        .await?;
    let mut agents = Vec::new();
    for identifiers in identifiers {
        let spec = AgentBuilder::new(server.agents(), Arc::clone(&pki))
            .flag(format!("--agent-identifiers={identifiers}"))
            .quiet();
        agents.push(spec.start().await?);
    }
    Ok((server, agents))
}

/// Dials that each agent has connected.
async fn dialled(agents: &[Agent]) -> Result<Vec<f64>> {
    let mut counts = Vec::new();
    for agent in agents {
        counts.push(metric(agent.health(), DIALLED, "").await?);
    }
    Ok(counts)
}

/// R85: every list of strategies, in every order, with agents of no, one and several identifiers. The first that has an agent for the
/// destination decides, and no list harms the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_list_of_strategies_leads_to_an_agent_that_it_allows() -> Result<()> {
    const LISTS: [&str; 15] = [
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
    const IDENTIFIERS: [&str; 3] = ["", "ipv4=127.0.0.2", "default-route=true&ipv4=127.0.0.3"];
    let target = Target::echo_on("127.0.0.2").await?;
    let name = target.name();
    for list in LISTS {
        let (server, agents) = start(list, &IDENTIFIERS).await?;
        let client = server.client()?;
        for _ in 0..4 {
            dial_and_echo(&client, &name, 100).await.context(list)?;
        }
        let counts = dialled(&agents).await?;
        let [none, one, several] = [counts[0] > 0.0, counts[1] > 0.0, counts[2] > 0.0];
        match list.split(',').next() {
            Some("destHost") => ensure!(one && !none && !several, "{list}: {counts:?}"),
            Some("defaultRoute") => ensure!(several && !none && !one, "{list}: {counts:?}"),
            _ => ensure!(counts.iter().sum::<f64>() == 4.0, "{list}: {counts:?}"),
        }
        // Nobody claims this one, so only who may take any does.
        let other = Target::echo_on("127.0.0.4").await?;
        let dial = client.dial(&other.name()).await;
        if list == "destHost" {
            let failure = dial.err().context("no agent claims it")?;
            ensure!(failure.cause().contains("No agent available"), "{failure}");
        } else {
            echo(&mut dial.context(list)?, 100).await.context(list)?;
        }
    }
    Ok(())
}

/// R86: as upstream, `default` takes agents with identifiers, too; whoever wants those kept to themselves leaves it out of the list and
/// gives the others `default-route=true`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_default_strategy_takes_agents_with_identifiers_too() -> Result<()> {
    let target = Target::echo().await?;
    let identifiers = ["ipv4=10.0.0.1", "default-route=true"];
    let (server, agents) = start("destHost,default", &identifiers).await?;
    for _ in 0..60 {
        dial_and_echo(&server.client()?, &target.name(), 100).await?;
    }
    let counts = dialled(&agents).await?;
    ensure!(counts.iter().all(|&count| count > 0.0), "{counts:?}");

    let (server, agents) = start("destHost,defaultRoute", &identifiers).await?;
    for _ in 0..60 {
        dial_and_echo(&server.client()?, &target.name(), 100).await?;
    }
    let counts = dialled(&agents).await?;
    ensure!(counts == [0.0, 60.0], "{counts:?}");
    Ok(())
}

/// R88: of two agents that are looked at, the less loaded one is taken. 500 sessions and 300 dials there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_with_many_sessions_gets_clearly_fewer_new_ones() -> Result<()> {
    let target = Target::echo().await?;
    let mut cluster = Cluster::builder().start().await?;
    let client = cluster.client()?;
    let mut sessions = Vec::new();
    for _ in 0..100 {
        sessions.push(client.dial(&target.name()).await?);
    }
    for _ in 0..2 {
        cluster.add_agent().await?;
    }
    let busy = cluster.agent(0)?.health();
    let before = metric(busy, DIALLED, "").await?;
    for _ in 0..90 {
        sessions.push(client.dial(&target.name()).await?);
    }
    let more = metric(busy, DIALLED, "").await? - before;
    // By chance alone it would be 30.
    ensure!(more <= 10.0, "{more} of 90");
    Ok(())
}

/// R89: with `destHost` everything goes to one agent, and a session that fails must not take the others along. 5 × 200 MB there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn uploads_by_dest_host_are_whole_and_the_agent_stays_usable() -> Result<()> {
    let target = Target::echo().await?;
    let (server, _agents) = start("destHost", &["ipv4=127.0.0.1"]).await?;
    let client = server.client()?;
    let upload = async |len: u64, count: usize| {
        let mut uploads = JoinSet::new();
        for _ in 0..count {
            let (client, name) = (client.clone(), target.name());
            uploads.spawn(async move { dial_and_echo(&client, &name, len).await });
        }
        while let Some(upload) = uploads.join_next().await {
            upload??;
        }
        anyhow::Ok(())
    };
    // `kubectl cp`, one after another; then at once, with a reader that has stopped among them.
    for _ in 0..20 {
        upload(3_000_000, 1).await?;
    }
    let endless = Target::endless().await?;
    let mut stalled = client.dial(&endless.name()).await?;
    tokio::io::AsyncWriteExt::write_all(&mut stalled, b"?").await?;
    upload(20_000_000, 5).await?;
    dial_and_echo(&client, &target.name(), 1_000).await
}

/// R46: an agent whose address has changed comes back under its name, while its old tunnel is not known to be dead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_returns_is_preferred_to_what_it_was() -> Result<()> {
    let target = Target::echo().await?;
    let mut cluster = Cluster::builder()
        .agent_flag("--agent-id=roaming")
        .start()
        .await?;
    let client = cluster.client()?;
    dial_and_echo(&client, &target.name(), 1_000).await?;
    // Neither end of its connection hears anything of it from now on.
    cluster.agent(0)?.process().signal(Signal::STOP)?;
    cluster.add_agent().await?;
    for _ in 0..20 {
        dial_and_echo(&client, &target.name(), 1_000).await?;
    }
    let returned = metric(cluster.agent(1)?.health(), DIALLED, "").await?;
    ensure!(returned == 20.0, "{returned} of 20");
    Ok(())
}

/// R52: kube-apiserver beside a server that no agent has found. Nothing waits for one to come.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_agents_says_so_while_its_neighbour_serves() -> Result<()> {
    let target = Target::echo().await?;
    let (lonely, _none) = start("default", &[]).await?;
    let (server, _agents) = start("default", &[""]).await?;
    for _ in 0..20 {
        let failure = lonely.client()?.dial(&target.name()).await.err();
        let failure = failure.context("connected without an agent")?;
        ensure!(failure.cause().contains("No agent available"), "{failure}");
    }
    dial_and_echo(&server.client()?, &target.name(), 1_000).await
}

/// R64: agents of the control plane alone are there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readiness_tells_which_strategy_has_no_agent() -> Result<()> {
    let (server, _agents) = start("destHost,defaultRoute", &["ipv4=127.0.0.2"]).await?;
    let reply = get(server.health(), "/readyz").await?;
    ensure!(reply.status == 200 && reply.body == "ok", "{reply:?}");
    let verbose = get(server.health(), "/readyz?verbose").await?;
    let of = |strategy: &str| verbose.body.lines().find(|line| line.contains(strategy));
    ensure!(
        of("destHost").is_some_and(|line| line.contains('1')),
        "{verbose:?}"
    );
    ensure!(of("defaultRoute").is_some(), "{verbose:?}");
    ensure!(of("defaultRoute") != of("destHost"), "{verbose:?}");
    Ok(())
}

/// R62, R65 and R139: what counts is that a server has taken the agent in, not that a port is open; and health is another matter.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_is_ready_when_a_server_has_taken_it_in() -> Result<()> {
    // As a firewall that swallows everything behind the handshake.
    let silent = TcpListener::bind("127.0.0.1:0").await?;
    let spec = AgentBuilder::new(silent.local_addr()?, Pki::shared()?);
    let agent = spec.start_unconnected().await?;
    let (connection, _) = silent.accept().await?;
    let ready = get(agent.health(), "/readyz").await?;
    ensure!(ready.status == 503, "{ready:?}");
    ensure!(ready.body.contains("server-connected"), "{ready:?}");
    let healthy = get(agent.health(), "/healthz").await?;
    ensure!(healthy.status == 200, "{healthy:?}");
    drop(connection);
    Ok(())
}

/// R83: what the policy forbids, neither end dials; by default there is none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_egress_policy_denies_is_not_dialled() -> Result<()> {
    let target = Target::echo().await?;
    let denied = Target::echo_on("127.0.0.2").await?;
    for frontend in [Frontend::GrpcUds, Frontend::HttpUds] {
        let deny = "--egress-deny=127.0.0.2";
        let at_server = Cluster::builder().frontend(frontend).server_flag(deny);
        let at_agent = Cluster::builder().frontend(frontend).agent_flag(deny);
        for builder in [at_server, at_agent] {
            let cluster = builder.start().await?;
            let client = cluster.client()?;
            dial_and_echo(&client, &target.name(), 1_000).await?;
            let failure = client.dial(&denied.name()).await.err();
            let failure = failure.context("dialled what is denied")?;
            ensure!(!failure.cause().is_empty(), "{failure}");
        }
    }
    ensure!(denied.accepted() == 0, "the target was reached");
    dial_and_echo(
        &Cluster::builder().start().await?.client()?,
        &denied.name(),
        100,
    )
    .await
}

/// R116 and R118: every cause has its status, and is counted as itself and as nothing else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_cause_of_a_failed_dial_is_told_and_counted_as_itself() -> Result<()> {
    const FAILURES: &str = "konnectivity_network_proxy_server_dial_failure_count";
    let refusing = e2e::targets::refusing()?.to_string();
    let silent = e2e::targets::BlackHole::open()?;
    let silent = silent.address().to_string();
    let mut cluster = Cluster::with(Frontend::HttpUds).await?;
    let client = cluster.client()?;
    let health = cluster.server().health();
    let counted = async || metric(health, FAILURES, "reason=\"error_response\"").await;
    let all = async || metric(health, FAILURES, "").await;

    status(&client, &refusing, 502).await?;
    ensure!(counted().await? == 1.0 && all().await? == 1.0);
    status(&client, &silent, 504).await?;
    ensure!(counted().await? == 2.0 && all().await? == 2.0);
    cluster.kill_agent(0)?;
    eventually("the agent's loss is known", PATIENCE, async || {
        status(&client, &refusing, 503).await
    })
    .await
}

async fn status(client: &Client, target: &str, expected: u16) -> Result<()> {
    match client.dial(target).await {
        Err(DialFailure::Status { status, body, .. }) => {
            ensure!(status == expected, "{status}: {body}");
            ensure!(!body.trim().is_empty(), "no reason");
            Ok(())
        }
        other => anyhow::bail!("{target}: {other:?}"),
    }
}
