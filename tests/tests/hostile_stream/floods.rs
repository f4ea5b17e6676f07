//! What an agent does that is welcome. It is HTTP/2's server.

use anyhow::{Context, Result, ensure};
use e2e::{
    client::{Client, DialAnswer},
    harness::PATIENCE,
};
use serde_json::json;
use tokio::{io::AsyncWriteExt, task::JoinSet, time::timeout};
use tunnel::stream::control::MAX_CONTROL_MESSAGE;

use super::{
    FORGED,
    frames::{
        CANCEL, DATA, END_STREAM, HEADERS, OK, PING, SETTINGS, bomb, connect, data,
        endless_headers, endless_window, field, frame, goaway, headers, message, ping, pong, push,
        reset, settings,
    },
    raw::Raw,
    server::{CLAIM, CONTROL, Site},
};

/// Frames of a flood at least.
const FLOOD: usize = 100_000;

/// Exchanges of the honest agent during a flood.
const EXCHANGES: usize = 3;

/// Codes of GOAWAY.
const PROTOCOL_ERROR: u32 = 1;
const FLOW_CONTROL_ERROR: u32 = 3;
const FRAME_SIZE_ERROR: u32 = 6;
const ENHANCE_YOUR_CALM: u32 = 11;

/// A dial of somebody's to the hostile agent, under way.
fn dial(client: &Client) -> JoinSet<Result<()>> {
    let client = client.clone();
    JoinSet::from_iter([async move {
        client.dial(&format!("{CLAIM}:1")).await?;
        Ok(())
    }])
}

/// What became of it.
async fn outcome(mut dial: JoinSet<Result<()>>) -> Result<Result<()>> {
    let dialled = timeout(PATIENCE, dial.join_next()).await;
    Ok(dialled.context("the dial hangs")?.context("one dial")??)
}

async fn dial_comes(raw: &Raw, stream: u32) -> Result<()> {
    raw.until("a dial", |seen| seen.has_answered(stream)).await
}

