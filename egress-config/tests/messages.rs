//! What an operator reads: the place, the fault and the cure.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use egress_config::load::{MAX_FILE_BYTES, MAX_OPENING_BRACKETS};
use egress_config::{DocumentError, Files, LoadError, SelectionName, load, parse};

fn refusal(yaml: &str) -> String {
    parse(yaml.as_bytes(), Files::Elsewhere)
        .unwrap_err()
        .to_string()
}

const HEAD: &str = "apiVersion: apiserver.k8s.io/v1beta1\nkind: EgressSelectorConfiguration\n";

#[test]
fn an_unknown_field_is_named_with_line_column_and_path() {
    let said = refusal(&format!(
        "{HEAD}egressSelections:\n- name: cluster\n  connection:\n    protocol: GRPC\n"
    ));
    assert_eq!(
        said,
        "line 6, column 5: egressSelections[0].connection: unknown field `protocol`, \
         expected `proxyProtocol` or `transport`"
    );
}

#[test]
fn a_value_of_the_wrong_type_is_named_with_path() {
    let said = refusal(&format!(
        "{HEAD}egressSelections:\n- name: cluster\n  connection: {{transport: {{uds: {{udsName: 5}}}}}}\n"
    ));
    assert!(
        said.contains(
            "egressSelections[0].connection.transport.uds.udsName: invalid type: integer `5`"
        ),
        "{said}"
    );
    assert!(said.starts_with("line 5, column "), "{said}");
}

#[test]
fn all_broken_rules_are_told_at_once_with_the_real_path_of_each() {
    let said = refusal(&format!(
        "{HEAD}egressSelections:\n\
         - {{name: cluster, connection: {{proxyProtocol: Direct}}}}\n\
         - {{name: nodes, connection: {{proxyProtocol: HTTP}}}}\n\
         - {{name: etcd, connection: {{proxyProtocol: GRPC, transport: {{uds: {{udsName: 'unix:///x'}}}}}}}}\n"
    ));
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines.len(), 3, "{said}");
    for (line, start) in lines.iter().zip([
        "error V1: egressSelections[1].connection.proxyProtocol is \"HTTP\"",
        "error L3: egressSelections[2].connection.transport.uds.udsName begins with unix:",
        "error V11: egressSelections[1].name is \"nodes\"",
    ]) {
        assert!(line.starts_with(start), "{line}");
    }
}

#[test]
fn a_missing_file_a_folder_and_a_large_file_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("missing.yaml");
    let error = load(&missing, Files::Elsewhere).unwrap_err();
    assert!(matches!(error, LoadError::Read { .. }));
    assert!(error.to_string().contains("missing.yaml"), "{error}");

    let error = load(dir.path(), Files::Elsewhere).unwrap_err();
    assert!(matches!(error, LoadError::NotAFile { .. }));

    let socket = dir.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let error = load(&socket, Files::Elsewhere).unwrap_err();
    assert!(matches!(error, LoadError::NotAFile { .. }));

    let large = dir.path().join("large.yaml");
    fs::write(&large, vec![b'\n'; MAX_FILE_BYTES + 1]).unwrap();
    let error = load(&large, Files::Elsewhere).unwrap_err();
    assert!(matches!(
        error,
        LoadError::Document {
            source: DocumentError::TooLarge { .. },
            ..
        }
    ));
}

/// Each of these is as large as the limit lets it be, and must end soon and without a panic.
#[test]
fn bombs_are_refused() {
    let deep = "[".repeat(MAX_FILE_BYTES);
    let deepest = "{".repeat(MAX_OPENING_BRACKETS);
    let hidden = "[']',".repeat(MAX_FILE_BYTES / 5);
    let deep_block = "- ".repeat(MAX_FILE_BYTES / 2);
    let mut aliases = format!("{HEAD}a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n");
    for level in 1..30 {
        let below = format!("*a{},", level - 1).repeat(10);
        aliases.push_str(&format!("a{level}: &a{level} [{below}]\n"));
    }
    let aliases_and_merge = format!("{aliases}\"<<\": 1\nz:\n{}", "- x\n".repeat(10_000));
    let mut merges = format!("{HEAD}a0: &a0 {{x: y}}\n");
    for level in 1..30 {
        let below = format!("k{level}: *a{0}, j{level}: *a{0}, <<: *a{0}", level - 1);
        merges.push_str(&format!("a{level}: &a{level} {{{below}}}\n"));
    }
    let keys = format!("{HEAD}{}", "? ".repeat(MAX_FILE_BYTES / 4));
    let invalid = "\u{fffd}".repeat(1000).into_bytes();
    let latin = vec![0xe9; 1000];
    for bytes in [
        deep.as_bytes(),
        deepest.as_bytes(),
        hidden.as_bytes(),
        deep_block.as_bytes(),
        aliases.as_bytes(),
        aliases_and_merge.as_bytes(),
        merges.as_bytes(),
        keys.as_bytes(),
        &invalid,
        &latin,
    ] {
        parse(bytes, Files::Elsewhere).unwrap_err();
    }
}

