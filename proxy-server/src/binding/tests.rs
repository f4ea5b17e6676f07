use certs::issue::{Authority, Leaf};
use rustls::pki_types::CertificateDer;

use super::*;

const UUID: &str = "0f8fad5b-d9cb-469f-a165-70867728950e";

fn certified(sans: &[&str]) -> PeerNames {
    let authority = Authority::generate("test CA").unwrap();
    let leaf = Leaf::client("node-cn.example").with_sans(sans);
    let issued = authority.issue(&leaf).unwrap();
    PeerNames::from_certificates(Some(&issued.chain())).unwrap()
}

fn nobody() -> (PeerNames, ReviewedNames) {
    (PeerNames::default(), ReviewedNames::default())
}

fn claims<'a>(agent_id: &'a str, targets: &[&'a str]) -> Claims<'a> {
    Claims {
        agent_id,
        targets: targets.to_vec(),
        default_route: false,
    }
}

#[test]
fn without_a_binding_every_claim_is_believed() {
    let (peer, reviewed) = nobody();
    let claims = Claims {
        default_route: true,
        ..claims("anyone", &["10.0.0.1", "x"])
    };
    assert_eq!(Binding::default().check(&peer, &reviewed, &claims), Ok(()));
}

#[test]
fn a_certificate_shows_its_alternative_names_by_value() {
    let peer = certified(&["Node1.Example", "10.0.0.7", "fd00::7"]);
    let check = |id, targets: &[&str]| {
        let reviewed = ReviewedNames::default();
        Binding::Certificate.check(&peer, &reviewed, &claims(id, targets))
    };
    for shown in [
        "node1.example",
        "NODE1.EXAMPLE.",
        "10.0.0.7",
        "::ffff:10.0.0.7",
        "fd00:0:0::0007",
    ] {
        assert_eq!(check(shown, &[shown]), Ok(()), "{shown}");
        assert_eq!(check(UUID, &[shown]), Ok(()), "{shown}");
    }
    for foreign in [
        "node2.example",
        "10.0.0.8",
        "fd00::8",
        "node-cn.example",
        "a.node1.example",
        "",
    ] {
        let claim = foreign.to_owned();
        let proof = Binding::Certificate;
        let target = Err(BindingError::Target {
            claim: claim.clone(),
            proof,
        });
        assert_eq!(check(UUID, &["10.0.0.7", foreign]), target);
        assert_eq!(
            check(foreign, &[]),
            Err(BindingError::AgentId { claim, proof })
        );
    }
}

#[test]
fn a_wildcard_shows_nothing_but_itself() {
    let peer = certified(&["*.example"]);
    let reviewed = ReviewedNames::default();
    let claims = claims(UUID, &["node1.example"]);
    assert!(
        Binding::Certificate
            .check(&peer, &reviewed, &claims)
            .is_err()
    );
}

#[test]
fn an_agent_without_certificate_shows_nothing_by_it() {
    let none = PeerNames::from_certificates(None).unwrap();
    let claims = claims(UUID, &["node1"]);
    let error = Binding::Certificate
        .check(&none, &ReviewedNames::default(), &claims)
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "identifier \"node1\" is not shown by certificate"
    );
    let garbage = [CertificateDer::from(vec![0x30, 3, 1, 2, 3])];
    assert!(PeerNames::from_certificates(Some(&garbage)).is_err());
}

#[test]
fn a_token_shows_its_node_as_host_and_its_pod_only_as_id() {
    let pod = ["konnectivity-agent-x7".to_owned()];
    let node = ["node1".to_owned()];
    let reviewed = ReviewedNames::from_extra([
        ("authentication.kubernetes.io/pod-name", &pod[..]),
        ("authentication.kubernetes.io/node-name", &node[..]),
        ("authentication.kubernetes.io/pod-uid", &node[..]),
    ]);
    let check = |id, targets: &[&str]| {
        let peer = certified(&["10.0.0.7"]);
        Binding::Token
            .check(&peer, &reviewed, &claims(id, targets))
            .is_ok()
    };
    assert!(check("konnectivity-agent-x7", &["node1"]));
    assert!(check("Node1", &["NODE1."]));
    assert!(!check(UUID, &["konnectivity-agent-x7"]));
    assert!(!check(UUID, &["node2"]));
    // The certificate does not count here, and a review knows no addresses.
    assert!(!check(UUID, &["10.0.0.7"]));
}

#[test]
fn a_key_with_several_values_names_nothing() {
    let nodes = ["node1".to_owned(), "node2".to_owned()];
    let reviewed =
        ReviewedNames::from_extra([("authentication.kubernetes.io/node-name", &nodes[..])]);
    assert_eq!(reviewed, ReviewedNames::default());
}

#[test]
fn either_proof_may_show_each_claim() {
    let peer = certified(&["10.0.0.7"]);
    let reviewed = ReviewedNames::new(None, Some("node1"));
    let check = |targets: &[&str]| {
        Binding::CertificateOrToken
            .check(&peer, &reviewed, &claims(UUID, targets))
            .is_ok()
    };
    assert!(check(&["10.0.0.7", "node1"]));
    assert!(!check(&["10.0.0.7", "node1", "node2"]));
}

#[test]
fn a_default_route_needs_its_uri_in_the_certificate() {
    let with_route = Claims {
        default_route: true,
        ..claims(UUID, &[])
    };
    let reviewed = ReviewedNames::new(Some("pod"), Some("node1"));
    let check = |binding: Binding, sans: &[&str]| {
        binding
            .check(&certified(sans), &reviewed, &with_route)
            .is_ok()
    };
    let route = ["node1", DEFAULT_ROUTE_URI];
    assert!(check(Binding::Certificate, &route));
    assert!(check(Binding::CertificateOrToken, &route));
    assert!(!check(Binding::Token, &route));
    assert!(!check(Binding::Certificate, &["node1"]));
}

#[test]
fn values_of_the_flag_are_read_and_written_alike() {
    for text in ["none", "certificate", "token", "certificate-or-token"] {
        assert_eq!(text.parse::<Binding>().unwrap().to_string(), text);
    }
    assert_eq!(
        "Both".parse::<Binding>().unwrap_err().to_string(),
        "unknown binding \"Both\"; it is one of none, certificate, token, certificate-or-token"
    );
}

#[test]
fn a_claim_of_any_length_makes_a_short_error() {
    let (peer, reviewed) = nobody();
    let claim = "x".repeat(1 << 20);
    let error = Binding::Token
        .check(&peer, &reviewed, &claims(UUID, &[&claim]))
        .unwrap_err();
    assert!(error.to_string().len() < 400);
}
