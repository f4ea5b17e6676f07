//! Any bytes as the content of an egress selector file.

#![no_main]

use egress_config::load::MAX_FILE_BYTES;
use egress_config::{Files, explain::Explanation, inspect, parse, to_yaml};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(report) = inspect(bytes, Files::Elsewhere) else {
        return; // Too large, or too many brackets.
    };
    let lines = bytes.len() + 1;
    for finding in &report.findings {
        let said = finding.to_string();
        assert!(!finding.problem.is_empty());
        // One line for each, which holds no escape sequence that a terminal would obey.
        assert!(!said.chars().any(char::is_control), "{said:?}");
        if let Some(position) = finding.position {
            assert!((1..=lines).contains(&position.line), "{said}");
            assert!(
                (1..=MAX_FILE_BYTES + 1).contains(&position.column),
                "{said}"
            );
        }
    }
    let fatal = report
        .findings
        .iter()
        .any(|finding| finding.rule.effect().is_fatal());
    assert_eq!(report.selector().is_none(), fatal, "{report:?}");
    let Some(selector) = report.selector() else {
        assert!(parse(bytes, Files::Elsewhere).is_err());
        return;
    };
    assert!(report.is_valid());
    assert!(!Explanation::of(selector).to_string().is_empty());
    // It may have become too large, with every escape written out.
    let yaml = to_yaml(selector);
    if yaml.len() <= MAX_FILE_BYTES {
        let again = parse(yaml.as_bytes(), Files::Elsewhere).expect("what we write can be read");
        assert_eq!(again.selector, *selector, "{yaml}");
    }
});
