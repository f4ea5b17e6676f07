//! A control stream's messages are the same wherever the borders of its chunks are, in both directions.

#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use tunnel::stream::{
    control::{MAX_CONTROL_MESSAGE, MAX_NAME, ToAgent, ToServer},
    message::{LENGTH_LEN, Reader},
};

/// The messages of `stream` in chunks of the lengths in `cuts`, and how the stream ends.
fn messages(stream: &Bytes, cuts: &[u8]) -> (Vec<Bytes>, Result<(), String>) {
    let mut rest = stream.clone();
    let mut cuts = cuts
        .iter()
        .map(|&cut| usize::from(cut))
        .chain(std::iter::repeat(usize::MAX));
    let mut reader = Reader::new(MAX_CONTROL_MESSAGE);
    let mut out = Vec::new();
    while !rest.is_empty() {
        let len = cuts.next().unwrap_or(usize::MAX).min(rest.len());
        reader.push(rest.split_to(len));
        loop {
            match reader.next_message() {
                Ok(Some(message)) => out.push(message),
                Ok(None) => break,
                Err(error) => return (out, Err(error.to_string())),
            }
        }
    }
    let end = reader.finish().map_err(|error| error.to_string());
    (out, end)
}

fn check(json: &[u8]) {
    if let Ok(Some(message)) = ToAgent::decode(json) {
        let bytes = message.encode().expect("what is too long is cut");
        assert!(bytes.len() <= LENGTH_LEN + MAX_CONTROL_MESSAGE);
        let back = ToAgent::decode(&bytes[LENGTH_LEN..]).expect("it is ours");
        match (message, back) {
            // Written anew a character may take more bytes, and the end be cut.
            (
                ToAgent::ForwardRefused { id, reason },
                Some(ToAgent::ForwardRefused {
                    id: same,
                    reason: cut,
                }),
            ) => assert!(id == same && reason.starts_with(&cut)),
            (message, back) => assert_eq!(back, Some(message)),
        }
    }
    if let Ok(Some(message)) = ToServer::decode(json) {
        if let ToServer::Forward { name, .. } = &message {
            assert!(name.len() <= MAX_NAME);
        }
        let bytes = message
            .encode()
            .expect("what was read is within its limits");
        let back = ToServer::decode(&bytes[LENGTH_LEN..]).expect("it is ours");
        assert_eq!(back, Some(message));
    }
}

fuzz_target!(|input: (&[u8], &[u8])| {
    let (cuts, stream) = input;
    // As a message by itself, as lengths are hard to guess.
    check(stream);
    let stream = Bytes::copy_from_slice(stream);
    let whole = messages(&stream, &[]);
    assert_eq!(messages(&stream, cuts), whole);
    let total: usize = whole
        .0
        .iter()
        .map(|message| message.len() + LENGTH_LEN)
        .sum();
    assert!(total <= stream.len());
    for message in whole.0 {
        assert!(message.len() <= MAX_CONTROL_MESSAGE);
        check(&message);
    }
});
