//! What is measured, and what of it was to be reached.

use benches::pair::Pair;

/// One number of a pair in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Metric {
    CpuUp,
    CpuDown,
    RateUp,
    RateDown,
    ManyRateUp,
    ManyRateDown,
    ManyCpuUp,
    ManyCpuDown,
    FairUp,
    FairDown,
    EchoP50,
    EchoP99,
    LoadP50,
    LoadP99,
    LoadP999,
    LoadCpu,
    BesideUpP50,
    BesideUpP99,
    BesideUpShare,
    BesideDownP50,
    BesideDownP99,
    BesideDownShare,
    DialRate,
    DialP99,
    DialCpu,
    IdleServer,
    IdleAgent,
    BurstServer,
    BurstAgent,
    AgentMemory,
    StormFullCpu,
    StormFullTime,
    StormResumedCpu,
    StormResumedTime,
    Stalled1,
    Stalled1P99,
    Stalled70,
    Stalled300,
    Stalled2000,
    StalledServer,
    StalledAgent,
    GrpcCpuUp,
    GrpcCpuDown,
    RestServer,
    RestAgent,
    Binary,
    ReadyServer,
    ReadyAgent,
}

/// Which of two values is the better one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Better {
    Less,
    More,
}

/// What was to be reached. A goal against somebody is how many times better, at least.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Goal {
    /// Both our pairs against upstream's.
    Upstream(f64),
    /// A pair against the bare relay.
    Bare(Pair, f64),
    /// Each pair with one end of upstream's against both of upstream's.
    Mixed(f64),
    /// The value itself is at most this, whoever else has what.
    AtMost(Pair, f64),
    /// At least this.
    AtLeast(Pair, f64),
}

/// What there is to know of a metric.
#[derive(Debug)]
pub(crate) struct Spec {
    /// Of the table of goals.
    pub(crate) row: &'static str,
    pub(crate) what: &'static str,
    pub(crate) better: Better,
    pub(crate) goals: Vec<Goal>,
}

/// Mixed pairs are never worse, and cost so many times less CPU.
const MIXED: f64 = 1.0;
const MIXED_CPU: f64 = 1.6;

/// `--memory-budget` of 64 MiB and a tenth.
const BUDGET: f64 = 64.0 * 1.1;

impl Metric {
    pub(crate) const ALL: [Self; 48] = [
        Self::CpuUp,
        Self::CpuDown,
        Self::RateUp,
        Self::RateDown,
        Self::ManyRateUp,
        Self::ManyRateDown,
        Self::ManyCpuUp,
        Self::ManyCpuDown,
        Self::FairUp,
        Self::FairDown,
        Self::EchoP50,
        Self::EchoP99,
        Self::LoadP50,
        Self::LoadP99,
        Self::LoadP999,
        Self::LoadCpu,
        Self::BesideUpP50,
        Self::BesideUpP99,
        Self::BesideUpShare,
        Self::BesideDownP50,
        Self::BesideDownP99,
        Self::BesideDownShare,
        Self::DialRate,
        Self::DialP99,
        Self::DialCpu,
        Self::IdleServer,
        Self::IdleAgent,
        Self::BurstServer,
        Self::BurstAgent,
        Self::AgentMemory,
        Self::StormFullCpu,
        Self::StormFullTime,
        Self::StormResumedCpu,
        Self::StormResumedTime,
        Self::Stalled1,
        Self::Stalled1P99,
        Self::Stalled70,
        Self::Stalled300,
        Self::Stalled2000,
        Self::StalledServer,
        Self::StalledAgent,
        Self::GrpcCpuUp,
        Self::GrpcCpuDown,
        Self::RestServer,
        Self::RestAgent,
        Self::Binary,
        Self::ReadyServer,
        Self::ReadyAgent,
    ];

    /// Echoes beside so many stalled readers, by those without.
    pub(crate) fn stalled(count: usize) -> Option<Self> {
        match count {
            1 => Some(Self::Stalled1),
            70 => Some(Self::Stalled70),
            300 => Some(Self::Stalled300),
            2_000 => Some(Self::Stalled2000),
            _ => None,
        }
    }

