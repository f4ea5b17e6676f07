//! One established connection of a packet tunnel: its two byte queues and how it ends. No socket, no clock.
//!
//! ```text
//!             server end                                   agent end
//!  sending    Open --finish--> Finishing --CLOSE_REQ--> Finished      Open --finish or CLOSE_REQ--> Finishing --CLOSE_RSP--> Finished
//!  receiving  Open --CLOSE_RSP--> Ended                               Open --CLOSE_REQ, or our CLOSE_RSP is out--> Ended
//!  gone       when CLOSE_RSP has come                                 when CLOSE_RSP is out
//! ```
//!
//! The close packet goes out behind all that was queued, so no byte that was accepted is lost to a close; and what was
//! received before the peer's close packet stays readable after it. The protocol has only full close: an agent that has
//! said CLOSE_RSP takes no more data.

use std::rc::Rc;

use bytes::Bytes;

use crate::{
    credit,
    ledger::{Account, Ledger},
    packet::{ConnectId, Packet},
    queue::ByteQueue,
};

/// What a connection may have queued for the tunnel before its local side must stop reading, in bytes of
/// [`ByteQueue::cost`].
pub const MAX_OUTBOUND: usize = 64 * 1024;

/// Which end of the tunnel this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Asks for connections and asks for their end.
    Server,
    /// Dials targets, numbers connections and confirms their end.
    Agent,
}

