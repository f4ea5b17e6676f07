//! Any bytes as the head of a CONNECT, in reads of any length.

#![no_main]

use libfuzzer_sys::fuzz_target;
use proxy_server::frontend::http_connect::{Head, head_end, parse};

fuzz_target!(|input: (&[u8], Vec<u8>)| {
    let (wire, reads) = input;
    // As the frontend looks: after each read, from three bytes before it.
    let mut searched = 0;
    let mut found = None;
    for read in reads.iter().map(|&read| usize::from(read)).chain([wire.len()]) {
        let seen = (searched + read).min(wire.len());
        found = head_end(&wire[..seen], searched.saturating_sub(3));
        if found.is_some() {
            break;
        }
        searched = seen;
    }
    assert_eq!(found, head_end(wire, 0), "the end depends on where reads end");
    let Some(end) = found else { return };
    assert!(end <= wire.len() && wire[..end].ends_with(b"\n"));
    if let Head::Connect(target) = parse(&wire[..end]) {
        // What goes to an agent and into a log is one line.
        assert!(!target.contains(['\r', '\n', '\0']), "{target:?}");
        assert!(target.len() < end);
    }
});
