//! Who an agent is, before it hears that it is welcome.

use std::net::SocketAddr;

use http::HeaderMap;
use rustls::pki_types::CertificateDer;
use tunnel::grpc::{Code, Status};

use super::Agents;
use crate::{
    forward::VerifiedNames,
    registry::{AgentId, identifiers::Identifiers},
    token_review::Presented,
};

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
    /// What it was verified to be called; decides what it may forward to.
    pub(super) names: VerifiedNames,
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
        self.admit_as(agent, identifiers, peer, Presented::Headers(headers))
            .await
    }

    /// Decides about the hello of a stream tunnel, by the same rules: `id` is the agent's, `identifiers` the query that an agent sends
    /// as a header otherwise.
    pub(super) async fn admit_hello(
        &self,
        peer: &PeerIdentity,
        id: &str,
        identifiers: &str,
        token: Option<&str>,
    ) -> Result<Admitted, Status> {
        let agent = read_agent_id(id)?;
        let identifiers = Identifiers::parse(identifiers)?;
        self.admit_as(agent, identifiers, peer, Presented::Hello(token))
            .await
    }

    async fn admit_as(
        &self,
        agent: AgentId,
        identifiers: Identifiers,
        peer: &PeerIdentity,
        presented: Presented<'_>,
    ) -> Result<Admitted, Status> {
        let names = self
            .identity
            .check(peer, presented, &agent, &identifiers)
            .await?;
        let misfits: Vec<_> = identifiers.misfits().take(MAX_MISFITS).collect();
        if !misfits.is_empty() {
            // As upstream, which looks at no value: the agent serves all else.
            tracing::warn!(%agent, ?misfits, "agent identifiers are not what their keys say, no dial is for them");
        }
        Ok(Admitted {
            agent,
            identifiers,
            names,
        })
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
    read_agent_id(id)
}

fn read_agent_id(id: &str) -> Result<AgentId, Status> {
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
    use std::{rc::Rc, time::Duration};

    use certs::issue::{Authority, Leaf};
    use tokio::sync::watch;
    use tunnel::drain::Tasks;

    use super::*;
    use crate::{
        backend::{Identity, ServerCount},
        forward::{ForwardTargets, Forwarder},
        testing,
    };

    fn id(pairs: &[(&'static str, &str)]) -> Result<String, String> {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, value.parse().unwrap());
        }
        agent_id(&headers)
            .map(|id| id.to_string())
            .map_err(|status| status.message)
    }

    fn agents() -> Rc<Agents> {
        let (count, interval) = (
            ServerCount::new(1, watch::channel(0).1),
            Duration::from_secs(10),
        );
        let identity = Identity::default();
        let core = testing::core();
        let forwarder = Forwarder::new(
            ForwardTargets::default(),
            0,
            core.metrics.clone(),
            Tasks::default(),
            core.stop.clone(),
        );
        let tasks = Tasks::default();
        Agents::new(core, tasks, "s", count, interval, identity, forwarder).unwrap()
    }

    /// A peer with a certificate of this common name.
    fn peer(common_name: &str) -> PeerIdentity {
        let authority = Authority::generate("test CA").unwrap();
        let issued = authority.issue(&Leaf::client(common_name)).unwrap();
        PeerIdentity {
            address: "10.0.0.7:50000".parse().unwrap(),
            certificates: issued.chain(),
        }
    }

    #[tokio::test]
    async fn a_hello_is_admitted_as_a_call_is_under_the_names_of_its_certificate() {
        let (agents, peer) = (agents(), peer("node-1"));
        let mut headers = HeaderMap::new();
        headers.insert("agentid", "other-node".parse().unwrap());
        headers.insert("agentidentifiers", "host=a".parse().unwrap());
        let called = agents.admit(&peer, &headers).await.unwrap();
        let greeted = agents.admit_hello(&peer, "other-node", "host=a", None);
        let greeted = greeted.await.unwrap();
        for admitted in [called, greeted] {
            assert_eq!(admitted.agent.as_str(), "other-node");
            assert_eq!(admitted.identifiers, Identifiers::parse("host=a").unwrap());
            assert_eq!(admitted.names.iter().collect::<Vec<_>>(), ["node-1"]);
        }
    }

    #[tokio::test]
    async fn a_hello_with_an_id_or_identifiers_that_are_none_is_refused() {
        let (agents, peer) = (agents(), peer("node-1"));
        let long = "x".repeat(257);
        for (id, identifiers) in [(long.as_str(), ""), ("a", "host=%zz")] {
            let refused = agents.admit_hello(&peer, id, identifiers, None).await;
            assert!(refused.is_err(), "{id} {identifiers}");
        }
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
