//! The `AgentService/Connect` call: what we say of ourselves, and what the server must say of itself (wire-protocol.md 2.2,
//! 2.3).

use certs::Token;
use http::response::Parts;
use http::{HeaderMap, HeaderValue, Request, StatusCode, header};
use tunnel::credit;
use tunnel::grpc::{self, Status};

use super::{ConnectError, token};
use crate::config::Announcement;

/// The method; without a package in front (wire-protocol.md T3).
const PATH: &str = "/AgentService/Connect";

/// Name and version of this agent, in every introduction.
pub(super) const SOFTWARE: &str = concat!("adit-agent/", env!("CARGO_PKG_VERSION"));

/// Longest server id that is taken, in bytes.
const MAX_SERVER_ID: usize = 1024;

/// What a server says of itself, in response headers or in its answer to a hello.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Greeting {
    /// Which server this is.
    pub(crate) server_id: String,
    /// How many there are, at least one.
    pub(crate) server_count: usize,
    /// Whether it carries connections of this node to targets of its own.
    pub(crate) forwards: bool,
}

/// Headers that no server sends. In upstream's words where it has some.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum GreetingError {
    /// Not even gRPC.
    #[error("server answered HTTP status {0}, which no gRPC server does")]
    Http(StatusCode),
    /// None, or several.
    #[error("expected one server ID in the context, got [{}]", .0.join(" "))]
    ServerId(Vec<String>),
    /// Longer than any id is.
    #[error("server ID has {0} bytes, more than {MAX_SERVER_ID}")]
    ServerIdTooLong(usize),
    /// None, or several.
    #[error("expected one server count, got {0}")]
    ServerCounts(usize),
    /// Not a number.
    #[error("server count {0:?} is not a number")]
    ServerCount(String),
}

/// The call. Reads the token, if there is to be one.
pub(super) async fn request(
    authority: &str,
    announcement: &Announcement,
) -> Result<Request<()>, ConnectError> {
    let mut request = grpc::request(authority, PATH, SOFTWARE)?;
    let headers = request.headers_mut();
    headers.insert("agentid", announcement.agent_id.clone());
    headers.insert(credit::HEADER, credit::announcement());
    headers.insert("agentidentifiers", announcement.identifiers.clone());
    if let Some(token) = &announcement.token {
        headers.insert(
            header::AUTHORIZATION,
            bearer(&token::current(token).await?)?,
        );
    }
    Ok(request)
}

/// `Bearer` and the token.
fn bearer(token: &Token) -> Result<HeaderValue, http::Error> {
    let mut value = HeaderValue::try_from(format!("Bearer {}", token.as_str()))?;
    value.set_sensitive(true);
    Ok(value)
}

/// Reads the response headers.
///
/// # Errors
/// [`ConnectError::Refused`] if they are a status and nothing else, [`ConnectError::Greeting`] if they are no server's.
pub(super) fn greeting(head: &Parts) -> Result<Greeting, ConnectError> {
    if let Some(status) = Status::from_headers(&head.headers) {
        return Err(ConnectError::Refused(status));
    }
    if head.status != StatusCode::OK {
        return Err(GreetingError::Http(head.status).into());
    }
    let server_id = match values(&head.headers, "serverid").as_slice() {
        [id] if id.len() > MAX_SERVER_ID => {
            return Err(GreetingError::ServerIdTooLong(id.len()).into());
        }
        [id] => id.clone(),
        ids => return Err(GreetingError::ServerId(ids.to_vec()).into()),
    };
    let server_count = match values(&head.headers, "servercount").as_slice() {
        [count] => parse_count(count)?,
        counts => return Err(GreetingError::ServerCounts(counts.len()).into()),
    };
    Ok(Greeting {
        server_id,
        server_count,
        forwards: false,
    })
}

/// Zero is one, as upstream has it; less is one as well, where upstream never rests.
fn parse_count(text: &str) -> Result<usize, GreetingError> {
    let count: i64 = text
        .parse()
        .map_err(|_| GreetingError::ServerCount(text.to_owned()))?;
    Ok(usize::try_from(count).unwrap_or(0).max(1))
}

fn values(headers: &HeaderMap, name: &str) -> Vec<String> {
    headers
        .get_all(name)
        .iter()
        .map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use http::Response;
    use tunnel::grpc::Code;

    use super::*;
    use crate::config::TokenFile;

    fn of(status: u16, headers: &[(&str, &str)]) -> Result<Greeting, ConnectError> {
        let mut response = Response::builder().status(status);
        for (name, value) in headers {
            response = response.header(*name, *value);
        }
        greeting(&response.body(()).unwrap().into_parts().0)
    }

    fn count(text: &str) -> Result<usize, String> {
        of(200, &[("serverid", "s"), ("servercount", text)])
            .map(|greeting| greeting.server_count)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_server_is_one_id_and_one_count() {
        let greeting = of(
            200,
            &[
                ("serverid", "s-1"),
                ("servercount", "3"),
                ("other", "ignored"),
            ],
        )
        .unwrap();
        assert_eq!(
            greeting,
            Greeting {
                server_id: "s-1".to_owned(),
                server_count: 3,
                forwards: false,
            }
        );
        assert_eq!(count("0"), Ok(1));
        assert_eq!(count("-2"), Ok(1));
        assert_eq!(
            count("x"),
            Err("server count \"x\" is not a number".to_owned())
        );
    }

    #[test]
    fn anything_else_is_refused_in_upstreams_words() {
        for (status, headers, text) in [
            (
                200,
                &[][..],
                "expected one server ID in the context, got []",
            ),
            (
                200,
                &[("serverid", "a"), ("serverid", "b"), ("servercount", "1")],
                "expected one server ID in the context, got [a b]",
            ),
            (
                200,
                &[("serverid", "a")],
                "expected one server count, got 0",
            ),
            (
                200,
                &[
                    ("serverid", "a"),
                    ("servercount", "1"),
                    ("servercount", "1"),
                ],
                "expected one server count, got 2",
            ),
            (
                502,
                &[],
                "server answered HTTP status 502 Bad Gateway, which no gRPC server does",
            ),
        ] {
            assert_eq!(of(status, headers).unwrap_err().to_string(), text);
        }
    }

    #[test]
    fn a_refusal_shows_its_status_and_not_a_lack_of_headers() {
        let headers = [("grpc-status", "16"), ("grpc-message", "no%20token")];
        match of(200, &headers) {
            Err(ConnectError::Refused(status)) => {
                assert_eq!(status, Status::new(Code::Unauthenticated, "no token"));
            }
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn a_token_is_trimmed_read_anew_and_kept_out_of_logs() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        let announcement = Announcement {
            agent_id: HeaderValue::from_static("a"),
            identifiers: HeaderValue::from_static("host=h"),
            token: Some(TokenFile {
                file: file.clone(),
                last: None,
            }),
        };
        let error = request("s", &announcement).await.unwrap_err();
        let told = format!("read token from {}", file.display());
        assert_eq!(error.to_string(), told);
        for token in ["first", "second"] {
            std::fs::write(&file, format!(" {token}\n")).unwrap();
            let request = request("s", &announcement).await.unwrap();
            let value = request.headers().get("authorization").unwrap();
            assert_eq!(value, &format!("Bearer {token}"));
            assert!(value.is_sensitive());
            assert_eq!(request.headers().get("agentidentifiers").unwrap(), "host=h");
            assert_eq!(request.uri(), "https://s/AgentService/Connect");
        }
    }
}
