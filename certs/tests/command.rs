//! The `certs` command as a process.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use certs::{Identity, Roots};

fn certs(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_certs"))
        .args(args)
        .output()
        .unwrap()
}

fn init(dir: &Path, more: &[&str]) -> Output {
    let args = ["init", "--dir", dir.to_str().unwrap(), "--server-san"];
    certs(&[&args[..], more].concat())
}

#[test]
fn init_writes_a_set_that_loads_and_says_where() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("new/folder");
    let output = init(&dir, &["proxy.example,192.0.2.7", "--server-san", "::1"]);
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8(output.stdout).unwrap();
    Roots::load(&dir.join("ca.crt")).unwrap();
    for stem in ["server", "agent", "apiserver"] {
        let (certificate, key) = (format!("{stem}.crt"), format!("{stem}.key"));
        Identity::load(&dir.join(&certificate), &dir.join(&key)).unwrap();
        assert!(said.contains(&certificate) && said.contains(&key), "{said}");
    }

    let output = certs(&["inspect", dir.join("server.crt").to_str().unwrap()]);
    assert!(output.status.success());
    let shown = String::from_utf8(output.stdout).unwrap();
    for part in [
        "CN=proxy.example",
        "CN=adit CA",
        "192.0.2.7, ::1",
        "256 bits",
        "server\n",
    ] {
        assert!(shown.contains(part), "{part} in {shown}");
    }
}

#[test]
fn init_twice_changes_nothing_and_exits_1_unless_forced() {
    let dir = tempfile::tempdir().unwrap();
    assert!(init(dir.path(), &["a.example"]).status.success());
    let before = fs::read(dir.path().join("ca.key")).unwrap();
    fs::remove_file(dir.path().join("agent.crt")).unwrap();

    let output = init(dir.path(), &["a.example"]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("ca.crt") && said.contains("--force"),
        "{said}"
    );
    assert_eq!(fs::read(dir.path().join("ca.key")).unwrap(), before);
    assert!(!dir.path().join("agent.crt").exists());

    assert!(init(dir.path(), &["a.example", "--force"]).status.success());
    assert_ne!(fs::read(dir.path().join("ca.key")).unwrap(), before);
}

#[test]
fn a_bad_name_is_blamed_by_flag_and_leaves_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let output = init(dir.path(), &["ok.example,ümlaut"]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("--server-san") && said.contains("ümlaut"),
        "{said}"
    );
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn inspect_of_a_missing_file_exits_1_and_names_it() {
    let output = certs(&["inspect", "no/such/file.crt"]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("no/such/file.crt"), "{said}");
    assert!(said.contains("No such file"), "{said}");
}
