//! Who an agent is, before it hears that it is welcome.

use std::net::SocketAddr;

use http::HeaderMap;
use rustls::pki_types::CertificateDer;
use tunnel::grpc::{Code, Status};

use super::Agents;
use crate::registry::{AgentId, identifiers::Identifiers};

/// Longest agent id that is taken, in bytes.
const MAX_AGENT_ID: usize = 256;

/// Most misfits that one warning names.
const MAX_MISFITS: usize = 8;

/// Who is at the other end of a connection, as far as its handshake tells.
#[derive(Debug)]
pub struct PeerIdentity {
    /// Where it comes from.
    pub address: SocketAddr,
    /// Its verified chain, its own certificate first; empty if none is asked for.
    pub certificates: Vec<CertificateDer<'static>>,
}

/// An agent that may have a tunnel.
#[derive(Debug)]
pub(super) struct Admitted {
    pub(super) agent: AgentId,
    pub(super) identifiers: Identifiers,
}

impl Agents {
    /// Decides about a `Connect` call, in upstream's order (wire-protocol, section 2.2). Everything that may refuse an agent is
    /// here: what is refused gets the status alone, and what is admitted gets the response headers next.
    pub(super) async fn admit(
        &self,
        peer: &PeerIdentity,
        headers: &HeaderMap,
    ) -> Result<Admitted, Status> {
        let agent = agent_id(headers)?;
        let identifiers = Identifiers::from_headers(headers)?;
        self.identity
            .check(peer, headers, &agent, &identifiers)
            .await?;
        let misfits: Vec<_> = identifiers.misfits().take(MAX_MISFITS).collect();
        if !misfits.is_empty() {
            // As upstream, which looks at no value: the agent serves all else.
            tracing::warn!(%agent, ?misfits, "agent identifiers are not what their keys say, no dial is for them");
        }
        Ok(Admitted { agent, identifiers })
    }
}

/// The agent's id, by upstream's rules and in its words.
fn agent_id(headers: &HeaderMap) -> Result<AgentId, Status> {
    let ids: Vec<_> = headers
        .get_all("agentid")
        .iter()
        .map(|id| id.to_str().unwrap_or("<not ASCII>"))
        .collect();
    let [id] = ids[..] else {
        return Err(Status::new(
            Code::Unknown,
            format!(
                "expected one agent ID in the context, got [{}]",
                ids.join(" ")
            ),
        ));
    };
    if id.len() > MAX_AGENT_ID {
        return Err(Status::new(
            Code::Unknown,
            format!(
                "agent ID of {} bytes is longer than {MAX_AGENT_ID}",
                id.len()
            ),
        ));
    }
    Ok(AgentId::new(id))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(pairs: &[(&'static str, &str)]) -> Result<String, String> {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, value.parse().unwrap());
        }
        agent_id(&headers)
            .map(|id| id.to_string())
            .map_err(|status| status.message)
    }

    #[test]
    fn exactly_one_agent_id_is_wanted_and_it_may_be_empty() {
        assert_eq!(
            id(&[("agentid", "node-1"), ("agentidentifiers", "")]),
            Ok("node-1".into())
        );
        assert_eq!(id(&[("agentid", "")]), Ok(String::new()));
        assert_eq!(
            id(&[]),
            Err("expected one agent ID in the context, got []".into())
        );
        assert_eq!(
            id(&[("agentid", "a"), ("agentid", "b")]),
            Err("expected one agent ID in the context, got [a b]".into())
        );
        assert!(id(&[("agentid", &"x".repeat(257))]).is_err());
    }
}
