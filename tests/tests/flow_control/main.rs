//! Rows of *Flow control and head-of-line blocking*, on both kinds of tunnel between our own ends. Nothing is asserted as a time: how
//! much others suffer is what `benches --bin isolation` measures.

mod dead_tunnels;
mod links;
mod memory;
mod stalls;

use anyhow::{Context, Result};
use e2e::{
    client::{Frontend, Stream},
    harness::{Cluster, PATIENCE, TunnelKind},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::{Duration, timeout},
};

/// A test for each kind of tunnel, of functions that take one.
macro_rules! on_both_tunnels {
    ($($test:ident),* $(,)?) => {
        on_both_tunnels!(@ packet_tunnel, Packet, $($test),*);
        on_both_tunnels!(@ stream_tunnel, Stream, $($test),*);
    };
    (@ $module:ident, $kind:ident, $($test:ident),*) => {
        mod $module {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $test() -> anyhow::Result<()> {
                    super::$test(e2e::harness::TunnelKind::$kind).await
                }
            )*
        }
    };
}
use on_both_tunnels;

/// A client that nobody takes anything from for so long is held back. Long enough for what is under way to arrive anywhere.
const STILL: Duration = Duration::from_secs(2);

/// A cluster whose logs say what kind of tunnel it was about.
async fn cluster(kind: TunnelKind, frontend: Frontend) -> Result<Cluster> {
    Cluster::builder()
        .frontend(frontend)
        .tunnel(kind)
        .start()
        .await
        .with_context(|| format!("{kind:?}, {frontend}"))
}

/// Asks a source and reads the first byte of its answer, so that the rest is on its way.
async fn ask(stream: &mut Stream) -> Result<u8> {
    stream.write_all(b"?").await?;
    stream.flush().await?;
    let first = timeout(PATIENCE, stream.read_u8()).await;
    first.context("no answer")?.context("no answer")
}

/// Writes until nothing has been taken for [`STILL`]; how many bytes it were.
async fn push(stream: &mut Stream, most: u64) -> Result<u64> {
    let bytes = vec![b'p'; 64 * 1024];
    let mut pushed = 0;
    while pushed < most {
        match timeout(STILL, stream.write(&bytes)).await {
            Ok(written) => pushed += written? as u64,
            Err(_) => break,
        }
    }
    Ok(pushed)
}
