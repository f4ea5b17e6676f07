//! The files of the two listeners.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use certs::{
    CipherSuites, Current, Identity, MinVersion, Roots, ServerFiles, TlsOptions, Watcher,
    tls::ALPN_FRONTEND,
};
use daemon::flags::StringSlice;
use rustls::ServerConfig;

use super::{FrontendConfig, faults::Faults, numbers::address};
use crate::cli::Cli;

pub(super) fn tls_options(
    cli: &Cli,
    faults: &mut Faults,
    warnings: &mut Vec<String>,
) -> TlsOptions {
    let mut options = TlsOptions::default();
    if !cli.tls_min_version.is_empty()
        && let Some(version) = faults.take(
            "--tls-min-version",
            cli.tls_min_version.parse::<MinVersion>(),
        )
    {
        if version.clamped() {
            warnings.push(format!(
                "--tls-min-version={}: the oldest version that is served is 1.2",
                cli.tls_min_version
            ));
        }
        options.min_version = version;
    }
    let suites = StringSlice::concat(cli.cipher_suites.iter().cloned());
    if let Some(suites) = faults.take("--cipher-suites", CipherSuites::parse(&suites)) {
        if !suites.ignored().is_empty() {
            warnings.push(format!(
                "--cipher-suites: not served and left out: {}",
                suites.ignored().join(", ")
            ));
        }
        options.cipher_suites = suites;
    }
    options
}

/// A certificate and its key; both flags or neither.
///
/// Files are looked at one by one before the watcher takes them as a set, so that each fault is told under its own flag.
fn identity(what: &str, cert: &str, key: &str, faults: &mut Faults) -> Option<(PathBuf, PathBuf)> {
    match (cert.is_empty(), key.is_empty()) {
        (true, true) => {
            let or = if what == "server" {
                ", or --uds-name for a Unix socket"
            } else {
                ""
            };
            faults.add(format!("--{what}-cert and --{what}-key must be set{or}"));
            None
        }
        (false, true) => {
            faults.add(format!(
                "--{what}-key: cannot have {what} key empty when {what} cert is set to \"{cert}\""
            ));
            None
        }
        (true, false) => {
            faults.add(format!(
                "--{what}-cert: cannot have {what} cert empty when {what} key is set to \"{key}\""
            ));
            None
        }
        (false, false) => {
            let (cert, key) = (PathBuf::from(cert), PathBuf::from(key));
            let there = [
                is_there(&format!("{what}-key"), &format!("{what} key"), &key, faults),
                is_there(
                    &format!("{what}-cert"),
                    &format!("{what} cert"),
                    &cert,
                    faults,
                ),
            ];
            if there != [true, true] {
                return None;
            }
            faults.take(
                &format!("--{what}-cert, --{what}-key"),
                Identity::load(&cert, &key),
            )?;
            Some((cert, key))
        }
    }
}

/// A CA bundle.
fn roots(what: &str, file: &str, faults: &mut Faults) -> Option<PathBuf> {
    let (flag, path) = (format!("{what}-ca-cert"), Path::new(file));
    if !is_there(&flag, &format!("{what} CA cert"), path, faults) {
        return None;
    }
    faults.take(&format!("--{flag}"), Roots::load(path))?;
    Some(path.to_owned())
}

/// Whether a file exists; if not, that is told in upstream's words.
fn is_there(flag: &str, what: &str, file: &Path, faults: &mut Faults) -> bool {
    let Err(error) = file.metadata() else {
        return true;
    };
    let file = file.display();
    faults.add(format!(
        "--{flag}: error checking {what} {file}, got {error}"
    ));
    false
}

pub(super) fn agent_tls(
    cli: &Cli,
    options: &TlsOptions,
    watcher: &mut Watcher,
    faults: &mut Faults,
    warnings: &mut Vec<String>,
) -> Option<Current<Arc<ServerConfig>>> {
    let identity = identity("cluster", &cli.cluster_cert, &cli.cluster_key, faults);
    let client_ca = if cli.cluster_ca_cert.is_empty() {
        if cli.agent_namespace.is_empty() {
            warnings.push("neither --cluster-ca-cert nor --agent-namespace is set: whoever reaches the agent port may register as an agent".to_owned());
        }
        None
    } else {
        Some(roots("cluster", &cli.cluster_ca_cert, faults)?)
    };
    let (certificate, key) = identity?;
    let files = ServerFiles {
        certificate,
        key,
        client_ca,
    };
    faults.take(
        "--cluster-cert, --cluster-key, --cluster-ca-cert",
        watcher.server(files, cli.tunnel_protocol.alpn(), options),
    )
}

pub(super) fn frontend(
    cli: &Cli,
    options: &TlsOptions,
    watcher: &mut Watcher,
    faults: &mut Faults,
) -> Option<FrontendConfig> {
    if !cli.uds_name.is_empty() {
        for (file, what) in [
            (&cli.server_cert, "cert"),
            (&cli.server_key, "key"),
            (&cli.server_ca_cert, "ca cert"),
        ] {
            if !file.is_empty() {
                let flag = what.replace(' ', "-");
                faults.add(format!(
                    "--server-{flag}: server {what} should not be set for UDS"
                ));
            }
        }
        return Some(FrontendConfig::Uds {
            path: PathBuf::from(&cli.uds_name),
            delete_existing: cli.delete_existing_uds_file,
        });
    }
    let identity = identity("server", &cli.server_cert, &cli.server_key, faults);
    if cli.server_ca_cert.is_empty() {
        faults.add(
            "--server-ca-cert: server ca cert must be set when in TCP mode (uds-name is empty)"
                .to_owned(),
        );
        return None;
    }
    let client_ca = roots("server", &cli.server_ca_cert, faults);
    let (certificate, key) = identity?;
    let files = ServerFiles {
        certificate,
        key,
        client_ca: Some(client_ca?),
    };
    let tls = faults.take(
        "--server-cert, --server-key, --server-ca-cert",
        watcher.server(files, ALPN_FRONTEND, options),
    )?;
    Some(FrontendConfig::Tcp {
        address: address("--server-port", &cli.server_bind_address, cli.server_port),
        tls,
    })
}
