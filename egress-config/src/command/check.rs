//! `check`: dials each proxy of a file for real.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use egress_config::probe::probe;
use egress_config::{Connection, Files, SelectionName};

use super::selector;

#[derive(Debug, clap::Args)]
pub(crate) struct Check {
    /// The file; `-` for standard input.
    file: PathBuf,
    /// What to dial through each proxy, HOST:PORT as seen from the agents. Without it only the proxies are reached.
    #[arg(long, value_parser = target)]
    target: Option<String>,
    /// Only this selection.
    #[arg(long)]
    selection: Option<SelectionName>,
    /// Seconds that each step may take. kube-apiserver waits 30 over gRPC and for ever in HTTP CONNECT.
    #[arg(long, default_value = "30", value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout: u64,
}

impl Check {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let selector = selector(&self.file, Files::Elsewhere)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("start")?;
        let wanted: Vec<_> = selector
            .iter()
            .filter(|(name, _)| self.selection.is_none_or(|only| only == *name))
            .collect();
        if wanted.is_empty() {
            bail!("{} has nothing to dial", self.file.display());
        }
        let mut all_succeeded = true;
        for (name, connection) in wanted {
            all_succeeded &= runtime.block_on(self.one(name, connection))?;
        }
        Ok(if all_succeeded {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }

    /// Whether every step succeeded. Nothing is dialled directly: that would be from here, not from kube-apiserver's place.
    async fn one(&self, name: SelectionName, connection: &Connection) -> anyhow::Result<bool> {
        let mut out = io::stdout();
        writeln!(out, "{name}: {connection}")?;
        if *connection == Connection::Direct {
            writeln!(out, "  no proxy, nothing to check")?;
            return Ok(true);
        }
        let patience = Duration::from_secs(self.timeout);
        let steps = probe(connection, self.target.as_deref(), patience).await;
        for step in &steps {
            let (word, text) = match &step.outcome {
                Ok(detail) => ("ok", detail),
                Err(reason) => ("FAILED", reason),
            };
            let millis = step.took.as_secs_f64() * 1000.0;
            writeln!(out, "  {:12} {word:6} {millis:9.1} ms  {text}", step.name)?;
        }
        Ok(steps.iter().all(|step| step.outcome.is_ok()))
    }
}

/// HOST:PORT, an IPv6 address in brackets, without anything that would break the request it goes into.
fn target(text: &str) -> Result<String, &'static str> {
    let wrong = "must be HOST:PORT, an IPv6 address in brackets";
    let (host, port) = text.rsplit_once(':').ok_or(wrong)?;
    let bare = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    let is_host = !host.is_empty()
        && host.chars().all(|c| c.is_ascii_graphic())
        && bare.is_some() == host.contains(':');
    match port.parse::<u16>() {
        Ok(1..) if is_host => Ok(text.to_owned()),
        _ => Err(wrong),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_a_host_and_a_port() {
        for good in ["192.0.2.1:443", "[2001:db8::1]:443", "node.example:10250"] {
            assert_eq!(target(good).as_deref(), Ok(good));
        }
        for bad in [
            "",
            "node",
            ":443",
            "node:0",
            "node:65536",
            "2001:db8::1:443",
            "a b:1",
            "a\r\nX: y:1",
        ] {
            target(bad).unwrap_err();
        }
    }
}
