//! A server that means harm to an agent, by hand-made frames (RFC 9113, section 4.1). What an agent may do to a server goes through the
//! same HTTP/2 and the same connections.

use std::{cell::RefCell, rc::Rc};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf, duplex, split},
    task::{LocalSet, spawn_local},
    time::timeout,
};

use super::pair::{End, PATIENCE, Stalled, accept, agent_end, read};
use crate::{
    conn::Ended, event::Event, ledger::MIN_BUDGET, link::LinkEnd, mux::MAX_PENDING_DIALS,
    stream::Connection,
};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let len = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut bytes = len[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// A header block: `:method` CONNECT and `:authority`, as literals with an indexed name (RFC 7541, section 6.2.2).
fn connect_block(authority: &str) -> Vec<u8> {
    let mut block = vec![0x02, 7];
    block.extend(b"CONNECT");
    block.push(0x01);
    match authority.len() {
        len @ 0..127 => block.push(u8::try_from(len).unwrap()),
        len => {
            block.push(127);
            let mut rest = len - 127;
            while rest >= 128 {
                block.push(u8::try_from(rest % 128 + 128).unwrap());
                rest /= 128;
            }
            block.push(u8::try_from(rest).unwrap());
        }
    }
    block.extend(authority.as_bytes());
    block
}

fn open(stream: u32, authority: &str) -> Vec<u8> {
    frame(HEADERS, END_HEADERS, stream, &connect_block(authority))
}

/// A server made by hand, and the agent that it harms.
struct Raw {
    write: WriteHalf<DuplexStream>,
    /// Kind, flags and stream of each frame that the agent has sent.
    seen: Rc<RefCell<Vec<(u8, u8, u32)>>>,
    agent: End,
    /// Dials that the agent has been asked for.
    dials: usize,
    /// What the next one becomes, instead of refused.
    accepts: bool,
    accepted: Vec<Connection>,
}

impl Raw {
    /// Writes, while the agent takes it; then looks at what the agent has been asked for.
    async fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(32 * 1024) {
            // Fails when the agent has had enough.
            if self.write.write_all(part).await.is_err() {
                break;
            }
            self.settle().await;
        }
    }

    /// Lets everybody act on what was written, and drops the dials, as an agent does whose targets refuse.
    async fn settle(&mut self) {
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        while let Some(event) = self.agent.try_event() {
            if let Event::Dial(dial) = event {
                self.dials += 1;
                if std::mem::take(&mut self.accepts) {
                    self.accepted.push(accept(dial));
                }
            }
            assert!(self.agent.session.pending_dials() <= MAX_PENDING_DIALS);
        }
    }

    async fn until_seen(&mut self, what: impl Fn(&(u8, u8, u32)) -> bool) {
        let seen = async {
            while !self.seen.borrow().iter().any(&what) && !self.agent.task.is_finished() {
                self.settle().await;
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            }
        };
        timeout(PATIENCE, seen).await.expect("never seen");
        assert!(self.seen.borrow().iter().any(what), "{:?}", self.seen);
    }

    /// The tunnel works as it should.
    async fn is_alive(&mut self, stream: u32) {
        let before = self.dials;
        self.write(&open(stream, "10.0.0.7:10250")).await;
        self.until_seen(|seen| (seen.0, seen.2) == (HEADERS, stream))
            .await;
        assert_eq!(self.dials, before + 1);
    }

    /// The tunnel has ended because its server broke the protocol.
    async fn has_ended(self) {
        let end = timeout(PATIENCE, self.agent.task).await.unwrap().unwrap();
        assert!(matches!(end, Some(LinkEnd::Protocol(_))), "{end:?}");
        assert!(self.seen.borrow().iter().any(|seen| seen.0 == GOAWAY));
    }
}

async fn watch(mut read: ReadHalf<DuplexStream>, seen: Rc<RefCell<Vec<(u8, u8, u32)>>>) {
    let mut head = [0; 9];
    while read.read_exact(&mut head).await.is_ok() {
        let len = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; len as usize];
        if read.read_exact(&mut payload).await.is_err() {
            return;
        }
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        seen.borrow_mut().push((head[3], head[4], stream));
    }
}

