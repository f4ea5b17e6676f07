//! The hello of a stream tunnel: what we say of ourselves, and what the server says of itself. [`super::call`] has the packet tunnel's.

use tokio::io::{AsyncRead, AsyncWrite};
use tunnel::stream::hello::{
    Answer, FORWARD, Hello, ROLE_AGENT, Token, VERSION, Welcome, receive_answer, send_hello,
};

use super::call::SOFTWARE;
use super::{ConnectError, Greeting, token};
use crate::config::Announcement;

/// Says hello, and hears the server's answer; HTTP/2 comes next. Takes as long as the server does: the caller has a deadline. Not
/// cancel safe: the stream is of no use then.
///
/// # Errors
/// [`ConnectError::Refused`] with the server's reason; [`ConnectError::Token`], [`ConnectError::Hello`].
pub(super) async fn greet<T>(
    stream: &mut T,
    announcement: &Announcement,
) -> Result<Greeting, ConnectError>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let hello = hello(announcement).await?;
    send_hello(stream, &hello).await?;
    match receive_answer(stream).await? {
        Answer::Welcome(welcome) => Ok(greeting(welcome)),
        Answer::Refused(status) => Err(ConnectError::Refused(status)),
    }
}

/// What is said. Reads the token, if there is to be one.
async fn hello(announcement: &Announcement) -> Result<Hello, ConnectError> {
    let token = match &announcement.token {
        Some(file) => Some(Token::new(token::current(file).await?.as_str())),
        None => None,
    };
    // Printable ASCII, see `Config`.
    let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    Ok(Hello {
        version: VERSION,
        role: ROLE_AGENT.to_owned(),
        agent_id: text(&announcement.agent_id),
        identifiers: text(&announcement.identifiers),
        token,
        software: SOFTWARE.to_owned(),
        features: vec![FORWARD.to_owned()],
    })
}

/// Zero servers are one, as in a call.
fn greeting(welcome: Welcome) -> Greeting {
    Greeting {
        forwards: welcome.has(FORWARD),
        server_id: welcome.server_id,
        server_count: usize::try_from(welcome.server_count)
            .unwrap_or(usize::MAX)
            .max(1),
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};
    use tunnel::grpc::{Code, Status};
    use tunnel::stream::hello::{receive_hello, send_answer};

    use super::*;
    use crate::client::chain;
    use crate::config::TokenFile;

    fn announcement(token: Option<TokenFile>) -> Announcement {
        Announcement {
            agent_id: HeaderValue::from_static("agent-1"),
            identifiers: HeaderValue::from_static("host=h&ipv4=10.0.0.7"),
            token,
        }
    }

    fn welcome(server_count: u32, features: &[&str]) -> Answer {
        Answer::Welcome(Welcome {
            version: 1,
            server_id: "server-1".to_owned(),
            server_count,
            software: String::new(),
            features: features.iter().map(|&name| name.to_owned()).collect(),
        })
    }

    /// What a server hears that answers so, and what comes of it.
    async fn heard(
        announcement: &Announcement,
        answer: Answer,
    ) -> (Hello, Result<Greeting, ConnectError>) {
        let (mut ours, mut theirs) = duplex(64);
        let server = async {
            let hello = receive_hello(&mut theirs).await.unwrap();
            hello.check().unwrap();
            send_answer(&mut theirs, &answer).await.unwrap();
            hello
        };
        let (hello, greeting) = tokio::join!(server, greet(&mut ours, announcement));
        (hello, greeting)
    }

    #[tokio::test]
    async fn a_server_hears_who_we_are_and_says_who_it_is() {
        let (hello, greeting) = heard(&announcement(None), welcome(3, &["x", "forward"])).await;
        assert_eq!((hello.version, hello.role.as_str()), (1, "agent"));
        assert_eq!(hello.agent_id, "agent-1");
        assert_eq!(hello.identifiers, "host=h&ipv4=10.0.0.7");
        assert_eq!(hello.token, None);
        assert!(hello.software.starts_with("adit-agent/"));
        assert_eq!(hello.features, ["forward"]);
        assert_eq!(
            greeting.unwrap(),
            Greeting {
                server_id: "server-1".to_owned(),
                server_count: 3,
                forwards: true,
            }
        );
    }

    #[tokio::test]
    async fn a_server_may_not_forward_and_is_at_least_one() {
        let (_, greeting) = heard(&announcement(None), welcome(0, &[])).await;
        let greeting = greeting.unwrap();
        assert_eq!((greeting.server_count, greeting.forwards), (1, false));
    }

    #[tokio::test]
    async fn the_token_of_now_is_sent_and_without_one_nothing_is() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        let announcement = announcement(Some(TokenFile {
            file: file.clone(),
            last: None,
        }));
        let (mut ours, mut theirs) = duplex(64);
        let error = greet(&mut ours, &announcement).await.unwrap_err();
        assert!(matches!(error, ConnectError::Token { .. }), "{error}");
        drop(ours);
        assert_eq!(theirs.read_to_end(&mut Vec::new()).await.unwrap(), 0);
        std::fs::write(&file, " secret\n").unwrap();
        let (hello, _) = heard(&announcement, welcome(1, &[])).await;
        assert_eq!(hello.token.unwrap().expose(), "secret");
    }

    #[tokio::test]
    async fn a_refusal_comes_with_the_servers_reason() {
        let status = Status::new(Code::Unauthenticated, "no such agent");
        let (_, greeting) = heard(&announcement(None), Answer::Refused(status)).await;
        assert_eq!(
            chain(&greeting.unwrap_err()),
            "server refused the call: Unauthenticated: no such agent"
        );
    }

    #[tokio::test]
    async fn a_server_that_answers_nonsense_or_nothing_is_no_server() {
        for (answer, text) in [
            (&b""[..], "hello: peer closed the connection without a word"),
            (
                b"\0\0\0\x02[]",
                "hello: message is not the JSON it should be",
            ),
            (
                b"HTTP/1.1 400 Bad Request\r\n\r\n",
                "hello: message of 1213486160 bytes",
            ),
        ] {
            let (mut ours, mut theirs) = duplex(64 * 1024);
            theirs.write_all(answer).await.unwrap();
            theirs.shutdown().await.unwrap();
            let announcement = announcement(None);
            let told = chain(&greet(&mut ours, &announcement).await.unwrap_err());
            assert!(told.starts_with(text), "{told}");
        }
    }
}
