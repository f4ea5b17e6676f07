//! `certs inspect`: what a person wants to know about a certificate file.

use std::io::{self, Write};
use std::path::PathBuf;

use certs::describe::{Description, Role, State, describe};
use certs::{Timestamp, pem};
use clap::ValueEnum;
use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Lines for people.
    Text,
    /// One object: file, certificates.
    Json,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Inspect {
    /// The PEM file.
    file: PathBuf,
    /// How to show it.
    #[arg(long, default_value = "text")]
    format: Format,
}

#[derive(Serialize)]
struct Shown {
    file: String,
    certificates: Vec<Description>,
}

impl Inspect {
    /// Shows every certificate. One that is out of date is shown with a note, not refused.
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let certificates = describe(&pem::certificates(&self.file)?, Timestamp::now());
        let mut out = io::stdout().lock();
        match self.format {
            Format::Json => {
                let shown = Shown {
                    file: self.file.to_string_lossy().into_owned(),
                    certificates,
                };
                serde_json::to_writer_pretty(&mut out, &shown)?;
                writeln!(out)?;
            }
            Format::Text => {
                for (index, certificate) in certificates.iter().enumerate() {
                    if index > 0 {
                        writeln!(out)?;
                    }
                    write_text(&mut out, certificate, index + 1)?;
                }
            }
        }
        Ok(())
    }
}

fn write_text(out: &mut impl Write, shown: &Description, position: usize) -> io::Result<()> {
    writeln!(out, "subject   {}", shown.subject)?;
    let signed_by = match shown.signed_by {
        Some(signer) if signer == position => "self-signed".to_owned(),
        Some(signer) => format!("certificate {signer} of this file"),
        None if shown.issuer_is_impostor => {
            "not signed by the certificate of that name in this file".to_owned()
        }
        None => "not in this file".to_owned(),
    };
    writeln!(out, "issuer    {} ({signed_by})", shown.issuer)?;
    if !shown.names.is_empty() {
        writeln!(out, "names     {}", shown.names.join(", "))?;
    }
    let state = match shown.state {
        State::Valid => format!("{} days left", shown.expires_in_seconds / 86_400),
        State::Expired => "expired".to_owned(),
        State::NotYetValid => "not valid yet".to_owned(),
    };
    writeln!(out, "from      {}", shown.not_before)?;
    writeln!(out, "to        {} ({state})", shown.not_after)?;
    writeln!(out, "key       {}", shown.key)?;
    writeln!(out, "usage     {}", or_none(&shown.usage))?;
    let roles: Vec<_> = shown.roles.iter().map(|role| Role::name(*role)).collect();
    writeln!(out, "roles     {}", or_none(&roles))
}

fn or_none(words: &[&str]) -> String {
    if words.is_empty() {
        return "none".to_owned();
    }
    words.join(", ")
}
