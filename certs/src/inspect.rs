//! `certs inspect`: what a person wants to know about a certificate file.

use std::io::{self, Write};
use std::path::Path;

use certs::{Peer, Timestamp, pem};
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;
use x509_parser::public_key::PublicKey;

/// Prints every certificate of `file`. One that is out of date is shown with a note, not refused.
pub(crate) fn run(file: &Path) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    for (index, der) in pem::certificates(file)?.iter().enumerate() {
        let (_, certificate) = X509Certificate::from_der(der)?;
        if index > 0 {
            writeln!(out)?;
        }
        let peer = Peer::from_certificates(Some(std::slice::from_ref(der)))?;
        let validity = certs::dates::validity(&certificate);
        writeln!(
            out,
            "subject   {}",
            line(&certificate.subject().to_string())
        )?;
        writeln!(out, "issuer    {}", line(&certificate.issuer().to_string()))?;
        let sans = peer.map(|peer| peer.sans).unwrap_or_default();
        if !sans.is_empty() {
            writeln!(out, "names     {}", sans.join(", "))?;
        }
        writeln!(out, "from      {}", validity.not_before)?;
        writeln!(out, "to        {}{}", validity.not_after, state(validity))?;
        writeln!(out, "key       {}", key_type(&certificate))?;
        writeln!(out, "usage     {}", usage(&certificate))?;
    }
    Ok(())
}

fn state(validity: certs::Validity) -> &'static str {
    let now = Timestamp::now();
    if now > validity.not_after {
        "  (expired)"
    } else if now < validity.not_before {
        "  (not valid yet)"
    } else {
        ""
    }
}

fn key_type(certificate: &X509Certificate<'_>) -> String {
    let key = certificate.public_key();
    match key.parsed() {
        Ok(PublicKey::EC(point)) => format!("ECDSA, {} bits", point.key_size()),
        Ok(PublicKey::RSA(rsa)) => format!("RSA, {} bits", rsa.key_size()),
        _ => format!("algorithm {}", key.algorithm.algorithm),
    }
}

fn usage(certificate: &X509Certificate<'_>) -> String {
    let mut usages = Vec::new();
    if certificate.is_ca() {
        usages.push("authority");
    }
    match certificate.extended_key_usage().ok().flatten() {
        Some(extended) => {
            if extended.value.server_auth || extended.value.any {
                usages.push("server");
            }
            if extended.value.client_auth || extended.value.any {
                usages.push("client");
            }
        }
        // Without the extension nothing is excluded (RFC 5280, section 4.2.1.12).
        None if usages.is_empty() => usages.extend(["server", "client"]),
        None => {}
    }
    if usages.is_empty() {
        return "none of authority, server, client".to_owned();
    }
    usages.join(", ")
}

/// A name that fits a terminal line, control characters taken out.
fn line(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(500).collect()
}
