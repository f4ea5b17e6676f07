use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::stream::message::LENGTH_LEN;

fn json(encoded: Result<Bytes, MessageError>) -> String {
    String::from_utf8(encoded.unwrap()[LENGTH_LEN..].to_vec()).unwrap()
}

fn to_agent(json: &str) -> Result<Option<ToAgent>, String> {
    ToAgent::decode(json.as_bytes()).map_err(|error| error.to_string())
}

fn to_server(json: &str) -> Result<Option<ToServer>, String> {
    ToServer::decode(json.as_bytes()).map_err(|error| error.to_string())
}

#[test]
fn messages_to_an_agent_look_like_this() {
    for (message, text) in [
        (ToAgent::Drain, r#"{"type":"drain"}"#),
        (
            ToAgent::ServerCount { count: 3 },
            r#"{"type":"server_count","count":3}"#,
        ),
        (
            ToAgent::ForwardRefused {
                id: 7,
                reason: "no".to_owned(),
            },
            r#"{"type":"forward_refused","id":7,"reason":"no"}"#,
        ),
    ] {
        assert_eq!(json(message.encode()), text);
        assert_eq!(to_agent(text), Ok(Some(message)));
    }
}

#[test]
fn messages_to_a_server_look_like_this() {
    for (message, text) in [
        (ToServer::Drain, r#"{"type":"drain"}"#),
        (
            ToServer::Load {
                connections: 12,
                dials: 1,
            },
            r#"{"type":"load","connections":12,"dials":1}"#,
        ),
        (
            ToServer::Forward {
                id: 7,
                name: "api".to_owned(),
            },
            r#"{"type":"forward","id":7,"name":"api"}"#,
        ),
        (
            ToServer::ForwardGivenUp { id: 7 },
            r#"{"type":"forward_given_up","id":7}"#,
        ),
    ] {
        assert_eq!(json(message.encode()), text);
        assert_eq!(to_server(text), Ok(Some(message)));
    }
}

#[test]
fn an_unknown_type_is_no_message_whatever_else_it_has() {
    for text in [
        r#"{"type":"later"}"#,
        r#"{"type":"","id":"text","count":[1],"name":{}}"#,
        r#"{"id":7,"id":8,"type":"Drain"}"#,
    ] {
        assert_eq!(to_agent(text), Ok(None));
        assert_eq!(to_server(text), Ok(None));
    }
    // Words of the other direction are unknown as well.
    assert_eq!(
        to_agent(r#"{"type":"load","connections":1,"dials":1}"#),
        Ok(None)
    );
    assert_eq!(to_server(r#"{"type":"server_count","count":1}"#), Ok(None));
}

#[test]
fn unknown_fields_are_ignored() {
    let read = to_agent(r#"{"why":{"a":[1,2]},"count":3,"type":"server_count","connections":"x"}"#);
    assert_eq!(read, Ok(Some(ToAgent::ServerCount { count: 3 })));
    assert_eq!(
        to_server(r#"{"type":"drain","by":null}"#),
        Ok(Some(ToServer::Drain))
    );
}

#[test]
fn a_known_type_without_its_fields_is_an_error() {
    for (text, said) in [
        ("{}", "missing field `type`"),
        (r#"{"type":0}"#, "invalid type: integer, expected a string"),
        (
            r#"{"type":"drain","type":"drain"}"#,
            "duplicate field `type`",
        ),
        (r#"["drain"]"#, "invalid type: sequence, expected an object"),
        (r#""drain""#, "invalid type: string, expected an object"),
        (
            r#"{"type":[[[]]]}"#,
            "invalid type: sequence, expected a string",
        ),
    ] {
        let errors = [to_agent(text).unwrap_err(), to_server(text).unwrap_err()];
        assert!(
            errors.iter().all(|error| error.contains(said)),
            "{errors:?}, not {said}"
        );
    }
    for (text, said) in [
        (r#"{"type":"server_count"}"#, "missing field `count`"),
        (
            r#"{"type":"server_count","count":4294967296}"#,
            "invalid value: integer, expected u32",
        ),
        (
            r#"{"type":"server_count","count":1,"count":1}"#,
            "duplicate field `count`",
        ),
        (
            r#"{"type":"forward_refused","reason":"no"}"#,
            "missing field `id`",
        ),
    ] {
        let error = to_agent(text).unwrap_err();
        assert!(error.contains(said), "{error}, not {said}");
    }
    for (text, said) in [
        (
            r#"{"type":"load","dials":1}"#,
            "missing field `connections`",
        ),
        (
            r#"{"type":"load","connections":1.5,"dials":1}"#,
            "invalid type: floating point, expected u32",
        ),
        (r#"{"type":"forward","id":1}"#, "missing field `name`"),
        (
            r#"{"type":"forward","id":-1,"name":"api"}"#,
            "invalid value: integer, expected u64",
        ),
        (r#"{"type":"forward_given_up"}"#, "missing field `id`"),
    ] {
        let error = to_server(text).unwrap_err();
        assert!(error.contains(said), "{error}, not {said}");
    }
}

#[test]
fn a_name_has_a_limit_in_both_directions() {
    let forward = |len: usize| ToServer::Forward {
        id: u64::MAX,
        name: "\0".repeat(len),
    };
    let most = json(forward(MAX_NAME).encode());
    assert_eq!(to_server(&most), Ok(Some(forward(MAX_NAME))));
    let said = "name of 254 bytes is longer than 253";
    assert_eq!(forward(254).encode().unwrap_err().to_string(), said);
    let text = json!({"type": "forward", "id": 1, "name": "x".repeat(254)}).to_string();
    assert_eq!(to_server(&text), Err(said.to_owned()));
}

#[test]
fn a_reason_is_cut_to_what_a_message_has_room_for() {
    for (letter, kept) in [("x", 2_000), ("\0", 512), ("ä", 1_000)] {
        let reason = letter.repeat(100_000);
        let refused = ToAgent::ForwardRefused {
            id: u64::MAX,
            reason: reason.clone(),
        };
        let text = json(refused.encode());
        assert!(text.len() <= MAX_CONTROL_MESSAGE);
        let Ok(Some(ToAgent::ForwardRefused { reason: cut, .. })) = to_agent(&text) else {
            panic!("no refusal: {text}");
        };
        assert!(
            reason.starts_with(&cut) && cut.len() >= kept * letter.len(),
            "{}",
            cut.len()
        );
    }
}

fn any_to_agent() -> impl Strategy<Value = ToAgent> {
    prop_oneof![
        Just(ToAgent::Drain),
        any::<u32>().prop_map(|count| ToAgent::ServerCount { count }),
        (any::<u64>(), ".{0,100}").prop_map(|(id, reason)| ToAgent::ForwardRefused { id, reason }),
    ]
}

fn any_to_server() -> impl Strategy<Value = ToServer> {
    prop_oneof![
        Just(ToServer::Drain),
        any::<(u32, u32)>().prop_map(|(connections, dials)| ToServer::Load { connections, dials }),
        (any::<u64>(), ".{0,60}").prop_map(|(id, name)| ToServer::Forward { id, name }),
        any::<u64>().prop_map(|id| ToServer::ForwardGivenUp { id }),
    ]
}

proptest! {
    #[test]
    fn every_message_comes_back(to_agent in any_to_agent(), to_server in any_to_server()) {
        let bytes = to_agent.encode().unwrap();
        prop_assert_eq!(ToAgent::decode(&bytes[LENGTH_LEN..]).unwrap(), Some(to_agent));
        let bytes = to_server.encode().unwrap();
        prop_assert_eq!(ToServer::decode(&bytes[LENGTH_LEN..]).unwrap(), Some(to_server));
    }

    #[test]
    fn nonsense_is_no_message_and_panics_nobody(bytes: Vec<u8>) {
        prop_assert!(ToAgent::decode(&bytes).is_err() && ToServer::decode(&bytes).is_err());
    }
}
