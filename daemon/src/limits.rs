//! The process's limit on open files.
//!
//! A relay holds a file descriptor or two for each connection, and the usual soft limit is 1 024 where the hard limit
//! is far higher. Go raises the soft limit by itself at start, so upstream's operators never had to.

use std::fmt;
use std::io;

use rlimit::Resource;

/// What [`raise_open_files`] found and got. [`rlimit::INFINITY`] stands for no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenFiles {
    /// The soft limit before.
    pub before: u64,
    /// The soft limit now: how many files the process may hold open.
    pub now: u64,
}

/// `1024 -> 1048576`, or one number if nothing changed.
impl fmt::Display for OpenFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.before != self.now {
            write!(f, "{} -> ", Limit(self.before))?;
        }
        Limit(self.now).fmt(f)
    }
}

struct Limit(u64);

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            rlimit::INFINITY => f.write_str("unlimited"),
            number => number.fmt(f),
        }
    }
}

/// Raises the soft limit on open files to the hard limit, which needs no privilege.
///
/// # Errors
///
/// As getrlimit(2) and setrlimit(2); a caller logs it and goes on with the limit it has.
pub fn raise_open_files() -> io::Result<OpenFiles> {
    let (before, hard) = Resource::NOFILE.get()?;
    if before < hard {
        Resource::NOFILE.set(hard, hard)?;
    }
    let (now, _) = Resource::NOFILE.get()?;
    Ok(OpenFiles { before, now })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_becomes_the_hard_limit() {
        let (_, hard) = Resource::NOFILE.get().unwrap();
        let raised = raise_open_files().unwrap();
        assert_eq!(raised.now, hard);
        assert_eq!(Resource::NOFILE.get().unwrap(), (hard, hard));
        assert_eq!(
            raise_open_files().unwrap(),
            OpenFiles {
                before: hard,
                now: hard
            }
        );
    }

    #[test]
    fn the_change_reads_as_one() {
        assert_eq!(
            OpenFiles {
                before: 1024,
                now: 4096
            }
            .to_string(),
            "1024 -> 4096"
        );
        assert_eq!(
            OpenFiles {
                before: 4096,
                now: 4096
            }
            .to_string(),
            "4096"
        );
        assert_eq!(
            OpenFiles {
                before: 1024,
                now: rlimit::INFINITY
            }
            .to_string(),
            "1024 -> unlimited"
        );
    }
}