/// Why a connection ended other than by its two sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Ended {
    /// The tunnel that carried it is gone.
    #[error("tunnel lost")]
    TunnelLost,
    /// The agent closed it with an error: what was received may not be all.
    #[error("closed by the agent with an error")]
    ByAgent,
    /// Its reader held more than its share of the buffers and had read nothing for too long.
    #[error("reset because its reader stalled while others needed the buffers")]
    Stalled,
    /// Its other end was reset.
    #[error("reset by its other end")]
    Reset,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sending {
    Open,
    /// What is queued is still to be sent, then the close packet.
    Finishing,
    /// The close packet is out, or there is nobody to send it to.
    Finished,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Receiving {
    Open,
    /// The peer closed; what is queued can still be read.
    Ended,
    /// As `Ended`, but not by the peer's will.
    Failed(Ended),
}

/// What a connection sends next.
#[derive(Debug, PartialEq, Eq)]
pub enum Outgoing {
    /// Payload.
    Data(Bytes),
    /// The close packet; nothing follows it.
    Close(Packet),
}

/// One end of a connection.
#[derive(Debug)]
pub struct Conn {
    id: ConnectId,
    role: Role,
    sending: Sending,
    outbound: ByteQueue,
    receiving: Receiving,
    inbound: ByteQueue,
    /// Popped off `inbound` but not yet reported as delivered.
    in_flight: usize,
    account: Account,
    /// Of the bytes in `inbound` and in flight, those for which the peer has not got its window back.
    withheld: usize,
    /// The local side is gone: what comes in is dropped.
    discards: bool,
    delivered: u64,
    sent: u64,
    credit: Option<Flow>,
}

/// Flow control with a peer of ours ([`crate::credit`]).
#[derive(Debug)]
struct Flow {
    /// Bytes that the peer takes now.
    allowance: usize,
    /// Bytes that have left `inbound` since the last grant.
    owed: usize,
}

impl Conn {
    /// A connection that has just been established.
    #[must_use]
    pub fn new(id: ConnectId, role: Role, ledger: Rc<Ledger>) -> Self {
        Self {
            id,
            role,
            sending: Sending::Open,
            outbound: ByteQueue::default(),
            receiving: Receiving::Open,
            inbound: ByteQueue::default(),
            in_flight: 0,
            account: Account::new(ledger),
            withheld: 0,
            discards: false,
            delivered: 0,
            sent: 0,
            credit: None,
        }
    }

    /// Sends no more than `allowance` bytes before the peer grants more, and grants in turn.
    #[must_use]
    pub fn with_credit(mut self, allowance: usize) -> Self {
        self.credit = Some(Flow { allowance, owed: 0 });
        self
    }

    /// Its id on the tunnel.
    #[must_use]
    pub fn id(&self) -> ConnectId {
        self.id
    }

    // The local side's view.

    /// Whether the local side may hand over more.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.sending == Sending::Open && self.outbound.cost() < MAX_OUTBOUND
    }

    /// Whether nothing that the local side could hand over would be sent any more.
    #[must_use]
    pub fn is_send_closed(&self) -> bool {
        self.sending != Sending::Open
    }

    /// Queues bytes for the peer; dropped if sending is closed.
    pub fn push(&mut self, bytes: Bytes) {
        if self.sending == Sending::Open && !bytes.is_empty() {
            self.outbound.push(bytes);
        }
    }

    /// Nothing more from the local side. The close packet follows what is queued.
    pub fn finish(&mut self) {
        if self.sending == Sending::Open {
            self.sending = Sending::Finishing;
        }
    }

    /// The local side is gone: finishes, and drops what has come and what will.
    ///
    /// Returns the bytes of the peer's window that this frees.
    pub fn abandon(&mut self) -> usize {
        self.finish();
        self.discards = true;
        // What was popped and never delivered is gone with the local side.
        let in_flight = std::mem::take(&mut self.in_flight);
        self.owe(in_flight);
        self.drop_inbound()
    }

    /// Whether there are received bytes to take.
    #[must_use]
    pub fn has_received(&self) -> bool {
        !self.inbound.is_empty()
    }

    /// Takes up to `max` received bytes, at most one piece. They stay charged until [`Self::delivered`].
    pub fn pop(&mut self, max: usize) -> Option<Bytes> {
        let bytes = self.inbound.pop(max)?;
        self.in_flight += bytes.len();
        Some(bytes)
    }

    /// `len` popped bytes have reached the local side. Returns the bytes of the peer's window that this frees.
    pub fn delivered(&mut self, len: usize) -> usize {
        self.in_flight = self.in_flight.saturating_sub(len);
        self.delivered += len as u64;
        self.owe(len);
        self.account.set(self.inbound.cost() + self.in_flight);
        let credit = self.withheld.min(len);
        self.withheld -= credit;
        credit
    }

    /// Whether the peer will send nothing more: `None` while it may, else how it ended. What is queued comes first.
    #[must_use]
    pub fn end(&self) -> Option<Result<(), Ended>> {
        match self.receiving {
            Receiving::Open => None,
            Receiving::Ended => Some(Ok(())),
            Receiving::Failed(ended) => Some(Err(ended)),
        }
    }

    /// What to grant to the peer now: half a window or more, and while it may still send.
    pub fn take_grant(&mut self) -> Option<usize> {
        let flow = self.credit.as_mut()?;
        let is_due = flow.owed >= credit::WINDOW as usize / 2 && self.receiving == Receiving::Open;
        is_due.then(|| std::mem::take(&mut flow.owed))
    }

    // The tunnel's view.

    /// The peer takes `bytes` more.
    pub fn on_grant(&mut self, bytes: usize) {
        if let Some(flow) = &mut self.credit {
            flow.allowance = flow.allowance.saturating_add(bytes).min(credit::MAX_CREDIT);
        }
    }

    /// Whether there is something to send.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        if self.outbound.is_empty() {
            self.sending == Sending::Finishing
        } else {
            self.allowance() > 0
        }
    }

    /// The next thing to send: at most `max` bytes of payload.
    pub fn next_outgoing(&mut self, max: usize) -> Option<Outgoing> {
        // Without allowance it may still be asked: the scheduler lets whoever has just sent come once more.
        if self.allowance() > 0
            && let Some(bytes) = self.outbound.pop(max.min(self.allowance()))
        {
            self.sent += bytes.len() as u64;
            if let Some(flow) = &mut self.credit {
                flow.allowance -= bytes.len();
            }
            return Some(Outgoing::Data(bytes));
        }
        if self.sending != Sending::Finishing || !self.outbound.is_empty() {
            return None;
        }
        self.sending = Sending::Finished;
        Some(Outgoing::Close(match self.role {
            Role::Server => Packet::CloseRequest { conn: self.id },
            Role::Agent => {
                self.end_receiving(Receiving::Ended);
                // Without an error the other end would take a truncated stream for a whole one.
                let error = match self.receiving {
                    Receiving::Failed(ended) => ended.to_string(),
                    Receiving::Open | Receiving::Ended => String::new(),
                };
                Packet::CloseResponse {
                    error,
                    conn: self.id,
                }
            }
        }))
    }

    /// Takes received payload. Returns the bytes to be withheld from the peer's window because the connection holds more
    /// than its share; `tunnel_is_over` says that its whole tunnel does.
    pub fn on_data(&mut self, bytes: Bytes, tunnel_is_over: bool) -> usize {
        let len = bytes.len();
        if self.discards || self.receiving != Receiving::Open {
            self.owe(len);
            return 0;
        }
        self.inbound.push(bytes);
        self.account.set(self.inbound.cost() + self.in_flight);
        if self.account.is_over() || (tunnel_is_over && self.account.charged() > 0) {
            self.withheld += len;
            len
        } else {
            0
        }
    }

    /// The peer's close packet: CLOSE_RSP for a server's end, CLOSE_REQ for an agent's. `failed`: it tells of an error.
    pub fn on_close(&mut self, failed: bool) {
        self.end_receiving(if failed {
            Receiving::Failed(Ended::ByAgent)
        } else {
            Receiving::Ended
        });
        match self.role {
            Role::Server => {
                // The agent has closed the target: nobody is left to send to.
                self.sending = Sending::Finished;
                self.outbound.clear();
            }
            Role::Agent => self.finish(),
        }
    }

    /// The tunnel is gone. What was received stays readable.
    pub fn on_tunnel_lost(&mut self) {
        self.end_receiving(Receiving::Failed(Ended::TunnelLost));
        self.sending = Sending::Finished;
        self.outbound.clear();
    }

    /// Ends a connection whose reader stalls: drops what it holds, and tells the peer.
    ///
    /// Returns the bytes of the peer's window that this frees.
    pub fn reset_stalled(&mut self) -> usize {
        self.receiving = Receiving::Failed(Ended::Stalled);
        self.outbound.clear();
        self.finish();
        self.drop_inbound()
    }

    /// Drops what the peer does not take, long after the local side has gone; the close packet is next.
    pub fn give_up_sending(&mut self) {
        self.receiving = Receiving::Failed(Ended::Stalled);
        self.outbound.clear();
        self.finish();
    }

    /// Whether nothing more will go out.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.sending == Sending::Finished
    }

    /// Whether the local side has gone.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        self.discards
    }

    /// Whether the connection holds more than its share.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.withheld > 0 || self.account.is_over()
    }

    /// Bytes charged to the budget.
    #[must_use]
    pub fn charged(&self) -> usize {
        self.account.charged()
    }

    /// Bytes that have ever reached the local side or been sent: what tells slow from stalled.
    #[must_use]
    pub fn progress(&self) -> u64 {
        self.delivered + self.sent
    }

    /// Bytes that may be sent now.
    fn allowance(&self) -> usize {
        self.credit
            .as_ref()
            .map_or(usize::MAX, |flow| flow.allowance)
    }

    fn owe(&mut self, len: usize) {
        if let Some(flow) = &mut self.credit {
            flow.owed += len;
        }
    }

    fn end_receiving(&mut self, end: Receiving) {
        if self.receiving == Receiving::Open {
            self.receiving = end;
        }
    }

    fn drop_inbound(&mut self) -> usize {
        self.owe(self.inbound.len());
        self.inbound.clear();
        self.account.set(self.in_flight);
        std::mem::take(&mut self.withheld)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::{ALLOWANCE, DEFAULT_BUDGET};

    fn conn(role: Role) -> Conn {
        Conn::new(ConnectId(7), role, Rc::new(Ledger::new(DEFAULT_BUDGET)))
    }

    fn data(bytes: &'static [u8]) -> Outgoing {
        Outgoing::Data(Bytes::from_static(bytes))
    }

    const CLOSE_REQUEST: Outgoing = Outgoing::Close(Packet::CloseRequest { conn: ConnectId(7) });

    fn close_response() -> Outgoing {
        Outgoing::Close(Packet::CloseResponse {
            error: String::new(),
            conn: ConnectId(7),
        })
    }

    #[test]
    fn a_server_sends_what_is_queued_before_close_request_and_still_receives() {
        let mut conn = conn(Role::Server);
        conn.push(Bytes::from_static(b"last words"));
        conn.finish();
        conn.push(Bytes::from_static(b"too late"));
        assert_eq!(conn.next_outgoing(99), Some(data(b"last words")));
        assert_eq!(conn.next_outgoing(99), Some(CLOSE_REQUEST));
        assert_eq!(conn.next_outgoing(99), None);
        assert_eq!(conn.end(), None);
        conn.on_data(Bytes::from_static(b"answer"), false);
        conn.on_close(false);
        assert_eq!(conn.pop(99).as_deref(), Some(&b"answer"[..]));
        assert_eq!(conn.end(), Some(Ok(())));
    }

    #[test]
    fn an_agent_answers_close_request_behind_what_it_has_read_and_keeps_what_it_got() {
        let mut conn = conn(Role::Agent);
        conn.push(Bytes::from_static(b"read before"));
        conn.on_data(Bytes::from_static(b"for the target"), false);
        conn.on_close(false);
        assert!(conn.is_send_closed());
        assert_eq!(conn.next_outgoing(99), Some(data(b"read before")));
        assert_eq!(conn.next_outgoing(99), Some(close_response()));
        assert_eq!(conn.pop(99).as_deref(), Some(&b"for the target"[..]));
    }

    #[test]
    fn an_agent_whose_target_closed_takes_no_more_once_close_response_is_out() {
        let mut conn = conn(Role::Agent);
        conn.finish();
        conn.on_data(Bytes::from_static(b"still open"), false);
        assert_eq!(conn.next_outgoing(99), Some(close_response()));
        conn.on_data(Bytes::from_static(b"closed"), false);
        assert_eq!(conn.pop(99).as_deref(), Some(&b"still open"[..]));
        assert_eq!((conn.pop(99), conn.end()), (None, Some(Ok(()))));
    }

    #[test]
    fn a_peers_close_twice_or_after_a_loss_changes_nothing() {
        let mut server = conn(Role::Server);
        server.on_tunnel_lost();
        server.on_close(false);
        assert_eq!(server.end(), Some(Err(Ended::TunnelLost)));
        assert_eq!(server.next_outgoing(99), None);
        let mut agent = conn(Role::Agent);
        agent.on_close(false);
        assert_eq!(agent.next_outgoing(99), Some(close_response()));
        agent.on_close(false);
        assert_eq!(agent.next_outgoing(99), None);
    }

    #[test]
    fn an_abandoned_connection_still_delivers_what_was_accepted_and_drops_what_comes() {
        let mut conn = conn(Role::Server);
        conn.push(Bytes::from_static(b"accepted"));
        conn.abandon();
        assert_eq!(conn.on_data(Bytes::from_static(b"unwanted"), false), 0);
        assert_eq!(conn.pop(99), None);
        assert_eq!(conn.next_outgoing(99), Some(data(b"accepted")));
        assert_eq!(conn.next_outgoing(99), Some(CLOSE_REQUEST));
    }

    #[test]
    fn window_is_withheld_beyond_the_share_and_comes_back_byte_for_byte() {
        let mut conn = conn(Role::Server);
        let piece = Bytes::from(vec![0; 16 * 1024]);
        let (mut queued, mut withheld) = (0, 0);
        while withheld < 10 * piece.len() {
            withheld += conn.on_data(piece.clone(), false);
            queued += piece.len();
        }
        assert!(queued > DEFAULT_BUDGET / 3 && conn.is_over());
        let mut freed = 0;
        while let Some(bytes) = conn.pop(usize::MAX) {
            freed += conn.delivered(bytes.len());
        }
        assert_eq!(
            (freed, conn.charged(), conn.is_over()),
            (withheld, 0, false)
        );
    }

    #[test]
    fn a_tunnel_over_its_part_withholds_only_from_connections_beyond_the_allowance() {
        let mut conn = conn(Role::Server);
        assert_eq!(conn.on_data(Bytes::from(vec![0; ALLOWANCE / 2]), true), 0);
        assert_eq!(
            conn.on_data(Bytes::from(vec![0; ALLOWANCE]), true),
            ALLOWANCE
        );
    }

    #[test]
    fn without_credit_nothing_goes_out_not_even_the_close_behind_it() {
        let mut conn = conn(Role::Server).with_credit(4);
        conn.push(Bytes::from_static(b"123456"));
        conn.finish();
        assert_eq!(conn.next_outgoing(99), Some(data(b"1234")));
        assert!(!conn.is_ready());
        assert_eq!(conn.next_outgoing(99), None);
        conn.on_grant(99);
        assert_eq!(conn.next_outgoing(99), Some(data(b"56")));
        assert_eq!(conn.next_outgoing(99), Some(CLOSE_REQUEST));
    }

    #[test]
    fn a_stalled_connection_is_reset_with_a_close_packet_and_frees_all() {
        let mut conn = conn(Role::Agent);
        conn.push(Bytes::from_static(b"x"));
        let withheld = conn.on_data(Bytes::from(vec![0; 2 * ALLOWANCE]), true);
        assert_eq!(conn.reset_stalled(), withheld);
        assert_eq!(conn.end(), Some(Err(Ended::Stalled)));
        let error = Ended::Stalled.to_string();
        let conn_id = conn.id();
        assert_eq!(
            conn.next_outgoing(99),
            Some(Outgoing::Close(Packet::CloseResponse {
                error,
                conn: conn_id
            }))
        );
        assert_eq!(conn.charged(), 0);
    }
}
