//! Random operations at both ends against what must always hold.

use proptest::prelude::*;

use super::{super::*, *};
use crate::ledger::MIN_BUDGET;

thread_local! {
    static BLOCK: Bytes = pattern(1, 1_600_000);
}

#[derive(Clone, Debug)]
enum Op {
    Connect,
    /// Sends on a connection, from the server's or the agent's side.
    Send {
        at: usize,
        side: Side,
        len: usize,
    },
    /// Reads at most so many bytes; delivers them now or with the next read.
    Read {
        at: usize,
        side: Side,
        max: usize,
        deliver: bool,
    },
    Finish {
        at: usize,
        side: Side,
    },
    Drop {
        at: usize,
        side: Side,
    },
    /// Carries at most so many chunks.
    Carry {
        from: Side,
        chunks: usize,
        chunk: usize,
    },
    /// Time passes at both ends.
    Tick {
        seconds: u64,
    },
    Pace,
    Lose,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Server,
    Agent,
}

fn op() -> impl Strategy<Value = Op> {
    let side = || prop_oneof![Just(Side::Server), Just(Side::Agent)];
    let len = || prop_oneof![1usize..100, 1usize..20_000, 500_000usize..1_500_000];
    prop_oneof![
        3 => Just(Op::Connect),
        10 => (any::<usize>(), side(), len()).prop_map(|(at, side, len)| Op::Send { at, side, len }),
        8 => (any::<usize>(), side(), len(), any::<bool>())
            .prop_map(|(at, side, max, deliver)| Op::Read { at, side, max, deliver }),
        2 => (any::<usize>(), side()).prop_map(|(at, side)| Op::Finish { at, side }),
        1 => (any::<usize>(), side()).prop_map(|(at, side)| Op::Drop { at, side }),
        12 => (side(), 1usize..200, 1usize..20_000).prop_map(|(from, chunks, chunk)| Op::Carry { from, chunks, chunk }),
        1 => (0u64..20).prop_map(|seconds| Op::Tick { seconds }),
        1 => Just(Op::Pace),
        1 => prop_oneof![9 => Just(Op::Pace), 1 => Just(Op::Lose)],
    ]
}

/// One side of a connection and what it has done.
#[derive(Default)]
struct Local {
    connection: Option<Connection>,
    sent: Vec<u8>,
    got: Vec<u8>,
    undelivered: usize,
    /// Nothing may come after it has been told of the end.
    end: Option<Result<(), Ended>>,
}

impl Local {
    fn new(connection: Connection) -> Self {
        Self {
            connection: Some(connection),
            ..Self::default()
        }
    }

    fn send(&mut self, len: usize) {
        if let Some(connection) = &self.connection
            && connection.poll_send_ready(&cx()) == Poll::Ready(Ok(()))
        {
            // From somewhere else each time, so that a lost or doubled piece shows.
            let start = self.sent.len() % 9973;
            let bytes = BLOCK.with(|block| block.slice(start..start + len));
            self.sent.extend_from_slice(&bytes);
            connection.send(bytes);
        }
    }

    fn read(&mut self, max: usize, deliver: bool) {
        let Some(connection) = &self.connection else {
            return;
        };
        match connection.poll_recv(&cx(), max) {
            Poll::Ready(Ok(Some(bytes))) => {
                assert_eq!(self.end, None, "bytes after the end");
                assert!(!bytes.is_empty() && bytes.len() <= max);
                self.got.extend_from_slice(&bytes);
                self.undelivered += bytes.len();
            }
            Poll::Ready(Ok(None)) => self.ended(Ok(())),
            Poll::Ready(Err(ended)) => self.ended(Err(ended)),
            Poll::Pending => assert_eq!(self.end, None, "an end that was taken back"),
        }
        if deliver && let Some(connection) = &self.connection {
            connection.delivered(std::mem::take(&mut self.undelivered), Duration::ZERO);
        }
    }

    fn ended(&mut self, end: Result<(), Ended>) {
        assert!(self.end.is_none() || self.end == Some(end));
        self.end = Some(end);
    }
}

struct World {
    pair: Pair,
    connections: Vec<[Local; 2]>,
    /// On the way, not yet arrived: from the server and from the agent.
    wires: [BytesMut; 2],
    now: tokio::time::Instant,
    is_lost: bool,
}

impl World {
    fn new() -> Self {
        let pair = Pair {
            server: End::with_budget(Role::Server, MIN_BUDGET),
            agent: End::with_budget(Role::Agent, MIN_BUDGET),
            chunk: 16 * 1024,
        };
        let now = tokio::time::Instant::now();
        Self {
            pair,
            connections: Vec::new(),
            wires: Default::default(),
            now,
            is_lost: false,
        }
    }

