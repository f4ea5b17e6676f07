//! Counting packets without a look-up for each.

use std::{sync::Arc, time::Duration};

use prometheus::IntCounter;
use tunnel::{
    observe::{Limit, Observe},
    packet::PacketKind,
};

use super::{DialFailure, Metrics, Segment};

/// Counters of one direction, see [`Metrics::packets`].
#[derive(Debug)]
pub struct PacketCounters {
    known: [IntCounter; PacketKind::ALL.len()],
    unknown: IntCounter,
}

impl PacketCounters {
    pub(super) fn new(metrics: &Metrics, segment: Segment) -> Self {
        let counter = |kind: &str| metrics.packets.with_label_values(&[segment.name(), kind]);
        Self {
            known: PacketKind::ALL.map(|kind| counter(kind.name())),
            unknown: counter("unknown"),
        }
    }

    /// Counts one; `None` is a type that this protocol does not know.
    pub fn count(&self, kind: Option<PacketKind>) {
        // `PacketKind::ALL` is in the order of the numbers.
        kind.and_then(|kind| self.known.get(kind as usize))
            .unwrap_or(&self.unknown)
            .inc();
    }
}

/// What tunnels to agents report to.
#[derive(Debug)]
pub struct AgentObserver {
    metrics: Arc<Metrics>,
    received: PacketCounters,
    sent: PacketCounters,
}

impl AgentObserver {
    /// Reports to `metrics`.
    #[must_use]
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Self {
            received: metrics.packets(Segment::FromAgent),
            sent: metrics.packets(Segment::ToAgent),
            metrics,
        }
    }
}

impl Observe for AgentObserver {
    fn received(&self, kind: Option<PacketKind>) {
        self.received.count(kind);
    }

    fn sent(&self, kind: PacketKind) {
        self.sent.count(Some(kind));
    }

    fn data_received(&self, bytes: usize) {
        self.metrics.bytes_from_agents.inc_by(bytes as u64);
    }

    fn data_sent(&self, bytes: usize) {
        self.metrics.bytes_to_agents.inc_by(bytes as u64);
    }

    fn delivered(&self, waited: Duration) {
        self.metrics.frontend_write.observe(waited.as_secs_f64());
    }

    fn unrecognized_answer(&self) {
        self.metrics.dial_failed(DialFailure::UnrecognizedResponse);
    }

    fn violation(&self) {
        self.metrics.violations.inc();
    }

    fn stalled(&self) {
        self.metrics.stalled.inc();
    }

    fn limited(&self, limit: Limit) {
        self.metrics.limits.with_label_values(&[limit.name()]).inc();
    }
}
