//! What is in use now, behind a `watch`, and how file contents are proved before they get there.
//!
//! A recipe makes one product (a TLS configuration, a token) of the contents of its files, or says why not. Who
//! reads the files and when is [`crate::reload`]'s business.

use std::fmt;
use std::future;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::watch;

use crate::pem::LoadError;
use crate::tls::ConfigError;

pub(crate) mod recipe;

/// The value in use now. Cheap to clone; each clone remembers by itself what it has seen.
///
/// Take it anew for each connection, and keep it no longer than the handshake.
#[derive(Clone, Debug)]
pub struct Current<T> {
    receiver: watch::Receiver<T>,
}

impl<T: Clone> Current<T> {
    /// A value that never changes: for tests, and for material that has no files.
    #[must_use]
    pub fn fixed(value: T) -> Self {
        Self::new(watch::channel(value).1)
    }

    pub(crate) fn new(receiver: watch::Receiver<T>) -> Self {
        Self { receiver }
    }

    /// The value now. Never waits.
    #[must_use]
    pub fn current(&self) -> T {
        self.receiver.borrow().clone()
    }

    /// The value now, noted as seen: [`changed`](Self::changed) then waits for one after it, and misses none between.
    #[must_use]
    pub fn current_seen(&mut self) -> T {
        self.receiver.borrow_and_update().clone()
    }

    /// Whether there is a value that this clone has not seen.
    #[must_use]
    pub fn has_changed(&self) -> bool {
        // Without a source there will be none.
        self.receiver.has_changed().unwrap_or(false)
    }

    /// Waits for a value that this clone has not seen, and notes it as seen. For ever if there can be none. Cancel safe.
    pub async fn changed(&mut self) {
        if self.receiver.changed().await.is_err() {
            // Nobody is left to change it, and the value stays good.
            future::pending::<()>().await;
        }
    }
}

/// The files of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerFiles {
    /// Certificate chain.
    pub certificate: PathBuf,
    /// Its key; may be the same file.
    pub key: PathBuf,
    /// CA bundle for clients. With `None`, clients are not asked for a certificate.
    pub client_ca: Option<PathBuf>,
}

/// The files of a dialler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientFiles {
    /// CA bundle for servers.
    pub ca: PathBuf,
    /// Certificate chain and key to present.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// Longest token that is accepted, in bytes; a service account's has about 1 KiB.
pub const MAX_TOKEN_BYTES: usize = 16 * 1024;

/// A bearer token: not empty, visible ASCII, white space around it taken off. `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Arc<str>);

impl Token {
    /// Checks the content of a token file; `file` is what errors name.
    ///
    /// # Errors
    ///
    /// [`LoadError::Empty`], [`LoadError::BadToken`]; neither shows any of it.
    pub fn from_bytes(file: &Path, bytes: &[u8]) -> Result<Self, LoadError> {
        let bad = |reason| LoadError::BadToken {
            file: file.to_owned(),
            reason,
        };
        let token = bytes.trim_ascii();
        if token.is_empty() {
            return Err(LoadError::Empty {
                file: file.to_owned(),
            });
        }
        if token.len() > MAX_TOKEN_BYTES {
            return Err(bad("is longer than 16 KiB"));
        }
        if !token.iter().all(u8::is_ascii_graphic) {
            return Err(bad("has characters other than visible ASCII"));
        }
        let token = std::str::from_utf8(token).map_err(|_| bad("is not ASCII"))?;
        Ok(Self(token.into()))
    }

    /// The token. Secret.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// Why files give nothing that can be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// A file is at fault.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The files are fine, together with the options they are not.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_change_between_look_and_wait_is_not_missed() {
        let (sender, receiver) = watch::channel(1);
        let mut current = Current::new(receiver);
        assert_eq!(current.current_seen(), 1);
        sender.send_replace(2);
        current.changed().await;
        assert_eq!(current.current(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_value_without_a_source_stays_and_never_changes() {
        let mut current = Current::fixed("a");
        let waited = tokio::time::timeout(std::time::Duration::from_secs(3600), current.changed());
        assert!(waited.await.is_err());
        assert_eq!(current.current(), "a");
    }

    #[test]
    fn a_token_is_trimmed_and_its_debug_output_hides_it() {
        let token = Token::from_bytes(Path::new("t"), b"  abc.def\r\n").unwrap();
        assert_eq!(token.as_str(), "abc.def");
        assert_eq!(format!("{token:?}"), "Token(..)");
    }

    #[test]
    fn what_cannot_be_a_token_is_refused_without_being_shown() {
        let long = vec![b'a'; MAX_TOKEN_BYTES + 1];
        for bad in [
            &b""[..],
            b" \n",
            b"secret\nsecret",
            b"secret\0",
            b"secret\xff",
            "secr\u{e9}t".as_bytes(),
            &long,
        ] {
            let error = Token::from_bytes(Path::new("token-file"), bad).unwrap_err();
            let text = error.to_string();
            assert!(
                text.contains("token-file") && !text.contains("secr"),
                "{text}"
            );
        }
        assert!(Token::from_bytes(Path::new("t"), &long[1..]).is_ok());
    }
}
