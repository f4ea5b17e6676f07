//! Ports for processes that cannot be told 0.
//!
//! Below the range that the kernel hands out by itself, so that no outgoing connection of the tests can take one before
//! its process has started. Test processes that run at once share the range in blocks: whoever holds the lock on a block's
//! file, until it ends, owns the block.

use std::{
    env,
    fs::{self, File, TryLockError},
    net::{Ipv6Addr, TcpListener},
    ops::Range,
    path::PathBuf,
    sync::{Mutex, PoisonError},
};

use anyhow::{Context, Result, bail};

/// Above the ports of the field (8090 to 8095 and their like), below Linux's ephemeral range (from 32768).
const PORTS: Range<u16> = 17_000..32_000;

const BLOCK: u16 = 50;

struct Block {
    ports: Range<u16>,
    /// Held for its lock.
    _lock: File,
}

static BLOCKS: Mutex<Vec<Block>> = Mutex::new(Vec::new());

/// A TCP port that nothing listens on, never given twice to this process nor to another one that runs at the same time.
///
/// # Errors
/// If all ports are taken, or the folder for temporary files cannot be written.
pub fn free_port() -> Result<u16> {
    let mut blocks = BLOCKS.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        if let Some(block) = blocks.last_mut()
            && let Some(port) = block.ports.find(|&port| is_free(port))
        {
            return Ok(port);
        }
        blocks.push(claim_block()?);
    }
}

fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).is_ok()
        && TcpListener::bind(("127.0.0.1", port)).is_ok()
}

fn claim_block() -> Result<Block> {
    let folder = lock_folder()?;
    let count = PORTS.len() / usize::from(BLOCK);
    let first = fastrand::usize(..count);
    for number in (0..count).map(|step| (first + step) % count) {
        let path = folder.join(number.to_string());
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .with_context(|| format!("open {}", path.display()))?;
        match file.try_lock() {
            Ok(()) => {
                let start = PORTS.start + u16::try_from(number)? * BLOCK;
                return Ok(Block {
                    ports: start..start + BLOCK,
                    _lock: file,
                });
            }
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("lock {}", path.display()));
            }
        }
    }
    bail!("all blocks of ports are taken")
}

fn lock_folder() -> Result<PathBuf> {
    let folder = env::temp_dir().join("adit-e2e-ports");
    fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_port_is_never_given_twice() {
        let ports: HashSet<u16> = (0..120).map(|_| free_port().unwrap()).collect();
        assert_eq!(ports.len(), 120);
        assert!(ports.iter().all(|port| PORTS.contains(port)));
    }
}
