//! Messages that go out in one piece.

use std::{collections::VecDeque, io::IoSlice};

use bytes::{Buf, Bytes, BytesMut};

use crate::{
    codec,
    packet::{ConnectId, Packet},
};

/// Copied messages, and behind them the payload whose head is their end: what is given to `h2` as one DATA.
#[derive(Debug, Default)]
pub struct Batch {
    head: Bytes,
    payload: Bytes,
    /// Further pieces of the same payload.
    more: VecDeque<Bytes>,
}

impl Batch {
    /// Whole messages in `head`, or whole ones and the head of a DATA whose payload is `payload`.
    #[must_use]
    pub fn new(head: BytesMut, payload: Bytes) -> Self {
        Self {
            head: head.freeze(),
            payload,
            more: VecDeque::new(),
        }
    }

    /// One packet.
    #[must_use]
    pub fn packet(packet: &Packet) -> Self {
        let mut head = BytesMut::new();
        codec::put_packet(&mut head, packet);
        Self::new(head, Bytes::new())
    }

    /// One DATA packet with all of `pieces` as its payload; they must not all be empty.
    #[must_use]
    pub fn data(conn: ConnectId, pieces: VecDeque<Bytes>) -> Self {
        let mut head = BytesMut::with_capacity(codec::MAX_DATA_HEAD);
        codec::put_data_head(&mut head, conn, pieces.iter().map(Bytes::len).sum());
        Self {
            head: head.freeze(),
            payload: Bytes::new(),
            more: pieces,
        }
    }
}

impl Buf for Batch {
    fn remaining(&self) -> usize {
        self.head.len() + self.payload.len() + self.more.iter().map(Bytes::len).sum::<usize>()
    }

    fn chunk(&self) -> &[u8] {
        if !self.head.is_empty() {
            &self.head
        } else if !self.payload.is_empty() {
            &self.payload
        } else {
            self.more
                .iter()
                .find(|piece| !piece.is_empty())
                .map(|piece| &piece[..])
                .unwrap_or_default()
        }
    }

    fn chunks_vectored<'a>(&'a self, dst: &mut [IoSlice<'a>]) -> usize {
        let parts = [&self.head, &self.payload]
            .into_iter()
            .chain(&self.more)
            .filter(|part| !part.is_empty());
        let mut filled = 0;
        for (slot, part) in dst.iter_mut().zip(parts) {
            *slot = IoSlice::new(part);
            filled += 1;
        }
        filled
    }

    fn advance(&mut self, cnt: usize) {
        let mut left = cnt;
        for part in [&mut self.head, &mut self.payload] {
            let of_part = left.min(part.len());
            part.advance(of_part);
            left -= of_part;
        }
        while left > 0
            && let Some(front) = self.more.front_mut()
        {
            let of_front = left.min(front.len());
            front.advance(of_front);
            left -= of_front;
            if front.is_empty() {
                self.more.pop_front();
            }
        }
        assert_eq!(left, 0, "advanced past the end");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{codec::Decoded, grpc};

    #[test]
    fn a_payload_in_pieces_is_one_message_however_it_is_taken() {
        let pieces: VecDeque<_> = [&b"one"[..], b"", b"two", b"three"]
            .into_iter()
            .map(Bytes::from_static)
            .collect();
        for step in 1..40 {
            let mut batch = Batch::data(ConnectId(7), pieces.clone());
            let mut wire = BytesMut::new();
            while batch.has_remaining() {
                let mut slices = [IoSlice::new(&[]); 8];
                let filled = batch.chunks_vectored(&mut slices);
                let total: usize = slices[..filled].iter().map(|slice| slice.len()).sum();
                assert_eq!(total, batch.remaining());
                let take = step.min(batch.chunk().len());
                wire.extend_from_slice(&batch.chunk()[..take]);
                batch.advance(take);
            }
            let message = wire.freeze().slice(grpc::PREFIX_LEN..);
            let expected = Packet::Data {
                conn: ConnectId(7),
                payload: Bytes::from_static(b"onetwothree"),
            };
            assert_eq!(codec::decode(&message), Ok(Decoded::Packet(expected)));
        }
    }

    #[test]
    fn advancing_may_cross_all_parts_at_once() {
        let mut batch = Batch::data(
            ConnectId(1),
            VecDeque::from([Bytes::from_static(b"a"), Bytes::from_static(b"b")]),
        );
        batch.advance(batch.remaining());
        assert_eq!((batch.remaining(), batch.chunk()), (0, &b""[..]));
    }
}
