//! The `process_*` series that Go's client library exports, under its names, read from `/proc/self` at each scrape.
//!
//! Dashboards and alerts for upstream use them. Its `go_*` series have no counterpart here.

use std::fs;
use std::io;

use prometheus::core::{Collector, Desc};
use prometheus::proto::{Counter, Gauge, Metric, MetricFamily, MetricType};
use prometheus::{Opts, Registry};

/// Clock ticks in a second, as `/proc` counts CPU time: USER_HZ, which Linux fixes at 100 on every architecture that
/// Rust builds for.
const TICKS_PER_SECOND: f64 = 100.0;

/// Name, help and type of each series, in the order of [`Sample::values`].
const SERIES: [(&str, &str, MetricType); 7] = [
    (
        "process_cpu_seconds_total",
        "CPU time in user and kernel mode, in seconds.",
        MetricType::COUNTER,
    ),
    (
        "process_max_fds",
        "Limit on open file descriptors.",
        MetricType::GAUGE,
    ),
    (
        "process_open_fds",
        "File descriptors that are open.",
        MetricType::GAUGE,
    ),
    (
        "process_resident_memory_bytes",
        "Memory held in RAM, in bytes.",
        MetricType::GAUGE,
    ),
    (
        "process_start_time_seconds",
        "When the process started, in seconds since the epoch.",
        MetricType::GAUGE,
    ),
    (
        "process_virtual_memory_bytes",
        "Virtual memory, in bytes.",
        MetricType::GAUGE,
    ),
    (
        "process_threads",
        "Threads of the process.",
        MetricType::GAUGE,
    ),
];

/// Adds the series to a registry.
///
/// # Errors
///
/// If the registry has a metric of one of the names already.
pub fn register(registry: &Registry) -> prometheus::Result<()> {
    let descs = SERIES
        .iter()
        .map(|(name, help, _)| prometheus::core::Describer::describe(&Opts::new(*name, *help)))
        .collect::<prometheus::Result<_>>()?;
    registry.register(Box::new(ProcessCollector { descs }))
}

#[derive(Debug)]
struct ProcessCollector {
    descs: Vec<Desc>,
}

impl Collector for ProcessCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.descs.iter().collect()
    }

    /// A value that cannot be read leaves its series out.
    fn collect(&self) -> Vec<MetricFamily> {
        let sample = Sample::take();
        SERIES
            .iter()
            .zip(sample.values())
            .filter_map(|((name, help, kind), value)| {
                value.map(|value| family(name, help, *kind, value))
            })
            .collect()
    }
}

fn family(name: &str, help: &str, kind: MetricType, value: f64) -> MetricFamily {
    let mut metric = Metric::default();
    if kind == MetricType::COUNTER {
        let mut counter = Counter::default();
        counter.set_value(value);
        metric.set_counter(counter);
    } else {
        let mut gauge = Gauge::default();
        gauge.set_value(value);
        metric.set_gauge(gauge);
    }
    let mut family = MetricFamily::default();
    family.set_name(name.to_owned());
    family.set_help(help.to_owned());
    family.set_field_type(kind);
    family.set_metric(vec![metric]);
    family
}

/// What `/proc` says at one moment.
#[derive(Debug)]
struct Sample {
    stat: Option<Stat>,
    memory: Option<Memory>,
    open_fds: Option<usize>,
    max_fds: Option<u64>,
    boot_seconds: Option<f64>,
}

impl Sample {
    fn take() -> Self {
        Self {
            stat: read("/proc/self/stat").and_then(|text| Stat::parse(&text)),
            memory: read("/proc/self/status").and_then(|text| Memory::parse(&text)),
            open_fds: open_fds().ok(),
            max_fds: rlimit::Resource::NOFILE.get_soft().ok(),
            boot_seconds: read("/proc/stat").and_then(|text| boot_seconds(&text)),
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "Prometheus values are f64")]
    fn values(&self) -> [Option<f64>; SERIES.len()] {
        let stat = self.stat.as_ref();
        let memory = self.memory.as_ref();
        [
            stat.map(|stat| stat.cpu_ticks as f64 / TICKS_PER_SECOND),
            self.max_fds.map(|limit| limit as f64),
            self.open_fds.map(|count| count as f64),
            memory.map(|memory| memory.resident as f64),
            stat.zip(self.boot_seconds)
                .map(|(stat, boot)| boot + stat.start_ticks as f64 / TICKS_PER_SECOND),
            memory.map(|memory| memory.virt as f64),
            stat.map(|stat| stat.threads as f64),
        ]
    }
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok()
}