    pub(crate) fn spec(self) -> Spec {
        use Better::{Less, More};
        use Goal::{Mixed, Upstream};
        let bare = |stream, packet| {
            vec![
                Goal::Bare(Pair::Stream, stream),
                Goal::Bare(Pair::Packet, packet),
            ]
        };
        let ours = |goal: fn(Pair, f64) -> Goal, value| {
            vec![goal(Pair::Stream, value), goal(Pair::Packet, value)]
        };
        let (row, what, better, goals) = match self {
            Self::CpuUp => (
                "E1",
                "CPU-s/GiB up",
                Less,
                [
                    vec![Upstream(7.5), Mixed(MIXED_CPU)],
                    bare(1.0 / 0.90, 1.0 / 1.1),
                ]
                .concat(),
            ),
            Self::CpuDown => (
                "E2",
                "CPU-s/GiB down",
                Less,
                [
                    vec![Upstream(5.5), Mixed(MIXED_CPU)],
                    bare(1.0 / 0.88, 1.0 / 1.1),
                ]
                .concat(),
            ),
            Self::RateUp => (
                "E3",
                "MiB/s up",
                More,
                [vec![Upstream(6.0), Mixed(MIXED)], bare(1.0, 1.0)].concat(),
            ),
            Self::RateDown => (
                "E3",
                "MiB/s down",
                More,
                [vec![Upstream(4.5), Mixed(MIXED)], bare(1.25, 1.25)].concat(),
            ),
            Self::ManyRateUp => (
                "E4",
                "MiB/s up, 16 streams",
                More,
                [vec![Mixed(MIXED)], bare(1.1, 1.1)].concat(),
            ),
            Self::ManyRateDown => (
                "E4",
                "MiB/s down, 16 streams",
                More,
                [vec![Mixed(MIXED)], bare(1.1, 1.1)].concat(),
            ),
            Self::ManyCpuUp => (
                "E4",
                "CPU-s/GiB up, 16 streams",
                Less,
                vec![Upstream(6.5), Mixed(MIXED_CPU)],
            ),
            Self::ManyCpuDown => (
                "E4",
                "CPU-s/GiB down, 16 streams",
                Less,
                vec![Upstream(6.5), Mixed(MIXED_CPU)],
            ),
            Self::FairUp => ("E4", "Jain index up", More, ours(Goal::AtLeast, 0.98)),
            Self::FairDown => ("E4", "Jain index down", More, ours(Goal::AtLeast, 0.98)),
            Self::EchoP50 => (
                "E5",
                "echo p50, us",
                Less,
                [vec![Upstream(1.0 / 0.40), Mixed(MIXED)], bare(1.0, 1.0)].concat(),
            ),
            Self::EchoP99 => (
                "E5",
                "echo p99, us",
                Less,
                [vec![Upstream(1.0 / 0.30), Mixed(MIXED)], bare(1.0, 1.0)].concat(),
            ),
            Self::LoadP50 => ("E6", "10k echoes/s, p50, us", Less, vec![]),
            Self::LoadP99 => (
                "E6",
                "10k echoes/s, p99, us",
                Less,
                vec![Upstream(4.0), Mixed(MIXED)],
            ),
            Self::LoadP999 => ("E6", "10k echoes/s, p99.9, us", Less, vec![]),
            Self::LoadCpu => (
                "E6",
                "10k echoes/s, CPU us each",
                Less,
                [vec![Upstream(3.5), Mixed(MIXED_CPU)], bare(1.25, 1.25)].concat(),
            ),
            Self::BesideUpP50 => ("E7", "echo beside bulk up, p50, us", Less, vec![]),
            Self::BesideUpP99 => (
                "E7",
                "echo beside bulk up, p99, us",
                Less,
                [vec![Upstream(10.0), Mixed(MIXED)], bare(10.0, 10.0)].concat(),
            ),
            Self::BesideUpShare => (
                "E7",
                "that bulk by bulk alone, up",
                More,
                ours(Goal::AtLeast, 0.9),
            ),
            Self::BesideDownP50 => ("E7", "echo beside bulk down, p50, us", Less, vec![]),
            Self::BesideDownP99 => (
                "E7",
                "echo beside bulk down, p99, us",
                Less,
                [vec![Upstream(10.0), Mixed(MIXED)], bare(10.0, 10.0)].concat(),
            ),
            Self::BesideDownShare => (
                "E7",
                "that bulk by bulk alone, down",
                More,
                ours(Goal::AtLeast, 0.9),
            ),
            Self::DialRate => (
                "E8",
                "dials/s, 32 at once",
                More,
                [vec![Upstream(3.3), Mixed(MIXED)], bare(6.0, 6.0)].concat(),
            ),
            Self::DialP99 => ("E8", "dial p99, us", Less, vec![Mixed(MIXED)]),
            Self::DialCpu => (
                "E8",
                "dial CPU us",
                Less,
                vec![Upstream(5.5), Mixed(MIXED_CPU)],
            ),
            Self::IdleServer => (
                "E9",
                "idle connection, server KiB",
                Less,
                vec![Upstream(8.0)],
            ),
            Self::IdleAgent => (
                "E9",
                "idle connection, agent KiB",
                Less,
                vec![Upstream(6.0)],
            ),
            Self::BurstServer => (
                "E10",
                "after the burst by before, server",
                Less,
                ours(Goal::AtMost, 1.2),
            ),
            Self::BurstAgent => (
                "E10",
                "after the burst by before, agent",
                Less,
                ours(Goal::AtMost, 1.2),
            ),
            Self::AgentMemory => ("E11", "agent tunnel, server KiB", Less, vec![Upstream(3.5)]),
            Self::StormFullCpu => (
                "E12",
                "full reconnect, server CPU us",
                Less,
                vec![Upstream(3.0)],
            ),
            Self::StormFullTime => ("E12", "full reconnect of all, ms", Less, vec![]),
            Self::StormResumedCpu => (
                "E12",
                "resumed reconnect, server CPU us",
                Less,
                vec![Upstream(6.0)],
            ),
            Self::StormResumedTime => ("E12", "resumed reconnect of all, ms", Less, vec![]),
            Self::Stalled1 => (
                "E13",
                "echo p99, 1 stalled by none",
                Less,
                vec![Goal::AtMost(Pair::Stream, 1.2)],
            ),
            Self::Stalled1P99 => (
                "E13",
                "echo p99, 1 stalled, ms",
                Less,
                vec![Goal::AtMost(Pair::OursUpstream, 30.0)],
            ),
            Self::Stalled70 => (
                "E13",
                "echo p99, 70 stalled by none",
                Less,
                vec![Goal::AtMost(Pair::Stream, 1.2)],
            ),
            Self::Stalled300 => (
                "E13",
                "echo p99, 300 stalled by none",
                Less,
                vec![Goal::AtMost(Pair::Stream, 1.2)],
            ),
            Self::Stalled2000 => (
                "E13",
                "echo p99, 2000 stalled by none",
                Less,
                vec![Goal::AtMost(Pair::Stream, 2.0)],
            ),
            Self::StalledServer => (
                "E14",
                "most stalled, server grows by MiB",
                Less,
                ours(Goal::AtMost, BUDGET),
            ),
            Self::StalledAgent => (
                "E14",
                "most stalled, agent grows by MiB",
                Less,
                ours(Goal::AtMost, BUDGET),
            ),
            Self::GrpcCpuUp => (
                "E16",
                "gRPC up, server CPU-s/GiB",
                Less,
                vec![Upstream(6.0)],
            ),
            Self::GrpcCpuDown => (
                "E16",
                "gRPC down, server CPU-s/GiB",
                Less,
                vec![Upstream(6.0)],
            ),
            Self::RestServer => (
                "E17",
                "server RSS at rest, MiB",
                Less,
                ours(Goal::AtMost, 8.0),
            ),
            Self::RestAgent => (
                "E17",
                "agent RSS at rest, MiB",
                Less,
                ours(Goal::AtMost, 6.0),
            ),
            Self::Binary => (
                "E17",
                "larger binary, stripped, MB",
                Less,
                ours(Goal::AtMost, 12.0),
            ),
            Self::ReadyServer => (
                "E17",
                "server ready after ms",
                Less,
                ours(Goal::AtMost, 200.0),
            ),
            Self::ReadyAgent => (
                "E17",
                "agent ready after ms",
                Less,
                ours(Goal::AtMost, 200.0),
            ),
        };
        Spec {
            row,
            what,
            better,
            goals,
        }
    }
}

impl Spec {
    /// How many times better `ours` is than `other`: above 1 is better, whichever way the values go.
    pub(crate) fn gain(&self, ours: f64, other: f64) -> f64 {
        match self.better {
            Better::Less => other / ours.max(f64::MIN_POSITIVE),
            Better::More => ours / other.max(f64::MIN_POSITIVE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gain_is_above_1_whichever_way_the_values_go() {
        assert!((Metric::CpuUp.spec().gain(1.0, 6.0) - 6.0).abs() < 1e-9);
        assert!((Metric::RateUp.spec().gain(1200.0, 300.0) - 4.0).abs() < 1e-9);
        assert!(Metric::CpuUp.spec().gain(2.0, 1.0) < 1.0);
    }

    #[test]
    fn all_is_in_the_order_of_the_rows() {
        assert!(Metric::ALL.is_sorted());
        for count in [1, 70, 300, 2_000] {
            assert!(Metric::stalled(count).is_some());
        }
    }
}
