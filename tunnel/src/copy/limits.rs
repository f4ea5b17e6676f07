//! How long what is left to do may take once a side has ended.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::time::{Instant, Sleep, sleep};

use super::{CLOSING_LIMIT, End, FLUSH_LIMIT, HALF_CLOSED_LIMIT, HANG_UP_CHECK, LINGER};

/// What is left to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Regime {
    /// Deliver what was accepted before the end.
    Flushing,
    /// Drop what the socket's peer still sends.
    Lingering,
    /// All of one direction: the other has ended in order.
    HalfClosed {
        /// By the socket's peer, who may since have gone for good.
        by_socket: bool,
    },
}

impl Regime {
    /// Until the limit is first looked at, and until it has passed in any case.
    fn limits(self) -> (Duration, Duration) {
        match self {
            Self::Flushing => (FLUSH_LIMIT, CLOSING_LIMIT),
            Self::Lingering => (LINGER, LINGER),
            // At once: a peer that closes mostly closes both.
            Self::HalfClosed { by_socket: true } => (Duration::ZERO, HALF_CLOSED_LIMIT),
            Self::HalfClosed { by_socket: false } => (HALF_CLOSED_LIMIT, HALF_CLOSED_LIMIT),
        }
    }
}

/// The limit that runs, if one does.
#[derive(Debug, Default)]
pub(super) struct Limits(Option<Limit>);

#[derive(Debug)]
struct Limit {
    regime: Regime,
    timer: Pin<Box<Sleep>>,
    until: Instant,
}

impl Limits {
    /// Ready when the connection is to end. `has_progressed`: bytes have moved since the last call. `is_gone` says whether the
    /// socket's peer is known to read no more.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        regime: Regime,
        has_progressed: bool,
        is_gone: impl Fn() -> bool,
    ) -> Poll<End> {
        let now = Instant::now();
        let limit = match &mut self.0 {
            Some(limit) if limit.regime == regime => limit,
            _ => {
                let (first, last) = regime.limits();
                self.0.insert(Limit {
                    regime,
                    timer: Box::pin(sleep(first)),
                    until: now + last,
                })
            }
        };
        match regime {
            Regime::Lingering => {
                ready!(limit.timer.as_mut().poll(cx));
                Poll::Ready(End::Closed)
            }
            Regime::Flushing => {
                if has_progressed {
                    let next = (now + FLUSH_LIMIT).min(limit.until);
                    limit.timer.as_mut().reset(next);
                }
                ready!(limit.timer.as_mut().poll(cx));
                Poll::Ready(End::NotFlushed)
            }
            Regime::HalfClosed { by_socket } => {
                if has_progressed {
                    limit.until = now + HALF_CLOSED_LIMIT;
                }
                loop {
                    ready!(limit.timer.as_mut().poll(cx));
                    if by_socket && is_gone() {
                        return Poll::Ready(End::Closed);
                    }
                    if now >= limit.until {
                        return Poll::Ready(End::HalfClosed);
                    }
                    let next = if by_socket {
                        limit.until.min(now + HANG_UP_CHECK)
                    } else {
                        limit.until
                    };
                    limit.timer.as_mut().reset(next);
                }
            }
        }
    }
}
