use std::{
    pin::Pin,
    task::{Context, Poll},
};

use proptest::prelude::*;
use serde_json::{Value, json};
use tokio::io::ReadBuf;

use super::*;

const LIMIT: usize = 64 * 1024;

/// A peer that sends `sent` in pieces of at most `step` bytes, each after a pause, and then closes, with the error if there is one.
struct Peer<'a> {
    sent: &'a [u8],
    step: usize,
    paused: bool,
    end: Option<io::ErrorKind>,
    /// Largest buffer that was offered.
    offered: usize,
}

impl<'a> Peer<'a> {
    fn new(sent: &'a [u8], step: usize) -> Self {
        Self {
            sent,
            step,
            paused: false,
            end: None,
            offered: 0,
        }
    }
}

impl AsyncRead for Peer<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.paused = !self.paused;
        if self.paused {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.offered = self.offered.max(buf.remaining());
        let len = self.step.min(buf.remaining()).min(self.sent.len());
        let (part, rest) = self.sent.split_at(len);
        buf.put_slice(part);
        self.sent = rest;
        match self.end {
            Some(kind) if len == 0 => Poll::Ready(Err(kind.into())),
            _ => Poll::Ready(Ok(())),
        }
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap()
        .block_on(future)
}

fn read(peer: &mut Peer<'_>) -> Result<Vec<u8>, String> {
    block_on(read_message(peer, LIMIT)).map_err(|error| error.to_string())
}

fn written(message: &Value) -> Bytes {
    encode(message, LIMIT).unwrap()
}

#[test]
fn a_message_is_its_length_and_its_json() {
    assert_eq!(written(&json!({"a": 1}))[..], *b"\0\0\0\x07{\"a\":1}");
    let error = encode(&json!({"a": 1}), 6).unwrap_err();
    assert_eq!(error.to_string(), "message of 7 bytes is longer than 6");
    assert!(encode(&json!({"a": 1}), 7).is_ok());
}

#[test]
fn a_message_is_read_byte_by_byte_and_not_one_byte_more() {
    let mut sent = written(&json!({"text": "x".repeat(5_000)})).to_vec();
    let json = sent[LENGTH_LEN..].to_vec();
    sent.extend(b"PRI * HTTP/2.0");
    for step in [1, 3, 1_000, usize::MAX] {
        let mut peer = Peer::new(&sent, step);
        assert_eq!(read(&mut peer), Ok(json.clone()));
        assert_eq!(peer.sent, b"PRI * HTTP/2.0");
    }
}

#[test]
fn a_message_that_ends_early_says_where_and_one_that_never_began_that() {
    let sent = written(&json!({"a": 1}));
    for end in [None, Some(io::ErrorKind::UnexpectedEof)] {
        for len in 0..sent.len() {
            let mut peer = Peer::new(&sent[..len], 2);
            peer.end = end;
            let wanted = if len < LENGTH_LEN {
                LENGTH_LEN
            } else {
                sent.len()
            };
            let said = match len {
                0 => "peer closed the connection without a word".to_owned(),
                len => {
                    format!("peer closed the connection after {len} of {wanted} bytes of a message")
                }
            };
            assert_eq!(read(&mut peer), Err(said));
        }
    }
    let mut peer = Peer::new(&sent[..6], 2);
    peer.end = Some(io::ErrorKind::ConnectionReset);
    let error = block_on(read_message(&mut peer, LIMIT)).unwrap_err();
    assert!(
        matches!(&error, MessageError::Io(cause) if cause.kind() == io::ErrorKind::ConnectionReset),
        "{error:?}"
    );
}

#[test]
fn a_length_that_may_not_be_is_refused_before_a_byte_behind_it_is_read() {
    for (prefix, said) in [
        (0_u32, "message of no bytes"),
        (65_537, "message of 65537 bytes is longer than 65536"),
        (u32::MAX, "message of 4294967295 bytes is longer than 65536"),
    ] {
        let sent = [&prefix.to_be_bytes()[..], b"{}"].concat();
        let mut peer = Peer::new(&sent, usize::MAX);
        assert_eq!(read(&mut peer), Err(said.to_owned()));
        assert_eq!(peer.sent, b"{}");
        let mut reader = Reader::new(LIMIT);
        reader.push(sent.into());
        for _ in 0..2 {
            assert_eq!(reader.next_message().unwrap_err().to_string(), said);
        }
    }
}

#[test]
fn memory_grows_with_what_comes_and_not_with_what_is_claimed() {
    let sent = [&65_536_u32.to_be_bytes()[..], &[b' '; 600]].concat();
    let mut peer = Peer::new(&sent, 100);
    assert_eq!(
        read(&mut peer),
        Err("peer closed the connection after 604 of 65540 bytes of a message".to_owned())
    );
    assert!(peer.offered <= FIRST_STEP, "{}", peer.offered);
}

#[test]
fn a_reader_says_whether_the_stream_may_end() {
    let sent = written(&json!({"a": 1}));
    for len in 1..sent.len() {
        let mut reader = Reader::new(LIMIT);
        reader.push(sent.slice(..len));
        assert_eq!(reader.next_message().unwrap(), None);
        let wanted = if len < LENGTH_LEN {
            LENGTH_LEN
        } else {
            sent.len()
        };
        assert_eq!(
            reader.finish().unwrap_err().to_string(),
            format!("peer closed the connection after {len} of {wanted} bytes of a message")
        );
        reader.push(sent.slice(len..));
        assert!(reader.next_message().unwrap().is_some());
        assert!(reader.finish().is_ok());
    }
}

