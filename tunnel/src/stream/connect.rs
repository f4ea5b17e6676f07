//! What a `CONNECT` and its answer say (RFC 9113, section 8.5), as HTTP messages. No stream, no socket.

use std::borrow::Cow;

use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri,
    header::InvalidHeaderValue, request, uri::Authority,
};
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};

use crate::{
    dial::{Refusal, RefusalKind},
    mux::MAX_ADDRESS,
};

/// A target that cannot be written as `:authority`, percent-encoded.
pub const TARGET: HeaderName = HeaderName::from_static("adit-target");

/// Go network name, if it is not `tcp`.
pub const NETWORK: HeaderName = HeaderName::from_static("adit-network");

/// In an answer: why there is no connection, percent-encoded.
pub const ERROR: HeaderName = HeaderName::from_static("adit-error");

/// In a `CONNECT` that answers a forward of the agent: the forward's id, in decimal.
pub const FORWARD: HeaderName = HeaderName::from_static("adit-forward");

/// `:authority` where [`TARGET`] or [`FORWARD`] says what is meant.
const NO_AUTHORITY: &str = "-";

/// Path of the control stream.
pub const CONTROL_PATH: &str = "/control";

/// The network that needs no header.
const TCP: &str = "tcp";

/// Most bytes of an error, before it is encoded.
const MAX_ERROR: usize = 4 * 1024;

/// What a header value may not have, or not at its ends (RFC 9113, section 8.2.1), and `%` itself.
const ENCODED: &AsciiSet = &CONTROLS.add(b' ').add(b'%');

/// What a server asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Connect {
    /// Dial this.
    Dial {
        /// Go network name.
        network: String,
        /// `host:port`, as the frontend wrote it.
        address: String,
    },
    /// The connection that this forward of the agent asked for.
    Forward(u64),
}

/// What is wrong with a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// Neither `CONNECT` nor the control stream.
    #[error("no request of this protocol")]
    Method,
    /// No target.
    #[error("CONNECT without a target")]
    NoTarget,
    /// Longer than [`MAX_ADDRESS`].
    #[error("target of {0} bytes, more than {MAX_ADDRESS}")]
    TooLong(usize),
    /// A header that is not what its name says.
    #[error("{0} is not readable")]
    Header(HeaderName),
}

impl Connect {
    /// The request.
    ///
    /// # Errors
    /// If `http` takes a value for impossible; none that is encoded here is.
    pub fn to_request(&self) -> Result<Request<()>, http::Error> {
        let mut headers = HeaderMap::new();
        let authority = match self {
            Self::Dial { network, address } => {
                if network != TCP {
                    headers.insert(NETWORK, encoded(network)?);
                }
                match authority(address) {
                    Some(authority) => authority,
                    None => {
                        headers.insert(TARGET, encoded(address)?);
                        Authority::from_static(NO_AUTHORITY)
                    }
                }
            }
            Self::Forward(id) => {
                headers.insert(FORWARD, HeaderValue::from(*id));
                Authority::from_static(NO_AUTHORITY)
            }
        };
        let uri = Uri::builder().authority(authority).build()?;
        let mut request = Request::builder()
            .method(Method::CONNECT)
            .uri(uri)
            .body(())?;
        *request.headers_mut() = headers;
        Ok(request)
    }

    /// Reads a request.
    ///
    /// # Errors
    /// [`ConnectError`]
    pub fn from_request(head: &request::Parts) -> Result<Self, ConnectError> {
        if head.method != Method::CONNECT {
            return Err(ConnectError::Method);
        }
        if let Some(id) = head.headers.get(FORWARD) {
            let id = id.to_str().ok().and_then(|id| id.parse().ok());
            return Ok(Self::Forward(id.ok_or(ConnectError::Header(FORWARD))?));
        }
        let network = decoded(&head.headers, NETWORK)?.unwrap_or_else(|| TCP.to_owned());
        let address = match decoded(&head.headers, TARGET)? {
            Some(target) => target,
            None => match head.uri.authority().map(Authority::as_str) {
                None | Some(NO_AUTHORITY) => return Err(ConnectError::NoTarget),
                Some(authority) => authority.to_owned(),
            },
        };
        let len = network.len() + address.len();
        if len > MAX_ADDRESS {
            return Err(ConnectError::TooLong(len));
        }
        Ok(Self::Dial { network, address })
    }
}

/// `address`, if it comes out of an authority as it went in.
fn authority(address: &str) -> Option<Authority> {
    let authority = Authority::try_from(address).ok()?;
    // What looks like a user is none, and what has no port is no `host:port`.
    let is_plain =
        authority.as_str() == address && !address.contains('@') && address != NO_AUTHORITY;
    (is_plain && authority.port_u16().is_some() && !authority.host().is_empty())
        .then_some(authority)
}

/// An answer that there is a connection.
pub(super) fn connected() -> Response<()> {
    Response::new(())
}

/// The status of each kind of refusal; any other says that the dial failed.
const STATUSES: [(RefusalKind, StatusCode); 5] = [
    (RefusalKind::Failed, StatusCode::BAD_GATEWAY),
    (RefusalKind::TimedOut, StatusCode::GATEWAY_TIMEOUT),
    (RefusalKind::Forbidden, StatusCode::FORBIDDEN),
    (RefusalKind::Malformed, StatusCode::BAD_REQUEST),
    (RefusalKind::TooMany, StatusCode::SERVICE_UNAVAILABLE),
];

/// An answer that there is none.
pub(super) fn refused(refusal: &Refusal) -> Response<()> {
    let mut response = Response::new(());
    let status = STATUSES.iter().find(|(kind, _)| *kind == refusal.kind);
    *response.status_mut() = status.map_or(StatusCode::BAD_GATEWAY, |(_, status)| *status);
    if let Ok(error) = encoded(shortened(&refusal.text)) {
        response.headers_mut().insert(ERROR, error);
    }
    response
}

