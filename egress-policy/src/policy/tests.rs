use super::*;

fn policy(allow: &[&str], deny: &[&str]) -> Policy {
    Policy::parse(allow, deny).unwrap()
}

/// What the agent does with a target: the name, then the address.
fn dial(policy: &Policy, host: &str, address: &str) -> Result<(), String> {
    let address: SocketAddr = address.parse().unwrap();
    policy
        .check_host(host, address.port())
        .and_then(|clearance| policy.check_address(clearance, host, address))
        .map_err(|refused| refused.to_string())
}

fn refusal(policy: &Policy, host: &str, address: &str) -> String {
    dial(policy, host, address).expect_err("it should be refused")
}

#[test]
fn without_rules_everything_is_allowed() {
    let policy = Policy::default();
    for host in ["", "localhost", "169.254.169.254", "a\0b"] {
        assert_eq!(dial(&policy, host, "169.254.169.254:80"), Ok(()));
        assert_eq!(policy.check_unresolved(host, 0), Ok(()));
    }
    assert_eq!(policy.to_string(), "everything allowed");
}

#[test]
fn deny_wins_over_allow() {
    let policy = policy(&["10.0.0.0/8"], &["10.1.0.0/16:22"]);
    assert_eq!(dial(&policy, "10.1.0.1", "10.1.0.1:23"), Ok(()));
    assert_eq!(
        refusal(&policy, "10.1.0.1", "10.1.0.1:22"),
        "rule 10.1.0.0/16:22 denies 10.1.0.1:22"
    );
}

/// A Node's owner names the metadata service, by address or by a name that resolves to it (field-tests.md R83).
#[test]
fn a_denied_address_is_refused_in_every_spelling_and_behind_every_name() {
    let policy = policy(&[], &["169.254.0.0/16", "127.0.0.0/8", "::1"]);
    for host in [
        "169.254.169.254",
        "::ffff:169.254.169.254",
        "[::ffff:a9fe:a9fe]",
        "2852039166",
        "0xa9.254.169.254",
        "127.0.0.1",
        "0.0.0.0",
        "0",
        "::1%lo",
        "::",
        "",
    ] {
        assert!(policy.check_host(host, 80).is_err(), "{host:?}");
        assert!(policy.check_unresolved(host, 80).is_err(), "{host:?}");
    }
    assert_eq!(
        refusal(&policy, "node1.example", "169.254.169.254:80"),
        "rule 169.254.0.0/16 denies 169.254.169.254, which node1.example:80 resolves to"
    );
    for address in ["[::ffff:127.0.0.1]:80", "[::]:80", "0.0.0.0:80"] {
        assert!(
            dial(&policy, "node1.example", address).is_err(),
            "{address}"
        );
    }
    assert_eq!(dial(&policy, "node1.example", "10.0.0.1:80"), Ok(()));
}

#[test]
fn an_unspecified_address_is_denied_by_its_own_rules_and_by_those_of_what_it_reaches() {
    for rule in ["0.0.0.0", "0.0.0.0/8", "127.0.0.1"] {
        assert!(policy(&[], &[rule]).check_host("0.0.0.0", 1).is_err());
    }
    let loopback = policy(&["127.0.0.0/8"], &[]);
    assert_eq!(dial(&loopback, "0.0.0.0", "0.0.0.0:1"), Ok(()));
    assert!(policy(&["0.0.0.0"], &[]).check_host("0.0.0.0", 1).is_err());
}

#[test]
fn what_no_rule_allows_is_refused_before_its_lookup_if_no_address_could_be_allowed() {
    let names = policy(&[".internal:10250", "exact.example"], &[]);
    assert_eq!(
        names
            .check_host("other.example", 443)
            .unwrap_err()
            .to_string(),
        "no rule allows other.example:443"
    );
    assert!(names.check_host("a.internal", 10_251).is_err());
    assert!(names.check_host("internal", 10_250).is_err());
    assert!(names.check_host("10.0.0.1", 10_250).is_err());
    assert_eq!(dial(&names, "A.Internal.", "10.0.0.1:10250"), Ok(()));
    assert_eq!(dial(&names, "exact.example", "10.0.0.1:1"), Ok(()));
    let networks = policy(&["10.0.0.0/8:443", "fd00::/8"], &[]);
    assert!(networks.check_host("a.example", 443).is_ok());
    assert_eq!(
        refusal(&networks, "a.example", "192.0.2.1:443"),
        "no rule allows a.example:443 or 192.0.2.1, which it resolves to"
    );
    assert_eq!(dial(&networks, "a.example", "10.0.0.1:443"), Ok(()));
    assert_eq!(dial(&networks, "a.example", "[fd00::1]:444"), Ok(()));
    assert_eq!(dial(&networks, "fd00::1%eth0", "[fd00::1%3]:444"), Ok(()));
}

