//! How this agent stands with its servers, for people: `/readyz?verbose`.

use tokio::time::Instant;

/// Longest server id that is shown, in characters.
const MAX_ID: usize = 100;

/// Most failures that are shown: addresses are bounded, and so is this.
pub(crate) const MAX_TROUBLES: usize = 17;

/// A snapshot.
#[derive(Clone, Debug, Default)]
pub(crate) struct Standing {
    /// How many servers there should be.
    pub(crate) wanted: usize,
    /// How many have a tunnel and stay.
    pub(crate) reached: usize,
    /// Those that have a tunnel.
    pub(crate) servers: Vec<Server>,
    /// What does not work: an address or the lookup, and why.
    pub(crate) troubles: Vec<(String, String)>,
    /// The proxy on the way to servers, without credentials.
    pub(crate) proxy: Option<String>,
}

/// A server that has a tunnel.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    pub(crate) id: String,
    pub(crate) address: String,
    pub(crate) since: Instant,
    pub(crate) is_draining: bool,
}

impl Standing {
    /// A line for the number of servers, for each server, each trouble, and the proxy.
    pub(crate) fn describe(&self, now: Instant) -> String {
        let mut lines = vec![format!(
            "servers: reached {} of {}",
            self.reached,
            self.wanted.max(1)
        )];
        lines.extend(self.servers.iter().map(|server| server.line(now)));
        for (place, failure) in &self.troubles {
            lines.push(format!("{place}: {}", failure.escape_debug()));
        }
        if let Some(proxy) = &self.proxy {
            lines.push(format!("proxy: {proxy}"));
        }
        lines.into_iter().map(|line| line + "\n").collect()
    }
}

impl Server {
    fn line(&self, now: Instant) -> String {
        let id: String = self.id.chars().take(MAX_ID).collect();
        let age = now.saturating_duration_since(self.since).as_secs();
        let drains = if self.is_draining { ", it drains" } else { "" };
        format!(
            "server {} at {}: tunnel up for {age}s{drains}",
            id.escape_debug(),
            self.address
        )
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn each_server_trouble_and_the_proxy_has_a_line_that_no_peer_can_break() {
        let since = Instant::now();
        let standing = Standing {
            wanted: 3,
            reached: 1,
            servers: vec![Server {
                id: format!("a\n{}", "x".repeat(1000)),
                address: "10.0.0.1:8091".to_owned(),
                since,
                is_draining: true,
            }],
            troubles: vec![("10.0.0.2:8091".to_owned(), "refused\nok".to_owned())],
            proxy: Some("http://squid:3128".to_owned()),
        };
        let text = standing.describe(since + Duration::from_secs(61));
        let id = format!("a\\n{}", "x".repeat(98));
        assert_eq!(
            text,
            format!(
                "servers: reached 1 of 3\n\
                 server {id} at 10.0.0.1:8091: tunnel up for 61s, it drains\n\
                 10.0.0.2:8091: refused\\nok\n\
                 proxy: http://squid:3128\n"
            )
        );
    }
}
