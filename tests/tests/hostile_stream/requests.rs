//! What a server does that an agent has a tunnel to. It is HTTP/2's client.

use anyhow::{Context, Result, ensure};
use e2e::harness::{PATIENCE, eventually};
use serde_json::json;

use super::{
    FORGED,
    agent::{CONTROL, Site, open, refusing},
    frames::{
        CANCEL, DATA, END_STREAM, PING, SETTINGS, bomb, connect, data, endless_headers,
        endless_window, field, frame, goaway, headers, message, ping, pong, push, reset, settings,
    },
    raw::Raw,
};

/// Frames of a flood at least.
const FLOOD: usize = 100_000;

/// Exchanges with the honest server during a flood.
const EXCHANGES: usize = 3;

/// Streams that are reset at once.
const STREAMS: u32 = 20_000;

/// Codes of GOAWAY.
const PROTOCOL_ERROR: u32 = 1;
const FLOW_CONTROL_ERROR: u32 = 3;
const STREAM_CLOSED: u32 = 5;
const FRAME_SIZE_ERROR: u32 = 6;
const COMPRESSION_ERROR: u32 = 9;
const ENHANCE_YOUR_CALM: u32 = 11;

/// The tunnel works as it should: a dial becomes a connection to an echo.
async fn is_alive(site: &Site, raw: &Raw, stream: u32) -> Result<()> {
    let bytes = [
        headers(stream, 0, &connect(&site.target.name())),
        data(stream, b"hello"),
        frame(DATA, END_STREAM, stream, b""),
    ];
    raw.pour(&bytes.concat()).await;
    raw.until("an echo", |seen| {
        seen.data
            .get(&stream)
            .is_some_and(|bytes| bytes == b"hello")
    })
    .await
    .context("is it alive?")
}

