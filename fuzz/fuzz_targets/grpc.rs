//! A stream of messages is cut alike wherever the borders of its chunks are, and holds no more than it was sent.

#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use tunnel::grpc::{FramingError, MessageReader};

const MAX_MESSAGE: usize = 1024;

/// The messages of `stream` in chunks of the lengths in `cuts`, and how the stream ends.
fn messages(stream: &Bytes, cuts: &[u8]) -> (Vec<Bytes>, Result<(), FramingError>) {
    let mut rest = stream.clone();
    let mut cuts = cuts
        .iter()
        .map(|&cut| usize::from(cut))
        .chain(std::iter::repeat(usize::MAX));
    let mut reader = MessageReader::new(MAX_MESSAGE);
    let mut out = Vec::new();
    while !rest.is_empty() {
        let len = cuts.next().unwrap_or(usize::MAX).min(rest.len());
        reader.push(rest.split_to(len));
        loop {
            match reader.next_message() {
                Ok(Some(message)) => out.push(message),
                Ok(None) => break,
                Err(error) => return (out, Err(error)),
            }
        }
    }
    let end = reader.finish();
    (out, end)
}

fuzz_target!(|input: (&[u8], &[u8])| {
    let (cuts, stream) = input;
    let stream = Bytes::copy_from_slice(stream);
    let whole = messages(&stream, &[]);
    assert_eq!(messages(&stream, cuts), whole);
    let total: usize = whole.0.iter().map(|message| message.len() + 5).sum();
    assert!(total <= stream.len() && whole.0.iter().all(|message| message.len() <= MAX_MESSAGE));
});
