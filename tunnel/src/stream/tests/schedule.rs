//! Random schedules: whatever both ends do to their connections and the tunnel does to both, each byte arrives in order and once, or
//! both sides learn that it did not; and nothing is left behind. Time is simulated, so a schedule of hours takes milliseconds.
//!
//! A failure names its seed; `ADIT_SCHEDULE=<seed>` runs that one alone.

use std::{cell::Cell, future::poll_fn, rc::Rc, time::Duration};

use fastrand::Rng;
use tokio::{
    task::{JoinSet, LocalSet},
    time::{sleep, timeout},
};

use super::pair::{End, PATIENCE, agent_end, server_end, until_empty};
use crate::{
    dial::{DialError, Refusal, RefusalKind},
    event::Event,
    ledger::MIN_BUDGET,
    stream::Connection,
};

/// All schedules, over all tests here.
const SCHEDULES: u64 = 10_000;

/// Tests that share them, so that they run side by side.
const TESTS: u64 = 4;

/// How long a write may wait before the script goes on.
const WRITE_PATIENCE: Duration = Duration::from_secs(2);

/// What one end does with its connection.
#[derive(Clone, Copy, Debug)]
enum Op {
    Write(usize),
    Read(usize),
    Pause(u64),
    Finish,
}

/// And in the end.
#[derive(Clone, Copy, Debug)]
enum Last {
    /// Ends its side, and reads until the other has.
    Drain,
    Drop,
    Reset,
}

#[derive(Debug)]
struct Script {
    ops: Vec<Op>,
    last: Last,
}

impl Script {
    fn random(rng: &mut Rng) -> Self {
        let ops = (0..rng.usize(0..8)).map(|_| match rng.u8(0..10) {
            0..4 => Op::Write(1 << rng.u32(0..19)),
            4..7 => Op::Read(1 << rng.u32(0..20)),
            7..9 => Op::Pause(1 << rng.u32(0..16)),
            _ => Op::Finish,
        });
        Self {
            ops: ops.collect(),
            last: match rng.u8(0..10) {
                0..6 => Last::Drain,
                6..8 => Last::Drop,
                _ => Last::Reset,
            },
        }
    }
}

/// One direction of one connection: what its sender did, and what its receiver saw.
#[derive(Debug, Default)]
struct Direction {
    tag: u8,
    sent: Cell<usize>,
    /// Its sender ended it in order.
    has_finished: Cell<bool>,
    got: Cell<usize>,
    end: Cell<Seen>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Seen {
    /// The receiver left before.
    #[default]
    Nothing,
    End,
    Error,
}

impl Direction {
    fn byte(&self, at: usize) -> u8 {
        u8::try_from(at % 251).unwrap() ^ self.tag
    }

    fn check(&self, bytes: &[u8]) {
        let from = self.got.get();
        for (i, &byte) in bytes.iter().enumerate() {
            assert_eq!(byte, self.byte(from + i), "at {} of {self:?}", from + i);
        }
        self.got.set(from + bytes.len());
        assert!(
            self.got.get() <= self.sent.get(),
            "more than was sent: {self:?}"
        );
    }
}

/// One end of a connection, with the direction that it sends and the one that it receives.
struct Player {
    connection: Connection,
    out: Rc<Direction>,
    inward: Rc<Direction>,
}

impl Player {
    /// Whether the connection was reset here.
    async fn play(mut self, script: Script) -> bool {
        for op in script.ops {
            match op {
                Op::Write(len) => self.write(len).await,
                Op::Read(len) => {
                    // A reader that waits for what does not come goes on.
                    drop(timeout(WRITE_PATIENCE, self.read(len)).await);
                }
                Op::Pause(ms) => sleep(Duration::from_millis(ms)).await,
                Op::Finish => self.finish(),
            }
        }
        match script.last {
            Last::Drain => {
                self.finish();
                while self.inward.end.get() == Seen::Nothing {
                    self.read(usize::MAX).await;
                }
                false
            }
            Last::Drop => {
                self.finish();
                false
            }
            Last::Reset => {
                self.connection.reset();
                true
            }
        }
    }

    async fn write(&mut self, len: usize) {
        let mut left = len;
        while left > 0 && !self.out.has_finished.get() {
            let ready = poll_fn(|cx| self.connection.poll_send_ready(cx));
            let Ok(Ok(room)) = timeout(WRITE_PATIENCE, ready).await else {
                return;
            };
            let now = left.min(room);
            let from = self.out.sent.get();
            let bytes: Vec<u8> = (from..from + now).map(|at| self.out.byte(at)).collect();
            self.out.sent.set(from + now);
            self.connection.send(bytes.into());
            left -= now;
        }
    }

    async fn read(&mut self, max: usize) {
        if self.inward.end.get() != Seen::Nothing {
            return;
        }
        match poll_fn(|cx| self.connection.poll_recv(cx, max)).await {
            Ok(Some(bytes)) => {
                self.inward.check(&bytes);
                self.connection.delivered(bytes.len(), Duration::ZERO);
            }
            Ok(None) => self.inward.end.set(Seen::End),
            Err(_) => self.inward.end.set(Seen::Error),
        }
    }

