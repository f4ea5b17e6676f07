//! What an agent says first, and should not.

use anyhow::{Context, Result, ensure};
use e2e::client::Socket;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{
    FORGED,
    frames::{PREFACE, message, ping},
    raw::Raw,
    server::{Site, answer, hello, is_closed},
};

/// A hello, how it is to be refused, and with which words among others.
struct Case {
    what: &'static str,
    bytes: Vec<u8>,
    /// Whether our side of the connection ends behind it.
    ends: bool,
    code: &'static str,
    words: &'static str,
}

fn case(what: &'static str, bytes: Vec<u8>, code: &'static str, words: &'static str) -> Case {
    Case {
        what,
        bytes,
        ends: false,
        code,
        words,
    }
}

/// Nothing but a claim of so many bytes.
fn claim(len: u32) -> Vec<u8> {
    len.to_be_bytes().to_vec()
}

fn with(field: &'static str, value: impl Into<Value>) -> Vec<u8> {
    hello(&[(field, value.into())])
}

fn cases() -> Vec<Case> {
    let text = |text: &str| message(text.as_bytes());
    let long = |len: usize| "x".repeat(len);
    let values: Vec<_> = (0..513).map(|i| format!("host=h{i}")).collect();
    let features: Vec<_> = (0..65).map(|i| format!("f{i}")).collect();
    let (exhausted, internal) = ("RESOURCE_EXHAUSTED", "INTERNAL");
    let no_json = "message is not the JSON it should be";
    let mut all = vec![
        case(
            "4 GiB - 1",
            claim(u32::MAX),
            exhausted,
            "message of 4294967295 bytes is longer than 65536",
        ),
        case(
            "64 KiB + 1",
            claim(65_537),
            exhausted,
            "message of 65537 bytes is longer than 65536",
        ),
        case("empty", claim(0), internal, "message of no bytes"),
        case("text", text("hello"), internal, no_json),
        case("an array", text("[1]"), internal, no_json),
        case("half an object", text("{\"version\":1,"), internal, no_json),
        case("no UTF-8", message(&[b'{', 0xff, b'}']), internal, no_json),
        case("no fields", text("{}"), internal, "missing field `version`"),
        case(
            "the same twice",
            text("{\"version\":1,\"version\":2}"),
            internal,
            "duplicate field",
        ),
        case(
            "a version that is text",
            with("version", "1"),
            internal,
            no_json,
        ),
        case("a negative version", with("version", -1), internal, no_json),
        case(
            "a null",
            with("identifiers", Value::Null),
            internal,
            no_json,
        ),
        case(
            "64 KiB of brackets",
            message("[".repeat(65_536).as_bytes()),
            internal,
            no_json,
        ),
        case(
            "too old a version",
            with("version", 0),
            "UNIMPLEMENTED",
            "agent speaks version 0 of the stream tunnel, this server 1 to 1",
        ),
        case(
            "another role",
            with("role", "server"),
            "UNIMPLEMENTED",
            "role \"server\"",
        ),
        // What it repeats of it is one printable line.
        case(
            "a role that is a log line",
            with("role", FORGED),
            "UNIMPLEMENTED",
            "role \"x\\r\\n",
        ),
        case(
            "a long role",
            with("role", long(60_000)),
            "UNIMPLEMENTED",
            "xxx",
        ),
        case(
            "a long id",
            with("agent_id", long(257)),
            exhausted,
            "agent_id of 257 bytes",
        ),
        case(
            "long identifiers",
            with("identifiers", long(16_385)),
            exhausted,
            "identifiers of 16385 bytes",
        ),
        case(
            "a long token",
            with("token", long(16_385)),
            exhausted,
            "token of 16385 bytes",
        ),
        case(
            "long software",
            with("software", long(257)),
            exhausted,
            "software of 257 bytes",
        ),
        case(
            "many features",
            with("features", features),
            exhausted,
            "features are 65",
        ),
        case(
            "identifiers with a bad escape",
            with("identifiers", "host=%zz"),
            "UNKNOWN",
            "invalid URL escape \"%zz\"",
        ),
        case(
            "identifiers with a line feed in an escape",
            with("identifiers", "host=%\n\u{1b}"),
            "UNKNOWN",
            "invalid URL escape",
        ),
        case(
            "identifiers with a semicolon",
            with("identifiers", "a;b"),
            "UNKNOWN",
            "invalid semicolon separator",
        ),
        case(
            "many identifiers",
            with("identifiers", values.join("&")),
            "UNKNOWN",
            "more than 512",
        ),
        // Its first bytes are a length.
        case(
            "HTTP/2",
            PREFACE.to_vec(),
            exhausted,
            "bytes is longer than 65536",
        ),
        case(
            "HTTP/1.1",
            b"GET / HTTP/1.1\r\n\r\n".to_vec(),
            exhausted,
            "bytes is longer than 65536",
        ),
    ];
    for (bytes, words) in [
        (vec![0, 0], "after 2 of 4 bytes"),
        (
            [&claim(100)[..], b"{\"version\":"].concat(),
            "after 15 of 104 bytes",
        ),
        (
            [&claim(65_536)[..], &[b' '; 65_535]].concat(),
            "after 65539 of 65540 bytes",
        ),
    ] {
        all.push(Case {
            ends: true,
            ..case("cut short", bytes, "UNAVAILABLE", words)
        });
    }
    all
}

