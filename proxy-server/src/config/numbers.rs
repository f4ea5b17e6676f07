//! Ports, counts and durations.

use std::time::Duration;

use daemon::flags::GoDuration;

use super::{Address, faults::Faults};
use crate::cli::Cli;

/// Ports that upstream refuses from here on, as the kernel hands them out to others.
const FIRST_EPHEMERAL: i64 = 49152;

/// Checks everything, so that [`address`] may take the port as it is.
pub(super) fn check_ports(cli: &Cli, faults: &mut Faults) {
    let ports = [
        (cli.server_port, "server"),
        (cli.agent_port, "agent"),
        (cli.admin_port, "admin"),
        (cli.health_port, "health"),
    ];
    if !cli.uds_name.is_empty() && cli.server_port != 0 {
        faults.add(format!(
            "--server-port: server port should be set to 0 not {} for UDS",
            cli.server_port
        ));
    }
    for (port, name) in ports {
        if port >= FIRST_EPHEMERAL {
            faults.add(format!(
                "--{name}-port: please do not try to use ephemeral port {port} for the {name} port, take one of 1024 to 49151"
            ));
        } else if port < 1024 && (name != "server" || cli.uds_name.is_empty()) {
            faults.add(format!(
                "--{name}-port: please do not try to use reserved port {port} for the {name} port, take one of 1024 to 49151"
            ));
        }
    }
}

pub(super) fn address(flag: &'static str, host: &str, port: i64) -> Address {
    Address {
        flag,
        host: host.to_owned(),
        port: u16::try_from(port).unwrap_or_default(),
    }
}

pub(super) fn check_server_count(
    count: i64,
    faults: &mut Faults,
    warnings: &mut Vec<String>,
) -> u32 {
    match u32::try_from(count) {
        Ok(0) => {
            warnings.push("--server-count=0 means 1: agents take it so".to_owned());
            1
        }
        Ok(count) if count <= 1000 => count,
        _ => {
            faults.add(format!(
                "--server-count must be between 0 and 1000, got {count}"
            ));
            1
        }
    }
}

pub(super) fn check_duration(flag: &str, value: GoDuration, faults: &mut Faults) -> Duration {
    value.to_duration().unwrap_or_else(|| {
        faults.add(format!("--{flag}: {flag} must be >= 0, got {value}"));
        Duration::ZERO
    })
}

pub(super) fn positive(value: Option<GoDuration>) -> Option<Duration> {
    value
        .and_then(GoDuration::to_duration)
        .filter(|value| !value.is_zero())
}
