use proptest::prelude::*;

use super::*;

fn messages_of(reader: &mut MessageReader, chunks: &[Bytes]) -> Result<Vec<Bytes>, FramingError> {
    let mut out = Vec::new();
    for chunk in chunks {
        reader.push(chunk.clone());
        while let Some(message) = reader.next_message()? {
            out.push(message);
        }
    }
    Ok(out)
}

fn framed(messages: &[Vec<u8>]) -> Bytes {
    let mut out = BytesMut::new();
    for message in messages {
        put_prefix(&mut out, message.len());
        out.extend_from_slice(message);
    }
    out.freeze()
}

#[test]
fn messages_come_whole_from_every_pair_of_split_points() {
    let messages = [vec![], vec![1], vec![2; 40], vec![], vec![3; 7]];
    let wire = framed(&messages);
    for a in 0..=wire.len() {
        for b in a..=wire.len() {
            let chunks = [wire.slice(..a), wire.slice(a..b), wire.slice(b..)];
            let mut reader = MessageReader::new(64);
            assert_eq!(messages_of(&mut reader, &chunks).unwrap(), messages);
            assert_eq!(reader.finish(), Ok(()));
        }
    }
}

#[test]
fn a_message_within_one_chunk_is_a_slice_of_it() {
    let wire = framed(&[vec![9; 100]]);
    let mut reader = MessageReader::new(100);
    reader.push(wire.clone());
    let message = reader.next_message().unwrap().unwrap();
    assert_eq!(message.as_ptr(), wire[PREFIX_LEN..].as_ptr());
}

#[test]
fn the_limit_is_the_last_length_that_passes() {
    let mut reader = MessageReader::new(MAX_MESSAGE);
    reader.push(Bytes::copy_from_slice(&[0, 0, 0x40, 0, 0]));
    assert_eq!(reader.next_message(), Ok(None));
    let mut reader = MessageReader::new(MAX_MESSAGE);
    reader.push(Bytes::copy_from_slice(&[0, 0, 0x40, 0, 1]));
    let error = reader.next_message().unwrap_err();
    assert_eq!(error.to_status().code, Code::ResourceExhausted);
    assert_eq!(
        error.to_string(),
        "grpc: received message larger than max (4194305 vs. 4194304)"
    );
}

#[test]
fn a_claimed_length_costs_no_memory_before_its_bytes_come() {
    let mut reader = MessageReader::new(MAX_MESSAGE);
    reader.push(Bytes::copy_from_slice(&[0, 0, 0x40, 0, 0, 1]));
    assert_eq!(reader.next_message(), Ok(None));
    assert!(reader.partial.as_ref().unwrap().bytes.capacity() <= 2 * ASSEMBLY_STEP);
}

#[test]
fn a_compressed_message_and_a_cut_one_are_errors() {
    let mut reader = MessageReader::new(64);
    reader.push(Bytes::copy_from_slice(&[1, 0, 0, 0, 0]));
    assert_eq!(
        reader.next_message().unwrap_err().to_status().code,
        Code::Unimplemented
    );
    let mut reader = MessageReader::new(64);
    for cut in [1, 5, 6] {
        reader = MessageReader::new(64);
        reader.push(framed(&[vec![1, 2]]).slice(..cut));
        assert_eq!(reader.next_message(), Ok(None));
        assert_eq!(
            reader.finish(),
            Err(FramingError::Truncated),
            "cut at {cut}"
        );
    }
    drop(reader);
}

#[test]
fn a_status_survives_its_headers() {
    for message in ["", "plain", "50 % \r\n ü", "%41%"] {
        let status = Status::new(Code::Unavailable, message);
        assert_eq!(Status::from_headers(&status.to_headers()), Some(status));
    }
    assert_eq!(Status::from_headers(&HeaderMap::new()), None);
}

#[test]
fn a_call_is_checked_by_method_type_and_path() {
    let check = |method: &str, content_type: &str, path: &str| {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", content_type)
            .body(())
            .unwrap();
        check_request(&request.into_parts().0, "/ProxyService/Proxy")
            .map_err(|response| response.status().as_u16())
    };
    assert_eq!(
        check("POST", "application/grpc", "/ProxyService/Proxy"),
        Ok(())
    );
    assert_eq!(
        check("POST", "application/grpc+proto", "/ProxyService/Proxy"),
        Ok(())
    );
    assert_eq!(
        check("GET", "application/grpc", "/ProxyService/Proxy"),
        Err(405)
    );
    assert_eq!(
        check("POST", "application/json", "/ProxyService/Proxy"),
        Err(415)
    );
    assert_eq!(
        check("POST", "application/grpcx", "/ProxyService/Proxy"),
        Err(415)
    );
    // Trailers-only: HTTP is content, gRPC is not.
    assert_eq!(
        check("POST", "application/grpc", "/AgentService/Connect"),
        Err(200)
    );
}

proptest! {
    #[test]
    fn any_chunking_gives_the_same_messages(
        messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..20),
        cuts in prop::collection::vec(1usize..200, 1..40),
    ) {
        let mut wire = framed(&messages);
        let mut chunks = Vec::new();
        for cut in cuts.into_iter().cycle() {
            if wire.is_empty() { break; }
            chunks.push(wire.split_to(cut.min(wire.len())));
        }
        let mut reader = MessageReader::new(300);
        prop_assert_eq!(messages_of(&mut reader, &chunks).unwrap(), messages);
        prop_assert_eq!(reader.finish(), Ok(()));
    }
}