/// The header block of the answer on `stream`.
async fn answer(raw: &Raw, stream: u32) -> Result<Option<Vec<u8>>> {
    raw.until("an answer", |seen| seen.has_answered(stream))
        .await?;
    Ok(raw.look(|seen| {
        let head = seen.heads.iter().find(|head| head.0 == stream);
        head.map(|head| head.1.clone())
    }))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_that_are_reset_at_once_leave_nothing() -> Result<()> {
    let mut site = Site::start(&[]).await?;
    for target in [site.target.name(), refusing()?.to_string(), ":0".to_owned()] {
        let raw = site.tunnel().await?;
        let mut bytes = Vec::new();
        for stream in (3..).step_by(2).take(STREAMS as usize) {
            bytes.extend(headers(stream, 0, &connect(&target)));
            bytes.extend(reset(stream, CANCEL));
        }
        tokio::join!(site.serve(EXCHANGES), raw.pour(&bytes)).0?;
        // Either it has had enough of it, or it goes on as if nothing had been.
        if !raw.look(|seen| seen.is_over) {
            is_alive(&site, &raw, 2 * STREAMS + 3).await?;
        }
        drop(raw);
        site.settle().await?;
        site.check_log(2)?;
    }
    site.end().await
}

/// Dials that nobody resets, to where nobody answers, and more of them than may wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_that_are_opened_and_left_end_with_their_tunnel() -> Result<()> {
    let mut site = Site::start(&[]).await?;
    let raw = site.tunnel().await?;
    let mut bytes = Vec::new();
    for stream in (3..).step_by(2).take(STREAMS as usize) {
        bytes.extend(headers(stream, 0, &connect("h.invalid:1")));
    }
    tokio::join!(site.serve(EXCHANGES), raw.pour(&bytes)).0?;
    // Those that there is room for wait for the lookup, the rest is refused at once.
    raw.until("all answers", |seen| seen.heads.len() > STREAMS as usize)
        .await?;
    is_alive(&site, &raw, 2 * STREAMS + 3).await?;
    drop(raw);
    site.settle().await?;
    site.check_log(2)?;
    site.end().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_for_what_is_no_target_are_refused() -> Result<()> {
    let mut site = Site::start(&[]).await?;
    let raw = site.tunnel().await?;
    let method = |method: &str| field(":method", method);
    let blank = |headers: &[(&str, &str)]| {
        let fields = headers.iter().flat_map(|(name, value)| field(name, value));
        connect("-").into_iter().chain(fields).collect::<Vec<u8>>()
    };
    let long = "x".repeat(1_022);
    // With its status; none is a reset, which is HTTP/2's own answer.
    let requests: Vec<(&str, Vec<u8>, &[&str])> = vec![
        (":0", connect(":0"), &["502", "400", ""]),
        ("an empty host", connect(""), &["400", ""]),
        ("no host", connect(":80"), &["502", "400", ""]),
        ("a port alone", connect("80"), &["502", "400"]),
        ("port 0", connect("127.0.0.1:0"), &["502"]),
        (
            "port 65536",
            connect("127.0.0.1:65536"),
            &["502", "400", ""],
        ),
        ("a user", connect("user@127.0.0.1:1"), &["502", "400", ""]),
        ("colons", connect(":::::"), &["502", "400", ""]),
        ("a bracket", connect("["), &["400", ""]),
        ("a path", connect("/run/x.sock"), &["400", ""]),
        ("no target", connect("-"), &["400"]),
        ("no authority", method("CONNECT"), &["400", ""]),
        ("nothing", field("x", "y"), &[""]),
        (
            "no CONNECT",
            [
                method("GET"),
                field(":scheme", "https"),
                field(":path", "/"),
            ]
            .concat(),
            &["400"],
        ),
        (
            "extended CONNECT",
            [connect("h:1"), field(":protocol", "websocket")].concat(),
            &["502", "400", ""],
        ),
        (
            "CONNECT with a path",
            [connect("h:1"), field(":path", "/")].concat(),
            &["502", "400", ""],
        ),
        (
            "a network that is none",
            blank(&[("adit-network", "unix"), ("adit-target", "/run/x.sock")]),
            &["400", "502"],
        ),
        (
            "UDP",
            blank(&[("adit-network", "udp"), ("adit-target", "127.0.0.1:53")]),
            &["400", "502"],
        ),
        ("no UTF-8", blank(&[("adit-target", "%ff")]), &["400"]),
        (
            "a line feed",
            blank(&[("adit-target", "h%0d%0aforged:1")]),
            &["502", "400"],
        ),
        ("a long target", blank(&[("adit-target", &long)]), &["400"]),
        (
            "a forward that is no number",
            blank(&[("adit-forward", "x")]),
            &["400"],
        ),
        (
            "a forward that nobody asked for",
            blank(&[("adit-forward", "18446744073709551615")]),
            &["502"],
        ),
        ("a second control stream", control_block(), &["400"]),
        (
            "headers beyond 16 KiB",
            blank(&[("x", &"x".repeat(17_000))]),
            &["431", ""],
        ),
        ("a long name", connect(&"x".repeat(60_000)), &["431", ""]),
    ];
    let mut stream = 3;
    for (what, block, statuses) in requests {
        let refused = async {
            raw.pour(&headers(stream, 0, &block)).await;
            let head = answer(&raw, stream).await?;
            let is_expected = statuses.iter().any(|status| match (&head, *status) {
                (None, status) => status.is_empty(),
                (Some(head), status) => !status.is_empty() && has_status(head, status),
            });
            ensure!(is_expected, "{head:?}");
            anyhow::Ok(())
        };
        refused.await.with_context(|| what.to_owned())?;
        stream += 2;
    }
    ensure!(site.violations().await? > 0.0, "none was counted");
    is_alive(&site, &raw, stream).await?;
    drop(raw);
    site.settle().await?;
    site.check_log(2)?;
    site.end().await
}

fn control_block() -> Vec<u8> {
    open(1, "POST", "/control").split_off(9)
}

/// Whether a header block, not decoded, begins with this status: from the static table, or as a literal with its name.
fn has_status(block: &[u8], status: &str) -> bool {
    const STATIC: [(&str, u8); 4] = [("200", 0x88), ("400", 0x8c), ("404", 0x8d), ("500", 0x8e)];
    let indexed = STATIC.iter().find(|known| known.0 == status);
    // An entry of the dynamic table is one that was a literal before.
    match (block.first(), indexed) {
        (Some(&first), Some((_, index))) => first == *index,
        (Some(&first), None) => first == 0x48 || first >= 0xbe,
        (None, _) => false,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn floods_of_what_is_allowed_are_answered_and_hold_nobody_up() -> Result<()> {
    let mut site = Site::start(&[]).await?;
    let window = [settings(4, 0), settings(4, 65_535)].concat();
    for (what, flood, answer) in [
        ("SETTINGS", frame(SETTINGS, 0, 0, &[]), Some(SETTINGS)),
        ("windows", window, Some(SETTINGS)),
        ("PING", ping(), Some(PING)),
        ("frames of no kind", frame(0x7f, 0xff, 0, b"?"), None),
    ] {
        let flooded = async {
            let raw = site.tunnel().await?;
            raw.flood(&flood, FLOOD, site.serve(EXCHANGES)).await?;
            if let Some(answer) = answer {
                let acks = |acks: Option<&usize>| acks.copied().unwrap_or_default();
                raw.until("answers", |seen| acks(seen.acks.get(&answer)) >= FLOOD)
                    .await?;
            }
            is_alive(&site, &raw, 3).await?;
            drop(raw);
            site.settle().await?;
            site.check_log(2)
        };
        flooded.await.with_context(|| what.to_owned())?;
    }
    site.end().await
}

/// What HTTP/2 does not allow, or not so often.
fn faults() -> Vec<(&'static str, Vec<u8>, &'static [u32])> {
    let many = data(CONTROL, b"").repeat(FLOOD);
    let text = |text: &str| data(CONTROL, &message(text.as_bytes()));
    vec![
        ("empty DATA", many, &[ENHANCE_YOUR_CALM]),
        (
            "a connection's window beyond 2^31-1",
            endless_window(0),
            &[FLOW_CONTROL_ERROR],
        ),
        ("the control stream's window", endless_window(CONTROL), &[]),
        (
            "RST_STREAM on an idle stream",
            reset(101, CANCEL),
            &[PROTOCOL_ERROR],
        ),
        (
            "RST_STREAM on an idle stream of the agent's",
            reset(2, CANCEL),
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
            "a stream of the agent's",
            headers(2, 0, &connect("h:1")),
            &[PROTOCOL_ERROR],
        ),
        (
            "a stream below the last",
            [
                headers(101, 0, &connect("h:1")),
                headers(3, 0, &connect("h:1")),
            ]
            .concat(),
            &[PROTOCOL_ERROR, STREAM_CLOSED],
        ),
        ("a push", push(CONTROL), &[PROTOCOL_ERROR]),
        (
            "a name of 64 KiB",
            headers(3, 0, &connect(&"x".repeat(65_536))),
            &[ENHANCE_YOUR_CALM],
        ),
        (
            "headers of 1 MiB",
            endless_headers(3, &connect("h:1")),
            &[ENHANCE_YOUR_CALM, PROTOCOL_ERROR],
        ),
        (
            "a bomb",
            headers(3, 0, &bomb(&connect("h:1"))),
            &[ENHANCE_YOUR_CALM, PROTOCOL_ERROR],
        ),
        (
            "headers that are no HPACK",
            headers(3, 0, &[0x80]),
            &[COMPRESSION_ERROR, PROTOCOL_ERROR],
        ),
        (
            "a frame of 16 MiB",
            vec![0xff, 0xff, 0xff, DATA, 0, 0, 0, 0, 1],
            &[FRAME_SIZE_ERROR],
        ),
        (
            "a frame amid headers",
            [frame(1, 0, 3, &connect("h:1")), ping()].concat(),
            &[PROTOCOL_ERROR],
        ),
        (
            "a window of 4 GiB",
            settings(4, u32::MAX),
            &[FLOW_CONTROL_ERROR, PROTOCOL_ERROR],
        ),
        ("a control message of 4 GiB", data(CONTROL, &[0xff; 4]), &[]),
        ("one of no bytes", data(CONTROL, &[0; 4]), &[]),
        ("one that is no JSON", text("hello"), &[]),
        (
            "one without its fields",
            text("{\"type\":\"server_count\"}"),
            &[],
        ),
        ("a reset of the control stream", reset(CONTROL, CANCEL), &[]),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_allowed_ends_the_tunnel_and_the_agent_comes_again() -> Result<()> {
    let mut site = Site::start(&[]).await?;
    for (what, bytes, codes) in faults() {
        let ended = async {
            let broken = site.broken().await?;
            let raw = site.tunnel().await?;
            raw.pour(&bytes).await;
            let end = raw.end().await?;
            ensure!(end.is_none_or(|code| codes.contains(&code)), "{end:?}");
            site.counts(broken + 1.0).await?;
            site.settle().await?;
            site.check_log(1)
        };
        ended.await.with_context(|| what.to_owned())?;
    }
    site.end().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_header_block_of_1_mib_on_many_tunnels_leaves_nothing() -> Result<()> {
    let mut site = Site::start(&[]).await?;
    let mut tunnels = Vec::new();
    for _ in 0..10 {
        let raw = site.bare_tunnel().await?;
        raw.pour(&endless_headers(1, &connect("h:1"))).await;
        raw.end().await?;
        tunnels.push(raw);
    }
    drop(tunnels);
    site.settle().await?;
    site.check_log(10)?;
    site.end().await
}

/// DATA on a stream that the agent has answered and ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_on_streams_that_are_closed_is_not_kept() -> Result<()> {
    let mut site = Site::start(&[]).await?;
    let raw = site.tunnel().await?;
    raw.pour(&headers(3, 0, &connect("-"))).await;
    answer(&raw, 3).await?;
    let flood = data(3, &[0; 16_000]);
    raw.flood(&flood, 10_000, site.serve(EXCHANGES)).await?;
    drop(raw);
    site.settle().await?;
    site.check_log(2)?;
    site.end().await
}

/// A target that is refused words, and ids of forwards that nobody asked for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn control_messages_of_no_use_are_ignored() -> Result<()> {
    let mut site = Site::start(&[]).await?;
    let raw = site.tunnel().await?;
    let mut bytes = Vec::new();
    for id in 0..2_000u64 {
        let refused = json!({"type": "forward_refused", "id": id, "reason": FORGED});
        bytes.extend(data(CONTROL, &message(refused.to_string().as_bytes())));
        bytes.extend(data(CONTROL, &message(b"{\"type\":\"?\"}")));
    }
    raw.pour(&bytes).await;
    is_alive(&site, &raw, 3).await?;
    drop(raw);
    site.settle().await?;
    site.check_log(2)?;
    site.end().await
}

/// Each may be said, and said often; none is worth a line each time.
async fn is_not_worth_a_line_each(flood: Vec<u8>) -> Result<()> {
    let mut site = Site::start(&[]).await?;
    let raw = site.tunnel().await?;
    raw.flood(&flood, 1_000, site.serve(EXCHANGES)).await?;
    drop(raw);
    site.settle().await?;
    site.check_log(2)?;
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
async fn a_flood_of_server_counts_does_not_fill_the_log() -> Result<()> {
    let count = |count: u32| {
        let json = json!({"type": "server_count", "count": count});
        data(CONTROL, &message(json.to_string().as_bytes()))
    };
    is_not_worth_a_line_each([count(u32::MAX), count(2)].concat()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn words_of_a_goaway_do_not_fill_the_log() -> Result<()> {
    let mut site = Site::start(&[]).await?;
    let raw = site.tunnel().await?;
    let words = FORGED.repeat(60_000 / FORGED.len());
    // A server that leaves closes the connection behind it.
    raw.pour(&[goaway(0, 2, words.as_bytes()), ping()].concat())
        .await;
    raw.until("a pong", |seen| seen.acks.contains_key(&PING))
        .await?;
    drop(raw);
    eventually("it is told", PATIENCE, async || {
        let log = site.log();
        ensure!(log.contains("tunnel down") || log.contains("tunnel closed"));
        Ok(())
    })
    .await?;
    site.settle().await?;
    site.check_log(1)?;
    site.end().await
}
