//! The file as written, with places. Every field may be absent or `null`, which Go takes for the zero value.

/// Byte offset of a field's key, or of what it should stand under; `None` where the reader could not tell.
pub(crate) type Place = Option<usize>;

/// A field.
#[derive(Debug)]
pub(crate) struct Field<T> {
    pub(crate) at: Place,
    pub(crate) state: State<T>,
}

#[derive(Debug)]
pub(crate) enum State<T> {
    /// Not there, or null.
    Absent,
    /// Of the wrong type. That has been reported; what depends on the value is not known.
    Wrong,
    Set(T),
}

impl<T> Field<T> {
    pub(crate) fn set(&self) -> Option<&T> {
        match &self.state {
            State::Set(value) => Some(value),
            State::Absent | State::Wrong => None,
        }
    }

    pub(crate) fn is_wrong(&self) -> bool {
        matches!(self.state, State::Wrong)
    }

    pub(crate) fn is_absent(&self) -> bool {
        matches!(self.state, State::Absent)
    }
}

impl Field<String> {
    /// The text, empty if absent: Go's zero value. `None` if it is not text.
    pub(crate) fn text(&self) -> Option<&str> {
        match &self.state {
            State::Set(text) => Some(text),
            State::Absent => Some(""),
            State::Wrong => None,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Selection {
    pub(crate) name: Field<String>,
    /// `Set` also if it is absent, since an absent one has an empty protocol.
    pub(crate) connection: Field<Connection>,
}

#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) proxy_protocol: Field<String>,
    pub(crate) transport: Field<Transport>,
}

#[derive(Debug)]
pub(crate) struct Transport {
    pub(crate) tcp: Field<Tcp>,
    pub(crate) uds: Field<Uds>,
}

#[derive(Debug)]
pub(crate) struct Tcp {
    pub(crate) url: Field<String>,
    pub(crate) tls_config: Field<Tls>,
}

#[derive(Debug)]
pub(crate) struct Tls {
    pub(crate) ca_bundle: Field<String>,
    pub(crate) client_key: Field<String>,
    pub(crate) client_cert: Field<String>,
    pub(crate) tls_server_name: Field<String>,
}

#[derive(Debug)]
pub(crate) struct Uds {
    pub(crate) uds_name: Field<String>,
}