/// The tunnel works as it should: a dial comes, and its end gets through.
async fn is_alive(site: &Site, raw: &Raw, stream: u32) -> Result<()> {
    let dialled = dial(&site.client);
    dial_comes(raw, stream).await.context("is it alive?")?;
    let block = [&b"\x08\x03502"[..], &field("adit-error", "as%20asked")].concat();
    ensure!(raw.send(headers(stream, END_STREAM, &block)).await);
    let error = outcome(dialled).await?.err().context("it is connected")?;
    ensure!(format!("{error:#}").contains("as asked"), "{error:#}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn floods_of_what_is_allowed_are_answered_and_hold_nobody_up() -> Result<()> {
    let mut site = Site::start().await?;
    let window = [settings(4, 0), settings(4, 65_535)].concat();
    for (what, flood, answer) in [
        ("SETTINGS", frame(SETTINGS, 0, 0, &[]), Some(SETTINGS)),
        ("windows", window, Some(SETTINGS)),
        ("unknown settings", settings(0xfe, 7), Some(SETTINGS)),
        ("PING", ping(), Some(PING)),
        ("frames of no kind", frame(0x7f, 0xff, 0, b"?"), None),
    ] {
        let flooded = async {
            let bill = site.bill().await?;
            let raw = site.agent().await?;
            let frames = FLOOD;
            raw.flood(&flood, frames, site.serve(EXCHANGES)).await?;
            if let Some(answer) = answer {
                let acks = |acks: Option<&usize>| acks.copied().unwrap_or_default();
                raw.until("answers", |seen| acks(seen.acks.get(&answer)) >= frames)
                    .await?;
            }
            is_alive(&site, &raw, 3).await?;
            drop(raw);
            site.settle(&bill, 1, 0.0, 1.0).await
        };
        flooded.await.with_context(|| what.to_owned())?;
    }
    site.end().await
}

/// What HTTP/2 does not allow, or not so often.
fn faults() -> Vec<(&'static str, Vec<u8>, &'static [u32])> {
    let many: Vec<u8> = (0..FLOOD).flat_map(|_| data(CONTROL, b"")).collect();
    let text = |text: &str| data(CONTROL, &message(text.as_bytes()));
    vec![
        ("empty DATA", many, &[ENHANCE_YOUR_CALM]),
        (
            "a connection's window beyond 2^31-1",
            endless_window(0),
            &[FLOW_CONTROL_ERROR],
        ),
        (
            "RST_STREAM on an idle stream",
            reset(101, CANCEL),
            &[PROTOCOL_ERROR],
        ),
        (
            "RST_STREAM on an idle stream of its own",
            reset(2, CANCEL),
            &[PROTOCOL_ERROR],
        ),
        (
            "RST_STREAM on the connection",
            reset(0, CANCEL),
            &[PROTOCOL_ERROR],
        ),
        (
            "WINDOW_UPDATE on an idle stream",
            endless_window(101),
            &[PROTOCOL_ERROR],
        ),
        ("DATA on an idle stream", data(101, b"x"), &[PROTOCOL_ERROR]),
        ("DATA on the connection", data(0, b"x"), &[PROTOCOL_ERROR]),
        (
            "HEADERS of a stream of its own",
            headers(2, 0, &connect("h:1")),
            &[PROTOCOL_ERROR],
        ),
        (
            "HEADERS on an idle stream",
            headers(101, 0, OK),
            &[PROTOCOL_ERROR],
        ),
        ("DATA before an answer", data(3, b"x"), &[PROTOCOL_ERROR]),
        ("a push", push(CONTROL), &[PROTOCOL_ERROR]),
        (
            "headers of 1 MiB",
            endless_headers(101, OK),
            &[ENHANCE_YOUR_CALM, PROTOCOL_ERROR],
        ),
        (
            "headers that are no HPACK",
            headers(101, 0, &[0x80]),
            &[9, PROTOCOL_ERROR],
        ),
        (
            "an upper-case name",
            headers(3, 0, &[OK, &field("Upper", "x")].concat()),
            &[PROTOCOL_ERROR],
        ),
        (
            "a frame of 16 MiB",
            vec![0xff, 0xff, 0xff, DATA, 0, 0, 0, 0, 1],
            &[FRAME_SIZE_ERROR],
        ),
        (
            "SETTINGS that are none",
            frame(SETTINGS, 0, 0, &[0; 5]),
            &[FRAME_SIZE_ERROR, PROTOCOL_ERROR],
        ),
        (
            "a window of 4 GiB",
            settings(4, u32::MAX),
            &[FLOW_CONTROL_ERROR, PROTOCOL_ERROR],
        ),
        ("frames of no size", settings(5, 0), &[PROTOCOL_ERROR]),
        (
            "an answer to SETTINGS that were none",
            frame(SETTINGS, 1, 0, &[]).repeat(2),
            &[PROTOCOL_ERROR],
        ),
        (
            "a PING of 7 bytes",
            frame(PING, 0, 0, &[0; 7]),
            &[FRAME_SIZE_ERROR, PROTOCOL_ERROR],
        ),
        ("a control message of 4 GiB", data(CONTROL, &[0xff; 4]), &[]),
        (
            "one that is too long",
            data(CONTROL, &claim(MAX_CONTROL_MESSAGE + 1)),
            &[],
        ),
        ("one of no bytes", data(CONTROL, &[0; 4]), &[]),
        ("one that is no JSON", text("hello"), &[]),
        ("one without its fields", text("{\"type\":\"load\"}"), &[]),
        (
            "a forward of a long name",
            text(&json!({"type":"forward","id":1,"name":"x".repeat(254)}).to_string()),
            &[],
        ),
    ]
}

fn claim(len: usize) -> Vec<u8> {
    u32::try_from(len)
        .unwrap_or(u32::MAX)
        .to_be_bytes()
        .to_vec()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_allowed_ends_the_tunnel_and_nothing_else() -> Result<()> {
    let mut site = Site::start().await?;
    for (what, bytes, codes) in faults() {
        let ended = async {
            let bill = site.bill().await?;
            let raw = site.agent().await?;
            // So that there is somebody to be told.
            let dialled = dial(&site.client);
            dial_comes(&raw, 3).await?;
            raw.pour(&bytes).await;
            let end = raw.end().await?;
            ensure!(end.is_none_or(|code| codes.contains(&code)), "{end:?}");
            ensure!(outcome(dialled).await?.is_err(), "a dial is connected");
            site.settle(&bill, 1, 0.0, 1.0).await
        };
        ended.await.with_context(|| what.to_owned())?;
    }
    site.end().await
}

/// A control stream that is answered wrong is no control stream.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_control_stream_that_is_not_granted_ends_the_tunnel() -> Result<()> {
    let mut site = Site::start().await?;
    for (what, bytes) in [
        ("another status", headers(CONTROL, 0, b"\x08\x03404")),
        ("no status", headers(CONTROL, 0, &field("x", "y"))),
        ("no number", headers(CONTROL, 0, b"\x08\x03abc")),
        ("1 MiB", endless_headers(CONTROL, OK)),
        ("a bomb", headers(CONTROL, 0, &bomb(OK))),
        ("a reset", reset(CONTROL, CANCEL)),
        ("its window beyond 2^31-1", endless_window(CONTROL)),
        ("DATA first", data(CONTROL, b"x")),
    ] {
        let ended = async {
            let bill = site.bill().await?;
            let raw = site.silent_agent().await?;
            raw.pour(&bytes).await;
            raw.end().await?;
            site.settle(&bill, 1, 0.0, 1.0).await
        };
        ended.await.with_context(|| what.to_owned())?;
    }
    site.end().await
}

/// One stream's fault is that stream's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fault_of_one_stream_fails_its_dial_and_no_other() -> Result<()> {
    let mut site = Site::start().await?;
    let bill = site.bill().await?;
    let raw = site.agent().await?;
    let mut stream = 3;
    for (what, bytes) in [
        ("its window beyond 2^31-1", endless_window(stream)),
        ("a reset", reset(5, CANCEL)),
        ("no status", headers(7, 0, &field("x", "y"))),
        (
            "headers beyond 16 KiB",
            headers(9, 0, &[OK, &field("x", &"x".repeat(20_000))].concat()),
        ),
    ] {
        let failed = async {
            let dialled = dial(&site.client);
            dial_comes(&raw, stream).await?;
            raw.pour(&bytes).await;
            ensure!(outcome(dialled).await?.is_err(), "it is connected");
            anyhow::Ok(())
        };
        failed.await.with_context(|| what.to_owned())?;
        stream += 2;
    }
    is_alive(&site, &raw, stream).await?;
    drop(raw);
    site.settle(&bill, 1, 0.0, 1.0).await?;
    site.end().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_on_streams_that_are_closed_is_not_kept() -> Result<()> {
    let mut site = Site::start().await?;
    for ends_by_reset in [true, false] {
        let bill = site.bill().await?;
        let raw = site.agent().await?;
        let dialled = dial(&site.client);
        dial_comes(&raw, 3).await?;
        let last = if ends_by_reset {
            reset(3, CANCEL)
        } else {
            headers(3, END_STREAM, b"\x08\x03502")
        };
        ensure!(raw.send(last).await);
        ensure!(outcome(dialled).await?.is_err(), "it is connected");
        // It may have been on its way, and more than that ends the tunnel: both are fine, if nothing is kept.
        let flood = data(3, &[0; 16_000]);
        raw.flood(&flood, 10_000, site.serve(EXCHANGES)).await?;
        drop(raw);
        site.settle(&bill, 1, 0.0, 1.0).await?;
    }
    site.end().await
}

/// An error of the agent goes into a line of HTTP/1.1.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn words_of_a_refusal_stay_in_their_line() -> Result<()> {
    let mut site = Site::start().await?;
    let bill = site.bill().await?;
    let raw = site.agent().await?;
    let mut stream = 3;
    for words in [
        "no%0d%0aforged:%20yes%0d%0a%0d%0aHTTP/1.1%20200%20OK%0d%0a%0d%0a".to_owned(),
        "%00%1b%5b31m%7f%c2%85".to_owned(),
        "%ff%fe".to_owned(),
        "x".repeat(10_000),
    ] {
        let mut socket = site.client.connect().await?;
        let request = format!("CONNECT {CLAIM}:1 HTTP/1.1\r\nHost: {CLAIM}\r\n\r\n");
        socket.write_all(request.as_bytes()).await?;
        dial_comes(&raw, stream).await?;
        let block = [&b"\x08\x03502"[..], &field("adit-error", &words)].concat();
        ensure!(raw.send(headers(stream, END_STREAM, &block)).await);
        let answer = timeout(PATIENCE, DialAnswer::read(&mut socket)).await??;
        ensure!(answer.status == 502, "{answer:?}");
        let mut lines = answer.head.split("\r\n");
        ensure!(
            !lines.any(|line| line.starts_with("forged") || line.contains(char::is_control)),
            "{answer:?}"
        );
        ensure!(answer.head.len() < 8 * 1024, "{}", answer.head.len());
        stream += 2;
    }
    is_alive(&site, &raw, stream).await?;
    drop(raw);
    site.settle(&bill, 1, 0.0, 1.0).await?;
    site.end().await
}

