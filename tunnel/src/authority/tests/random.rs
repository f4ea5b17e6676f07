//! Header lists and bytes that nobody thought of.

use proptest::prelude::*;

use super::{
    client::{Client, Form, OwnedField, lists, rewrite},
    *,
};

fn form() -> impl Strategy<Value = Form> {
    prop_oneof![
        Just(Form::Indexed),
        Just(Form::Incremental),
        Just(Form::Unindexed),
        Just(Form::NeverIndexed)
    ]
}

/// Fields from a small set, so that the table is used, and others, so that it overflows.
fn field() -> impl Strategy<Value = (String, String, Form)> {
    let name = prop_oneof![
        Just(":authority".to_owned()),
        Just(":path".to_owned()),
        "[a-c]{1,2}",
        "[a-z-]{1,40}"
    ];
    let value = prop_oneof![
        "[0-3]",
        "[ -~]{0,30}",
        "[ -~]{200,1500}",
        Just("%2Fx.sock".to_owned())
    ];
    (name, value, form())
}

/// What must come out for `list`.
fn expected(list: &[(String, String, Form)]) -> Vec<OwnedField> {
    let first = list.iter().position(|(name, ..)| name == ":authority");
    let fields = list.iter().enumerate().map(|(place, (name, value, form))| {
        let is_bad = Some(place) == first && value.parse::<http::uri::Authority>().is_err();
        let value = if is_bad { "localhost" } else { value };
        (name.clone(), value.to_owned(), *form == Form::NeverIndexed)
    });
    fields.collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_lists_in_any_form_cut_anywhere_come_out_the_same_but_for_the_authority(
        requests in prop::collection::vec((prop::collection::vec(field(), 0..12), any::<[u8; 3]>()), 1..8),
        huffman in any::<bool>(),
        piece in 1_usize..5_000,
        buf_bytes in 1_usize..5_000,
    ) {
        let mut client = if huffman { Client::new() } else { Client::without_huffman() };
        for (stream, (list, cuts)) in (1..).step_by(2).zip(&requests) {
            let list: Vec<_> = list.iter().map(|(name, value, form)| (name.as_str(), value.as_str(), *form)).collect();
            let block = client.block(&list);
            let mut kind = kind::HEADERS;
            let mut rest = block.as_slice();
            for cut in cuts {
                // In frames of up to 16,384 bytes, whatever the cuts are.
                let (start, behind) = rest.split_at(rest.len() * usize::from(*cut) / 255);
                for part in start.chunks(16_384) {
                    client.frame(kind, 0, stream, part);
                    kind = kind::CONTINUATION;
                }
                rest = behind;
            }
            for part in rest.chunks(16_384) {
                client.frame(kind, 0, stream, part);
                kind = kind::CONTINUATION;
            }
            client.frame(kind, flag::END_HEADERS, stream, &[]);
            client.frame(DATA, 0, stream, &block);
        }
        let rewritten = rewrite(client.bytes.chunks(piece).map(<[u8]>::to_vec), buf_bytes);
        let expected: Vec<_> = requests.iter().map(|(list, _)| expected(list)).collect();
        prop_assert_eq!(lists(&rewritten.bytes), expected);
    }
}

/// The fuzz target's checks on seeded random input: the same result however it is cut, of bounded size, and nothing
/// left to rewrite in it.
#[test]
fn random_frames_cut_anywhere_give_one_result_and_rewriting_it_again_changes_nothing() {
    let mut random = fastrand::Rng::with_seed(0x0ad1_7000);
    for round in 0..800 {
        let input = random_connection(&mut random);
        let expected = whole(&input);
        let blocks = input.len() / HEAD_BYTES;
        assert!(expected.len() <= input.len() + blocks * (MAX_LIST_BYTES + 50));
        let mut pieces = Vec::new();
        let mut rest = input.as_slice();
        while !rest.is_empty() {
            let (piece, behind) = rest.split_at(random.usize(1..=rest.len().min(100)));
            pieces.push(piece.to_vec());
            rest = behind;
        }
        assert_eq!(
            rewrite(pieces, random.usize(1..200)).bytes,
            expected,
            "round {round}"
        );
        assert_eq!(whole(&expected), expected, "round {round}");
    }
}

/// Mostly plausible frames with random insides.
fn random_connection(random: &mut fastrand::Rng) -> Vec<u8> {
    let mut client = Client::new();
    for _ in 0..random.usize(0..12) {
        let stream = random.u32(0..4);
        let payload: Vec<u8> = match random.u8(0..3) {
            0 => (0..random.usize(0..60)).map(|_| random.u8(..)).collect(),
            1 => (0..random.usize(0..60))
                .map(|_| {
                    random
                        .choice([0x82, 0x84, 0xbe, 0x40, 0x01, 0x00, 0x20])
                        .unwrap()
                })
                .collect(),
            _ => {
                let value: String = (0..random.usize(0..300))
                    .map(|_| random.char(' '..='~'))
                    .collect();
                client.block(&[
                    (":authority", &value, Form::Indexed),
                    (":method", "GET", Form::Indexed),
                    ("x", &value, Form::Incremental),
                ])
            }
        };
        match random.u8(0..8) {
            0 => client.frame(random.u8(..), random.u8(..), stream, &payload),
            1 => client.frame(kind::CONTINUATION, random.u8(..), stream, &payload),
            2 => client.frame(DATA, random.u8(..), stream, &payload),
            3 => client.frame(kind::HEADERS, random.u8(..), stream, &payload),
            4 => {
                let (start, end) = payload.split_at(random.usize(0..=payload.len()));
                client.frame(kind::HEADERS, 0, 1, start).frame(
                    kind::CONTINUATION,
                    flag::END_HEADERS,
                    1,
                    end,
                )
            }
            _ => client.frame(kind::HEADERS, flag::END_HEADERS, 1, &payload),
        };
    }
    if random.bool() {
        client.bytes.truncate(random.usize(0..=client.bytes.len()));
    }
    client.bytes
}
