//! `--service-account-token-path`, as it is when it is needed.

use std::io;
use std::path::Path;

use certs::Token;
use certs::store::MAX_TOKEN_BYTES;
use tokio::fs::File;
use tokio::io::AsyncReadExt as _;

use super::ConnectError;
use crate::config::TokenFile;

/// Most bytes of a token file that are read: the longest token and white space around it, and enough to see that it is longer.
const MAX_READ: u64 = 2 * MAX_TOKEN_BYTES as u64;

/// What the file holds now, or if that is no token, what it held last; the watcher has warned of that. Without white space around
/// it: upstream sends the file's last line feed along and fails (wire-protocol.md 4.9).
///
/// # Errors
/// [`ConnectError::Token`], if there never was one.
pub(super) async fn current(token: &TokenFile) -> Result<Token, ConnectError> {
    match (read(&token.file).await, &token.last) {
        (Err(_), Some(last)) => Ok(last.current()),
        (read, _) => read,
    }
}

async fn read(file: &Path) -> Result<Token, ConnectError> {
    let failed = |source| ConnectError::Token {
        file: file.to_owned(),
        source,
    };
    let mut bytes = Vec::new();
    let read = async {
        File::open(file)
            .await?
            .take(MAX_READ)
            .read_to_end(&mut bytes)
            .await
    };
    read.await.map_err(failed)?;
    Token::from_bytes(file, &bytes).map_err(|error| failed(io::Error::other(error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn of(file: &Path, last: Option<certs::Current<Token>>) -> Result<String, ConnectError> {
        let file = file.to_owned();
        let token = current(&TokenFile { file, last }).await?;
        Ok(token.as_str().to_owned())
    }

    #[tokio::test]
    async fn a_token_is_read_anew_each_time_without_white_space_around_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        for (content, token) in [("one", "one"), (" two\n", "two")] {
            std::fs::write(&file, content).unwrap();
            assert_eq!(of(&file, None).await.unwrap(), token);
        }
        for bad in ["", " \n", "a\nb", &"x".repeat(20_000)] {
            std::fs::write(&file, bad).unwrap();
            let error = of(&file, None).await.unwrap_err();
            assert!(matches!(error, ConnectError::Token { .. }), "{error}");
        }
    }

    #[tokio::test]
    async fn while_a_token_file_holds_no_token_the_last_one_is_sent() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        std::fs::write(&file, "first").unwrap();
        let last = certs::Watcher::new().token(&file).unwrap();
        for (content, token) in [("", "first"), ("second", "second"), ("a b", "first")] {
            std::fs::write(&file, content).unwrap();
            assert_eq!(of(&file, Some(last.clone())).await.unwrap(), token);
        }
    }
}