    fn finish(&mut self) {
        self.out.has_finished.set(true);
        self.connection.finish();
    }
}

/// One connection from its dial to its end.
struct Played {
    there: Rc<Direction>,
    back: Rc<Direction>,
    was_reset: bool,
}

async fn connection(server: Rc<End>, agent: Rc<End>, tag: u8, mut rng: Rng) -> Option<Played> {
    sleep(Duration::from_millis(rng.u64(0..200))).await;
    let dial = server.session.dial("tcp", "10.0.0.7:1");
    if rng.u8(0..10) == 0 {
        // Given up, before or after the agent has heard of it.
        drop(timeout(Duration::from_millis(rng.u64(0..3)), dial).await);
        return None;
    }
    let near = match timeout(PATIENCE, dial).await.expect("no answer") {
        Ok(near) => near,
        Err(DialError::Refused(refusal)) => {
            assert_eq!(refusal.text, "no");
            return None;
        }
        Err(DialError::TunnelLost | DialError::Abandoned) => return None,
        Err(error) => panic!("{error:?}"),
    };
    let id = near.id();
    let far = agent.taken.borrow_mut().remove(&id)?;
    let direction = |tag| {
        Rc::new(Direction {
            tag,
            ..Direction::default()
        })
    };
    let (there, back) = (direction(tag), direction(!tag));
    let one = Player {
        connection: near,
        out: there.clone(),
        inward: back.clone(),
    };
    let other = Player {
        connection: far,
        out: back.clone(),
        inward: there.clone(),
    };
    let scripts = (Script::random(&mut rng), Script::random(&mut rng));
    let (one, other) = tokio::join!(one.play(scripts.0), other.play(scripts.1));
    Some(Played {
        there,
        back,
        was_reset: one || other,
    })
}

/// An agent that takes most dials.
async fn answer(agent: Rc<End>, mut rng: Rng) {
    loop {
        let Event::Dial(dial) = agent.event().await else {
            continue;
        };
        if rng.u8(0..10) == 0 {
            let text = "no".to_owned();
            dial.refuse(Refusal {
                kind: RefusalKind::Failed,
                text,
            });
        } else if let Ok(crate::connection::Connection::Stream(accepted)) = dial.accept() {
            agent.taken.borrow_mut().insert(accepted.id(), accepted);
        }
    }
}

async fn schedule(seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let (near, far) = tokio::io::duplex(1 << rng.u32(8..18));
    let ends = tokio::join!(server_end(near, MIN_BUDGET), agent_end(far, MIN_BUDGET));
    let (server, agent) = (Rc::new(ends.0), Rc::new(ends.1));
    let mut answering = JoinSet::new();
    answering.spawn_local(answer(agent.clone(), rng.fork()));
    let mut connections = JoinSet::new();
    for tag in 0..rng.u8(1..7) {
        connections.spawn_local(connection(server.clone(), agent.clone(), tag, rng.fork()));
    }
    let is_lost = rng.u8(0..4) == 0;
    if is_lost {
        sleep(Duration::from_millis(1 << rng.u32(0..14))).await;
        if rng.bool() { &server } else { &agent }.cut.cancel();
    }
    while let Some(played) = connections.join_next().await {
        if let Some(played) = played.unwrap() {
            for direction in [&played.there, &played.back] {
                judge(direction, is_lost || played.was_reset);
            }
        }
    }
    answering.shutdown().await;
    agent.taken.borrow_mut().clear();
    until_empty([&server, &agent]).await;
}

/// What a direction may have come to. `is_cut`: its connection was reset, or its tunnel lost.
fn judge(direction: &Direction, is_cut: bool) {
    match direction.end.get() {
        Seen::Nothing => {}
        Seen::End => {
            assert!(
                direction.has_finished.get(),
                "an end that nobody made: {direction:?}"
            );
            assert_eq!(
                direction.got, direction.sent,
                "an end before all: {direction:?}"
            );
        }
        // Whoever drops what it has not read leaves the peer nobody to be told by, so only a cut is an error.
        Seen::Error => assert!(is_cut, "an error without a cause: {direction:?}"),
    }
}

fn run(test: u64) {
    let all = test..SCHEDULES;
    let seeds: Vec<u64> = match std::env::var("ADIT_SCHEDULE") {
        Ok(seed) => vec![seed.parse().expect("ADIT_SCHEDULE is a number")],
        Err(_) => all.step_by(usize::try_from(TESTS).unwrap()).collect(),
    };
    for seed in seeds {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            LocalSet::new().block_on(&runtime, async {
                timeout(10 * PATIENCE, schedule(seed))
                    .await
                    .expect("the schedule hangs");
            });
        }));
        assert!(outcome.is_ok(), "schedule {seed} failed, see above");
    }
}

#[test]
fn random_schedules_lose_no_byte_and_leave_nothing_behind() {
    run(0);
}

#[test]
fn random_schedules_of_another_quarter_hold() {
    run(1);
}

#[test]
fn random_schedules_of_a_third_quarter_hold() {
    run(2);
}

#[test]
fn random_schedules_of_the_last_quarter_hold() {
    run(3);
}
