//! What a server answers to an agent's hello, and should not.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{
    FORGED,
    agent::{Site, welcome},
    frames::{PREFACE, message},
};

/// An answer, and what the agent says of it.
fn cases() -> Vec<(&'static str, Vec<u8>, &'static str)> {
    let json = |value: Value| message(value.to_string().as_bytes());
    let refused =
        |code: &str, reason: Value| json(json!({"refused": {"code": code, "reason": reason}}));
    let no_json = "message is not the JSON it should be";
    vec![
        (
            "4 GiB - 1",
            vec![0xff; 4],
            "message of 4294967295 bytes is longer than 65536",
        ),
        (
            "64 KiB + 1",
            vec![0, 1, 0, 1],
            "message of 65537 bytes is longer than 65536",
        ),
        ("empty", vec![0; 4], "message of no bytes"),
        (
            "nothing",
            vec![],
            "peer closed the connection without a word",
        ),
        ("half a length", vec![0, 0], "after 2 of 4 bytes"),
        (
            "cut short",
            [&[0, 0, 0, 100][..], b"{\"welcome\":"].concat(),
            "after 15 of 104 bytes",
        ),
        ("text", message(b"welcome"), no_json),
        ("an array", message(b"[]"), no_json),
        ("no UTF-8", message(&[b'"', 0xff, b'"']), no_json),
        (
            "64 KiB of brackets",
            message("[".repeat(65_536).as_bytes()),
            no_json,
        ),
        ("neither", message(b"{}"), "one of the fields"),
        (
            "a welcome of nothing",
            json(json!({"welcome": {}})),
            "missing field `version`",
        ),
        ("a null", message(b"{\"welcome\":null}"), no_json),
        (
            "both",
            json(json!({
                "welcome": {"version": 1, "server_id": "s", "server_count": 1},
                "refused": {"code": "UNKNOWN"},
            })),
            "one of the fields",
        ),
        (
            "a later version",
            welcome(&[("version", 2.into())]),
            "version 2 was not offered",
        ),
        (
            "no version",
            welcome(&[("version", 0.into())]),
            "version 0 was not offered",
        ),
        (
            "many servers",
            welcome(&[("server_count", (1u64 << 32).into())]),
            no_json,
        ),
        (
            "a long id",
            welcome(&[("server_id", "x".repeat(257).into())]),
            "server_id of 257 bytes",
        ),
        (
            "long software",
            welcome(&[("software", "x".repeat(257).into())]),
            "software of 257 bytes",
        ),
        (
            "a welcome without HTTP/2",
            [&welcome(&[])[..], b"HTTP/1.1 400 Bad Request\r\n\r\n"].concat(),
            "HTTP/2",
        ),
        ("HTTP/2", PREFACE.to_vec(), "message of 1347569952 bytes"),
        (
            "a refusal",
            refused("UNAVAILABLE", "come later".into()),
            "Unavailable: come later",
        ),
        (
            "an unknown code",
            refused("\u{1b}[31m", "x".into()),
            "Unknown: x",
        ),
        (
            "a refusal that is none",
            refused("OK", "x".into()),
            "Unknown: x",
        ),
        ("no text", refused("UNKNOWN", 7.into()), no_json),
        ("a log line", refused("INTERNAL", FORGED.into()), "forged"),
        (
            "as many as there is room for",
            refused("INTERNAL", "\u{1b}".repeat(4_096).into()),
            "Internal",
        ),
        (
            "too long a reason",
            refused("INTERNAL", "x".repeat(4_097).into()),
            "reason of 4097 bytes",
        ),
    ]
}

async fn answer(site: &mut Site, bytes: &[u8]) -> Result<()> {
    let mut socket = site.greeted().await?;
    socket.write_all(bytes).await?;
    socket.shutdown().await?;
    // Until the agent has had enough of it.
    socket.read_to_end(&mut Vec::new()).await.ok();
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_is_none_is_told_in_one_line_and_the_agent_comes_again() -> Result<()> {
    // Attempts that fail while there is a tunnel are told at debug.
    let mut site = Site::start(&["--v=5"]).await?;
    for (what, bytes, words) in cases() {
        let told = async {
            let before = site.log().lines().count();
            answer(&mut site, &bytes).await?;
            e2e::harness::eventually("it is told", e2e::harness::PATIENCE, async || {
                let log = site.log();
                let mut added = log.lines().skip(before);
                let line = added.find(|line| line.contains("no tunnel to a server"));
                ensure!(line.is_some_and(|line| line.contains(words)), "{line:?}");
                Ok(())
            })
            .await?;
            site.settle().await?;
            site.check_lines()
        };
        told.await.with_context(|| what.to_owned())?;
    }
    site.end().await
}

/// With the usual log: an operator learns of the first, not of all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_without_end_do_not_fill_the_log() -> Result<()> {
    let mut site = Site::start(&[]).await?;
    let refusal = json!({"refused": {"code": "INTERNAL", "reason": FORGED}});
    for _ in 0..20 {
        answer(&mut site, &message(refusal.to_string().as_bytes())).await?;
    }
    ensure!(site.log().contains("forged"));
    site.check_log(1)?;
    // Names that a server gives itself.
    let name = [
        ("server_id", Value::from(FORGED)),
        ("software", FORGED.into()),
        ("features", json!([FORGED])),
    ];
    let mut socket = site.greeted().await?;
    let first = super::frames::settings(2, 0);
    socket
        .write_all(&[&welcome(&name)[..], PREFACE, &first].concat())
        .await?;
    e2e::harness::eventually("the tunnel", e2e::harness::PATIENCE, async || {
        ensure!(
            site.log().contains("tunnel up server_count=2")
                || site.log().matches("tunnel up").count() == 2
        );
        Ok(())
    })
    .await?;
    drop(socket);
    site.settle().await?;
    site.check_log(1)?;
    site.end().await
}