#[derive(Debug, Deserialize)]
struct Sample {
    #[expect(dead_code, reason = "read alone")]
    number: u32,
    #[expect(dead_code, reason = "read alone")]
    secret: String,
}

#[test]
fn what_is_no_json_object_says_what_is_wrong_and_repeats_nothing_of_it() {
    for (json, said) in [
        ("", "EOF while parsing a value"),
        ("null", "invalid type: null, expected an object"),
        (r#""hunter2""#, "invalid type: string, expected an object"),
        (
            r#"[1,"hunter2"]"#,
            "invalid type: sequence, expected an object",
        ),
        ("{}", "missing field `number`"),
        (r#"{"number":1,"number":2}"#, "duplicate field `number`"),
        (
            r#"{"number":"hunter2, expected \"hunter2\""}"#,
            "invalid type: string, expected u32",
        ),
        (r#"{"number":-5}"#, "invalid value: integer, expected u32"),
        (
            r#"{"secret":true}"#,
            "invalid type: boolean, expected a string",
        ),
        (
            r#"{"secret":1234567}"#,
            "invalid type: integer, expected a string",
        ),
        (
            r#"{"secret":["hunter2"]}"#,
            "invalid type: sequence, expected a string",
        ),
        (r#"{"number":1"#, "EOF while parsing an object"),
        (r#"{"number":1,"secret":"hunter2"}{"#, "trailing characters"),
    ] {
        let error = decode::<Sample>(json.as_bytes()).unwrap_err().to_string();
        let (what, place) = error.rsplit_once(" at line 1 column ").unwrap();
        assert_eq!(
            what,
            format!("message is not the JSON it should be: {said}"),
            "{json}"
        );
        assert!(place.parse::<usize>().unwrap() <= json.len());
    }
    let error = decode::<Sample>(b"{\"secret\":\"hunter2\xff\"}").unwrap_err();
    assert!(
        error.to_string().contains("invalid unicode code point"),
        "{error}"
    );
    assert!(decode::<Sample>(br#" {"new":[{}],"secret":"s","number":7} "#).is_ok());
}

#[test]
fn nesting_costs_no_stack_however_deep() {
    let nest = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
    let skipped = format!(r#"{{"number":1,"secret":"s","new":{}}}"#, nest(30_000));
    assert!(skipped.len() < LIMIT && decode::<Sample>(skipped.as_bytes()).is_ok());
    let read = format!(r#"{{"any":{}}}"#, nest(30_000));
    let error = decode::<std::collections::BTreeMap<String, Value>>(read.as_bytes()).unwrap_err();
    assert!(
        error.to_string().contains("recursion limit exceeded"),
        "{error}"
    );
}

/// Everything that `reader` gives before it wants more, or for good.
fn drain(reader: &mut Reader, out: &mut Vec<Bytes>) -> Result<(), String> {
    while let Some(message) = reader.next_message().map_err(|error| error.to_string())? {
        out.push(message);
    }
    Ok(())
}

proptest! {
    #[test]
    fn messages_are_the_same_wherever_their_bytes_are_cut(
        texts in prop::collection::vec(".{0,40}", 0..5),
        cuts in prop::collection::vec(0_usize..60, 0..12),
    ) {
        let messages: Vec<_> = texts.iter().map(|text| json!({ "text": text })).collect();
        let mut rest = Bytes::from(messages.iter().flat_map(written).collect::<Vec<u8>>());
        let (mut reader, mut got) = (Reader::new(LIMIT), Vec::new());
        for cut in cuts.into_iter().chain([usize::MAX]) {
            reader.push(rest.split_to(cut.min(rest.len())));
            prop_assert_eq!(drain(&mut reader, &mut got), Ok(()));
        }
        prop_assert!(reader.finish().is_ok());
        let got: Vec<Value> = got.iter().map(|json| decode(json).unwrap()).collect();
        prop_assert_eq!(got, messages);
    }

    #[test]
    fn both_ways_to_read_agree_on_any_bytes(bytes: Vec<u8>, limit in 0_usize..40, is_short: bool) {
        let mut sent = bytes;
        if is_short && sent.len() >= LENGTH_LEN {
            sent[..3].fill(0);
            sent[3] %= 32;
        }
        let mut reader = Reader::new(limit);
        reader.push(sent.clone().into());
        let pieces = reader.next_message();
        let pieces = match pieces {
            Ok(Some(message)) => Ok(message.to_vec()),
            Ok(None) => Err(reader.finish().err().unwrap_or(MessageError::Closed)),
            Err(error) => Err(error),
        };
        let whole = block_on(read_message(&mut &sent[..], limit));
        prop_assert_eq!(
            pieces.map_err(|error| error.to_string()),
            whole.map_err(|error| error.to_string())
        );
    }

    #[test]
    fn what_is_wrong_with_json_is_said_in_few_words(json: Vec<u8>, text in "hunter2.{0,2000}") {
        let object = json!({ "number": text }).to_string().into_bytes();
        for bytes in [json, object] {
            if let Err(error) = decode::<Sample>(&bytes) {
                let said = error.to_string();
                prop_assert!(said.len() < MAX_WORDS + 64 && !said.contains("hunter2"), "{}", said);
            }
        }
    }
}
