//! The binary as an operator meets it: what it says, and with which code it ends.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::process::{Command, Output};

use certs::issue::{Authority, Replace};

/// Runs to the end, which start-up failures lead to at once.
fn run(folder: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_proxy-agent"))
        .current_dir(folder)
        .env_remove("ADIT_LOG")
        .args(args)
        .output()
        .unwrap()
}

/// The line that says why the process ended; its code must be 1.
fn error(folder: &Path, args: &[&str]) -> String {
    let output = run(folder, args);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    text.lines()
        .find_map(|line| line.strip_prefix("Error: "))
        .unwrap()
        .to_owned()
}

#[test]
fn a_start_that_fails_names_flag_and_file_and_ends_with_1() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let authority = Authority::generate("test CA").unwrap();
    std::fs::write(folder.join("ca.crt"), authority.certificate_pem()).unwrap();
    let agent = authority.issue_client("agent").unwrap();
    agent.write(folder, "agent", Replace::No).unwrap();
    authority
        .issue_client("other")
        .unwrap()
        .write(folder, "other", Replace::No)
        .unwrap();
    std::fs::write(folder.join("empty"), "").unwrap();
    for (args, text) in [
        (&["--nosuch"][..], "unknown flag: --nosuch"),
        (
            &["--sync-interval=5"],
            "invalid argument \"5\" for \"--sync-interval\" flag: missing unit in duration, for example 5s",
        ),
        (
            &[],
            "failed to run proxy connection with failed to load CA cert: --ca-cert is not set",
        ),
        (
            &["--ca-cert=missing"],
            "failed to validate agent options with --ca-cert: error checking agent CA cert missing, got No such file or directory (os error 2)",
        ),
        (&["--ca-cert=empty"], "--ca-cert: empty is empty"),
        (
            &[
                "--ca-cert=ca.crt",
                "--agent-cert=agent.crt",
                "--agent-key=other.key",
            ],
            "--agent-cert, --agent-key: the key in other.key does not match the certificate in agent.crt",
        ),
        (
            &["--ca-cert=ca.crt", "--agent-cert=agent.crt"],
            "failed to validate agent options with --agent-key: cannot have agent key empty when agent cert is set to \"agent.crt\"",
        ),
    ] {
        assert_eq!(error(folder, args), text);
    }
}

#[test]
fn a_port_in_use_is_named_with_its_flag() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::generate("test CA").unwrap();
    std::fs::write(folder.path().join("ca.crt"), authority.certificate_pem()).unwrap();
    let held = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = held.local_addr().unwrap();
    let port = format!("--health-server-port={}", address.port());
    let text = error(
        folder.path(),
        &["--ca-cert=ca.crt", "--health-server-host=127.0.0.1", &port],
    );
    let start = format!(
        "--health-server-host, --health-server-port: cannot listen on {address}: address already in use"
    );
    assert!(text.starts_with(&start), "{text}");
}

#[test]
fn help_goes_to_stdout_and_ends_with_0() {
    let output = run(Path::new("."), &["--help"]);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    for flag in [
        "--proxy-server-host",
        "--keepalive-time",
        "--memory-budget",
        "--alpn-proto",
    ] {
        assert!(text.contains(flag), "{flag}");
    }
}
