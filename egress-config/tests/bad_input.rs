//! What is no configuration at all: each gets an error with place and cure, soon and without a panic.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::os::unix::net::UnixListener;

use egress_config::load::{MAX_FILE_BYTES, MAX_OPENING_BRACKETS};
use egress_config::{
    DocumentError, Files, LoadError, Report, Severity, inspect, inspect_file, load,
};

const GOOD: &str = "apiVersion: apiserver.k8s.io/v1beta1
kind: EgressSelectorConfiguration
egressSelections:
- name: cluster
  connection:
    proxyProtocol: GRPC
    transport:
      uds:
        udsName: /run/a.sock
";

fn told(bytes: impl AsRef<[u8]>) -> Report {
    inspect(bytes.as_ref(), Files::Elsewhere).unwrap()
}

/// The only error.
fn error(bytes: impl AsRef<[u8]>) -> String {
    let report = told(bytes);
    assert!(!report.is_valid());
    let mut errors = report
        .findings
        .iter()
        .filter(|finding| finding.severity() == Severity::Error);
    let said = errors.next().unwrap().to_string();
    assert!(errors.next().is_none(), "{report:?}");
    said
}

#[test]
fn nothing_is_told_what_to_write() {
    for empty in ["", " \n\n", "# nothing\n", "---\n", "null\n"] {
        let said = error(empty);
        assert!(
            said.starts_with("error R3: the file is empty; write apiVersion"),
            "{said}"
        );
    }
}

#[test]
fn what_is_no_regular_file_is_not_opened() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    let _listener = UnixListener::bind(&socket).unwrap();
    for path in [dir.path(), &socket, "/dev/zero".as_ref()] {
        let error = inspect_file(path, Files::Elsewhere).unwrap_err();
        assert!(matches!(error, LoadError::NotAFile { .. }), "{error}");
        assert!(
            error.to_string().contains(path.to_str().unwrap()),
            "{error}"
        );
    }
    let missing = dir.path().join("missing.yaml");
    let error = inspect_file(&missing, Files::Elsewhere).unwrap_err();
    assert!(matches!(error, LoadError::Read { .. }), "{error}");
    assert!(error.to_string().contains("missing.yaml"), "{error}");
}

#[test]
fn a_file_of_10_mib_is_refused_after_the_first_64_kib() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("large.yaml");
    fs::write(&path, vec![b'#'; 10 * 1024 * 1024]).unwrap();
    let error = load(&path, Files::Elsewhere).unwrap_err();
    let source = DocumentError::TooLarge {
        max_bytes: MAX_FILE_BYTES,
    };
    let source = source.to_string();
    assert!(
        matches!(&error, LoadError::Document { source: found, .. } if found.to_string() == source)
    );
    let largest = format!("{GOOD}#{}", " ".repeat(MAX_FILE_BYTES - GOOD.len() - 1));
    assert!(told(largest).is_valid());
}

#[test]
fn binary_files_are_not_yaml_and_the_place_is_told_where_there_is_one() {
    let elf = [b"\x7fELF\x02\x01\x01".as_slice(), &[0; 57]].concat();
    for bytes in [
        &[0; 100][..],
        &elf,
        &[0xff; 100],
        &[0xe9; 1000],
        b"\x1f\x8b\x08\0\0",
    ] {
        let said = error(bytes);
        assert!(said.starts_with("error R5"), "{said}");
        assert!(said.contains("is not YAML that can be read"), "{said}");
    }
    let said = error(b"k8s\0\n\x0c");
    assert!(
        said.contains("is Kubernetes protobuf; write YAML or JSON"),
        "{said}"
    );
}

#[test]
fn a_tab_that_indents_is_refused_at_its_place() {
    let said = error(GOOD.replace("    proxyProtocol", "\tproxyProtocol"));
    assert!(said.starts_with("error R5 at line 6, column 1: "), "{said}");
}

#[test]
fn broken_json_is_told_at_its_line_and_its_column_in_characters() {
    let said = error("{\n  \"é\": \"é\",}\n");
    assert!(
        said.starts_with("error R5 at line 2, column 12: "),
        "{said}"
    );
    // A text that its line cuts off.
    let said = error("{\"kind\": \"Egress\n");
    assert!(said.starts_with("error R5 at line 2, column 1: "), "{said}");
}

#[test]
fn mark_and_line_ends_change_nothing() {
    let plain = told(GOOD);
    for same in [format!("\u{feff}{GOOD}"), GOOD.replace('\n', "\r\n")] {
        let report = told(same);
        assert_eq!(report.selector(), plain.selector());
        assert_eq!(report.findings, plain.findings);
    }
}

