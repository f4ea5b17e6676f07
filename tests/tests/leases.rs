//! Servers that publish Leases and agents that count them (wire-protocol.md 4.3, 5.10).

use std::{sync::Arc, time::Duration};

use anyhow::{Result, ensure};
use e2e::{
    client::Frontend,
    harness::{Agent, AgentBuilder, PATIENCE, Pki, Server, ServerBuilder, eventually, metric},
    kube_api::{Fault, KubeApi, Lease, Resource},
};

async fn server(api: &KubeApi, pki: &Arc<Pki>, id: &str) -> Result<Server> {
    ServerBuilder::new(Frontend::GrpcUds, pki.clone())
        .flag(format!("--server-id={id}"))
        .flag("--enable-lease-controller")
        .flag(format!("--kubeconfig={}", api.kubeconfig().display()))
        .start()
        .await
}

fn agent(api: &KubeApi, pki: &Arc<Pki>, server: &Server) -> AgentBuilder {
    AgentBuilder::new(server.agents(), pki.clone())
        .flag("--count-server-leases")
        .flag(format!("--kubeconfig={}", api.kubeconfig().display()))
}

async fn counts(agent: &Agent, servers: f64) -> Result<()> {
    let health = agent.health();
    eventually(&format!("{servers} servers known"), PATIENCE, async || {
        let known = metric(
            health,
            "konnectivity_network_proxy_agent_known_server_count",
            "",
        )
        .await?;
        ensure!(known == servers, "{known}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn three_servers_publish_and_agents_count_them_as_they_come_and_go() -> Result<()> {
    let api = KubeApi::start()?;
    let pki = Pki::shared()?;
    let mut first = server(&api, &pki, "a").await?;
    let mut second = server(&api, &pki, "b").await?;
    let _third = server(&api, &pki, "c").await?;
    let names = |leases: &[Lease]| -> Vec<String> {
        leases
            .iter()
            .map(|lease| lease.name.replace("konnectivity-proxy-server-", ""))
            .collect()
    };
    api.leases_until("three Leases", |leases| names(leases) == ["a", "b", "c"])
        .await?;
    let agent = agent(&api, &pki, &first).start().await?;
    counts(&agent, 3.0).await?;
    // Told to leave, it takes its Lease with it.
    second.process().terminate()?;
    api.leases_until("two Leases", |leases| names(leases) == ["a", "c"])
        .await?;
    counts(&agent, 2.0).await?;
    // Killed, it leaves its Lease behind, which counts until it has run out (in unit tests, with less patience).
    first.process().kill()?;
    assert_eq!(names(&api.leases()), ["a", "c"]);
    counts(&agent, 2.0).await
}

/// Where both ends are ours, agents hear from their servers what upstream's must count for themselves.
#[tokio::test]
async fn an_agent_that_counts_no_leases_hears_from_its_server_how_many_servers_live() -> Result<()>
{
    let api = KubeApi::start()?;
    let pki = Pki::shared()?;
    let first = server(&api, &pki, "a").await?;
    let agent = AgentBuilder::new(first.agents(), pki.clone())
        .start()
        .await?;
    counts(&agent, 1.0).await?;
    let _second = server(&api, &pki, "b").await?;
    counts(&agent, 2.0).await
}

/// W23: upstream's agent has no health port until the API server has answered.
#[tokio::test]
async fn an_api_server_that_is_away_holds_up_nobody() -> Result<()> {
    let api = KubeApi::start()?;
    let pki = Pki::shared()?;
    api.fail(Resource::Leases, Fault::Hang);
    let server = server(&api, &pki, "a").await?;
    let agent = agent(&api, &pki, &server).start().await?;
    counts(&agent, 1.0).await?;
    let others = Lease {
        namespace: "kube-system".to_owned(),
        name: "konnectivity-proxy-server-b".to_owned(),
        labels: [("k8s-app".to_owned(), "konnectivity-server".to_owned())].into(),
        duration_seconds: Some(3600),
        renewed: Some("2099-01-01T00:00:00.000000Z".to_owned()),
        ..Lease::default()
    };
    api.put_lease(&others);
    api.heal();
    api.leases_until("two Leases", |leases| leases.len() == 2)
        .await?;
    counts(&agent, 2.0).await
}

/// Clocks: ours are one here, so theirs are wrong by what stands in the Lease.
#[tokio::test]
async fn a_lease_of_a_clock_that_is_behind_counts_once_it_is_seen_to_be_renewed() -> Result<()> {
    let api = KubeApi::start()?;
    let pki = Pki::shared()?;
    let server = server(&api, &pki, "a").await?;
    api.leases_until("a Lease", |leases| leases.len() == 1)
        .await?;
    let mut behind = Lease {
        name: "konnectivity-proxy-server-behind".to_owned(),
        renewed: Some("2020-01-01T00:00:00.000000Z".to_owned()),
        ..api.leases().into_iter().next().unwrap_or_default()
    };
    behind.duration_seconds = Some(Duration::from_secs(3600).as_secs().try_into()?);
    api.put_lease(&behind);
    let agent = agent(&api, &pki, &server).start().await?;
    counts(&agent, 1.0).await?;
    api.asked("watch", Resource::Leases, 1).await?;
    behind.renewed = Some("2020-01-01T00:00:15.000000Z".to_owned());
    api.put_lease(&behind);
    counts(&agent, 2.0).await?;
    let left = api.leases();
    assert!(
        left.iter().any(|lease| lease.name == behind.name),
        "{left:?}"
    );
    Ok(())
}

#[tokio::test]
async fn a_server_id_that_makes_no_lease_is_refused_at_start() -> Result<()> {
    let api = KubeApi::start()?;
    let ended = ServerBuilder::new(Frontend::GrpcUds, Pki::shared()?)
        .flag("--server-id=Not_A_Name")
        .flag("--enable-lease-controller")
        .flag(format!("--kubeconfig={}", api.kubeconfig().display()))
        .fail()
        .await?;
    assert_eq!(ended.code, Some(1));
    assert!(ended.log.contains("--server-id"), "{}", ended.log);
    Ok(())
}