#[test]
fn an_allowed_name_opens_its_addresses_but_not_denied_ones_nor_the_hosts_own() {
    let names = policy(&[".svc.cluster.local"], &["10.96.0.1"]);
    let name = "web.default.svc.cluster.local";
    assert_eq!(dial(&names, name, "10.0.0.1:80"), Ok(()));
    assert!(dial(&names, name, "10.96.0.1:80").is_err());
    assert_eq!(
        refusal(&names, name, "127.0.0.1:80"),
        "web.default.svc.cluster.local:80 resolves to 127.0.0.1, an address of the host or link itself, which only a rule for addresses allows"
    );
    for own in [
        "169.254.169.254:80",
        "[fe80::1]:80",
        "[::1]:80",
        "0.0.0.0:80",
        "224.0.0.1:80",
        "[::ffff:127.0.0.1]:80",
    ] {
        assert!(dial(&names, name, own).is_err(), "{own}");
    }
    let both = policy(&["localhost", "127.0.0.0/8"], &[]);
    assert_eq!(dial(&both, "localhost", "127.0.0.1:80"), Ok(()));
    let all = policy(&["*"], &[]);
    assert_eq!(dial(&all, "localhost", "127.0.0.1:80"), Ok(()));
}

#[test]
fn without_a_lookup_rules_for_addresses_allow_no_name() {
    let policy = policy(&["10.0.0.0/8", ".internal"], &["bad.internal"]);
    assert_eq!(policy.check_unresolved("10.0.0.1", 80), Ok(()));
    assert_eq!(policy.check_unresolved("a.internal", 80), Ok(()));
    assert!(policy.check_unresolved("bad.internal", 80).is_err());
    assert_eq!(
        policy
            .check_unresolved("a.example", 80)
            .unwrap_err()
            .to_string(),
        "no rule allows a.example:80"
    );
}

#[test]
fn a_host_of_any_length_makes_a_short_refusal_on_one_line() {
    let policy = policy(&["a.example"], &[]);
    let host = "x\n".repeat(1 << 16);
    let text = policy.check_host(&host, 1).unwrap_err().to_string();
    assert!(text.len() < 600 && !text.contains('\n'), "{text}");
}

#[test]
fn all_that_is_wrong_is_said_at_once_with_its_flag() {
    let errors = Policy::parse(&["a:0", "10.0.0.0/8"], &["10.0.0.1/8"]).unwrap_err();
    let texts: Vec<_> = errors.iter().map(ToString::to_string).collect();
    assert_eq!(
        texts,
        [
            "--egress-allow: rule \"a:0\" \"0\" is no port; write a number from 1 to 65535, or two with a hyphen between them",
            "--egress-deny: rule \"10.0.0.1/8\" has address bits behind its prefix; did you mean 10.0.0.0/8?",
        ]
    );
    let many = vec!["*"; MAX_RULES + 1];
    let errors = Policy::parse(&many, &[]).unwrap_err();
    assert_eq!(
        errors,
        [PolicyError::TooMany {
            list: List::Allow,
            count: MAX_RULES + 1
        }]
    );
    assert!(Policy::parse(&many[1..], &[]).is_ok());
}

#[test]
fn a_policy_shows_the_flags_that_give_it() {
    let policy = policy(&["10.0.0.0/8:443", ".a"], &["*:22"]);
    assert_eq!(
        policy.to_string(),
        "--egress-allow=10.0.0.0/8:443,.a --egress-deny=*:22"
    );
}
