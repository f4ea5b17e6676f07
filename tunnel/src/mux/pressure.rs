//! What a slow reader costs (policy D).
//!
//! Reading never stops, or one connection would stop all. What a reader leaves is queued and charged to the
//! [`Ledger`](crate::ledger::Ledger). A connection beyond its share gets its bytes' window *withheld*; when most of the
//! tunnel's window is withheld, the tunnel is *paced* ([`Mux::pace`]); a connection beyond its share that delivers nothing for
//! [`STALL_LIMIT`] is reset. A connection that makes progress is never reset.

use std::{rc::Rc, time::Duration};

use tokio::time::Instant;

use super::{Lane, Mux};
use crate::{conn::Role, observe::Limit};

/// How long a connection beyond its share may deliver nothing before it is reset; the patience of upstream's client library.
pub const STALL_LIMIT: Duration = Duration::from_secs(10);

/// The same when the budget is nearly gone, for the one that holds most.
pub const STALL_LIMIT_WHEN_TIGHT: Duration = Duration::from_secs(1);

/// How long a server's end remembers a connection that its local side has left and whose CLOSE_RSP does not come.
pub const CLOSE_LIMIT: Duration = Duration::from_secs(30);

/// How long what a target has sent before it closed may wait for a client that has paused and grants no credit.
pub const UNSENT_LIMIT: Duration = Duration::from_secs(600);

/// How long what a client has sent before it went may wait for a target that takes not a byte; as the agent's own limit.
pub const UNSENT_LIMIT_TO_TARGET: Duration = crate::copy::FLUSH_LIMIT;

/// How often [`Mux::tick`] wants to be called.
pub const TICK: Duration = Duration::from_millis(500);

/// How often [`Mux::pace`] wants to be called while [`Mux::is_paced`].
pub const PACE: Duration = Duration::from_millis(10);

/// Most window that pacing gives away in one [`PACE`] beyond what readers took; shrinks to nothing as the budget fills.
const PACE_FLOOR: usize = 64 * 1024;

/// The peer's window as far as it is ours to give back.
#[derive(Debug, Default)]
pub(super) struct Window {
    /// Bytes of DATA received and not yet given back.
    pub(super) unreleased: usize,
    /// Of those, what connections beyond their share hold.
    pub(super) withheld: usize,
    /// Of what they held, what their readers have taken since the last [`Mux::pace`].
    pub(super) drained: usize,
    pub(super) is_paced: bool,
}

impl Mux {
    /// Window to give back to the peer now, in bytes.
    pub fn take_window(&self) -> usize {
        let window = &mut self.state.borrow_mut().window;
        let release = window.unreleased - window.withheld.min(window.unreleased);
        window.unreleased -= release;
        release
    }

    /// Whether window is withheld, because readers hold more than their share.
    pub fn is_withholding(&self) -> bool {
        self.state.borrow().window.withheld > 0
    }

    /// Enters or leaves paced mode for a tunnel whose receive window is `size` bytes; whether it is paced now.
    pub fn update_pace(&self, size: usize) -> bool {
        let window = &mut self.state.borrow_mut().window;
        let is_paced = window.withheld > size / 4 * 3;
        if is_paced && !window.is_paced {
            self.observer.limited(Limit::Paced);
            window.drained = 0;
        }
        window.is_paced = is_paced;
        is_paced
    }

    /// While paced, every [`PACE`]: gives back as much window as readers took, or a floor that shrinks with the budget.
    /// What comes in by it is charged, so that the other connections go on and the slow ones cannot take all.
    pub fn pace(&self) {
        let mut state = self.state.borrow_mut();
        let share = self.ledger.free().saturating_mul(PACE_FLOOR) / self.ledger.budget().max(1);
        // What readers took has been given back already; the floor is what it lacks.
        let grant = share.saturating_sub(state.window.drained);
        state.window.drained = 0;
        state.window.withheld = state.window.withheld.saturating_sub(grant);
    }

    /// Every [`TICK`]: resets stalled connections and forgets those whose close is not answered.
    pub fn tick(&self, now: Instant) {
        let mut victims = Vec::new();
        let mut forgotten = Vec::new();
        let mut unsent = Vec::new();
        let mut biggest: Option<(usize, Rc<Lane>)> = None;
        let is_tight = self.ledger.is_tight();
        let unsent_limit = match self.role {
            Role::Server => UNSENT_LIMIT_TO_TARGET,
            Role::Agent => UNSENT_LIMIT,
        };
        for lane in self.state.borrow().lanes.values() {
            let conn = lane.conn.borrow();
            let idle = lane.idle_for(now, conn.progress(), conn.is_over() || conn.is_abandoned());
            if conn.is_abandoned() {
                if conn.is_finished() && idle >= CLOSE_LIMIT {
                    forgotten.push(conn.id());
                } else if !conn.is_finished() && idle >= unsent_limit {
                    unsent.push(lane.clone());
                }
            } else if conn.is_over() && !matches!(conn.end(), Some(Err(_))) {
                if idle >= STALL_LIMIT {
                    victims.push(lane.clone());
                } else if is_tight
                    && idle >= STALL_LIMIT_WHEN_TIGHT
                    && biggest
                        .as_ref()
                        .is_none_or(|(charged, _)| conn.charged() > *charged)
                {
                    biggest = Some((conn.charged(), lane.clone()));
                }
            }
        }
        if victims.is_empty() {
            victims.extend(biggest.map(|(_, lane)| lane));
        }
        for lane in victims {
            let mut conn = lane.conn.borrow_mut();
            tracing::warn!(
                conn = conn.id().0,
                held = conn.charged(),
                "reset a connection whose reader stalled"
            );
            let freed = conn.reset_stalled();
            drop(conn);
            self.observer.stalled();
            let mut state = self.state.borrow_mut();
            state.free_window(freed);
            state.schedule(&lane);
            drop(state);
            lane.wake_both();
        }
        let mut state = self.state.borrow_mut();
        for lane in unsent {
            lane.conn.borrow_mut().give_up_sending();
            state.schedule(&lane);
        }
        for conn in forgotten {
            state.lanes.remove(conn);
        }
    }
}
