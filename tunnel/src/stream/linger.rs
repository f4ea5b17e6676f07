//! What is left of a connection when its local side has gone: what was accepted is still to be written, and what comes is dropped.

use std::{future::poll_fn, task::Poll};

use h2::Reason;
use tokio::time::{Duration, timeout};

use super::connection::{Core, Receiving};
use crate::{
    conn::Role,
    mux::{UNSENT_LIMIT, UNSENT_LIMIT_TO_TARGET},
};

/// A connection without a local side.
pub(super) struct Linger {
    core: Box<Core>,
}

impl Linger {
    pub(super) fn new(core: Box<Core>) -> Self {
        Self { core }
    }

    /// Until everything is written and the peer knows that nobody reads, or nothing has been written for too long.
    pub(super) async fn run(mut self) {
        let limit = limit(self.core.session.role());
        let mut unsent = self.core.backlog.bytes();
        while timeout(limit, self.written()).await.is_err() {
            let left = self.core.backlog.bytes();
            if left < unsent {
                unsent = left;
                continue;
            }
            tracing::debug!(
                conn = self.core.id.0,
                unsent,
                "dropped what the peer has not taken a byte of within {limit:?}"
            );
            self.core.session.observer().stalled();
            return self.core.reset(Reason::ENHANCE_YOUR_CALM);
        }
        if self.core.receiving == Receiving::Open {
            // Behind the end of our side: nobody reads any more.
            self.core.reset(Reason::NO_ERROR);
        }
    }

    /// Everything that was accepted is written. Cancel safe.
    async fn written(&mut self) {
        let core = &mut self.core;
        poll_fn(|cx| {
            core.take_in(cx);
            core.backlog.register(cx);
            if core.backlog.is_empty() || matches!(core.receiving, Receiving::Failed(_)) {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
    }
}

/// As on a packet tunnel: a client may pause for long, a target has no reason to.
fn limit(role: Role) -> Duration {
    match role {
        Role::Server => UNSENT_LIMIT_TO_TARGET,
        Role::Agent => UNSENT_LIMIT,
    }
}