async fn with_raw(test: impl AsyncFnOnce(Raw)) {
    LocalSet::new()
        .run_until(async {
            let (near, far) = duplex(64 * 1024);
            let (read, mut write) = split(near);
            let start = [PREFACE, &frame(SETTINGS, 0, 0, &[])[..]].concat();
            let seen = Rc::new(RefCell::new(Vec::new()));
            spawn_local(watch(read, seen.clone()));
            let (agent, ()) = tokio::join!(agent_end(far, MIN_BUDGET), async {
                write.write_all(&start).await.unwrap();
                write
                    .write_all(&frame(SETTINGS, ACK, 0, &[]))
                    .await
                    .unwrap();
            });
            let raw = Raw {
                write,
                seen,
                agent,
                dials: 0,
                accepts: false,
                accepted: Vec::new(),
            };
            timeout(PATIENCE, test(raw)).await.expect("the test hangs");
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn streams_that_are_reset_at_once_cost_a_dial_each_and_leave_nothing() {
    with_raw(async |mut raw| {
        let mut bytes = Vec::new();
        let streams = 100_000;
        for i in 0..streams {
            let stream = 2 * i + 1;
            bytes.extend(open(stream, "10.0.0.7:1"));
            bytes.extend(frame(RST_STREAM, 0, stream, &8u32.to_be_bytes()));
        }
        raw.write(&bytes).await;
        raw.is_alive(2 * streams + 1).await;
        assert_eq!(raw.agent.session.pending_dials(), 0);
        assert_eq!(raw.agent.session.connections(), 0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_window_beyond_what_there_can_be_ends_the_stream_or_the_tunnel() {
    let most = ((1u32 << 31) - 1).to_be_bytes();
    with_raw(async |mut raw| {
        raw.write(&open(1, "h:1")).await;
        raw.write(&open(3, "h:1")).await;
        raw.write(&frame(WINDOW_UPDATE, 0, 0, &most)).await;
        raw.has_ended().await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn data_on_a_stream_that_has_ended_is_not_taken() {
    with_raw(async |mut raw| {
        raw.write(&open(1, "h:1")).await;
        raw.until_seen(|seen| (seen.0, seen.2) == (HEADERS, 1))
            .await;
        raw.write(&frame(RST_STREAM, 0, 1, &8u32.to_be_bytes()))
            .await;
        for _ in 0..1_000 {
            raw.write(&frame(DATA, 0, 1, b"late")).await;
        }
        // On its way when the stream ended, for all that the agent knows.
        assert_eq!(raw.agent.ledger.used(), 0);
        raw.is_alive(3).await;
    })
    .await;
    with_raw(async |mut raw| {
        // On a stream that has never been.
        raw.write(&frame(DATA, 0, 7, b"x")).await;
        raw.has_ended().await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_empty_data_ends_the_tunnel() {
    with_raw(async |mut raw| {
        raw.accepts = true;
        raw.write(&open(1, "h:1")).await;
        let mut connection = raw.accepted.pop().unwrap();
        let reading = spawn_local(async move { read(&mut connection).await });
        let flood: Vec<u8> = frame(DATA, 0, 1, &[]).repeat(100_000);
        raw.write(&flood).await;
        raw.has_ended().await;
        assert_eq!(
            reading.await.unwrap(),
            (Vec::new(), Some(Ended::TunnelLost))
        );
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn bytes_one_by_one_are_taken_and_cost_what_they_are() {
    with_raw(async |mut raw| {
        raw.accepts = true;
        raw.write(&open(1, "h:1")).await;
        let stalled = Stalled::new(raw.accepted.pop().unwrap());
        let count = 100_000;
        raw.write(&frame(DATA, 0, 1, b"x").repeat(count)).await;
        let used = raw.agent.ledger.used();
        assert!((count..2 * count).contains(&used), "{used}");
        raw.is_alive(3).await;
        drop(stalled.wake().await);
        assert_eq!(raw.agent.ledger.used(), 0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn floods_of_settings_and_pings_are_answered_as_fast_as_they_are_read() {
    for (flood, answer) in [
        (frame(SETTINGS, 0, 0, &[0, 4, 0, 1, 0, 0]), SETTINGS),
        (frame(PING, 0, 0, &[7; 8]), PING),
    ] {
        with_raw(async |mut raw| {
            raw.write(&flood.repeat(10_000)).await;
            raw.is_alive(1).await;
            let answers = raw
                .seen
                .borrow()
                .iter()
                .filter(|seen| (seen.0, seen.1) == (answer, ACK))
                .count();
            assert!(answers > 0);
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn headers_without_end_end_the_tunnel() {
    with_raw(async |mut raw| {
        raw.write(&frame(HEADERS, 0, 1, &connect_block("h:1")))
            .await;
        // x-a: 16 KiB of it, never indexed, again and again up to 1 MiB.
        let mut literal = vec![0x10, 3];
        literal.extend(b"x-a");
        literal.extend([127, 0x81, 0x7e]);
        literal.extend(vec![b'x'; 16_256]);
        for _ in 0..64 {
            raw.write(&frame(CONTINUATION, 0, 1, &literal)).await;
        }
        raw.has_ended().await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn targets_that_are_none_are_refused_and_nothing_else_happens() {
    with_raw(async |mut raw| {
        let mut stream = 1;
        // Whatever a URI may say is the dialler's to refuse.
        for (authority, dials) in [(":0", 1), ("-", 0), ("a", 1), ("[", 0), ("", 0)] {
            let before = raw.dials;
            raw.write(&open(stream, authority)).await;
            raw.until_seen(|seen| (seen.0 == HEADERS || seen.0 == RST_STREAM) && seen.2 == stream)
                .await;
            assert!(raw.dials - before <= dials, "{authority:?}");
            stream += 2;
        }
        raw.is_alive(stream).await;
        // A name of 64 KiB: longer than all headers may be.
        let block = connect_block(&"x".repeat(64 * 1024));
        let (first, rest) = block.split_at(16_000);
        raw.write(&frame(HEADERS, 0, stream + 2, first)).await;
        let parts: Vec<_> = rest.chunks(16_000).collect();
        for (i, part) in parts.iter().enumerate() {
            let flags = if i + 1 == parts.len() { END_HEADERS } else { 0 };
            raw.write(&frame(CONTINUATION, flags, stream + 2, part))
                .await;
        }
        assert_eq!(raw.dials, raw.dials.min(4));
        assert_eq!(raw.agent.ledger.used(), 0);
    })
    .await;
}
