use bytes::Bytes;
use proptest::prelude::*;
use serde_json::json;

use super::*;

fn hello() -> Hello {
    Hello {
        version: VERSION,
        role: ROLE_AGENT.to_owned(),
        agent_id: "node-1".to_owned(),
        identifiers: "host=node-1".to_owned(),
        token: None,
        software: "adit-agent/0.1.0".to_owned(),
        features: vec![FORWARD.to_owned()],
    }
}

fn welcome() -> Welcome {
    Welcome {
        version: VERSION,
        server_id: "cp-1".to_owned(),
        server_count: 3,
        software: "adit-server/0.1.0".to_owned(),
        features: vec![FORWARD.to_owned()],
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap()
        .block_on(future)
}

fn sent(answer: &Answer) -> Vec<u8> {
    let mut out = Vec::new();
    block_on(send_answer(&mut out, answer)).unwrap();
    out
}

fn read_hello(json: &serde_json::Value) -> Result<Hello, String> {
    Hello::decode(json.to_string().as_bytes()).map_err(|error| error.to_string())
}

fn read_answer(json: &serde_json::Value) -> Result<Answer, String> {
    Answer::decode(json.to_string().as_bytes()).map_err(|error| error.to_string())
}

#[test]
fn a_hello_arrives_and_what_follows_it_is_left_alone() {
    let mut hello = hello();
    hello.token = Some(Token::new("eyJ"));
    let mut sent = Vec::new();
    block_on(send_hello(&mut sent, &hello)).unwrap();
    sent.extend(b"PRI");
    let mut io = &sent[..];
    assert_eq!(block_on(receive_hello(&mut io)).unwrap(), hello);
    assert_eq!(io, b"PRI");
    assert_eq!(hello.check(), Ok(1));
    assert!(hello.has(FORWARD) && !hello.has("forwar"));
}

#[test]
fn an_answer_arrives_and_what_follows_it_is_left_alone() {
    let refused = Answer::Refused(Status::new(
        Code::Unauthenticated,
        "token is for somebody else",
    ));
    for answer in [Answer::Welcome(welcome()), refused] {
        let mut sent = sent(&answer);
        sent.extend(b"PRI");
        let mut io = &sent[..];
        assert_eq!(block_on(receive_answer(&mut io)).unwrap(), answer);
        assert_eq!(io, b"PRI");
    }
}

#[test]
fn a_hello_needs_a_version_a_role_and_an_id_and_nothing_else() {
    let least = json!({"version": 1, "role": "agent", "agent_id": ""});
    let read = read_hello(&least).unwrap();
    assert_eq!(
        (read.check(), read.token, read.features),
        (Ok(1), None, Vec::new())
    );
    for field in ["version", "role", "agent_id"] {
        let mut less = least.clone();
        less.as_object_mut().unwrap().remove(field);
        let error = read_hello(&less).unwrap_err();
        assert!(
            error.contains(&format!("missing field `{field}`")),
            "{error}"
        );
    }
    assert_eq!(
        read_hello(&json!({"version": 1, "role": "agent", "agent_id": "", "token": null})),
        read_hello(&least)
    );
}

#[test]
fn a_later_version_is_negotiated_down_and_its_fields_are_ignored() {
    let later = json!({
        "version": 7, "role": "agent", "agent_id": "node-1", "features": ["forward", "datagrams"],
        "zone": "b", "limits": {"streams": [1, 2.5, null]},
    });
    let hello = read_hello(&later).unwrap();
    assert_eq!(hello.check(), Ok(VERSION));
    assert!(hello.has(FORWARD));
}

#[test]
fn a_version_that_is_too_old_and_a_wrong_role_are_refused_in_plain_words() {
    let old = Hello {
        version: 0,
        role: "x".to_owned(),
        ..hello()
    }
    .check()
    .unwrap_err();
    assert_eq!(
        (old.code, old.message.as_str()),
        (
            Code::Unimplemented,
            "agent speaks version 0 of the stream tunnel, this server 1 to 1"
        )
    );
    let role = format!("frontend\n{}", "x".repeat(60_000));
    let wrong = Hello { role, ..hello() }.check().unwrap_err();
    assert_eq!(wrong.code, Code::Unimplemented);
    let words = r#"this port is for agents, not for the role "frontend\nxxxxx"#;
    assert!(wrong.message.starts_with(words), "{}", wrong.message);
    assert!(wrong.message.len() < 200);
}

#[test]
fn every_field_of_a_hello_has_a_limit() {
    let says = |hello: &Hello| {
        hello
            .check()
            .map_err(|status| (status.code, status.message))
    };
    let x = |len: usize| "x".repeat(len);
    let most = Hello {
        agent_id: x(MAX_ID),
        identifiers: x(MAX_IDENTIFIERS),
        token: Some(Token::new(x(MAX_TOKEN))),
        software: x(MAX_SOFTWARE),
        features: vec![x(MAX_FEATURE); MAX_FEATURES],
        ..hello()
    };
    assert_eq!(says(&most), Ok(1));
    assert!(message::encode(&most, MAX_HELLO).is_ok());
    for (more, said) in [
        (
            Hello {
                agent_id: x(257),
                ..hello()
            },
            "agent_id of 257 bytes is longer than 256",
        ),
        (
            Hello {
                identifiers: x(16_385),
                ..hello()
            },
            "identifiers of 16385 bytes is longer than 16384",
        ),
        (
            Hello {
                token: Some(Token::new(x(16_385))),
                ..hello()
            },
            "token of 16385 bytes is longer than 16384",
        ),
        (
            Hello {
                software: x(257),
                ..hello()
            },
            "software of 257 bytes is longer than 256",
        ),
        (
            Hello {
                features: vec![x(1); 65],
                ..hello()
            },
            "features are 65, more than 64",
        ),
        (
            Hello {
                features: vec![x(1), x(65)],
                ..hello()
            },
            "a name in features of 65 bytes is longer than 64",
        ),
    ] {
        assert_eq!(says(&more), Err((Code::ResourceExhausted, said.to_owned())));
    }
    let huge = Hello {
        identifiers: x(MAX_HELLO),
        ..hello()
    };
    let mut out = Vec::new();
    let error = block_on(send_hello(&mut out, &huge)).unwrap_err();
    assert!(
        matches!(
            error,
            MessageError::TooLong {
                limit: MAX_HELLO,
                ..
            }
        ),
        "{error:?}"
    );
    assert!(out.is_empty());
}

#[test]
fn a_token_is_shown_to_nobody_who_does_not_ask_for_it() {
    let secret = Hello {
        token: Some(Token::new("hunter2")),
        ..hello()
    };
    let shown = format!("{secret:?} {secret:#?}");
    assert!(
        !shown.contains("hunter2") && shown.contains("Token(..)"),
        "{shown}"
    );
    assert_eq!(secret.token.unwrap().expose(), "hunter2");
    for hello in [
        json!({"version": 1, "role": "agent", "agent_id": "a", "token": ["hunter2"]}),
        json!({"version": "hunter2", "role": "agent", "agent_id": "a"}),
        json!({"version": 1, "role": "agent", "agent_id": "a", "features": [{"hunter2": 1}]}),
        json!({"version": 1, "role": "agent", "agent_id": "a", "features": "hunter2"}),
    ] {
        let error = read_hello(&hello).unwrap_err();
        assert!(
            error.contains("expected") && !error.contains("hunter2"),
            "{error}"
        );
    }
}

#[test]
fn a_hello_that_says_a_thing_twice_or_is_no_object_is_refused() {
    for field in [
        "version",
        "role",
        "agent_id",
        "identifiers",
        "token",
        "software",
        "features",
    ] {
        let value = match field {
            "version" => "1",
            "features" => "[]",
            _ => r#""agent""#,
        };
        let twice = format!(r#"{{"{field}":{value},"{field}":{value}}}"#);
        let error = Hello::decode(twice.as_bytes()).unwrap_err().to_string();
        assert!(
            error.contains(&format!("duplicate field `{field}`")),
            "{error}"
        );
    }
    assert!(
        read_hello(&json!([1, "agent", "node-1"]))
            .unwrap_err()
            .contains("expected an object")
    );
    assert!(
        read_hello(&json!(null))
            .unwrap_err()
            .contains("expected an object")
    );
}

#[test]
fn an_answer_is_one_thing_and_within_its_limits() {
    let welcome = json!({"version": 1, "server_id": "cp-1", "server_count": 1});
    let with = |field: &str, value: serde_json::Value| {
        let mut welcome = welcome.clone();
        welcome[field] = value;
        json!({ "welcome": welcome })
    };
    assert!(read_answer(&with("motd", json!({"a": 1}))).is_ok());
    assert!(read_answer(&json!({"welcome": welcome, "later": 1})).is_ok());
    for (answer, said) in [
        (
            json!({}),
            "one of the fields `welcome` and `refused` must be there",
        ),
        (
            json!({"welcome": welcome, "refused": {"code": "UNKNOWN"}}),
            "one of the fields `welcome` and `refused` must be there",
        ),
        (json!({"welcome": null}), "expected an object"),
        (json!({"welcome": [1, "cp-1", 1]}), "expected an object"),
        (json!({"refused": ["UNKNOWN", ""]}), "expected an object"),
        (
            with("version", json!(2)),
            "version 2 was not offered: 1 to 1 was",
        ),
        (
            with("version", json!(0)),
            "version 0 was not offered: 1 to 1 was",
        ),
        (
            with("server_count", json!(-1)),
            "invalid value: integer, expected u32",
        ),
        (
            with("server_id", json!("x".repeat(257))),
            "server_id of 257 bytes is longer than 256",
        ),
        (
            with("software", json!("x".repeat(257))),
            "software of 257 bytes is longer than 256",
        ),
        (
            with("features", json!(vec!["x"; 65])),
            "features are 65, more than 64",
        ),
        (
            json!({"refused": {"code": "UNKNOWN", "reason": "x".repeat(MAX_REASON + 1)}}),
            "reason of 4097 bytes is longer than 4096",
        ),
        (json!({"refused": {"reason": "x"}}), "missing field `code`"),
    ] {
        let error = read_answer(&answer).unwrap_err();
        assert!(error.contains(said), "{error}, not {said}");
    }
}

#[test]
fn a_reason_is_cut_when_it_is_sent() {
    for (letter, len) in [("ä", MAX_REASON), ("€", MAX_REASON - 1), ("\0", MAX_REASON)] {
        let long = Answer::Refused(Status::new(Code::Internal, letter.repeat(MAX_REASON)));
        let sent = sent(&long);
        let Ok(Answer::Refused(status)) = block_on(receive_answer(&mut &sent[..])) else {
            panic!("no refusal");
        };
        assert_eq!(
            status,
            Status::new(Code::Internal, letter.repeat(len / letter.len()))
        );
    }
}

#[test]
fn codes_have_their_names_in_grpc_and_others_are_unknown() {
    let refused = |code: Code| Answer::Refused(Status::new(code, "why"));
    for (code, name) in CODES {
        let sent = sent(&refused(code));
        assert_eq!(
            sent[LENGTH..],
            *format!(r#"{{"refused":{{"code":"{name}","reason":"why"}}}}"#).as_bytes()
        );
        assert_eq!(
            block_on(receive_answer(&mut &sent[..])).unwrap(),
            refused(code)
        );
    }
    // There is no such refusal.
    assert_eq!(
        block_on(receive_answer(&mut &sent(&refused(Code::Ok))[..])).unwrap(),
        refused(Code::Unknown)
    );
    for name in ["OK", "PERMISSION_DENIED", "Unavailable", "", "14"] {
        let answer = json!({"refused": {"code": name, "reason": "why"}});
        assert_eq!(read_answer(&answer), Ok(refused(Code::Unknown)));
    }
}

const LENGTH: usize = message::LENGTH_LEN;

#[test]
fn what_cannot_be_read_can_be_told_to_who_sent_it() {
    let status = |bytes: &[u8]| {
        block_on(receive_hello(&mut &bytes[..]))
            .unwrap_err()
            .to_status()
    };
    assert_eq!(status(b"GET / HTTP/1.1\r\n").code, Code::ResourceExhausted);
    assert_eq!(status(&[0, 0, 0, 0]).code, Code::Internal);
    assert_eq!(status(b"\0\0\0\x02[]").code, Code::Internal);
    assert_eq!(status(b"\0\0\0\x02{").code, Code::Unavailable);
    assert_eq!(
        status(b"").message,
        "peer closed the connection without a word"
    );
}

prop_compose! {
    fn any_hello()(
        version: u32,
        role in "agent|.{0,10}",
        agent_id in ".{0,20}",
        identifiers in ".{0,20}",
        token in prop::option::of(".{0,20}"),
        software in ".{0,20}",
        features in prop::collection::vec(".{0,10}", 0..4),
    ) -> Hello {
        Hello { version, role, agent_id, identifiers, token: token.map(Token::new), software, features }
    }
}

prop_compose! {
    fn any_answer()(
        is_welcome: bool,
        server_id in ".{0,20}",
        server_count: u32,
        features in prop::collection::vec(".{0,10}", 0..4),
        code in prop::sample::select(&CODES[..]),
        reason in ".{0,100}",
    ) -> Answer {
        if is_welcome {
            Answer::Welcome(Welcome { server_id, server_count, features, ..welcome() })
        } else {
            Answer::Refused(Status::new(code.0, reason))
        }
    }
}

proptest! {
    #[test]
    fn every_hello_comes_back(hello in any_hello()) {
        let mut sent = Vec::new();
        block_on(send_hello(&mut sent, &hello)).unwrap();
        let back = block_on(receive_hello(&mut &sent[..])).unwrap();
        if let Ok(version) = back.check() {
            prop_assert!((MIN_VERSION..=VERSION.min(hello.version)).contains(&version));
        }
        prop_assert_eq!(back, hello);
    }

    #[test]
    fn every_answer_comes_back(answer in any_answer()) {
        let sent = sent(&answer);
        prop_assert_eq!(block_on(receive_answer(&mut &sent[..])).unwrap(), answer);
    }

    #[test]
    fn a_hello_cut_anywhere_is_none(hello in any_hello(), cut: prop::sample::Index) {
        let mut sent = Vec::new();
        block_on(send_hello(&mut sent, &hello)).unwrap();
        let part = &sent[..cut.index(sent.len())];
        let error = block_on(receive_hello(&mut &part[..])).unwrap_err();
        prop_assert!(matches!(error, MessageError::Closed | MessageError::Truncated { .. }), "{:?}", error);
    }

    #[test]
    fn nonsense_is_refused_and_panics_nobody(bytes: Vec<u8>) {
        let framed = [&u32::try_from(bytes.len()).unwrap().to_be_bytes()[..], &bytes].concat();
        for bytes in [bytes, framed].map(Bytes::from) {
            prop_assert!(block_on(receive_hello(&mut &bytes[..])).is_err());
            prop_assert!(block_on(receive_answer(&mut &bytes[..])).is_err());
        }
    }
}
