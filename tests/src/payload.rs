//! Bytes that say themselves what must follow.
//!
//! The first eight bytes are a seed, from which all others follow. So a receiver that knows nothing finds the first byte that
//! is lost, doubled or somebody else's, which a checksum would not tell. Comparing slices is fast in debug builds, too.

use std::{borrow::Cow, io, pin::pin, sync::OnceLock};

use anyhow::{Result, ensure};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// A prime, so that a shift by whole packets, pages or buffers never fits the pattern by chance.
const PERIOD: usize = 65_521;

const SEED_LEN: usize = size_of::<u64>();

/// Some bytes, given by their seed and number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Payload {
    seed: u64,
    len: u64,
}

impl Payload {
    /// `len` bytes that nobody else has.
    #[must_use]
    pub fn random(len: u64) -> Self {
        Self {
            seed: fastrand::u64(..),
            len,
        }
    }

    /// How many bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Writes all of them and flushes, and does not close.
    ///
    /// # Errors
    /// Those of `writer`.
    pub async fn write_to(&self, writer: impl AsyncWrite) -> io::Result<()> {
        let mut writer = pin!(writer);
        let mut position = 0;
        while position < self.len {
            let part = expected(self.seed, position);
            let left = usize::try_from(self.len - position).unwrap_or(usize::MAX);
            let part = part.get(..left).unwrap_or(&part);
            writer.write_all(part).await?;
            position += part.len() as u64;
        }
        writer.flush().await
    }

    /// Checks that `received` is all of it and nothing else.
    ///
    /// # Errors
    /// With what is missing or different.
    pub fn check(&self, received: &Received) -> Result<()> {
        let head = usize::try_from(self.len.min(SEED_LEN as u64))?;
        let seed = self.seed.to_le_bytes();
        ensure!(
            received.bytes == self.len,
            "{} of {} bytes came ({received:?})",
            received.bytes,
            self.len
        );
        ensure!(
            received.head.get(..head) == seed.get(..head),
            "somebody else's bytes came"
        );
        ensure!(
            received.first_wrong.is_none(),
            "wrong from byte {:?} on",
            received.first_wrong
        );
        Ok(())
    }
}

/// What came.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// How many bytes.
    pub bytes: u64,
    /// Where the first byte stands that does not follow from the seed.
    pub first_wrong: Option<u64>,
    /// The error that ended it; `None` for an orderly end.
    pub error: Option<io::ErrorKind>,
    head: [u8; SEED_LEN],
}

impl Received {
    /// Reads to the end, or to an error.
    pub async fn read(reader: impl AsyncRead) -> Self {
        let mut received = Self::default();
        received.read_more(reader, u64::MAX).await;
        received
    }

    /// Reads until `len` bytes have come, the end, or an error.
    pub async fn read_exactly(reader: impl AsyncRead, len: u64) -> Self {
        let mut received = Self::default();
        received.read_more(reader, len).await;
        received
    }

    async fn read_more(&mut self, reader: impl AsyncRead, len: u64) {
        let mut reader = pin!(reader);
        let mut buffer = vec![0; 64 * 1024];
        while self.bytes < len {
            let wanted = usize::try_from(len - self.bytes).unwrap_or(usize::MAX);
            let room = wanted.min(buffer.len());
            match reader
                .read(buffer.get_mut(..room).unwrap_or_default())
                .await
            {
                Ok(0) => return,
                Ok(count) => self.push(buffer.get(..count).unwrap_or_default()),
                Err(error) => {
                    self.error = Some(error.kind());
                    return;
                }
            }
        }
    }

    fn push(&mut self, mut bytes: &[u8]) {
        while let Some((&first, rest)) = bytes.split_first()
            && let Ok(position) = usize::try_from(self.bytes)
            && let Some(slot) = self.head.get_mut(position)
        {
            *slot = first;
            self.bytes += 1;
            bytes = rest;
        }
        let seed = u64::from_le_bytes(self.head);
        while !bytes.is_empty() {
            let pattern = expected(seed, self.bytes);
            let (now, later) = bytes.split_at(bytes.len().min(pattern.len()));
            if self.first_wrong.is_none()
                && pattern.get(..now.len()) != Some(now)
                && let Some(at) = now.iter().zip(&*pattern).position(|(a, b)| a != b)
            {
                self.first_wrong = Some(self.bytes + at as u64);
            }
            self.bytes += now.len() as u64;
            bytes = later;
        }
    }
}

/// What a payload of this seed holds from `position` on, up to a length of our choice.
fn expected(seed: u64, position: u64) -> Cow<'static, [u8]> {
    if position < SEED_LEN as u64 {
        let seed = seed.to_le_bytes();
        let at = usize::try_from(position).unwrap_or(SEED_LEN);
        return seed.get(at..).unwrap_or_default().to_vec().into();
    }
    let start = (seed % PERIOD as u64 + position % PERIOD as u64) % PERIOD as u64;
    let start = usize::try_from(start).unwrap_or_default();
    pattern()
        .get(start..start + PERIOD)
        .unwrap_or_default()
        .into()
}

/// The period, twice, so that one lies contiguous from every start.
fn pattern() -> &'static [u8] {
    static PATTERN: OnceLock<Vec<u8>> = OnceLock::new();
    PATTERN.get_or_init(|| {
        let mut bytes = vec![0; PERIOD];
        fastrand::Rng::with_seed(0xAD17).fill(&mut bytes);
        bytes.repeat(2)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn bytes(payload: Payload) -> Vec<u8> {
        let mut bytes = Vec::new();
        payload.write_to(&mut bytes).await.unwrap();
        bytes
    }

    #[tokio::test]
    async fn a_payload_that_comes_whole_is_right_whatever_its_length() {
        for len in [0, 1, 7, 8, 9, 65_521, 200_000] {
            let payload = Payload::random(len);
            let bytes = bytes(payload).await;
            assert_eq!(bytes.len() as u64, len);
            payload.check(&Received::read(&bytes[..]).await).unwrap();
        }
    }

    #[tokio::test]
    async fn loss_repetition_and_mixture_are_found() {
        let payload = Payload::random(300_000);
        let whole = bytes(payload).await;
        let check = async |bytes: &[u8]| payload.check(&Received::read(bytes).await);
        let without = [&whole[..100_000], &whole[116_384..]].concat();
        check(&without).await.unwrap_err();
        let twice = [&whole[..100_000], &whole[83_616..283_616]].concat();
        assert_eq!(twice.len(), whole.len());
        assert!(format!("{}", check(&twice).await.unwrap_err()).contains("100000"));
        let other = bytes(Payload::random(300_000)).await;
        check(&other).await.unwrap_err();
        check(&[&whole[..], &[0]].concat()).await.unwrap_err();
    }
}