/// Counts the entries of `/proc/self/fd`, less the one that reading the directory opens.
fn open_fds() -> io::Result<usize> {
    let mut count: usize = 0;
    for entry in fs::read_dir("/proc/self/fd")? {
        entry?;
        count += 1;
    }
    Ok(count.saturating_sub(1))
}

/// From `/proc/self/stat`, proc_pid_stat(5).
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    cpu_ticks: u64,
    threads: u64,
    start_ticks: u64,
}

impl Stat {
    fn parse(text: &str) -> Option<Self> {
        // The second field is the name in parentheses, which may itself hold spaces and parentheses.
        let (_, behind_name) = text.rsplit_once(')')?;
        let fields: Vec<&str> = behind_name.split_whitespace().collect();
        // The manual counts fields from 1, and the first behind the name is its third.
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        Some(Self {
            cpu_ticks: field(14)?.checked_add(field(15)?)?,
            threads: field(20)?,
            start_ticks: field(22)?,
        })
    }
}

/// From `/proc/self/status`, in bytes; that file, unlike `statm`, needs no page size.
#[derive(Debug, PartialEq, Eq)]
struct Memory {
    resident: u64,
    virt: u64,
}

impl Memory {
    fn parse(text: &str) -> Option<Self> {
        let bytes = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim()
                .strip_suffix(" kB")?
                .parse::<u64>()
                .ok()?
                .checked_mul(1024)
        };
        Some(Self {
            resident: bytes("VmRSS:")?,
            virt: bytes("VmSize:")?,
        })
    }
}

fn boot_seconds(proc_stat: &str) -> Option<f64> {
    proc_stat
        .lines()
        .find_map(|line| line.strip_prefix("btime "))?
        .trim()
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use std::time::{SystemTime, UNIX_EPOCH};

    use super::*;

    fn value(families: &[MetricFamily], name: &str) -> f64 {
        let family = families
            .iter()
            .find(|family| family.name() == name)
            .unwrap_or_else(|| panic!("no {name}"));
        let metric = &family.get_metric()[0];
        match family.get_field_type() {
            MetricType::COUNTER => metric.get_counter().get_value(),
            _ => metric.get_gauge().get_value(),
        }
    }

    #[test]
    fn a_scrape_shows_this_process() {
        let registry = Registry::new();
        register(&registry).unwrap();
        let families = registry.gather();
        assert_eq!(families.len(), SERIES.len());
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap()
            .as_secs_f64();
        let age = now - value(&families, "process_start_time_seconds");
        assert!((-5.0..86_400.0).contains(&age), "started {age} s ago");
        assert!(value(&families, "process_open_fds") >= 3.0);
        assert!(value(&families, "process_max_fds") >= value(&families, "process_open_fds"));
        assert!(value(&families, "process_threads") >= 1.0);
        assert!(value(&families, "process_resident_memory_bytes") > 100_000.0);
        assert!(
            value(&families, "process_virtual_memory_bytes")
                >= value(&families, "process_resident_memory_bytes")
        );
    }

    #[test]
    fn registering_twice_is_an_error() {
        let registry = Registry::new();
        register(&registry).unwrap();
        assert!(register(&registry).is_err());
    }

    #[test]
    fn a_program_name_with_parentheses_does_not_shift_the_fields() {
        let line =
            "42 (a b) c) S 1 42 42 0 -1 4194560 1 0 0 0 700 34 0 0 20 0 9 0 123456 1000 50 0\n";
        assert_eq!(
            Stat::parse(line),
            Some(Stat {
                cpu_ticks: 734,
                threads: 9,
                start_ticks: 123_456
            })
        );
    }

    #[test]
    fn memory_is_in_bytes() {
        let text = "Name:\tx\nVmSize:\t    2048 kB\nVmRSS:\t     512 kB\n";
        assert_eq!(
            Memory::parse(text),
            Some(Memory {
                resident: 524_288,
                virt: 2_097_152
            })
        );
    }

    #[test]
    fn text_that_is_cut_gives_nothing() {
        assert_eq!(Stat::parse("42 (x) S 1 2"), None);
        assert_eq!(Stat::parse(""), None);
        assert_eq!(Memory::parse("VmRSS:\t1 kB\n"), None);
        assert_eq!(boot_seconds("cpu 1 2 3\n"), None);
    }
}