    fn local(&mut self, at: usize, side: Side) -> Option<&mut Local> {
        let count = self.connections.len();
        let sides = self.connections.get_mut(at.checked_rem(count)?)?;
        sides.get_mut(side as usize)
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Connect if self.is_lost || self.connections.len() >= 8 => {}
            Op::Connect => {
                let mut dial = self.pair.server.mux.dial("tcp", "a:1");
                let mut at_agent = None;
                // Everything that is on its way comes first.
                while at_agent.is_none() {
                    at_agent = self.carry(Side::Server, usize::MAX, 16 * 1024);
                }
                let at_server = loop {
                    self.carry(Side::Agent, usize::MAX, 16 * 1024);
                    if let Poll::Ready(outcome) = poll_dial(&mut dial) {
                        break outcome.unwrap();
                    }
                };
                self.connections
                    .push([Local::new(at_server), Local::new(at_agent.unwrap())]);
            }
            Op::Send { at, side, len } => {
                if let Some(local) = self.local(at, side) {
                    local.send(len);
                }
            }
            Op::Read {
                at,
                side,
                max,
                deliver,
            } => {
                if let Some(local) = self.local(at, side) {
                    local.read(max, deliver);
                }
            }
            Op::Finish { at, side } => {
                if let Some(local) = self.local(at, side)
                    && let Some(connection) = &local.connection
                {
                    connection.finish();
                }
            }
            Op::Drop { at, side } => {
                if let Some(local) = self.local(at, side) {
                    local.connection = None;
                }
            }
            Op::Carry {
                from,
                chunks,
                chunk,
            } => {
                self.carry(from, chunks, chunk);
            }
            Op::Tick { seconds } => {
                self.now += Duration::from_secs(seconds);
                self.pair.server.mux.tick(self.now);
                self.pair.agent.mux.tick(self.now);
            }
            Op::Pace => {
                for end in [&mut self.pair.server, &mut self.pair.agent] {
                    end.mux.pace();
                    end.release();
                }
            }
            Op::Lose => {
                self.is_lost = true;
                self.pair.server.mux.on_lost();
                self.pair.agent.mux.on_lost();
            }
        }
        self.pair.server.release();
        self.pair.agent.release();
    }

    /// Carries chunks one way; the agent accepts what is dialled.
    fn carry(&mut self, from: Side, chunks: usize, chunk: usize) -> Option<Connection> {
        if self.is_lost {
            return None;
        }
        let (sender, receiver) = match from {
            Side::Server => (&self.pair.server, &mut self.pair.agent),
            Side::Agent => (&self.pair.agent, &mut self.pair.server),
        };
        let wire = &mut self.wires[from as usize];
        let mut accepted = None;
        for _ in 0..chunks {
            if wire.is_empty() {
                match sender.mux.next_batch() {
                    Some(batch) => wire.extend_from_slice(&bytes_of(batch)),
                    None => break,
                }
            }
            for event in receiver.feed_chunk(wire.split_to(chunk.min(wire.len())).freeze()) {
                match event {
                    Event::Dial { dial, .. } => accepted = Some(receiver.mux.accept(dial).unwrap()),
                    other => panic!("{other:?}"),
                }
            }
        }
        accepted
    }

    /// Lets everything arrive and everybody read.
    fn settle(&mut self) {
        loop {
            let before = (self.pair.server.received, self.pair.agent.received);
            self.carry(Side::Server, usize::MAX, 16 * 1024);
            self.carry(Side::Agent, usize::MAX, 16 * 1024);
            let mut got = 0;
            for local in self.connections.iter_mut().flatten() {
                let had = local.got.len();
                while local.end.is_none() {
                    let before = local.got.len();
                    local.read(usize::MAX, true);
                    if local.got.len() == before {
                        break;
                    }
                }
                local.read(usize::MAX, true);
                got += local.got.len() - had;
            }
            if got == 0 && before == (self.pair.server.received, self.pair.agent.received) {
                break;
            }
        }
        self.pair.server.release();
        self.pair.agent.release();
    }

    fn check(&self) {
        for sides in &self.connections {
            let [server, agent] = sides;
            for (sender, receiver) in [(server, agent), (agent, server)] {
                assert!(
                    sender.sent.starts_with(&receiver.got),
                    "bytes that were not sent, or not in order"
                );
            }
        }
    }

    /// After settling: who is still there has everything that was accepted for it, unless it was reset or lost.
    fn check_whole(&self) {
        // An agent that resets a connection drops what its target had sent.
        let no_target_stalled = self.pair.agent.seen.stalled.get() == 0;
        for [server, agent] in &self.connections {
            // The server's end of a connection ends when the agent says so, behind all of the agent's bytes.
            if server.connection.is_some()
                && server.end.is_none_or(|end| end.is_ok())
                && no_target_stalled
            {
                assert_eq!(
                    server.got.len(),
                    agent.sent.len(),
                    "lost on the way to the server"
                );
            }
            // An agent whose target has closed takes no more; one that has not gets everything.
            if agent.connection.is_some() && agent.end.is_none() {
                assert_eq!(
                    agent.got.len(),
                    server.sent.len(),
                    "lost on the way to the agent"
                );
            }
        }
        for end in [&self.pair.server, &self.pair.agent] {
            assert_eq!(
                end.released, end.received,
                "window kept although everything is read"
            );
            assert_eq!(end.ledger.used(), 0);
            assert_eq!(end.seen.violations.get(), 0);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn whatever_both_ends_do_nothing_is_mixed_up_lost_or_kept(ops in prop::collection::vec(op(), 1..120)) {
        let mut world = World::new();
        for op in &ops {
            world.apply(op);
            world.check();
        }
        world.settle();
        world.check();
        world.check_whole();
        for local in world.connections.iter_mut().flatten() {
            local.connection = None;
        }
        world.settle();
        for end in [&world.pair.server, &world.pair.agent] {
            prop_assert_eq!((end.mux.connections(), end.ledger.used()), (0, 0));
            prop_assert_eq!(end.released, end.received);
            prop_assert!(!end.mux.has_outgoing());
        }
    }
}
