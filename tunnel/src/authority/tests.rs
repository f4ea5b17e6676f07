mod client;
mod random;
mod server;

use super::*;
use client::{Client, Form, Pieces, frames, grpc_list, lists, rewrite};

const SOCKET: &str = "%2Fetc%2Fkubernetes%2Fkonnectivity-server%2Fkonnectivity-server.socket";
const DATA: u8 = 0x0;

/// What h2 sees instead of a frame that breaks the rules.
const STRAY: [u8; HEAD_BYTES] = [0, 0, 0, kind::CONTINUATION, flag::END_HEADERS, 0, 0, 0, 1];

fn whole(bytes: &[u8]) -> Vec<u8> {
    rewrite([bytes.to_vec()], 1 << 20).bytes
}

/// The authorities of all header blocks in `bytes` behind the adapter.
fn authorities(bytes: &[u8]) -> Vec<String> {
    let fields = lists(&whole(bytes)).into_iter().flatten();
    fields
        .filter(|(name, ..)| name == ":authority")
        .map(|(_, value, _)| value)
        .collect()
}

/// A connection with all that header blocks can have: indexed fields, CONTINUATION, padding, priority, trailers, two
/// streams, and other frames around them.
fn busy_connection() -> Vec<u8> {
    let mut client = Client::new();
    client
        .grpc_request(1, 0, SOCKET)
        .frame(DATA, 0, 1, b"\0\0\0\0\x05hello");
    client.frame(0x8, 0, 0, &[0, 1, 0, 0]);
    let block = client.block(&grpc_list("/etc/konnectivity.sock"));
    let mut payload = vec![3, 0, 0, 0, 1, 200];
    payload.extend(&block[..2]);
    payload.extend([0; 3]);
    client.frame(kind::HEADERS, flag::PADDED | flag::PRIORITY, 3, &payload);
    client
        .frame(kind::CONTINUATION, 0, 3, &[])
        .frame(kind::CONTINUATION, 0, 3, &block[2..9]);
    client.frame(kind::CONTINUATION, flag::END_HEADERS, 3, &block[9..]);
    client
        .frame(0x6, 0, 0, b"pingpong")
        .frame(DATA, 0, 3, &[7; 40]);
    let trailers = client.block(&[
        ("grpc-status", "0", Form::Indexed),
        ("secret", "x", Form::NeverIndexed),
    ]);
    client.frame(
        kind::HEADERS,
        flag::END_STREAM | flag::END_HEADERS,
        1,
        &trailers,
    );
    client.frame(DATA, flag::END_STREAM, 3, &[]);
    client.grpc_request(5, flag::END_STREAM, SOCKET);
    client.bytes
}

#[test]
fn an_authority_that_does_not_parse_becomes_localhost_and_the_rest_of_the_list_stays() {
    for authority in [SOCKET, "/etc/konnectivity.sock", "%2Frun%2Fx.sock", ""] {
        let mut client = Client::new();
        client
            .grpc_request(1, 0, authority)
            .grpc_request(3, flag::END_STREAM, authority);
        let expected: Vec<_> = grpc_list("localhost")
            .into_iter()
            .map(|(name, value, _)| (name.into(), value.into(), false))
            .collect();
        assert_eq!(
            lists(&whole(&client.bytes)),
            [expected.clone(), expected],
            "{authority:?}"
        );
    }
}

#[test]
fn an_authority_that_parses_is_kept() {
    for authority in [
        "localhost",
        "server.example:8091",
        "[::1]:8091",
        "@abstract",
        "127.0.0.1",
    ] {
        let mut client = Client::new();
        client.grpc_request(1, 0, authority);
        assert_eq!(authorities(&client.bytes), [authority]);
    }
}

#[test]
fn the_authority_of_a_connect_is_kept_wherever_its_method_stands() {
    let method = (":method", "CONNECT", Form::Indexed);
    let authority = (":authority", "%2Frun%2Fx.sock", Form::NeverIndexed);
    for list in [[method, authority], [authority, method]] {
        let mut client = Client::new();
        let block = client.block(&list);
        client.frame(kind::HEADERS, flag::END_HEADERS, 1, &block);
        assert_eq!(authorities(&client.bytes), ["%2Frun%2Fx.sock"]);
    }
}

#[test]
fn a_second_authority_is_left_for_h2_to_refuse() {
    for (first, shown) in [("good", "good"), (SOCKET, "localhost")] {
        let mut client = Client::new();
        let list = [first, SOCKET].map(|value| (":authority", value, Form::Indexed));
        let block = client.block(&list);
        client.frame(kind::HEADERS, flag::END_HEADERS, 1, &block);
        assert_eq!(authorities(&client.bytes), [shown, SOCKET]);
    }
}

