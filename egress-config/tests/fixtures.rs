//! Every fixture gives what its name says.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use egress_config::{Files, Finding, Rule, Severity, inspect_file, parse, to_yaml};

fn fixtures(folder: &str) -> Vec<(String, PathBuf)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let mut found: Vec<_> = fs::read_dir(dir.join(folder))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), path))
        .collect();
    found.sort();
    assert!(!found.is_empty(), "{folder} holds fixtures");
    found
}

/// The ids at the front of a fixture's name.
fn expected(name: &str) -> BTreeSet<String> {
    name.split(['-', '+'])
        .take_while(|part| {
            part.starts_with(['B', 'E', 'L', 'R', 'V'])
                && part.len() > 1
                && part.bytes().skip(1).all(|byte| byte.is_ascii_digit())
        })
        .map(str::to_owned)
        .collect()
}

fn ids(findings: &[Finding]) -> BTreeSet<String> {
    findings
        .iter()
        .map(|finding| finding.rule.id().to_owned())
        .collect()
}

#[test]
fn every_invalid_fixture_is_refused_for_what_its_name_says() {
    for (name, path) in fixtures("invalid") {
        let wanted = expected(&name);
        assert!(!wanted.is_empty(), "{name}");
        let about_files = ["V14", "V16", "V18"].iter().any(|id| wanted.contains(*id));
        let files = if about_files {
            Files::MustExist
        } else {
            Files::Elsewhere
        };
        let report = inspect_file(&path, files).unwrap();
        assert!(!report.is_valid() && report.selector().is_none(), "{name}");
        let errors: Vec<_> = report
            .findings
            .into_iter()
            .filter(|finding| finding.severity() == Severity::Error)
            .collect();
        assert_eq!(ids(&errors), wanted, "{name}: {errors:#?}");
    }
}

#[test]
fn every_valid_fixture_is_taken_with_the_warnings_its_name_says() {
    for (name, path) in fixtures("valid") {
        let report = inspect_file(&path, Files::Elsewhere).unwrap();
        let wanted = expected(&name);
        assert!(!wanted.is_empty(), "{name}");
        let wanted = wanted
            .into_iter()
            .filter(|id| id.starts_with(['B', 'L']))
            .collect();
        let mut found = ids(&report.findings);
        found.remove(Rule::ControlPlaneAbsent.id());
        assert_eq!(found, wanted, "{name}: {:#?}", report.findings);
        assert!(report.is_valid(), "{name}");
        let fatal = report
            .findings
            .iter()
            .any(|finding| finding.rule.effect().is_fatal());
        assert_eq!(report.selector().is_none(), fatal, "{name}");
    }
}

#[test]
fn every_deliberate_fixture_is_refused() {
    for (name, path) in fixtures("deliberate") {
        assert!(
            !inspect_file(&path, Files::Elsewhere).unwrap().is_valid(),
            "{name}"
        );
    }
}

#[test]
fn every_finding_has_a_path_a_place_and_a_cure() {
    for (name, path) in fixtures("invalid").into_iter().chain(fixtures("valid")) {
        for finding in inspect_file(&path, Files::Elsewhere).unwrap().findings {
            let about_all = matches!(
                finding.rule,
                Rule::Empty | Rule::Protobuf | Rule::SeveralDocuments | Rule::NotMapping
            );
            // Of UTF-16 no string is lent out of the input.
            assert!(
                about_all || name.contains("utf-16") || finding.position.is_some(),
                "{name}: {finding}"
            );
            assert!(
                about_all || finding.rule == Rule::Syntax || !finding.path.is_empty(),
                "{name}: {finding}"
            );
            let cures = [
                "write", "remove", "keep", "add", "must be", "give", "correct", "look", "rename",
                "move", "leave", "needs",
            ];
            let cured = cures.iter().any(|word| finding.problem.contains(word));
            assert!(cured, "{name}: {finding}");
        }
    }
}

#[test]
fn every_valid_fixture_is_the_same_after_writing_and_reading() {
    for (name, path) in fixtures("valid") {
        let report = inspect_file(&path, Files::Elsewhere).unwrap();
        let Some(first) = report.selector().cloned() else {
            continue; // Nothing that kube-apiserver could work with.
        };
        let yaml = to_yaml(&first);
        let second = parse(yaml.as_bytes(), Files::Elsewhere).unwrap().selector;
        assert_eq!(first, second, "{name}:\n{yaml}");
    }
}
