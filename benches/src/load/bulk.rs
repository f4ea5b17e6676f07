//! Transfers.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    task::JoinSet,
    time::Instant,
};

use super::{
    dialer::Dialer,
    target::{Job, PIECE},
};

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the target.
    Up,
    /// From the target to the client.
    Down,
}

impl Direction {
    /// As tables call it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Down => "down",
        }
    }
}

/// What was carried.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Moved {
    /// Bytes of payload.
    pub bytes: u64,
    /// From the first dial to the last byte.
    pub took: Duration,
}

impl Moved {
    /// MiB a second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.mib() / self.took.as_secs_f64().max(1e-9)
    }

    /// MiB.
    #[must_use]
    pub fn mib(&self) -> f64 {
        self.bytes as f64 / f64::from(1 << 20)
    }
}

/// One transfer of `len` bytes, dial included.
///
/// # Errors
/// If the dial fails, or the connection ends early.
pub async fn transfer(dialer: &Dialer, direction: Direction, len: u64) -> Result<Moved> {
    let start = Instant::now();
    match direction {
        Direction::Up => {
            let mut stream = dialer.ask(Job::Take(len)).await?;
            let piece = vec![0x5a; PIECE];
            let mut left = len;
            while left > 0 {
                let now = usize::try_from(left).unwrap_or(PIECE).min(PIECE);
                let piece = piece.get(..now).unwrap_or_default();
                stream.write_all(piece).await.context("send up")?;
                left -= now as u64;
            }
            stream.flush().await?;
            stream.read_u8().await.context("word that all came")?;
        }
        Direction::Down => {
            let mut stream = dialer.ask(Job::Send(len)).await?;
            let mut buffer = vec![0; PIECE];
            let mut left = len;
            while left > 0 {
                let read = stream.read(&mut buffer).await.context("read down")?;
                ensure!(read > 0, "{left} of {len} bytes are missing");
                left = left.saturating_sub(read as u64);
            }
        }
    }
    Ok(Moved {
        bytes: len,
        took: start.elapsed(),
    })
}

/// Transfers of `len` bytes, one behind the other, for at least `time`.
///
/// # Errors
/// As [`transfer`].
pub async fn repeat(
    dialer: &Dialer,
    direction: Direction,
    len: u64,
    time: Duration,
) -> Result<Moved> {
    let start = Instant::now();
    let mut bytes = 0;
    while bytes == 0 || start.elapsed() < time {
        bytes += transfer(dialer, direction, len).await?.bytes;
    }
    Ok(Moved {
        bytes,
        took: start.elapsed(),
    })
}

/// `count` transfers of `len` bytes at once: all of them together, and each.
///
/// # Errors
/// As [`transfer`].
pub async fn many(
    dialer: &Dialer,
    direction: Direction,
    count: usize,
    len: u64,
) -> Result<(Moved, Vec<Moved>)> {
    let start = Instant::now();
    let mut transfers = JoinSet::new();
    for _ in 0..count {
        let dialer = dialer.clone();
        transfers.spawn(async move { transfer(&dialer, direction, len).await });
    }
    let mut each = Vec::new();
    while let Some(done) = transfers.join_next().await {
        each.push(done??);
    }
    let all = Moved {
        bytes: len * count as u64,
        took: start.elapsed(),
    };
    Ok((all, each))
}