#[test]
fn a_never_indexed_field_stays_never_indexed_also_when_replaced() {
    let mut client = Client::new();
    let block = client.block(&[
        (":authority", SOCKET, Form::NeverIndexed),
        ("authorization", "Bearer x", Form::NeverIndexed),
        ("authorization", "Bearer x", Form::Incremental),
    ]);
    client.frame(kind::HEADERS, flag::END_HEADERS, 1, &block);
    let list = [
        (":authority", "localhost", true),
        ("authorization", "Bearer x", true),
        ("authorization", "Bearer x", false),
    ];
    assert_eq!(
        lists(&whole(&client.bytes)),
        [list.map(|(name, value, never)| (name.to_owned(), value.to_owned(), never))]
    );
}

#[test]
fn frames_other_than_header_blocks_pass_untouched_and_unmoved() {
    let mut client = Client::new();
    for kind in (0..=255)
        .filter(|kind| ![kind::HEADERS, kind::PUSH_PROMISE, kind::CONTINUATION].contains(kind))
    {
        client.frame(
            kind,
            kind ^ 0xff,
            u32::from(kind),
            &vec![kind; usize::from(kind) * 3],
        );
    }
    let rewritten = rewrite([client.bytes.clone()], 1 << 20);
    assert_eq!(rewritten.bytes, client.bytes);
    assert_eq!(rewritten.adapter.moved_bytes(), 0);
}

#[test]
fn the_reserved_bit_of_other_frames_passes_too_however_they_are_cut() {
    let mut client = Client::new();
    client
        .bytes
        .extend([0, 0, 1, DATA, 0, 0xff, 0xff, 0xff, 0xff, 7]);
    for size in 1..=client.bytes.len() {
        assert_eq!(
            rewrite([client.bytes.clone()], size).bytes,
            client.bytes,
            "buffer of {size}"
        );
    }
}

#[test]
fn data_is_not_moved_but_for_frame_heads_that_reads_cut_apart() {
    let mut client = Client::new();
    client.grpc_request(1, 0, SOCKET);
    let head_bytes = client.bytes.len();
    for round in 0..64 {
        client.frame(DATA, 0, 1, &vec![round; 16_384]);
    }
    let (head, data) = client.bytes.split_at(head_bytes);
    for piece in [1_000, 8_192, 16_393, 16_394, 65_536] {
        let pieces = [head.to_vec()]
            .into_iter()
            .chain(data.chunks(piece).map(<[u8]>::to_vec));
        let rewritten = rewrite(pieces, 1 << 17);
        assert!(rewritten.bytes.ends_with(data));
        let moved = rewritten.adapter.moved_bytes();
        assert!(
            moved <= (head_bytes - PREFACE.len() + 8 * 65) as u64,
            "{moved} bytes moved with reads of {piece}"
        );
    }
}

#[test]
fn padding_goes_and_priority_and_end_stream_stay() {
    let bytes = whole(&busy_connection());
    let heads: Vec<_> = frames(&bytes)
        .into_iter()
        .filter(|(head, _)| head.carries_header_block())
        .collect();
    let flags: Vec<_> = heads
        .iter()
        .map(|(head, _)| (head.stream, head.flags))
        .collect();
    let (end, last) = (flag::END_HEADERS, flag::END_HEADERS | flag::END_STREAM);
    assert_eq!(
        flags,
        [(1, end), (3, end | flag::PRIORITY), (1, last), (5, last)]
    );
    assert_eq!(heads[1].1[..5], [0, 0, 0, 1, 200]);
}

#[test]
fn the_result_is_the_same_at_every_split_point_and_for_every_size_of_buffer() {
    let input = busy_connection();
    let expected = whole(&input);
    assert_eq!(lists(&expected).len(), 4);
    for at in 0..=input.len() {
        let (left, right) = input.split_at(at);
        for buf_bytes in [1, 9, 4_096] {
            let rewritten = rewrite([left.to_vec(), right.to_vec()], buf_bytes);
            assert_eq!(
                rewritten.bytes, expected,
                "split at {at}, buffer of {buf_bytes}"
            );
        }
    }
    for size in 1..=40 {
        assert_eq!(
            rewrite([input.clone()], size).bytes,
            expected,
            "buffer of {size}"
        );
        assert_eq!(
            rewrite(input.chunks(size).map(<[u8]>::to_vec), 4_096).bytes,
            expected,
            "reads of {size}"
        );
    }
}

