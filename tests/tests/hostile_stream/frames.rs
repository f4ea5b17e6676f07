//! HTTP/2 frames (RFC 9113, section 4.1) and header blocks (RFC 7541).

/// What a client of HTTP/2 says first.
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
const PUSH_PROMISE: u8 = 5;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

/// Of SETTINGS and PING.
pub(crate) const ACK: u8 = 1;
/// Of DATA and HEADERS.
pub(crate) const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

pub(crate) const CANCEL: u32 = 8;

/// What a part of a header block has at most, in bytes.
const MAX_PART: usize = 16_384;

/// `:status: 200`, from the static table.
pub(crate) const OK: &[u8] = &[0x88];

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [_, len @ ..] = u32::try_from(payload.len())
        .unwrap_or(u32::MAX)
        .to_be_bytes();
    let mut bytes = len.to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

pub(crate) fn data(stream: u32, payload: &[u8]) -> Vec<u8> {
    frame(DATA, 0, stream, payload)
}

/// SETTINGS with one of them.
pub(crate) fn settings(id: u16, value: u32) -> Vec<u8> {
    let mut payload = id.to_be_bytes().to_vec();
    payload.extend(value.to_be_bytes());
    frame(SETTINGS, 0, 0, &payload)
}

pub(crate) fn ping() -> Vec<u8> {
    frame(PING, 0, 0, &[7; 8])
}

/// The answer to a ping that nobody has sent.
pub(crate) fn pong() -> Vec<u8> {
    frame(PING, ACK, 0, &[7; 8])
}

pub(crate) fn reset(stream: u32, code: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, &code.to_be_bytes())
}

/// More window than there can be.
pub(crate) fn endless_window(stream: u32) -> Vec<u8> {
    let most = ((1u32 << 31) - 1).to_be_bytes();
    frame(WINDOW_UPDATE, 0, stream, &most)
}

/// GOAWAY behind stream `last`, with words.
pub(crate) fn goaway(last: u32, code: u32, words: &[u8]) -> Vec<u8> {
    let mut payload = last.to_be_bytes().to_vec();
    payload.extend(code.to_be_bytes());
    payload.extend(words);
    frame(GOAWAY, 0, 0, &payload)
}

/// PUSH_PROMISE of stream 2.
pub(crate) fn push(stream: u32) -> Vec<u8> {
    let mut payload = 2u32.to_be_bytes().to_vec();
    payload.extend(connect("h:1"));
    frame(PUSH_PROMISE, END_HEADERS, stream, &payload)
}

/// HEADERS and as many CONTINUATION as `block` needs.
pub(crate) fn headers(stream: u32, flags: u8, block: &[u8]) -> Vec<u8> {
    let mut parts = block.chunks(MAX_PART).peekable();
    let mut bytes = Vec::new();
    let (mut kind, mut flags) = (HEADERS, flags);
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            flags |= END_HEADERS;
        }
        bytes.extend(frame(kind, flags, stream, part));
        (kind, flags) = (CONTINUATION, 0);
    }
    bytes
}

/// A header block that has no end: HEADERS, and CONTINUATION of 1 MiB.
pub(crate) fn endless_headers(stream: u32, begin: &[u8]) -> Vec<u8> {
    let mut bytes = frame(HEADERS, 0, stream, begin);
    let filler = field("x-a", &"x".repeat(16_000));
    for _ in 0..66 {
        bytes.extend(frame(CONTINUATION, 0, stream, &filler));
    }
    bytes
}

/// A field that no table keeps.
pub(crate) fn field(name: &str, value: &str) -> Vec<u8> {
    let mut bytes = vec![0x10];
    put_text(&mut bytes, name);
    put_text(&mut bytes, value);
    bytes
}

/// The header block of a CONNECT.
pub(crate) fn connect(authority: &str) -> Vec<u8> {
    [field(":method", "CONNECT"), field(":authority", authority)].concat()
}

/// `begin`, and 16 KiB that become 64 MiB: a field in the table, named again and again.
pub(crate) fn bomb(begin: &[u8]) -> Vec<u8> {
    let mut block = begin.to_vec();
    block.push(0x40);
    put_text(&mut block, "x");
    put_text(&mut block, &"x".repeat(4_000));
    block.extend([0xbe; 16_000]);
    block
}

/// A string literal, not Huffman coded.
fn put_text(bytes: &mut Vec<u8>, text: &str) {
    match u8::try_from(text.len()) {
        Ok(len @ ..127) => bytes.push(len),
        _ => {
            bytes.push(127);
            let mut rest = text.len() - 127;
            while rest >= 128 {
                bytes.push(0x80 | u8::try_from(rest % 128).unwrap_or_default());
                rest /= 128;
            }
            bytes.push(u8::try_from(rest).unwrap_or_default());
        }
    }
    bytes.extend(text.as_bytes());
}

/// A message in front of HTTP/2 or on the control stream: its length, and JSON or not.
pub(crate) fn message(text: &[u8]) -> Vec<u8> {
    let len = u32::try_from(text.len()).unwrap_or(u32::MAX);
    [&len.to_be_bytes()[..], text].concat()
}
