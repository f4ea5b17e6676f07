//! What tunnels report to.

use prometheus::IntCounter;
use tunnel::{
    observe::{Limit, Observe},
    packet::PacketKind,
};

use super::Metrics;

/// Counts what tunnels do, without a look-up for a packet.
#[derive(Debug)]
pub(crate) struct TunnelObserver {
    received: [IntCounter; PacketKind::ALL.len()],
    received_unknown: IntCounter,
    sent: [IntCounter; PacketKind::ALL.len()],
    limits: [IntCounter; Limit::ALL.len()],
    stalled: IntCounter,
    violations: IntCounter,
    bytes_to_targets: IntCounter,
    bytes_from_targets: IntCounter,
}

impl TunnelObserver {
    pub(super) fn new(metrics: &Metrics) -> Self {
        let counter =
            |segment: &str, kind: &str| metrics.packets.with_label_values(&[segment, kind]);
        Self {
            received: PacketKind::ALL.map(|kind| counter("to_agent", kind.name())),
            received_unknown: counter("to_agent", "unknown"),
            sent: PacketKind::ALL.map(|kind| counter("from_agent", kind.name())),
            limits: Limit::ALL.map(|limit| metrics.limit_hits.with_label_values(&[limit.name()])),
            stalled: metrics.stalled.clone(),
            violations: metrics.violations.clone(),
            bytes_to_targets: metrics.bytes_to_targets.clone(),
            bytes_from_targets: metrics.bytes_from_targets.clone(),
        }
    }
}

impl Observe for TunnelObserver {
    fn received(&self, kind: Option<PacketKind>) {
        // `PacketKind::ALL` is in the order of the numbers.
        let counter = kind.and_then(|kind| self.received.get(kind as usize));
        counter.unwrap_or(&self.received_unknown).inc();
    }

    fn sent(&self, kind: PacketKind) {
        if let Some(counter) = self.sent.get(kind as usize) {
            counter.inc();
        }
    }

    fn data_received(&self, bytes: usize) {
        self.bytes_to_targets.inc_by(bytes as u64);
    }

    fn data_sent(&self, bytes: usize) {
        self.bytes_from_targets.inc_by(bytes as u64);
    }

    fn violation(&self) {
        self.violations.inc();
    }

    fn stalled(&self) {
        self.stalled.inc();
    }

    fn limited(&self, limit: Limit) {
        for (of, counter) in Limit::ALL.iter().zip(&self.limits) {
            if *of == limit {
                counter.inc();
            }
        }
    }
}
