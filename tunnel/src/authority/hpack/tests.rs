use proptest::prelude::*;

use super::*;

type Pairs = Vec<(String, String)>;

/// A block in hex, its list, and the size and entries of the table after it.
type Step<'a> = (
    &'a str,
    &'a [(&'a str, &'a str)],
    usize,
    &'a [(&'a str, &'a str)],
);

const NO_LIMIT: usize = usize::MAX;

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .bytes()
        .filter(|digit| !digit.is_ascii_whitespace())
        .collect();
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

fn pairs(list: &[(&str, &str)]) -> Pairs {
    list.iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

fn decode(
    decoder: &mut Decoder,
    block: &[u8],
    max_list_bytes: usize,
) -> (Pairs, Result<(), HpackError>) {
    let mut list = Vec::new();
    let text = |octets: &[u8]| String::from_utf8_lossy(octets).into_owned();
    let result = decoder.decode(block, max_list_bytes, |field| {
        list.push((text(field.name), text(field.value)))
    });
    (list, result)
}

fn refusal(block: &[u8]) -> HpackError {
    decode(&mut Decoder::new(), block, NO_LIMIT).1.unwrap_err()
}

/// Decodes the blocks of one of the RFC's example connections and compares lists and tables after each.
fn check(decoder: &mut Decoder, steps: &[Step<'_>]) {
    for (block, list, bytes, table) in steps {
        assert_eq!(
            decode(decoder, &hex(block), NO_LIMIT),
            (pairs(list), Ok(()))
        );
        assert_eq!(decoder.table(), (*bytes, pairs(table)));
    }
}

#[test]
fn rfc_7541_c_1_integers() {
    for (value, prefix_bits, coded) in [(10, 5, "0a"), (1337, 5, "1f9a0a"), (42, 8, "2a")] {
        let mut out = Vec::new();
        encode_integer(value, prefix_bits, 0, &mut out);
        assert_eq!(out, hex(coded));
        assert_eq!(Input(&out).integer(prefix_bits), Ok(value));
    }
}

#[test]
fn rfc_7541_c_2_representations() {
    let key = ("custom-key", "custom-header");
    check(
        &mut Decoder::new(),
        &[(
            "400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572",
            &[key],
            55,
            &[key],
        )],
    );
    check(
        &mut Decoder::new(),
        &[(
            "040c 2f73 616d 706c 652f 7061 7468",
            &[(":path", "/sample/path")],
            0,
            &[],
        )],
    );
    check(
        &mut Decoder::new(),
        &[(
            "1008 7061 7373 776f 7264 0673 6563 7265 74",
            &[("password", "secret")],
            0,
            &[],
        )],
    );
    check(
        &mut Decoder::new(),
        &[("82", &[(":method", "GET")], 0, &[])],
    );
}

/// C.3 and C.4 have the same three requests, without and with Huffman code.
fn check_requests(blocks: [&str; 3]) {
    let method = (":method", "GET");
    let (http, https) = ((":scheme", "http"), (":scheme", "https"));
    let authority = (":authority", "www.example.com");
    let cache = ("cache-control", "no-cache");
    let key = ("custom-key", "custom-value");
    let [first, second, third] = blocks;
    check(
        &mut Decoder::new(),
        &[
            (
                first,
                &[method, http, (":path", "/"), authority],
                57,
                &[authority],
            ),
            (
                second,
                &[method, http, (":path", "/"), authority, cache],
                110,
                &[cache, authority],
            ),
            (
                third,
                &[method, https, (":path", "/index.html"), authority, key],
                164,
                &[key, cache, authority],
            ),
        ],
    );
}

#[test]
fn rfc_7541_c_3_requests_without_huffman_code() {
    check_requests([
        "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
        "8286 84be 5808 6e6f 2d63 6163 6865",
        "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
    ]);
}

#[test]
fn rfc_7541_c_4_requests_with_huffman_code() {
    check_requests([
        "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
        "8286 84be 5886 a8eb 1064 9cbf",
        "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
    ]);
}

/// C.5 and C.6 have the same three responses, without and with Huffman code, in a table of 256 bytes.
fn check_responses(blocks: [&str; 3]) {
    let (s302, s307, s200) = ((":status", "302"), (":status", "307"), (":status", "200"));
    let private = ("cache-control", "private");
    let date = ("date", "Mon, 21 Oct 2013 20:13:21 GMT");
    let later = ("date", "Mon, 21 Oct 2013 20:13:22 GMT");
    let location = ("location", "https://www.example.com");
    let gzip = ("content-encoding", "gzip");
    let cookie = (
        "set-cookie",
        "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1",
    );
    let mut decoder = Decoder::new();
    decoder.table.resize(256).unwrap();
    let [first, second, third] = blocks;
    check(
        &mut decoder,
        &[
            (
                first,
                &[s302, private, date, location],
                222,
                &[location, date, private, s302],
            ),
            (
                second,
                &[s307, private, date, location],
                222,
                &[s307, location, date, private],
            ),
            (
                third,
                &[s200, private, later, location, gzip, cookie],
                215,
                &[cookie, gzip, later],
            ),
        ],
    );
}

#[test]
fn rfc_7541_c_5_responses_with_eviction() {
    check_responses([
        "4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3120 474d 546e
         1768 7474 7073 3a2f 2f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
        "4803 3330 37c1 c0bf",
        "88c1 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3220 474d 54c0 5a04 677a 6970 7738 666f 6f3d
         4153 444a 4b48 514b 425a 584f 5157 454f 5049 5541 5851 5745 4f49 553b 206d 6178 2d61 6765 3d33 3630 303b 2076 6572
         7369 6f6e 3d31",
    ]);
}

#[test]
fn rfc_7541_c_6_responses_with_huffman_code_and_eviction() {
    check_responses([
        "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 2d1b ff6e 919d 29ad 1718 63c7 8f0b
         97c8 e9ae 82ae 43d3",
        "4883 640e ffc1 c0bf",
        "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab 77ad 94e7 821d d7f2 e6c7 b335 dfdf
         cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 3160 65c0 03ed 4ee5 b106 3d50 07",
    ]);
}

#[test]
fn a_name_may_refer_to_the_entry_that_its_own_insertion_evicts() {
    let mut decoder = Decoder::new();
    decoder.table.resize(40).unwrap();
    let old = ("name", "1");
    let new = ("name", "2222");
    check(
        &mut decoder,
        &[
            ("4004 6e61 6d65 0131", &[old], 37, &[old]),
            ("7e04 3232 3232", &[new], 40, &[new]),
        ],
    );
}

#[test]
fn size_updates_in_front_of_fields_are_followed() {
    let mut decoder = Decoder::new();
    let entry = ("a", "1");
    check(&mut decoder, &[("4001 6101 31", &[entry], 34, &[entry])]);
    // To 0 and back to 4096, as a client does that wants an empty table; then a block of nothing but an update.
    check(
        &mut decoder,
        &[
            ("203f e11f 82", &[(":method", "GET")], 0, &[]),
            ("3f 01", &[], 0, &[]),
        ],
    );
    assert_eq!(
        decode(&mut decoder, &[0xbe], NO_LIMIT).1,
        Err(HpackError::Index { index: 62 })
    );
}

#[test]
fn size_updates_behind_a_field_or_over_the_limit_are_refused() {
    assert_eq!(refusal(&[0x82, 0x20]), HpackError::LateTableSize);
    assert_eq!(
        refusal(&hex("3fe21f")),
        HpackError::TableSize { size: 4_097 }
    );
}

#[test]
fn indices_outside_the_tables_are_refused() {
    assert_eq!(refusal(&[0x80]), HpackError::Index { index: 0 });
    assert_eq!(refusal(&[0xbe]), HpackError::Index { index: 62 });
    assert_eq!(
        refusal(&hex("7f 80ff ff7f 00")),
        HpackError::Index {
            index: 63 + 0x0fff_ff80
        }
    );
}

#[test]
fn integers_may_have_four_octets_behind_the_prefix_and_no_more() {
    assert_eq!(Input(&hex("7fffffff7f")).integer(7), Ok((1 << 28) + 126));
    assert_eq!(
        Input(&hex("7fffffffff00")).integer(7),
        Err(HpackError::Integer)
    );
    assert_eq!(
        Input(&hex("7f808080")).integer(7),
        Err(HpackError::Truncated)
    );
}

#[test]
fn a_block_cut_off_within_a_field_is_refused() {
    let block = hex("4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf");
    for end in 1..block.len() {
        assert_eq!(
            refusal(&block[..end]),
            HpackError::Truncated,
            "cut at {end}"
        );
    }
}

#[test]
fn decoding_stops_at_the_list_limit_and_not_after_it() {
    // One entry of 2,005 bytes, then 60,000 references to it: 120 MB if nobody counts.
    let mut block = vec![0x40, 1, b'a'];
    encode_integer(1_972, 7, 0, &mut block);
    block.extend([b'x'; 1_972]);
    block.resize(62_000, 0xbe);
    let (list, result) = decode(&mut Decoder::new(), &block, 10 * 2_005);
    assert_eq!(result, Err(HpackError::ListTooLarge { max_bytes: 20_050 }));
    assert_eq!(list.len(), 10, "a list of exactly the limit is fine");
}

#[test]
fn only_never_indexed_literals_are_never_indexed() {
    for (block, never_indexed) in [
        ("82", false),
        ("0001 6101 31", false),
        ("4001 6101 31", false),
        ("1001 6101 31", true),
        ("1f0b 0131", true),
    ] {
        let mut seen = None;
        Decoder::new()
            .decode(&hex(block), NO_LIMIT, |field| {
                seen = Some(field.never_indexed)
            })
            .unwrap();
        assert_eq!(seen, Some(never_indexed), "{block}");
    }
}

proptest! {
    #[test]
    fn integers_survive_the_round_trip(value in 0_usize..1 << 28, prefix_bits in 1_u32..=8) {
        let mut out = Vec::new();
        encode_integer(value, prefix_bits, 0, &mut out);
        prop_assert_eq!(Input(&out).integer(prefix_bits), Ok(value));
    }

    #[test]
    fn literals_survive_the_round_trip_and_enter_no_table(
        list in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..300), prop::collection::vec(any::<u8>(), 0..300), any::<bool>()), 0..8),
    ) {
        let mut block = Vec::new();
        for (name, value, never_indexed) in &list {
            encode_literal(Field { name, value, never_indexed: *never_indexed }, &mut block);
        }
        let (mut decoder, mut decoded) = (Decoder::new(), Vec::new());
        decoder
            .decode(&block, NO_LIMIT, |field| decoded.push((field.name.to_vec(), field.value.to_vec(), field.never_indexed)))
            .unwrap();
        prop_assert_eq!(decoded, list);
        prop_assert_eq!(decoder.table(), (0, vec![]));
    }
}