async fn say(socket: &mut Socket, bytes: &[u8]) -> Result<()> {
    socket.write_all(bytes).await?;
    Ok(socket.flush().await?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hello_that_is_none_is_refused_with_the_reason_and_counted() -> Result<()> {
    let mut site = Site::start().await?;
    for case in cases() {
        let bill = site.bill().await?;
        let refused = async {
            let (mut socket, _) = site.connect().await?;
            say(&mut socket, &case.bytes).await?;
            if case.ends {
                socket.shutdown().await?;
            }
            let answer = answer(&mut socket).await?.context("no answer")?;
            let refused = answer.get("refused").context("it is welcome")?;
            let text = |name: &str| {
                refused
                    .get(name)
                    .and_then(Value::as_str)
                    .unwrap_or_default()
            };
            ensure!(
                text("code") == case.code && text("reason").contains(case.words),
                "{refused}"
            );
            ensure!(!text("reason").contains(char::is_control), "{refused}");
            let mut rest = Vec::new();
            socket.read_to_end(&mut rest).await.ok();
            ensure!(rest.is_empty(), "{rest:?} behind the refusal");
            site.settle(&bill, 1, 1.0, 0.0).await
        };
        refused.await.with_context(|| case.what.to_owned())?;
    }
    site.end().await
}

/// The other end may have hung up before all is written, so that its answer is lost; its memory is what counts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hello_that_is_as_huge_as_it_says_is_not_read() -> Result<()> {
    let mut site = Site::start().await?;
    for len in [65_537, 100_000_000, u32::MAX] {
        let bill = site.bill().await?;
        let (mut socket, _) = site.connect().await?;
        say(&mut socket, &claim(len)).await?;
        let piece = vec![b' '; 64 * 1024];
        let mut left = len;
        while let Some(rest) = left.checked_sub(65_536) {
            left = rest;
            if say(&mut socket, &piece).await.is_err() {
                break;
            }
        }
        ensure!(len == 65_537 || left > 0, "all of it was read");
        is_closed(&mut socket).await?;
        site.settle(&bill, 1, 1.0, 0.0).await?;
    }
    site.end().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hello_of_a_later_version_is_welcome_at_ours() -> Result<()> {
    let mut site = Site::start().await?;
    let nested = format!("{}{}", "[".repeat(100), "]".repeat(100));
    let later = [
        ("version", 1_000.into()),
        ("min_version", 1.into()),
        (
            "features",
            serde_json::json!(["forward", "time travel", ""]),
        ),
        ("token", Value::Null),
        ("later", serde_json::from_str(&nested)?),
    ];
    let latest = [("version", u32::MAX.into())];
    for fields in [&later[..], &latest] {
        let bill = site.bill().await?;
        let (mut socket, _) = site.connect().await?;
        say(&mut socket, &hello(fields)).await?;
        let answer = answer(&mut socket).await?.context("no answer")?;
        let version = answer.pointer("/welcome/version").and_then(Value::as_u64);
        ensure!(version == Some(1), "{answer}");
        let raw = Raw::agent(socket).await?;
        ensure!(raw.send(ping()).await);
        raw.until("a pong", |seen| seen.acks.contains_key(&6))
            .await?;
        drop(raw);
        // The socket is closed without a word, which is no fault of the protocol.
        site.settle(&bill, 1, 0.0, 1.0).await?;
    }
    site.end().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_hello_is_no_http2_and_ends_the_tunnel() -> Result<()> {
    let mut site = Site::start().await?;
    let bill = site.bill().await?;
    let (mut socket, _) = site.connect().await?;
    say(&mut socket, &hello(&[])).await?;
    let answer = answer(&mut socket).await?.context("no answer")?;
    ensure!(answer.get("welcome").is_some(), "{answer}");
    say(&mut socket, &hello(&[])).await?;
    is_closed(&mut socket).await?;
    site.settle(&bill, 1, 0.0, 1.0).await?;
    // Both at once: not a byte behind the first belongs to it.
    let bill = site.bill().await?;
    let (mut socket, _) = site.connect().await?;
    say(&mut socket, &[hello(&[]), hello(&[])].concat()).await?;
    is_closed(&mut socket).await?;
    site.settle(&bill, 1, 0.0, 1.0).await?;
    site.end().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_with_control_characters_write_no_lines_of_the_log() -> Result<()> {
    let mut site = Site::start().await?;
    for fields in [
        [("agent_id", FORGED.into()), ("software", FORGED.into())],
        [
            ("agent_id", "hostile".into()),
            // Of every kind one that is none, which is warned of.
            (
                "identifiers",
                "ipv4=%0aforged&host=%0aforged+%1b&ipv6=%0d%0aforged".into(),
            ),
        ],
    ] {
        let bill = site.bill().await?;
        let (mut socket, _) = site.connect().await?;
        say(&mut socket, &hello(&fields)).await?;
        // Whether it is welcome is not what is tested.
        answer(&mut socket).await?.context("no answer")?;
        site.serve(1).await?;
        drop(socket);
        let log = site.cluster.server().process().log();
        ensure!(log.contains("forged"), "the log has nothing of it");
        site.settle(&bill, 1, 0.0, 1.0).await?;
    }
    site.end().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_leaves_before_the_hello_is_nobody() -> Result<()> {
    let mut site = Site::start().await?;
    let bill = site.bill().await?;
    for _ in 0..20 {
        let (mut socket, _) = site.connect().await?;
        socket.shutdown().await?;
        is_closed(&mut socket).await?;
    }
    site.settle(&bill, 0, 0.0, 0.0).await?;
    site.end().await
}
