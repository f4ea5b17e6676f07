//! What probes and scrapes are told: wire-protocol.md, section 8, to the byte.

use std::net::SocketAddr;

use anyhow::{Result, ensure};
use e2e::harness::{Cluster, PATIENCE, eventually, get};

const TEXT: &str = "text/plain; charset=utf-8";

/// Path, status and body.
type Expected = (&'static str, u16, &'static str);

async fn assert_replies(address: SocketAddr, expected: &[Expected]) -> Result<()> {
    for &(path, status, body) in expected {
        let reply = get(address, path).await?;
        ensure!(
            reply.status == status && reply.body == body,
            "{path}: {reply:?}, not {status} {body:?}"
        );
        ensure!(
            reply.headers.get("content-type").map(String::as_str) == Some(TEXT),
            "{path}: {reply:?}"
        );
    }
    Ok(())
}

async fn assert_metrics(address: SocketAddr, series: &str) -> Result<()> {
    let reply = get(address, "/metrics").await?;
    ensure!(reply.status == 200, "{}", reply.status);
    ensure!(
        reply.body.lines().any(|line| line.starts_with(series)),
        "no {series} in {}",
        reply.body
    );
    Ok(())
}

#[tokio::test]
async fn the_server_is_ready_while_an_agent_is_connected() -> Result<()> {
    let mut cluster = Cluster::builder().agents(0).start().await?;
    let (health, admin) = (cluster.server().health(), cluster.server().admin());
    let no_agent = "no connection to any proxy agent";
    let not_ready = [
        ("/healthz", 200, "ok"),
        ("/readyz", 500, no_agent),
        ("/ready", 500, no_agent),
        ("/nowhere", 404, "404 page not found\n"),
    ];
    assert_replies(health, &not_ready).await?;
    cluster.add_agent().await?;
    let ready = [
        ("/healthz", 200, "ok"),
        ("/readyz", 200, "ok"),
        ("/ready", 200, "ok"),
    ];
    assert_replies(health, &ready).await?;
    // Liveness is a matter of the health listener alone.
    assert_replies(admin, &[("/healthz", 404, "404 page not found\n")]).await?;
    for address in [health, admin] {
        assert_metrics(
            address,
            "konnectivity_network_proxy_server_ready_backends{proxy_strategy=\"default\"} 1",
        )
        .await?;
    }
    cluster.kill_agent(0)?;
    eventually("the server is no longer ready", PATIENCE, async || {
        assert_replies(health, &not_ready).await
    })
    .await
}

#[tokio::test]
async fn the_agent_is_ready_while_a_server_is_connected() -> Result<()> {
    let mut cluster = Cluster::builder().start().await?;
    let agent = cluster.agent(0)?;
    let (health, admin) = (agent.health(), agent.admin());
    let verbose = "[+]ping ok\n[+]server-connected ok\ncheck passed\n";
    let ready = [
        ("/healthz", 200, "ok"),
        ("/readyz", 200, "ok"),
        ("/ready", 200, "ok"),
        ("/nowhere", 404, "404 page not found\n"),
    ];
    assert_replies(health, &ready).await?;
    // Upstream's body first, what we know besides behind it.
    for path in [
        "/readyz?verbose",
        "/readyz?verbose=false",
        "/readyz?a=b&verbose=1",
    ] {
        let reply = get(health, path).await?;
        assert_eq!(reply.status, 200, "{path}");
        assert!(reply.body.starts_with(verbose), "{path}: {}", reply.body);
        assert!(reply.body.contains("ca.crt"), "{path}: {}", reply.body);
    }
    assert_metrics(
        health,
        "konnectivity_network_proxy_agent_open_server_connections 1",
    )
    .await?;
    let redirect = get(admin, "/metrics").await?;
    ensure!(
        redirect.status == 301
            && redirect.headers.get("location") == Some(&format!("//{health}/metrics")),
        "{redirect:?}"
    );
    cluster.server().process().kill()?;
    let lost = "[+]ping ok\n[-]server-connected failed: no servers connected\n";
    eventually("the agent is no longer ready", PATIENCE, async || {
        assert_replies(
            health,
            &[
                ("/healthz", 200, "ok"),
                ("/readyz", 503, lost),
                ("/ready", 503, lost),
            ],
        )
        .await
    })
    .await
}