#[test]
fn a_large_list_is_split_into_full_frames() {
    let long = "v".repeat(16_300);
    let mut client = Client::without_huffman();
    let block = client.block(&[
        ("a", &long, Form::Unindexed),
        ("b", &long, Form::Unindexed),
        ("c", &long, Form::Unindexed),
    ]);
    let mut payload = vec![0, 0, 0, 0, 16];
    payload.extend(&block[..16_379]);
    client.frame(
        kind::HEADERS,
        flag::PRIORITY | flag::END_STREAM,
        1,
        &payload,
    );
    client
        .frame(kind::CONTINUATION, 0, 1, &block[16_379..32_763])
        .frame(kind::CONTINUATION, flag::END_HEADERS, 1, &block[32_763..]);
    client.frame(DATA, 0, 1, b"x");
    // The client's block is already in the form that the adapter gives it.
    assert_eq!(whole(&client.bytes), client.bytes);
}

#[test]
fn small_references_to_large_entries_are_expanded_one_block_at_a_time() {
    let mut client = Client::without_huffman();
    let entry = "x".repeat(4_000);
    let block = client.block(&[("a", &entry, Form::Incremental)]);
    client.frame(kind::HEADERS, flag::END_HEADERS, 1, &block);
    for _ in 0..100 {
        client.frame(kind::HEADERS, flag::END_HEADERS, 1, &[0xbe; 16]);
    }
    let input = client.bytes;
    let rewritten = rewrite([input.clone()], input.len());
    assert!(rewritten.bytes.len() > 6_400_000);
    assert!(
        rewritten.held <= input.len() + MAX_LIST_BYTES + 100,
        "{} bytes held",
        rewritten.held
    );
}

/// What comes out for `sent`, a piece of a connection that ends it, between frames that pass; must be all up to it
/// and then `shown`.
fn check_refused(what: &str, shown: &[u8], sent: impl FnOnce(&mut Client)) {
    let mut client = Client::new();
    client.frame(0x6, 0, 0, &[1; 8]);
    let good = client.bytes.clone();
    sent(&mut client);
    client.frame(DATA, 0, 1, b"behind");
    for piece in [1, 7, 1 << 20] {
        let rewritten = rewrite(client.bytes.chunks(piece).map(<[u8]>::to_vec), 1 << 20);
        assert_eq!(
            rewritten.bytes,
            [&good, shown].concat(),
            "{what}, reads of {piece}"
        );
    }
}

#[test]
fn what_breaks_the_rules_for_header_blocks_ends_the_stream_with_a_frame_that_h2_refuses() {
    use self::check_refused as check;
    use kind::{CONTINUATION, HEADERS, PUSH_PROMISE};
    check("CONTINUATION first", &STRAY, |c| {
        _ = c.frame(CONTINUATION, 4, 1, &[0x82])
    });
    check("PUSH_PROMISE", &STRAY, |c| {
        _ = c.frame(PUSH_PROMISE, 4, 1, &[0, 0, 0, 2, 0x82])
    });
    check("stream 0", &STRAY, |c| _ = c.frame(HEADERS, 4, 0, &[0x82]));
    check("DATA within a block", &STRAY, |c| {
        _ = c.frame(HEADERS, 0, 1, &[0x82]).frame(DATA, 0, 1, b"x")
    });
    check("another block within a block", &STRAY, |c| {
        _ = c.frame(HEADERS, 0, 1, &[]).frame(HEADERS, 4, 3, &[0x82])
    });
    check("CONTINUATION of another stream", &STRAY, |c| {
        _ = c.frame(HEADERS, 0, 1, &[]).frame(CONTINUATION, 4, 3, &[])
    });
    check("no pad length", &STRAY, |c| {
        _ = c.frame(HEADERS, 4 | flag::PADDED, 1, &[])
    });
    check("more padding than payload", &STRAY, |c| {
        _ = c.frame(HEADERS, 4 | flag::PADDED, 1, &[2, 0])
    });
    check("priority cut off", &STRAY, |c| {
        _ = c.frame(HEADERS, 4 | flag::PRIORITY, 1, &[0; 4])
    });
    check("padding over priority", &STRAY, |c| {
        _ = c.frame(
            HEADERS,
            4 | flag::PADDED | flag::PRIORITY,
            1,
            &[1, 0, 0, 0, 0, 0],
        )
    });
    check("index 0", &STRAY, |c| _ = c.frame(HEADERS, 4, 1, &[0x80]));
    check("table too large", &STRAY, |c| {
        _ = c.frame(HEADERS, 4, 1, &[0x3f, 0xe2, 0x1f])
    });
    check("block too large", &STRAY, |c| {
        c.frame(HEADERS, 0, 1, &[0x82; 16_384]);
        for _ in 0..4 {
            c.frame(CONTINUATION, 0, 1, &[0x82; 16_384]);
        }
    });
    check("endless empty CONTINUATION", &STRAY, |c| {
        c.frame(HEADERS, 0, 1, &[0x82]);
        for _ in 0..=MAX_BLOCK_BYTES / HEAD_BYTES {
            c.frame(CONTINUATION, 0, 1, &[]);
        }
    });
    check("list too large", &STRAY, |c| {
        _ = c.frame(HEADERS, 4, 1, &[0x82; 2_000])
    });
    check(
        "frame too long",
        &[0, 0x40, 1, HEADERS, 4, 0, 0, 0, 1],
        |c| _ = c.frame(HEADERS, 4, 1, &[0x82; 16_385]),
    );
    check(
        "stray CONTINUATION too long",
        &[0xff, 0xff, 0xff, CONTINUATION, 0, 0, 0, 0, 1],
        |c| {
            c.bytes
                .extend([0xff, 0xff, 0xff, CONTINUATION, 0, 0, 0, 0, 1]);
        },
    );
    check(
        "CONTINUATION too long",
        &[0, 0x40, 1, CONTINUATION, 0, 0, 0, 0, 1],
        |c| {
            c.frame(HEADERS, 0, 1, &[])
                .frame(CONTINUATION, 0, 1, &[0x82; 16_385]);
        },
    );
}

