//! What an agent must show besides its certificate's chain.

use tunnel::grpc::{Code, Status};

use super::PeerIdentity;
use crate::{
    binding::{Binding, Claims, PeerNames, ReviewedNames},
    forward::VerifiedNames,
    registry::{
        AgentId,
        identifiers::{Identifiers, Kind},
    },
    token_review::{Presented, Reviewer},
};

/// The checks of this server. By default TLS verifies the chain and claims are believed, as upstream does.
#[derive(Debug, Default)]
pub struct Identity {
    /// Who says whose token an agent sends; none: no token is asked for.
    pub reviewer: Option<Reviewer>,
    /// What must show an agent's claims.
    pub binding: Binding,
}

impl Identity {
    /// First the token, then whether certificate or token show what the agent claims to be. Returns what they show it to be called,
    /// whatever it claims.
    ///
    /// # Errors
    /// What the agent is to be told; it reaches its log.
    pub(super) async fn check(
        &self,
        peer: &PeerIdentity,
        presented: Presented<'_>,
        agent: &AgentId,
        identifiers: &Identifiers,
    ) -> Result<VerifiedNames, Status> {
        let reviewed = match &self.reviewer {
            Some(reviewer) => Some(reviewer.review(presented).await?),
            None => None,
        };
        let reviewed = reviewed.as_deref();
        let pod = reviewed.and_then(|reviewed| reviewed.pod_name.as_deref());
        let node = reviewed.and_then(|reviewed| reviewed.node_name.as_deref());
        let names = ReviewedNames::new(pod, node);
        self.check_binding(peer, &names, agent, identifiers)?;
        Ok(VerifiedNames::new(&peer.certificates, pod, node))
    }

    fn check_binding(
        &self,
        peer: &PeerIdentity,
        reviewed: &ReviewedNames,
        agent: &AgentId,
        identifiers: &Identifiers,
    ) -> Result<(), Status> {
        if self.binding == Binding::None {
            return Ok(());
        }
        let denied = |error: &dyn std::error::Error| Status::new(Code::Unknown, error.to_string());
        let names = PeerNames::from_certificates(Some(&peer.certificates))
            .map_err(|error| denied(&error))?;
        let targets = identifiers
            .claims()
            .filter(|claim| claim.kind != Kind::Cidr);
        let claims = Claims {
            agent_id: agent.as_str(),
            targets: targets.map(|claim| claim.value.as_str()).collect(),
            default_route: identifiers.is_default_route(),
        };
        self.binding
            .check(&names, reviewed, &claims)
            .map_err(|error| denied(&error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn check(binding: Binding, identifiers: &str) -> Result<(), String> {
        let peer = PeerIdentity {
            address: "10.0.0.7:50000".parse().unwrap(),
            certificates: Vec::new(),
        };
        let agent = AgentId::new("2f1b3c1e-6f0a-4c39-9d0f-5a1f6f7f1a10");
        let identifiers = Identifiers::parse(identifiers).unwrap();
        let identity = Identity {
            reviewer: None,
            binding,
        };
        let outcome = identity.check(&peer, Presented::Hello(None), &agent, &identifiers);
        let names = outcome.await.map_err(|status| status.message)?;
        assert!(names.is_empty(), "{names}");
        Ok(())
    }

    #[tokio::test]
    async fn claims_are_believed_unless_they_are_bound() {
        let claims = "ipv4=10.0.0.7&cidr=10.0.0.0/8";
        assert_eq!(check(Binding::None, claims).await, Ok(()));
        let refusal = check(Binding::Certificate, claims).await.unwrap_err();
        assert!(refusal.contains("10.0.0.7"), "{refusal}");
        // Networks find no agent, so nobody must show them.
        let networks = check(Binding::Certificate, "cidr=10.0.0.0/8").await;
        assert_eq!(networks, Ok(()));
    }
}
