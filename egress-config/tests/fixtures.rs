//! Every fixture gives what its name says.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use egress_config::{DocumentError, Files, Finding, LoadError, Severity, load, parse, to_yaml};

fn fixtures(folder: &str) -> Vec<(String, PathBuf)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let mut found: Vec<_> = fs::read_dir(dir.join(folder))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), path))
        .collect();
    found.sort();
    assert!(found.len() >= 30, "{folder} holds the fixtures");
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

/// The ids under which kube-apiserver's decoder refuses what we refuse with this error.
fn decoder_ids(error: &DocumentError) -> &'static [&'static str] {
    match error {
        DocumentError::KindMissing => &["R3", "R6"],
        DocumentError::ApiVersionMissing => &["R7"],
        DocumentError::KindUnknown { .. } => &["R8", "R9", "R10", "L5"],
        DocumentError::Syntax { .. } => &["R4", "R5", "R11", "R12", "R13"],
        DocumentError::Protobuf => &["R17"],
        other => panic!("not of the decoder: {other}"),
    }
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
        match load(&path, files) {
            Err(LoadError::Document {
                source: DocumentError::Invalid { findings },
                ..
            }) => {
                let errors: Vec<_> = findings
                    .into_iter()
                    .filter(|finding| finding.severity() == Severity::Error)
                    .collect();
                assert_eq!(ids(&errors), wanted, "{name}: {errors:#?}");
            }
            Err(LoadError::Document { source, .. }) => {
                let meant = decoder_ids(&source);
                assert!(
                    wanted.iter().all(|id| meant.contains(&id.as_str())),
                    "{name}: {source}"
                );
            }
            other => panic!("{name}: {other:?}"),
        }
    }
}

#[test]
fn every_valid_fixture_is_taken_with_the_warnings_its_name_says() {
    for (name, path) in fixtures("valid") {
        let loaded =
            load(&path, Files::Elsewhere).unwrap_or_else(|error| panic!("{name}: {error:?}"));
        let wanted = expected(&name);
        assert!(!wanted.is_empty(), "{name}");
        let wanted = wanted
            .into_iter()
            .filter(|id| id.starts_with('L'))
            .collect();
        assert_eq!(
            ids(&loaded.findings),
            wanted,
            "{name}: {:#?}",
            loaded.findings
        );
    }
}

#[test]
fn every_valid_fixture_is_the_same_after_writing_and_reading() {
    for (name, path) in fixtures("valid") {
        let first = load(&path, Files::Elsewhere).unwrap().selector;
        let yaml = to_yaml(&first);
        let second = parse(yaml.as_bytes(), Files::Elsewhere).unwrap().selector;
        assert_eq!(first, second, "{name}:\n{yaml}");
    }
}
