//! Any bytes as a hello and as an answer to one.

#![no_main]

use std::{
    pin::pin,
    task::{Context, Poll, Waker},
};

use libfuzzer_sys::fuzz_target;
use tunnel::stream::{
    hello::{
        Answer, Hello, MAX_HELLO, MAX_REASON, MIN_VERSION, VERSION, receive_answer, receive_hello,
        send_answer, send_hello,
    },
    message::LENGTH_LEN,
};

/// What `future` gives, which waits for nothing: its bytes are all there.
fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(out) => out,
        Poll::Pending => unreachable!("a slice is always ready"),
    }
}

fn check_hello(mut bytes: &[u8]) {
    let before = bytes;
    match now(receive_hello(&mut bytes)) {
        Ok(hello) => {
            check_left(before, bytes);
            check_token(&hello);
            if let Ok(version) = hello.check() {
                assert!((MIN_VERSION..=VERSION.min(hello.version)).contains(&version));
            }
            let mut sent = Vec::new();
            // Written anew a character may take more bytes.
            if now(send_hello(&mut sent, &hello)).is_ok() {
                assert_eq!(
                    now(receive_hello(&mut &sent[..])).expect("it is ours"),
                    hello
                );
            }
        }
        Err(error) => assert!(error.to_status().message.len() < 1024),
    }
}

fn check_token(hello: &Hello) {
    let Some(token) = &hello.token else {
        return;
    };
    let mut other = hello.clone();
    other.token = Some(tunnel::stream::hello::Token::new("another"));
    assert_eq!(
        format!("{hello:?}"),
        format!("{other:?}"),
        "{}",
        token.expose()
    );
}

fn check_answer(mut bytes: &[u8]) {
    let before = bytes;
    match now(receive_answer(&mut bytes)) {
        Ok(answer) => {
            check_left(before, bytes);
            if let Answer::Refused(status) = &answer {
                assert!(status.message.len() <= MAX_REASON);
            }
            let mut sent = Vec::new();
            now(send_answer(&mut sent, &answer)).expect("what was read is within its limits");
            assert_eq!(
                now(receive_answer(&mut &sent[..])).expect("it is ours"),
                answer
            );
        }
        Err(error) => assert!(error.to_string().len() < 1024),
    }
}

/// Exactly one message was taken.
fn check_left(before: &[u8], after: &[u8]) {
    let len = before.first_chunk().map(|&len| u32::from_be_bytes(len));
    let len = usize::try_from(len.expect("it was read")).expect("at least 32 bits");
    assert!(len <= MAX_HELLO);
    assert_eq!(before.len() - after.len(), LENGTH_LEN + len);
}

fuzz_target!(|bytes: &[u8]| {
    check_hello(bytes);
    check_answer(bytes);
    // As a message by itself, as lengths are hard to guess.
    let len = u32::try_from(bytes.len()).expect("libFuzzer's inputs are small");
    let mut framed = [&len.to_be_bytes()[..], bytes].concat();
    framed.extend(b"PRI * HTTP/2.0");
    check_hello(&framed);
    check_answer(&framed);
});