/// Each may be said, and said often; none is worth a line each time.
async fn is_not_worth_a_line_each(flood: Vec<u8>) -> Result<()> {
    let mut site = Site::start().await?;
    let bill = site.bill().await?;
    let raw = site.agent().await?;
    raw.flood(&flood, 1_000, site.serve(EXCHANGES)).await?;
    drop(raw);
    site.settle(&bill, 1, 0.0, 1.0).await?;
    site.end().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_answers_to_no_ping_does_not_fill_the_log() -> Result<()> {
    is_not_worth_a_line_each(pong()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_drains_does_not_fill_the_log() -> Result<()> {
    is_not_worth_a_line_each(data(CONTROL, &message(b"{\"type\":\"drain\"}"))).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_loads_does_not_fill_the_log() -> Result<()> {
    let load = json!({"type": "load", "connections": u32::MAX, "dials": u32::MAX});
    is_not_worth_a_line_each(data(CONTROL, &message(load.to_string().as_bytes()))).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_forwards_is_refused_and_does_not_fill_the_log() -> Result<()> {
    let mut site = Site::start().await?;
    let bill = site.bill().await?;
    let violations = site.violations().await?;
    let raw = site.agent().await?;
    // As many as fit into the window: whoever sends more breaks HTTP/2, and is gone.
    let flood: Vec<u8> = (0..2_000)
        .flat_map(|id| {
            let forward = json!({"type": "forward", "id": id, "name": FORGED});
            data(CONTROL, &message(forward.to_string().as_bytes()))
        })
        .collect();
    tokio::join!(raw.pour(&flood), site.serve(EXCHANGES)).1?;
    let is_refused = |bytes: &Vec<u8>| {
        let text = String::from_utf8_lossy(bytes);
        text.contains("forward_refused") && text.contains("\"id\":0,")
    };
    raw.until("a refusal", |seen| {
        seen.data.get(&CONTROL).is_some_and(is_refused)
    })
    .await?;
    is_alive(&site, &raw, 3).await?;
    drop(raw);
    site.settle(&bill, 1, 0.0, 1.0).await?;
    ensure!(site.violations().await? == violations);
    site.end().await
}

/// Words that come with GOAWAY are the peer's, and up to a frame long.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn words_of_a_goaway_do_not_fill_the_log() -> Result<()> {
    let mut site = Site::start().await?;
    let bill = site.bill().await?;
    let raw = site.agent().await?;
    let words = FORGED.repeat(60_000 / FORGED.len());
    ensure!(raw.send(goaway(0, 2, words.as_bytes())).await);
    // No stream is left, not even the control stream.
    raw.end().await?;
    site.settle(&bill, 1, 0.0, 1.0).await?;
    site.end().await
}

/// Whatever carries it: HEADERS of a stream that has answers already.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_without_end_cost_nothing() -> Result<()> {
    let mut site = Site::start().await?;
    let bill = site.bill().await?;
    let raw = site.agent().await?;
    let dialled = dial(&site.client);
    dial_comes(&raw, 3).await?;
    // `103 Early Hints`, again and again.
    let hint = [&b"\x08\x03103"[..], &field("x", &"x".repeat(1_000))].concat();
    let flood = frame(HEADERS, 4, 3, &hint);
    raw.flood(&flood, 20_000, site.serve(EXCHANGES)).await?;
    drop(raw);
    ensure!(outcome(dialled).await?.is_err(), "it is connected");
    site.settle(&bill, 1, 0.0, 1.0).await?;
    site.end().await
}
