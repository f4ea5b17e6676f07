//! `validate`: what is wrong with a file.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use egress_config::{Files, Report, Severity};
use serde_json::json;

use super::{Format, report};

#[derive(Debug, clap::Args)]
pub(crate) struct Validate {
    /// The file; `-` for standard input.
    file: PathBuf,
    /// How to print what was found.
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
    /// Exit 1 for warnings, too: for what kube-apiserver takes and then fails, panics or is silent about.
    #[arg(long)]
    strict: bool,
    /// Do not look at the certificate files it names, since kube-apiserver runs elsewhere.
    #[arg(long)]
    elsewhere: bool,
}

impl Validate {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let files = if self.elsewhere {
            Files::Elsewhere
        } else {
            Files::MustExist
        };
        let found = report(&self.file, files);
        let accepted = found.as_ref().is_ok_and(|report| {
            let worst = report
                .findings
                .iter()
                .map(|finding| finding.severity())
                .max();
            worst
                < Some(if self.strict {
                    Severity::Warning
                } else {
                    Severity::Error
                })
        });
        let mut out = io::stdout().lock();
        match self.format {
            Format::Json => writeln!(out, "{:#}", as_json(&found))?,
            Format::Text => {
                let report = found?;
                for finding in &report.findings {
                    writeln!(out, "{finding}")?;
                }
                writeln!(out, "{}: {}", self.file.display(), verdict(&report))?;
            }
        }
        Ok(if accepted {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }
}

fn verdict(report: &Report) -> &'static str {
    match (report.is_valid(), report.selector()) {
        (false, _) => "kube-apiserver refuses it",
        (true, None) => "kube-apiserver takes it, but cannot use it",
        (true, Some(_)) => "kube-apiserver can use it",
    }
}

fn as_json(found: &anyhow::Result<Report>) -> serde_json::Value {
    let report = match found {
        Ok(report) => report,
        Err(error) => {
            return json!({"valid": false, "usable": false, "error": format!("{error:#}")});
        }
    };
    let findings: Vec<_> = report
        .findings
        .iter()
        .map(|finding| {
            json!({
                "rule": finding.rule.id(),
                "severity": finding.severity().as_str(),
                "effect": finding.rule.effect().as_str(),
                "path": finding.path,
                "line": finding.position.map(|position| position.line),
                "column": finding.position.map(|position| position.column),
                "problem": finding.problem,
            })
        })
        .collect();
    json!({
        "valid": report.is_valid(),
        "usable": report.selector().is_some(),
        "findings": findings,
    })
}
