//! Any text as what an agent claims, as a target of a dial, and as what flags say about targets and Leases.

#![no_main]

use cluster::{Labels, Selector};
use egress_policy::{Policy, Rule};
use libfuzzer_sys::fuzz_target;
use proxy_server::registry::{
    host::Destination,
    identifiers::{Identifiers, Kind, MAX_BYTES, MAX_VALUES},
};

fuzz_target!(|text: &str| {
    if let Ok(identifiers) = Identifiers::parse(text) {
        assert!(text.len() <= MAX_BYTES && identifiers.claims().count() <= MAX_VALUES);
        // An agent is found by what it claims, in that very spelling.
        let destinations = identifiers.destinations();
        for claim in identifiers
            .claims()
            .filter(|claim| claim.kind != Kind::Cidr)
        {
            assert!(destinations.contains(&Destination::read(&claim.value)));
        }
    }
    let destination = Destination::read(text);
    assert_eq!(destination.without_port().host, destination.host);
    if let Ok(rule) = text.parse::<Rule>() {
        let written = rule.to_string();
        assert_eq!(written.parse::<Rule>().as_ref(), Ok(&rule), "{written}");
        // Deny wins over the same rule that allows, and there is nothing else that allows.
        if let Ok(policy) = Policy::parse(&[&written], &[&written]) {
            for host in ["10.0.0.1", "fd00::1", "node-1.example", text] {
                assert!(
                    policy.check_unresolved(host, 443).is_err(),
                    "{written} {host}"
                );
            }
        }
    }
    if let Ok(selector) = text.parse::<Selector>() {
        assert_eq!(selector.to_string().parse(), Ok(selector));
    }
    if let Ok(labels) = text.parse::<Labels>() {
        assert_eq!(labels.to_string().parse(), Ok(labels));
    }
});
