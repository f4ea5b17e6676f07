//! The `certs` command as a process.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use certs::issue::KeyType;
use certs::{Identity, Roots};
use serde_json::Value;

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

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Runs `certs` in a folder, so that the default names of the authority's files are found.
fn certs_in(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_certs"))
        .current_dir(dir)
        .args(args)
        .output()
        .unwrap()
}

/// As [`certs_in`], for what must succeed; gives stdout.
fn works(dir: &Path, args: &[&str]) -> String {
    let output = certs_in(dir, args);
    assert!(output.status.success(), "{args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// As [`certs_in`], for what must exit 1; gives stderr.
fn fails(dir: &Path, args: &[&str]) -> String {
    let output = certs_in(dir, args);
    assert_eq!(output.status.code(), Some(1), "{args:?}: {output:?}");
    String::from_utf8(output.stderr).unwrap()
}

fn inspect(dir: &Path, file: &str) -> Value {
    let json = works(dir, &["inspect", file, "--format", "json"]);
    serde_json::from_str(&json).unwrap()
}

fn mode(file: &Path) -> u32 {
    fs::metadata(file).unwrap().permissions().mode() & 0o777
}

#[test]
fn issue_makes_every_kind_of_key_and_each_passes_verification() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    assert!(init(dir, &["a.example"]).status.success());
    for key_type in KeyType::ALL.map(KeyType::name) {
        let common = ["issue", "--stem", key_type, "--key-type", key_type];
        let more = ["--usage", "both", "--san", "b.example,192.0.2.9"];
        works(dir, &[&common[..], &more[..]].concat());
        let (certificate, key) = (format!("{key_type}.crt"), format!("{key_type}.key"));
        assert_eq!(mode(&dir.join(&key)), 0o600);
        let files = [certificate.as_str(), "--ca", "ca.crt", "--key", &key];
        works(dir, &[&["verify", "agent"], &files[..]].concat());
        let host = ["--host", "192.0.2.9"];
        works(
            dir,
            &[&["verify", "server"], &files[..], &host[..]].concat(),
        );
    }
}

#[test]
fn init_with_another_kind_of_key_uses_it_for_all_four() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    assert!(
        init(dir, &["a.example", "--key-type", "ed25519"])
            .status
            .success()
    );
    for stem in ["ca", "server", "agent", "apiserver"] {
        let shown = inspect(dir, &format!("{stem}.crt"));
        assert_eq!(shown["certificates"][0]["key"], "Ed25519", "{stem}");
    }
    works(
        dir,
        &[
            "verify",
            "server",
            "server.crt",
            "--ca",
            "ca.crt",
            "--host",
            "a.example",
        ],
    );
}

#[test]
fn issue_overwrites_nothing_unless_forced() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    assert!(init(dir, &["a.example"]).status.success());
    let before = fs::read(dir.join("agent.key")).unwrap();
    let issue = [
        "issue", "--usage", "client", "--name", "x", "--stem", "agent",
    ];
    let said = fails(dir, &issue);
    assert!(
        said.contains("agent.crt") && said.contains("--force"),
        "{said}"
    );
    assert_eq!(fs::read(dir.join("agent.key")).unwrap(), before);
    works(dir, &[&issue[..], &["--force"]].concat());
    assert_ne!(fs::read(dir.join("agent.key")).unwrap(), before);
    assert_eq!(mode(&dir.join("agent.key")), 0o600);
}

#[test]
fn issue_refuses_a_server_without_names_and_a_ca_that_is_none() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    assert!(init(dir, &["a.example"]).status.success());
    let said = fails(
        dir,
        &["issue", "--usage", "server", "--name", "x", "--stem", "x"],
    );
    assert!(said.contains("--san"), "{said}");
    let client = ["issue", "--usage", "client", "--name", "x", "--stem", "x"];
    let leaf = ["--ca-cert", "agent.crt", "--ca-key", "agent.key"];
    let said = fails(dir, &[&client[..], &leaf[..]].concat());
    assert!(said.contains("agent.crt is not an authority's"), "{said}");
    let mixed = ["--ca-cert", "ca.crt", "--ca-key", "agent.key"];
    let said = fails(dir, &[&client[..], &mixed[..]].concat());
    assert!(said.contains("does not match"), "{said}");
    assert!(!dir.join("x.key").exists());
}

#[test]
fn a_certificate_never_outlives_its_authority_and_that_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    assert!(
        init(dir, &["a.example", "--ca-days", "10", "--days", "5"])
            .status
            .success()
    );
    let issue = ["issue", "--usage", "client", "--name", "x", "--stem", "x"];
    let output = certs_in(dir, &issue);
    assert!(output.status.success());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("the authority itself ends"), "{said}");
    let end = |file| inspect(dir, file)["certificates"][0]["notAfter"].clone();
    assert_eq!(end("x.crt"), end("ca.crt"));
    assert_ne!(end("agent.crt"), end("ca.crt"));
}

