//! What an accept loop does with an error: never end.
//!
//! accept(2) reports two kinds. One belongs to the connection that would have been accepted, which is gone; the next
//! accept may succeed at once. The other says that something has run out, mostly file descriptors; the connection stays
//! in the queue, so the next accept fails the same way and a loop without a pause burns a core.

use std::io;
use std::time::Duration;

/// The first pause after an error that will repeat.
pub const FIRST_PAUSE: Duration = Duration::from_millis(5);

/// The longest pause: how late, at worst, the loop notices that files are free again.
pub const LONGEST_PAUSE: Duration = Duration::from_secs(1);

// The same numbers on every Linux architecture; the standard library has no `ErrorKind` for them.
const EPERM: i32 = 1;
const ENFILE: i32 = 23;
const EMFILE: i32 = 24;

/// Whose error it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AcceptFault {
    /// The connection's: it ended in the queue, or a firewall refused it. Accept again at once.
    Connection,
    /// Ours: no file descriptors are left, in the process or on the host. The operator raises the limit.
    OutOfFiles,
    /// Memory, or something this list doesn't know. Accept again after a pause.
    Other,
}

impl AcceptFault {
    /// Sorts an error of accept(2).
    pub fn of(error: &io::Error) -> Self {
        match (error.kind(), error.raw_os_error()) {
            (_, Some(EMFILE | ENFILE)) => Self::OutOfFiles,
            // accept(2), "Error handling": Linux passes pending network errors of the new socket on through accept.
            (_, Some(EPERM))
            | (
                io::ErrorKind::ConnectionAborted
                | io::ErrorKind::ConnectionReset
                | io::ErrorKind::Interrupted
                | io::ErrorKind::HostUnreachable
                | io::ErrorKind::NetworkDown
                | io::ErrorKind::NetworkUnreachable,
                _,
            ) => Self::Connection,
            _ => Self::Other,
        }
    }

    /// A label for metrics and logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Connection => "connection",
            Self::OutOfFiles => "out_of_files",
            Self::Other => "other",
        }
    }
}

/// The pauses of one accept loop: [`FIRST_PAUSE`], doubled with each error in a row up to [`LONGEST_PAUSE`].
#[derive(Debug, Clone, Default)]
pub struct AcceptBackoff {
    last: Option<Duration>,
}

impl AcceptBackoff {
    /// How long to wait before the next accept; zero if the fault was the connection's.
    pub fn on_error(&mut self, error: &io::Error) -> Duration {
        if AcceptFault::of(error) == AcceptFault::Connection {
            return Duration::ZERO;
        }
        let pause = self
            .last
            .map_or(FIRST_PAUSE, |last| (last * 2).min(LONGEST_PAUSE));
        self.last = Some(pause);
        pause
    }

    /// A connection was accepted: the next pause is the first again.
    pub fn on_success(&mut self) {
        self.last = None;
    }

    /// Whether the last accept failed in a way that lasts; the first such error is the one to log.
    pub fn is_pausing(&self) -> bool {
        self.last.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn os(code: i32) -> io::Error {
        io::Error::from_raw_os_error(code)
    }

    #[test]
    fn the_pause_doubles_up_to_a_second_and_starts_over_after_success() {
        let mut backoff = AcceptBackoff::default();
        let pauses: Vec<_> = (0..10)
            .map(|_| backoff.on_error(&os(EMFILE)).as_millis())
            .collect();
        assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 320, 640, 1000, 1000]);
        assert!(backoff.is_pausing());
        backoff.on_success();
        assert!(!backoff.is_pausing());
        assert_eq!(backoff.on_error(&os(ENFILE)), FIRST_PAUSE);
    }

    #[test]
    fn an_aborted_connection_costs_no_pause_and_forgets_none() {
        let mut backoff = AcceptBackoff::default();
        assert_eq!(
            backoff.on_error(&io::ErrorKind::ConnectionAborted.into()),
            Duration::ZERO
        );
        assert!(!backoff.is_pausing());
        backoff.on_error(&os(EMFILE));
        assert_eq!(
            backoff.on_error(&io::ErrorKind::ConnectionAborted.into()),
            Duration::ZERO
        );
        assert_eq!(backoff.on_error(&os(EMFILE)), FIRST_PAUSE * 2);
    }

    #[test]
    fn errors_are_sorted_by_whose_they_are() {
        const ECONNABORTED: i32 = 103;
        const ENOBUFS: i32 = 105;
        for (code, want) in [
            (EMFILE, AcceptFault::OutOfFiles),
            (ENFILE, AcceptFault::OutOfFiles),
            (ECONNABORTED, AcceptFault::Connection),
            (EPERM, AcceptFault::Connection),
            (ENOBUFS, AcceptFault::Other),
        ] {
            assert_eq!(AcceptFault::of(&os(code)), want, "{}", os(code));
        }
    }
}
