//! What the machine can do at the moment: microprobes, printed with every report.

use std::{
    fs,
    hint::black_box,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
};

use anyhow::{Context, Result};
use serde::Serialize;
use tokio::time::Instant;

/// Bytes of a copy that does not fit the caches.
const COPY: usize = 64 << 20;

/// Exchanges over loopback.
const EXCHANGES: u32 = 2_000;

/// What was measured.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Machine {
    /// GB/s of a copy in memory.
    pub copy: f64,
    /// Microseconds of a write of a byte and its read, over loopback, one thread.
    pub loopback: f64,
    /// Processes that run or want to, averaged over a minute.
    pub load: f64,
}

impl Machine {
    /// Takes a tenth of a second. Blocks.
    ///
    /// # Errors
    /// If loopback is not there.
    pub fn probe() -> Result<Self> {
        let text = fs::read_to_string("/proc/loadavg").context("read the load")?;
        let load = text.split(' ').next().unwrap_or_default();
        Ok(Self {
            copy: copy(),
            loopback: loopback()?,
            load: load.parse().context("the load is a number")?,
        })
    }
}

fn copy() -> f64 {
    let from = vec![1u8; COPY];
    let mut to = vec![0u8; COPY];
    let start = Instant::now();
    to.copy_from_slice(black_box(&from));
    black_box(&to);
    COPY as f64 / 1e9 / start.elapsed().as_secs_f64().max(1e-9)
}

fn loopback() -> Result<f64> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut one = TcpStream::connect(listener.local_addr()?)?;
    let (mut other, _) = listener.accept()?;
    one.set_nodelay(true)?;
    let mut byte = [0];
    let start = Instant::now();
    for _ in 0..EXCHANGES {
        one.write_all(b"1")?;
        other.read_exact(&mut byte)?;
    }
    Ok(start.elapsed().as_secs_f64() * 1e6 / f64::from(EXCHANGES))
}
