//! Those who are not to suffer.

use anyhow::{Context, Result};
use e2e::{
    client::{Client, Stream},
    targets::Target,
};
use hdrhistogram::Histogram;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    task::JoinSet,
    time::{Duration, Instant, MissedTickBehavior, interval_at, sleep, timeout},
};

/// Open connections that exchange something all the time.
const CONNECTIONS: u32 = 50;

/// How often each of them does.
const PERIOD: Duration = Duration::from_millis(20);

/// What it exchanges, in bytes.
const ECHO: usize = 64;

/// Between the end of a dial and the next one.
const PAUSE: Duration = Duration::from_millis(2);

/// Who waits so long stands still, and is given up.
const LIMIT: Duration = Duration::from_secs(10);

/// What is not recorded.
const WARM_UP: Duration = Duration::from_secs(1);

/// How long everything took, in nanoseconds.
#[derive(Debug)]
pub(crate) struct Times {
    pub(crate) echo: Histogram<u64>,
    /// A dial, an echo of a byte, a close.
    pub(crate) dial: Histogram<u64>,
    /// Open connections that stood still.
    pub(crate) stuck: usize,
    /// Dials that did.
    pub(crate) stuck_dials: usize,
}

/// Open connections to an echo, through the proxy.
#[derive(Debug)]
pub(crate) struct Load {
    client: Client,
    target: Target,
    streams: Vec<Stream>,
}

impl Load {
    pub(crate) async fn open(client: Client) -> Result<Self> {
        let mut load = Self {
            client,
            target: Target::echo().await?,
            streams: Vec::new(),
        };
        load.refill().await?;
        Ok(load)
    }

    /// Opens what is missing: those that stood still have been given up.
    async fn refill(&mut self) -> Result<()> {
        while self.streams.len() < CONNECTIONS as usize {
            self.streams
                .push(self.client.dial(&self.target.name()).await?);
        }
        Ok(())
    }

    /// Exchanges at a fixed rate, and dials one by one beside it, for a warm-up and then for `time`.
    pub(crate) async fn measure(&mut self, time: Duration) -> Result<Times> {
        let now = Instant::now();
        let span = Span {
            from: now + WARM_UP,
            to: now + WARM_UP + time,
        };
        let mut times = Times {
            echo: Histogram::new(3)?,
            dial: Histogram::new(3)?,
            stuck: 0,
            stuck_dials: 0,
        };
        let mut echoes = JoinSet::new();
        for (number, stream) in (0..).zip(std::mem::take(&mut self.streams)) {
            // One behind the other, not all at once.
            let first = now + PERIOD * number / CONNECTIONS;
            echoes.spawn(exchange(stream, first, span));
        }
        self.dial(span, &mut times)
            .await
            .context("a dial beside the echoes")?;
        while let Some(done) = echoes.join_next().await {
            let (stream, echo) = done?.context("an open connection")?;
            match stream {
                Some(stream) => self.streams.push(stream),
                None => times.stuck += 1,
            }
            times.echo.add(echo)?;
        }
        self.refill().await?;
        Ok(times)
    }

    async fn dial(&self, span: Span, times: &mut Times) -> Result<()> {
        let name = self.target.name();
        while Instant::now() < span.to {
            let start = Instant::now();
            match timeout(LIMIT, dial_once(&self.client, &name)).await {
                Ok(done) => done?,
                Err(_) => times.stuck_dials += 1,
            }
            if Instant::now() >= span.from {
                times.dial.record(nanoseconds(start.elapsed())?)?;
            }
            sleep(PAUSE).await;
        }
        Ok(())
    }
}

/// What is recorded: all that ends in it or later. What began before and took longer would otherwise be missing, the worst first.
#[derive(Clone, Copy, Debug)]
struct Span {
    from: Instant,
    to: Instant,
}

/// Gives the stream back, unless it stood still.
async fn exchange(
    mut stream: Stream,
    first: Instant,
    span: Span,
) -> Result<(Option<Stream>, Histogram<u64>)> {
    let mut times = Histogram::new(3)?;
    let mut tick = interval_at(first, PERIOD);
    tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        tick.tick().await;
        let start = Instant::now();
        if start >= span.to {
            return Ok((Some(stream), times));
        }
        let Ok(done) = timeout(LIMIT, echo::<ECHO>(&mut stream)).await else {
            times.record(nanoseconds(LIMIT)?)?;
            return Ok((None, times));
        };
        done?;
        if Instant::now() >= span.from {
            // Exchanges that were left out because this one took so long would have been slow, too.
            times.record_correct(nanoseconds(start.elapsed())?, nanoseconds(PERIOD)?)?;
        }
    }
}

async fn dial_once(client: &Client, target: &str) -> Result<()> {
    let mut stream = client.dial(target).await?;
    echo::<1>(&mut stream).await?;
    Ok(stream.close().await?)
}

/// Sends `N` bytes and takes them back.
pub(crate) async fn echo<const N: usize>(stream: &mut Stream) -> Result<()> {
    let sent = [b'e'; N];
    let mut came = [0; N];
    stream.write_all(&sent).await?;
    stream.flush().await?;
    stream.read_exact(&mut came).await?;
    anyhow::ensure!(sent == came, "other bytes came back");
    Ok(())
}

fn nanoseconds(time: Duration) -> Result<u64> {
    Ok(u64::try_from(time.as_nanos())?)
}