#[test]
fn padding_may_fill_the_whole_payload() {
    let mut client = Client::new();
    client.frame(
        kind::HEADERS,
        flag::END_HEADERS | flag::PADDED,
        1,
        &[2, 0, 0],
    );
    let mut expected = Client::new();
    expected.frame(kind::HEADERS, flag::END_HEADERS, 1, &[]);
    assert_eq!(whole(&client.bytes), expected.bytes);
}

#[test]
fn a_stream_that_ends_early_ends_there_but_never_within_a_header_block() {
    let mut client = Client::new();
    client.frame(0x6, 0, 0, &[1; 8]);
    let before = client.bytes.len();
    client.frame(kind::HEADERS, 0, 1, &[0x82]).frame(
        kind::CONTINUATION,
        flag::END_HEADERS,
        1,
        &[0x84],
    );
    let input = client.bytes;
    for end in 0..input.len() {
        // The block's first frame head passes as long as nothing shows that it is one.
        let expected = if end < before + HEAD_BYTES {
            end
        } else {
            before
        };
        for buf_bytes in [1, 4_096] {
            assert_eq!(
                rewrite([input[..end].to_vec()], buf_bytes).bytes,
                input[..expected],
                "end at {end}, buffer of {buf_bytes}"
            );
        }
    }
}

#[test]
fn what_is_not_http_2_passes_as_it_is() {
    for input in [
        "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n\0\0\x05\x01",
        "P",
        "\0",
    ] {
        for size in 1..=input.len() {
            let rewritten = rewrite(input.as_bytes().chunks(size).map(<[u8]>::to_vec), 4_096);
            assert_eq!(rewritten.bytes, input.as_bytes());
            assert_eq!(rewritten.adapter.moved_bytes(), 0);
        }
    }
}

#[tokio::test]
async fn writes_go_straight_through_also_vectored() {
    use tokio::io::AsyncWriteExt;

    let mut adapter = AuthorityRewriter::new(Pieces::new([]));
    adapter.write_all(b"abc").await.unwrap();
    adapter.flush().await.unwrap();
    adapter.shutdown().await.unwrap();
    assert_eq!(adapter.io.written, b"abc");
    assert!(!adapter.is_write_vectored(), "as the socket within");

    let (ours, mut theirs) = tokio::io::duplex(64);
    let mut adapter = AuthorityRewriter::new(ours);
    assert!(adapter.is_write_vectored());
    let parts = [io::IoSlice::new(b"ab"), io::IoSlice::new(b"cd")];
    assert_eq!(adapter.write_vectored(&parts).await.unwrap(), 4);
    drop(adapter);
    let mut received = Vec::new();
    tokio::io::AsyncReadExt::read_to_end(&mut theirs, &mut received)
        .await
        .unwrap();
    assert_eq!(received, b"abcd");
}

#[test]
fn debug_output_shows_no_bytes_of_the_connection() {
    let mut client = Client::new();
    client.grpc_request(1, 0, SOCKET);
    let mut adapter = rewrite([client.bytes], 4_096).adapter;
    adapter.io = Pieces::new([]);
    let shown = format!("{adapter:?}");
    assert!(shown.contains("entries: 6"), "{shown}");
    assert!(!shown.contains("grpc"), "{shown}");
}