#[test]
fn renew_keeps_names_usage_and_kind_of_key_and_changes_the_key() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    assert!(init(dir, &["a.example"]).status.success());
    let names = "b.example,::1,spiffe://c.example/d,e@f.example";
    works(
        dir,
        &[
            "issue",
            "--usage",
            "both",
            "--san",
            names,
            "--stem",
            "x",
            "--key-type",
            "p384",
            "--days",
            "7",
        ],
    );
    let before = inspect(dir, "x.crt");
    let key = fs::read(dir.join("x.key")).unwrap();

    let said = fails(dir, &["renew", "x.crt"]);
    assert!(said.contains("--force"), "{said}");
    works(dir, &["renew", "x.crt", "--dir", "new"]);
    assert_eq!(fs::read(dir.join("x.key")).unwrap(), key, "not in place");
    works(dir, &["renew", "x.crt", "--force"]);
    assert_ne!(fs::read(dir.join("x.key")).unwrap(), key);
    Identity::load(&dir.join("x.crt"), &dir.join("x.key")).unwrap();

    for file in ["x.crt", "new/x.crt"] {
        let after = inspect(dir, file);
        let (before, after) = (&before["certificates"][0], &after["certificates"][0]);
        for same in ["subject", "issuer", "names", "key", "usage", "roles"] {
            assert_eq!(before[same], after[same], "{same}");
        }
        assert_eq!(after["names"].as_array().unwrap().len(), 4);
        let left = after["expiresInSeconds"].as_i64().unwrap();
        let week = 7 * 86_400;
        assert!((week - 600..=week).contains(&left), "{left}");
    }
}

#[test]
fn inspect_shows_the_same_as_json_and_as_text() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    assert!(init(dir, &["a.example,192.0.2.7"]).status.success());
    let both = [
        fs::read(dir.join("server.crt")).unwrap(),
        fs::read(dir.join("ca.crt")).unwrap(),
    ];
    fs::write(dir.join("chain.crt"), both.concat()).unwrap();
    let shown = inspect(dir, "chain.crt");
    assert_eq!(shown["file"], "chain.crt");
    let server = &shown["certificates"][0];
    assert_eq!(
        server["names"],
        serde_json::json!(["a.example", "192.0.2.7"])
    );
    assert_eq!(server["signedBy"], 2);
    assert_eq!(server["state"], "valid");
    assert_eq!(server["usage"], serde_json::json!(["server"]));
    assert_eq!(server["roles"], serde_json::json!(["proxy-server"]));
    assert_eq!(
        shown["certificates"][1]["roles"],
        serde_json::json!(["authority"])
    );

    let text = works(dir, &["inspect", "chain.crt"]);
    for part in [
        "certificate 2 of this file",
        "self-signed",
        "roles     proxy-server",
        "roles     authority",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[test]
fn verify_says_why_the_other_side_would_refuse() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    assert!(init(dir, &["a.example"]).status.success());
    assert!(
        init(&dir.join("other"), &["a.example", "--ca-name", "other CA"])
            .status
            .success()
    );
    let server = [
        "verify",
        "server",
        "server.crt",
        "--host",
        "a.example",
        "--ca",
    ];
    works(dir, &[&server[..], &["ca.crt"]].concat());
    works(
        dir,
        &["verify", "api-server", "apiserver.crt", "--ca", "ca.crt"],
    );
    for (args, words) in [
        (
            &[
                "verify",
                "server",
                "server.crt",
                "--host",
                "b.example",
                "--ca",
                "ca.crt",
            ][..],
            "its names are",
        ),
        (
            &[
                "verify",
                "server",
                "server.crt",
                "--host",
                "a.example",
                "--ca",
                "other/ca.crt",
            ],
            "does not end in the CA bundle",
        ),
        (
            &[
                "verify",
                "server",
                "agent.crt",
                "--host",
                "a.example",
                "--ca",
                "ca.crt",
            ],
            "serverAuth",
        ),
        (
            &["verify", "agent", "server.crt", "--ca", "ca.crt"],
            "clientAuth",
        ),
        (
            &[
                "verify",
                "agent",
                "agent.crt",
                "--ca",
                "ca.crt",
                "--key",
                "server.key",
            ],
            "does not match",
        ),
        (
            &["verify", "agent", "agent.crt", "--ca", "agent.key"],
            "no certificate in agent.key",
        ),
    ] {
        let said = fails(dir, args);
        assert!(said.contains(words), "{words} in {said}");
    }
}

/// OpenSSL as second opinion on what we issue.
#[test]
fn openssl_accepts_what_issue_makes() {
    let version = Command::new("openssl").arg("version").output();
    if !version.is_ok_and(|output| output.status.success()) {
        writeln!(std::io::stderr(), "skipped: no openssl here").unwrap();
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    assert!(init(dir, &["a.example"]).status.success());
    for (purpose, name) in [
        ("sslserver", "server"),
        ("sslclient", "agent"),
        ("sslclient", "apiserver"),
    ] {
        let output = Command::new("openssl")
            .args(["verify", "-x509_strict", "-purpose", purpose, "-CAfile"])
            .args([
                text(&dir.join("ca.crt")),
                text(&dir.join(format!("{name}.crt"))),
            ])
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
    }
}
