//! What is in the files that a configuration names: kube-apiserver finds out only behind its own validation.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;

use certs::issue::{Leaf, Replace};
use certs::{Authority, Validity};
use egress_config::{Files, Report, inspect};
use tempfile::TempDir;

/// A folder with ca.crt, client.crt and client.key that belong together.
fn machine(leaf: &Leaf) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::generate("test").unwrap();
    authority.write(folder.path(), "ca", Replace::No).unwrap();
    authority
        .issue(leaf)
        .unwrap()
        .write(folder.path(), "client", Replace::No)
        .unwrap();
    folder
}

fn report(folder: &Path, ca: &str, certificate: &str, key: &str) -> Report {
    let folder = folder.display();
    let yaml = format!(
        "apiVersion: apiserver.k8s.io/v1beta1
kind: EgressSelectorConfiguration
egressSelections:
- name: cluster
  connection:
    proxyProtocol: HTTPConnect
    transport:
      tcp:
        url: https://proxy.example:8090
        tlsConfig:
          caBundle: {folder}/{ca}
          clientCert: {folder}/{certificate}
          clientKey: {folder}/{key}
"
    );
    assert!(
        inspect(yaml.as_bytes(), Files::Elsewhere)
            .unwrap()
            .selector()
            .is_some(),
        "elsewhere nobody looks"
    );
    let report = inspect(yaml.as_bytes(), Files::MustExist).unwrap();
    assert!(
        report.is_valid(),
        "kube-apiserver's validation does not look into files"
    );
    report
}

/// Rule, last part of the path, line, and what the warning says, of the only warning.
fn warned(report: &Report) -> (&str, &str, usize, &str) {
    assert!(report.selector().is_none());
    let mut warnings = report
        .findings
        .iter()
        .filter(|finding| finding.rule.id() != "L13");
    let finding = warnings.next().unwrap();
    assert!(warnings.next().is_none(), "{report:#?}");
    (
        finding.rule.id(),
        finding.path.rsplit('.').next().unwrap(),
        finding.position.unwrap().line,
        &finding.problem,
    )
}

#[test]
fn files_that_belong_together_are_fine() {
    let folder = machine(&Leaf::client("kube-apiserver"));
    let report = report(folder.path(), "ca.crt", "client.crt", "client.key");
    assert!(report.selector().is_some(), "{report:#?}");
}

#[test]
fn a_key_of_another_certificate_stops_kube_apiserver() {
    let folder = machine(&Leaf::client("kube-apiserver"));
    let other = machine(&Leaf::client("other"));
    fs::copy(
        other.path().join("client.key"),
        folder.path().join("other.key"),
    )
    .unwrap();
    let report = report(folder.path(), "ca.crt", "client.crt", "other.key");
    let (rule, field, line, problem) = warned(&report);
    assert_eq!((rule, field, line), ("B2", "clientKey", 13));
    assert!(problem.contains("does not match"), "{problem}");
}

#[test]
fn files_that_are_no_pair_are_told_by_name() {
    let folder = machine(&Leaf::client("kube-apiserver"));
    fs::write(folder.path().join("empty"), "").unwrap();
    fs::write(folder.path().join("text"), "no PEM\n").unwrap();
    fs::create_dir(folder.path().join("folder")).unwrap();
    for file in ["empty", "text", "folder", "client.key"] {
        let report = report(folder.path(), "ca.crt", file, "client.key");
        let (rule, field, line, problem) = warned(&report);
        // The key in place of the certificate is one that holds none.
        assert_eq!(
            (rule, line),
            ("B2", if field == "clientCert" { 12 } else { 13 }),
            "{problem}"
        );
        assert!(problem.contains(file), "{problem}");
    }
    for file in ["empty", "text", "folder", "client.crt"] {
        let report = report(folder.path(), "ca.crt", "client.crt", file);
        let (rule, field, line, problem) = warned(&report);
        assert_eq!((rule, field, line), ("B2", "clientKey", 13), "{problem}");
        assert!(problem.contains(file), "{problem}");
    }
}

#[test]
fn a_bundle_without_a_certificate_stops_kube_apiserver() {
    let folder = machine(&Leaf::client("kube-apiserver"));
    fs::write(folder.path().join("empty"), "").unwrap();
    for file in ["empty", "client.key"] {
        let report = report(folder.path(), file, "client.crt", "client.key");
        let (rule, field, line, problem) = warned(&report);
        assert_eq!((rule, field, line), ("B3", "caBundle", 11), "{problem}");
        assert!(problem.contains(file), "{problem}");
    }
}

#[test]
fn certificates_out_of_date_or_not_for_clients_fail_every_dial() {
    for (validity, wanted) in [
        (Validity::over(), "expired"),
        (Validity::to_come(), "not valid before"),
    ] {
        let folder = machine(&Leaf::client("kube-apiserver").valid(validity));
        let report = report(folder.path(), "ca.crt", "client.crt", "client.key");
        let (rule, field, line, problem) = warned(&report);
        assert_eq!((rule, field, line), ("L10", "clientCert", 12));
        assert!(problem.contains(wanted), "{problem}");
    }
    let folder = machine(&Leaf::server(&["kube-apiserver"]));
    let report = report(folder.path(), "ca.crt", "client.crt", "client.key");
    let (rule, field, _, problem) = warned(&report);
    assert_eq!((rule, field), ("L10", "clientCert"));
    assert!(problem.contains("clientAuth"), "{problem}");
}

#[test]
fn an_authority_out_of_date_fails_every_handshake() {
    let folder = machine(&Leaf::client("kube-apiserver"));
    let over = Authority::generate_valid("over", Validity::over()).unwrap();
    over.write(folder.path(), "over", Replace::No).unwrap();
    let report = report(folder.path(), "over.crt", "client.crt", "client.key");
    let (rule, field, line, problem) = warned(&report);
    assert_eq!((rule, field, line), ("L10", "caBundle", 11));
    assert!(problem.contains("out of date"), "{problem}");
}