#[test]
fn duplicate_keys_are_told_where_the_second_stands() {
    let said = error(format!("{GOOD}        udsName: /run/b.sock\n"));
    assert!(
        said.starts_with(
            "error R12 at line 10, column 9: egressSelections[0].connection.transport.uds.udsName"
        ),
        "{said}"
    );
}

#[test]
fn another_kind_hears_that_and_nothing_of_its_fields() {
    for (bytes, wanted) in [
        (
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: x}\nspec: {}\n",
            "error R9 at line 2, column 1: kind is \"Deployment\"; write kind: EgressSelectorConfiguration",
        ),
        (
            "apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\nendpoint: x\n",
            "error R10 at line 2, column 1: kind is \"TracingConfiguration\"",
        ),
    ] {
        let report = told(bytes);
        let said: Vec<_> = report.findings.iter().map(ToString::to_string).collect();
        assert!(said.iter().any(|line| line.starts_with(wanted)), "{said:?}");
        assert!(
            report
                .findings
                .iter()
                .all(|finding| matches!(finding.path.as_str(), "kind" | "apiVersion"))
        );
    }
}

#[test]
fn a_wrong_group_is_told_the_right_one() {
    let said = error(GOOD.replace("apiserver.k8s.io", "apiserver.config.k8s.io"));
    assert!(
        said.starts_with("error R9 at line 1, column 1: apiVersion is \"apiserver.config.k8s.io/v1beta1\", which has no such kind; write apiVersion: apiserver.k8s.io/v1beta1"),
        "{said}"
    );
}

#[test]
fn metadata_is_told_to_be_removed() {
    let report = told(format!("{GOOD}metadata:\n  name: x\n"));
    let said: Vec<_> = report.findings.iter().map(ToString::to_string).collect();
    assert!(
        said.iter().any(|line| line == "error R11 at line 10, column 1: metadata is not a field; remove it, this kind has no metadata"),
        "{said:?}"
    );
}

/// Each of these is as large as a limit lets it be.
#[test]
fn bombs_end_soon() {
    let deep = "[".repeat(MAX_FILE_BYTES);
    let deepest = "[".repeat(MAX_OPENING_BRACKETS);
    let deepest_json = "{\"a\":".repeat(MAX_OPENING_BRACKETS);
    let hidden = "[']',".repeat(MAX_FILE_BYTES / 5);
    let deep_block = "- ".repeat(MAX_FILE_BYTES / 2);
    let keys = format!("{GOOD}{}", "? ".repeat(MAX_FILE_BYTES / 4));
    let many = format!("{GOOD}x:\n{}", "- x\n".repeat(MAX_FILE_BYTES / 5));
    let unknown = (0..8_000).map(|n| format!("k{n}: \n"));
    let unknown = format!("{GOOD}{}", unknown.collect::<String>());
    let duplicates = format!("{GOOD}x:\n{}", "  k: {k: 1, k: 2}\n".repeat(400));
    let level = |n: usize, line: &dyn Fn(usize) -> String| (1..n).map(line).collect::<String>();
    let lists = format!(
        "{GOOD}a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n{}",
        level(30, &|n| format!(
            "a{n}: &a{n} [{}]\n",
            format!("*a{},", n - 1).repeat(10)
        ))
    );
    let merges = format!(
        "{GOOD}a0: &a0 {{x: y}}\n{}",
        level(60, &|n| format!(
            "a{n}: &a{n} {{k{n}: *a{0}, <<: [*a{0}, *a{0}]}}\n",
            n - 1
        ))
    );
    let merges_of_merges = format!(
        "{GOOD}a0: &a0 {{x: y}}\n{}",
        level(60, &|n| format!(
            "a{n}: &a{n} {{<<: [*a{0}, *a{0}, *a{0}]}}\n",
            n - 1
        ))
    );
    for bytes in [
        deep,
        deepest,
        deepest_json,
        hidden,
        deep_block,
        keys,
        many,
        unknown,
        duplicates,
        lists,
        merges,
        merges_of_merges,
    ] {
        if let Ok(report) = inspect(bytes.as_bytes(), Files::Elsewhere) {
            assert!(!report.is_valid());
        }
    }
}

#[test]
fn aliases_that_multiply_are_refused_by_name() {
    let mut bomb = format!("{GOOD}a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n");
    for level in 1..9 {
        let below = format!("*a{},", level - 1).repeat(10);
        bomb.push_str(&format!("a{level}: &a{level} [{below}]\n"));
    }
    let said = error(bomb);
    assert!(
        said.contains("aliases written out") || said.contains("repetition limit"),
        "{said}"
    );
}
