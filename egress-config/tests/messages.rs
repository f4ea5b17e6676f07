//! What an operator reads: the place, the fault and the cure.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use egress_config::{Files, SelectionName, parse};

/// What is said, but for the note that nearly every file gets.
fn refusal(yaml: &str) -> String {
    let said = parse(yaml.as_bytes(), Files::Elsewhere)
        .unwrap_err()
        .to_string();
    let lines: Vec<_> = said
        .lines()
        .filter(|line| !line.starts_with("note L13"))
        .collect();
    lines.join("\n")
}

const HEAD: &str = "apiVersion: apiserver.k8s.io/v1beta1\nkind: EgressSelectorConfiguration\n";

#[test]
fn an_unknown_field_is_named_with_line_column_and_path() {
    let said = refusal(&format!(
        "{HEAD}egressSelections:\n- name: cluster\n  connection:\n    proxyProtocol: Direct\n    transports: {{}}\n"
    ));
    assert_eq!(
        said.lines().next().unwrap(),
        "error R11 at line 7, column 5: egressSelections[0].connection.transports is not a field; \
         write transport, in this spelling"
    );
}

#[test]
fn a_value_of_the_wrong_type_is_named_with_path_and_told_how_to_write_it() {
    let said = refusal(&format!(
        "{HEAD}egressSelections:\n- name: on\n  connection: {{transport: {{uds: {{udsName: 5}}}}, proxyProtocol: GRPC}}\n"
    ));
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(
        lines,
        [
            "error R13 at line 4, column 3: egressSelections[0].name is on, which YAML 1.1 takes for a boolean, \
             but must be text; if it is meant, write it in quotes: \"on\"",
            "error R13 at line 5, column 34: egressSelections[0].connection.transport.uds.udsName is the number 5, \
             but must be text; if it is meant, write it in quotes: \"5\"",
        ]
    );
}

#[test]
fn faults_of_every_stage_are_told_at_once_in_the_order_of_the_file() {
    let said = refusal(
        "apiVersion: apiserver.k8s.io/v1\nkind: EgressSelectorConfiguration\nmetadata: {}\negressSelections:\n\
         - {name: cluster, connection: {proxyProtocol: Direct}}\n\
         - {name: nodes, connection: {proxyProtocol: GRPC, proxyProtocol: HTTP}}\n\
         - {name: etcd, connection: {proxyProtocol: GRPC, transport: {uds: {udsName: 'unix:///x'}}}}\n",
    );
    let lines: Vec<_> = said.lines().collect();
    let starts = [
        "error R9 at line 1, column 1: apiVersion is \"apiserver.k8s.io/v1\"",
        "error R11 at line 3, column 1: metadata is not a field; remove it",
        "error V11 at line 6, column 4: egressSelections[1].name is \"nodes\"",
        "error R12 at line 6, column 51: egressSelections[1].connection.proxyProtocol stands there a second time",
        "error V1 at line 6, column 51: egressSelections[1].connection.proxyProtocol is \"HTTP\"",
        "warning L3 at line 7, column 68: egressSelections[2].connection.transport.uds.udsName begins with unix:",
    ];
    assert_eq!(lines.len(), starts.len(), "{said}");
    for (line, start) in lines.iter().zip(starts) {
        assert!(line.starts_with(start), "{line}\n{start}");
    }
}

#[test]
fn a_field_that_is_missing_is_placed_where_it_should_stand_under() {
    let said = refusal(&format!(
        "{HEAD}egressSelections:\n- name: cluster\n  connection:\n    proxyProtocol: GRPC\n"
    ));
    assert_eq!(
        said.lines().next().unwrap(),
        "error V6 at line 5, column 3: egressSelections[0].connection.transport is missing; GRPC needs uds in it"
    );
}

#[test]
fn keys_that_would_break_the_terminal_are_escaped_and_cut() {
    let key = format!("\\e[31m{}", "x".repeat(1000));
    let said = refusal(&format!("{HEAD}\"{key}\": 1\n"));
    assert!(said.contains("\\u{1b}[31mxxx"), "{said}");
    assert!(said.len() < 600, "{said}");
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
        said.starts_with("note L12 at line 10, column 3: egressSelections[1].name"),
        "{said}"
    );

    let many = fixture("invalid/V1+V7+V8+V11-many-at-once.yaml");
    let output = command(&["validate", &many], "");
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stdout).unwrap();
    for part in ["V1 at", "V7 at", "V8 at", "V11 at", "refuses it", &many] {
        assert!(said.contains(part), "{part} in {said}");
    }
}

#[test]
fn what_kube_apiserver_takes_and_then_fails_on_is_valid_with_a_warning_and_not_so_if_strict() {
    let panics = fixture("valid/L1-plain-http.yaml");
    let output = command(&["validate", &panics], "");
    assert_eq!(output.status.code(), Some(0));
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("warning L1 at line 9, column 9"), "{said}");
    assert!(said.contains("takes it, but cannot use it"), "{said}");
    let output = command(&["validate", "--strict", &panics], "");
    assert_eq!(output.status.code(), Some(1));
    // A note is no warning.
    let good = fixture("valid/E1-grpc-over-uds.yaml");
    let output = command(&["validate", "--strict", &good], "");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn validate_prints_json_for_scripts_also_if_there_is_no_file() {
    let file = fixture("invalid/V8-uds-name-empty.yaml");
    let output = command(&["validate", "--format=json", &file], "");
    assert_eq!(output.status.code(), Some(1));
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(said["valid"], false);
    let finding = &said["findings"][0];
    assert_eq!(finding["rule"], "V8");
    assert_eq!(finding["severity"], "error");
    assert_eq!(finding["line"], 9);
    assert_eq!(finding["column"], 9);
    assert_eq!(
        finding["path"],
        "egressSelections[0].connection.transport.uds.udsName"
    );

    let output = command(&["validate", "--format=json", "no/such/file"], "");
    assert_eq!(output.status.code(), Some(1));
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(said["valid"], false);
    assert!(said["error"].as_str().unwrap().contains("no/such/file"));
}

#[test]
fn explain_prints_a_table_and_refuses_what_cannot_be_used() {
    let file = fixture("valid/E7-cluster-and-controlplane.yaml");
    let output = command(&["explain", &file], "");
    assert!(output.status.success());
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(
        said.contains("direct, since the selection is absent"),
        "{said}"
    );
    assert!(
        said.contains("HTTPConnect to /run/konnectivity/server.sock"),
        "{said}"
    );

    let output = command(&["explain", &fixture("valid/L1-plain-http.yaml")], "");
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("warning L1"), "{said}");
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
        assert!(
            loaded
                .findings
                .iter()
                .all(|finding| finding.rule.id() == "L11")
        );
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

#[test]
fn check_tells_the_step_that_failed_and_exits_1() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("none.sock");
    let yaml = format!(
        "{HEAD}egressSelections:\n\
         - {{name: cluster, connection: {{proxyProtocol: GRPC, transport: {{uds: {{udsName: {}}}}}}}}}\n\
         - {{name: etcd, connection: {{proxyProtocol: Direct}}}}\n",
        socket.display()
    );
    let output = command(&["check", "--target=192.0.2.1:443", "-"], &yaml);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines[0], format!("cluster: GRPC to {}", socket.display()));
    assert!(lines[1].starts_with("  connect      FAILED"), "{said}");
    assert!(lines[1].contains("No such file"), "{said}");
    assert_eq!(lines[2..], ["etcd: Direct", "  no proxy, nothing to check"]);

    let output = command(&["check", "--selection=etcd", "-"], &yaml);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let output = command(&["check", "--target=nowhere", "-"], &yaml);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}
