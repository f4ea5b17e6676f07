//! Messages of one byte, each of them a frame. `h2` ends a connection for too many small frames that nobody has taken out of it
//! (`SMALL_FRAME_BUDGET`).

use tunnel::link::SMALL_FRAME_BUDGET;

use super::*;

const KEYSTROKES: usize = 250_000;

const SHELLS: usize = 10;

/// A message of one byte as a frame, without its head.
const FRAME: usize = 14;

/// What `h2` charges for it.
const COST: usize = 256 - FRAME;

// Unread, they would cost three times what h2 lets pass.
const _: () = assert!(KEYSTROKES * COST > SMALL_FRAME_BUDGET * 2);

/// One end of ours, a peer that does as it likes, and connections between them.
struct Typist {
    raw: Raw,
    connections: Vec<Connection>,
    server_end: JoinHandle<LinkEnd>,
}

impl Typist {
    async fn new(builder: &client::Builder, pipe: usize, connections: usize) -> Self {
        let (near, far) = duplex(pipe);
        let server = mux(Role::Server);
        let server_end = spawn_local(serve(near, server.clone()));
        let mut typist = Self {
            raw: Raw::call_by(builder, far).await,
            connections: Vec::new(),
            server_end,
        };
        for id in 1..=i64::try_from(connections).unwrap() {
            let dial = spawn_local(server.dial("tcp", "a:1"));
            typist.raw.accept(ConnectId(id)).await;
            typist.connections.push(dial.await.unwrap().unwrap());
        }
        typist
    }

    /// Types on `connections` in turn, and waits until all of it has been read.
    async fn type_keys(&mut self, connections: &[Connection]) {
        let keystrokes: Vec<_> = connections
            .iter()
            .map(|connection| {
                message(&Packet::Data {
                    conn: connection.id(),
                    payload: Bytes::from_static(b"x"),
                })
            })
            .collect();
        assert!(keystrokes.iter().all(|keystroke| keystroke.len() == FRAME));
        let writer = async {
            for keystroke in keystrokes.iter().cycle().take(KEYSTROKES) {
                self.raw.send(keystroke.clone()).await;
            }
        };
        let reader = async {
            let mut total = 0;
            for connection in connections {
                let mut got = 0;
                while got < KEYSTROKES / connections.len() {
                    got += read(connection).await.unwrap().len();
                }
                total += got;
            }
            total
        };
        let both = async { tokio::join!(writer, reader) };
        let ((), total) = timeout(PATIENCE, both).await.unwrap();
        assert_eq!(total, KEYSTROKES);
        assert!(!self.server_end.is_finished());
    }
}

#[tokio::test(start_paused = true)]
async fn thousands_of_keystrokes_beside_a_stalled_reader_are_survived() {
    on_a_worker(async {
        let mut typist = Typist::new(&link::client_builder(), 1 << 20, 1 + SHELLS).await;
        let mut connections = std::mem::take(&mut typist.connections);
        let stalled = connections.remove(0);
        // Beyond the third of the budget that a single reader gets, so that its window is withheld.
        let bulk = message(&Packet::Data {
            conn: stalled.id(),
            payload: pattern(1, 64 * 1024),
        });
        for _ in 0..DEFAULT_BUDGET / 3 / (64 * 1024) + 16 {
            for start in (0..bulk.len()).step_by(16 * 1024) {
                let piece = bulk.slice(start..bulk.len().min(start + 16 * 1024));
                typist.raw.send(piece).await;
            }
        }
        typist.type_keys(&connections).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn thousands_of_keystrokes_that_come_at_once_are_survived() {
    on_a_worker(async {
        // A peer that has all of them ready before it writes one, and a pipe that takes them in one turn.
        let mut builder = link::client_builder();
        builder.max_send_buffer_size(KEYSTROKES * FRAME);
        let mut typist = Typist::new(&builder, 2 * KEYSTROKES * FRAME, SHELLS).await;
        let connections = std::mem::take(&mut typist.connections);
        typist.type_keys(&connections).await;
    })
    .await;
}