fn command(args: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_egress-config"))
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that does not read its input may be gone by now.
    drop(child.stdin.take().unwrap().write_all(input.as_bytes()));
    child.wait_with_output().unwrap()
}

fn fixture(name: &str) -> String {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    dir.join(name).to_str().unwrap().to_owned()
}

#[test]
fn validate_exits_0_or_1_and_says_all_findings() {
    let output = command(
        &[
            "validate",
            &fixture("valid/L12-master-is-the-old-name.yaml"),
        ],
        "",
    );
    assert_eq!(output.status.code(), Some(0));
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(
        said.starts_with("note L12: egressSelections[1].name"),
        "{said}"
    );

    let many = fixture("invalid/V1+V7+V8+V11-many-at-once.yaml");
    let output = command(&["validate", &many], "");
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    for id in ["V1:", "V7:", "V8:", "V11:", &many] {
        assert!(said.contains(id), "{id} in {said}");
    }
}

#[test]
fn validate_looks_for_the_files_unless_kube_apiserver_runs_elsewhere() {
    let file = fixture("invalid/V16-client-cert-missing.yaml");
    assert_eq!(command(&["validate", &file], "").status.code(), Some(1));
    let output = command(&["validate", "--elsewhere", &file], "");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn validate_reads_standard_input() {
    let good = fs::read_to_string(fixture("valid/E1-grpc-over-uds.yaml")).unwrap();
    assert_eq!(command(&["validate", "-"], &good).status.code(), Some(0));
    assert_eq!(command(&["validate", "-"], "").status.code(), Some(1));
}

#[test]
fn what_generate_writes_is_valid_and_says_what_was_asked_for() {
    for args in [
        &["--mode", "grpc", "--uds-name", "/run/a.sock"][..],
        &["--mode", "http-connect", "--uds-name", "/run/a.sock"],
        &[
            "--mode",
            "http-connect",
            "--url",
            "https://proxy:8090",
            "--ca-bundle=/a/ca.crt",
            "--client-cert=/a/tls.crt",
            "--client-key=/a/tls.key",
            "--tls-server-name=proxy.example",
        ],
    ] {
        let more = ["--through=cluster,controlplane", "--direct=etcd"];
        let output = command(&[&["generate"], args, &more].concat(), "");
        assert!(output.status.success(), "{output:?}");
        let loaded = parse(&output.stdout, Files::Elsewhere).unwrap();
        let names: Vec<_> = loaded.selector.iter().map(|(name, _)| name).collect();
        assert_eq!(names, SelectionName::ALL);
        let yaml = String::from_utf8(output.stdout).unwrap();
        for value in args.iter().filter_map(|arg| arg.split_once('=')) {
            assert!(yaml.contains(value.1), "{} in {yaml}", value.1);
        }
    }
}

#[test]
fn generate_refuses_what_kube_apiserver_cannot_do_and_names_the_flag() {
    for (args, flag) in [
        (
            &[
                "--mode=grpc",
                "--url=https://a:1",
                "--client-cert=c",
                "--client-key=k",
            ][..],
            "--uds-name",
        ),
        (&["--mode=grpc", "--uds-name=unix:///run/a"], "--uds-name"),
        (&["--mode=grpc", "--uds-name=/run/%zz"], "--uds-name"),
        (
            &[
                "--mode=http-connect",
                "--url=http://a:1",
                "--client-cert=c",
                "--client-key=k",
            ],
            "--url",
        ),
        (
            &["--mode=grpc", "--uds-name=/a", "--direct=cluster"],
            "--direct",
        ),
    ] {
        let output = command(&[&["generate"], args].concat(), "");
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains(flag), "{said}");
        assert!(output.stdout.is_empty());
    }
}
