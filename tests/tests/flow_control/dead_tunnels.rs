//! A tunnel that dies while writers wait for room.

use anyhow::{Context, Result, ensure};
use e2e::{
    client::Frontend,
    harness::{PATIENCE, TunnelKind, eventually},
    targets::Target,
};
use tokio::{io::AsyncWriteExt, time::timeout};

use super::{ask, cluster, on_both_tunnels, push};

/// R11, towards the target.
async fn a_client_that_waits_for_room_hears_of_the_end_of_its_agent(
    kind: TunnelKind,
) -> Result<()> {
    let never = Target::never_reading().await?;
    for frontend in Frontend::ALL {
        let mut cluster = cluster(kind, frontend).await?;
        let client = cluster.client()?;
        let server_files = cluster.server().process().open_files()?;
        let mut stream = client.dial(&never.name()).await?;
        push(&mut stream, u64::MAX).await?;
        cluster.kill_agent(0)?;
        let endless = async {
            loop {
                if let Err(error) = stream.write_all(&[0; 64 * 1024]).await {
                    return error;
                }
            }
        };
        timeout(PATIENCE, endless)
            .await
            .with_context(|| format!("{frontend}: the writer waits for ever"))?;
        drop(stream);
        eventually("the server keeps nothing", PATIENCE, async || {
            let files = cluster.server().process().open_files()?;
            ensure!(
                files <= server_files,
                "{files} are open, {server_files} before"
            );
            Ok(())
        })
        .await?;
    }
    Ok(())
}

/// R11, towards the client.
async fn a_target_that_waits_for_room_hears_of_the_end_of_the_server(
    kind: TunnelKind,
) -> Result<()> {
    let endless = Target::endless().await?;
    let mut cluster = cluster(kind, Frontend::HttpUds).await?;
    let client = cluster.client()?;
    let agent_files = cluster.agent(0)?.process().open_files()?;
    let mut stream = client.dial(&endless.name()).await?;
    ask(&mut stream).await?;
    ensure!(endless.open() == 1);
    cluster.server().process().kill()?;
    eventually("the target's connection ends", PATIENCE, async || {
        ensure!(endless.open() == 0, "it is open");
        Ok(())
    })
    .await?;
    eventually("the agent keeps nothing", PATIENCE, async || {
        let files = cluster.agent(0)?.process().open_files()?;
        ensure!(
            files <= agent_files,
            "{files} are open, {agent_files} before"
        );
        Ok(())
    })
    .await
}

on_both_tunnels![
    a_client_that_waits_for_room_hears_of_the_end_of_its_agent,
    a_target_that_waits_for_room_hears_of_the_end_of_the_server,
];