/// Why an answer gives no connection; `None` if it does.
pub(super) fn refusal(status: StatusCode, headers: &HeaderMap) -> Option<Refusal> {
    if status == StatusCode::OK {
        return None;
    }
    let kind = STATUSES.iter().find(|(_, known)| *known == status);
    let text = decoded(headers, ERROR).ok().flatten();
    let text = text.filter(|text| !text.is_empty());
    Some(Refusal {
        kind: kind.map_or(RefusalKind::Failed, |(kind, _)| *kind),
        text: text.map_or_else(
            || format!("agent answered with HTTP status {}", status.as_u16()),
            |text| shortened(&text).to_owned(),
        ),
    })
}

fn encoded(text: &str) -> Result<HeaderValue, InvalidHeaderValue> {
    let text: Cow<'_, str> = utf8_percent_encode(text, ENCODED).into();
    HeaderValue::from_str(&text)
}

fn decoded(headers: &HeaderMap, name: HeaderName) -> Result<Option<String>, ConnectError> {
    let Some(value) = headers.get(&name) else {
        return Ok(None);
    };
    let text = value.to_str().ok().and_then(|text| {
        let text = percent_decode_str(text).decode_utf8().ok()?;
        Some(text.into_owned())
    });
    text.map(Some).ok_or(ConnectError::Header(name))
}

/// At most [`MAX_ERROR`] bytes.
fn shortened(text: &str) -> &str {
    let end = (0..=MAX_ERROR).rev().find(|&at| text.is_char_boundary(at));
    end.and_then(|end| text.get(..end)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn dial(network: &str, address: &str) -> Connect {
        Connect::Dial {
            network: network.to_owned(),
            address: address.to_owned(),
        }
    }

    fn back(connect: &Connect) -> (Request<()>, Result<Connect, ConnectError>) {
        let request = connect.to_request().unwrap();
        let (head, ()) = request.clone().into_parts();
        (request, Connect::from_request(&head))
    }

    #[test]
    fn a_target_is_the_authority_where_it_can_be() {
        for address in [
            "10.0.0.7:10250",
            "node-1.example:443",
            "[fd00::7]:10250",
            "[fe80::1%eth0]:1",
        ] {
            let connect = dial("tcp", address);
            let (request, read) = back(&connect);
            assert_eq!(read, Ok(connect));
            assert_eq!(request.uri().to_string(), address);
            assert!(request.headers().is_empty());
        }
        for address in [
            ":0",
            "",
            "-",
            "host",
            "host:https",
            "host:",
            "a b:1",
            "user@host:1",
            "ä:1",
            "50%:1",
        ] {
            let connect = dial("tcp", address);
            let (request, read) = back(&connect);
            assert_eq!(request.uri().to_string(), "-", "{address}");
            assert_eq!(read, Ok(connect));
        }
        let udp = dial("udp", "10.0.0.7:53");
        assert_eq!(back(&udp).1, Ok(udp));
        assert_eq!(
            back(&Connect::Forward(u64::MAX)).1,
            Ok(Connect::Forward(u64::MAX))
        );
    }

    #[test]
    fn what_is_no_connect_of_ours_says_so() {
        let read = |method: &str, uri: &str, headers: &[(&str, &str)]| {
            let mut request = Request::builder().method(method).uri(uri);
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            Connect::from_request(&request.body(()).unwrap().into_parts().0)
        };
        assert_eq!(read("GET", "https://h/", &[]), Err(ConnectError::Method));
        assert_eq!(read("CONNECT", "-", &[]), Err(ConnectError::NoTarget));
        let long = "x".repeat(MAX_ADDRESS);
        assert_eq!(
            read("CONNECT", "-", &[("adit-target", &long)]),
            Err(ConnectError::TooLong(MAX_ADDRESS + 3))
        );
        assert_eq!(
            read("CONNECT", "-", &[("adit-target", "%ff")]),
            Err(ConnectError::Header(TARGET))
        );
        for id in ["", "x", "-1", "18446744073709551616"] {
            assert_eq!(
                read("CONNECT", "-", &[("adit-forward", id)]),
                Err(ConnectError::Header(FORWARD))
            );
        }
    }

    #[test]
    fn a_refusal_arrives_in_its_own_words_and_bounded() {
        let words = "dial tcp 10.0.0.7:1: connect: connection refused\n50% ä";
        for (kind, status) in [
            (RefusalKind::Failed, 502),
            (RefusalKind::TimedOut, 504),
            (RefusalKind::Forbidden, 403),
            (RefusalKind::Malformed, 400),
            (RefusalKind::TooMany, 503),
        ] {
            let said = Refusal {
                kind,
                text: words.to_owned(),
            };
            let response = refused(&said);
            assert_eq!(response.status().as_u16(), status);
            let heard = refusal(response.status(), response.headers());
            assert_eq!(heard, Some(said));
        }
        let long = refused(&Refusal::failed("ä".repeat(MAX_ERROR)));
        assert_eq!(
            refusal(long.status(), long.headers()).unwrap().text.len(),
            MAX_ERROR
        );
        assert_eq!(refusal(StatusCode::OK, &HeaderMap::new()), None);
        let bare = refusal(StatusCode::LOOP_DETECTED, &HeaderMap::new()).unwrap();
        assert_eq!(bare, Refusal::failed("agent answered with HTTP status 508"));
    }

    proptest! {
        #[test]
        fn every_address_arrives_as_it_was_written(network in "tcp|udp|.{0,8}", address in ".{0,80}") {
            let connect = dial(&network, &address);
            let read = back(&connect).1;
            prop_assert_eq!(read, Ok(connect));
        }
    }
}
