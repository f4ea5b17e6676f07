//! Any message is read or refused; what is read and written again means the same.

#![no_main]

use bytes::{Bytes, BytesMut};
use libfuzzer_sys::fuzz_target;
use tunnel::{
    codec::{self, Decoded},
    grpc,
    packet::Packet,
};

fuzz_target!(|input: &[u8]| {
    let message = Bytes::copy_from_slice(input);
    let Ok(Decoded::Packet(packet)) = codec::decode(&message) else {
        return;
    };
    if let Packet::Data { payload, .. } = &packet {
        if payload.is_empty() {
            // Never written: upstream takes it for the end of the stream.
            return;
        }
        assert!(
            message.as_ptr_range().contains(&payload.as_ptr()),
            "a payload was copied"
        );
    }
    let mut wire = BytesMut::new();
    codec::put_packet(&mut wire, &packet);
    let again = wire.freeze().slice(grpc::PREFIX_LEN..);
    assert!(
        again.len() <= message.len() + 2,
        "the shortest form is longer"
    );
    assert_eq!(codec::decode(&again), Ok(Decoded::Packet(packet)));
});
