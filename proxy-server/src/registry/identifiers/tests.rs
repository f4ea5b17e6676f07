use super::*;
use crate::registry::host::Host;

fn parse(query: &str) -> Result<Identifiers, String> {
    Identifiers::parse(query).map_err(|error| error.to_string())
}

fn hosts(query: &str) -> HashSet<Destination> {
    parse(query).unwrap().destinations()
}

fn any_port(host: &str) -> Destination {
    Destination {
        host: Host::read(host),
        port: None,
    }
}

#[test]
fn every_kind_is_kept_in_order_and_what_is_unknown_is_not() {
    let identifiers =
        parse("host=node1.example&uid=7&ipv4=10.0.0.7&ipv6=fd00%3A%3A7&cidr=10.0.0.0/8&host=b&x")
            .unwrap();
    let claims: Vec<_> = identifiers
        .claims()
        .map(|claim| (claim.kind.name(), claim.value.as_str()))
        .collect();
    assert_eq!(
        claims,
        [
            ("host", "node1.example"),
            ("ipv4", "10.0.0.7"),
            ("ipv6", "fd00::7"),
            ("cidr", "10.0.0.0/8"),
            ("host", "b"),
        ]
    );
    let expected = ["node1.example", "10.0.0.7", "fd00::7", "b"].map(any_port);
    assert_eq!(identifiers.destinations(), expected.into());
    assert_eq!(identifiers.misfits().count(), 0);
    assert!(!identifiers.is_default_route());
}

#[test]
fn nothing_is_no_identifiers() {
    for query in ["", "&", "&&", "=", "=x", "uid=1"] {
        assert_eq!(parse(query), Ok(Identifiers::default()), "{query}");
    }
    assert_eq!(
        Identifiers::from_headers(&HeaderMap::new()),
        Ok(Identifiers::default())
    );
}

#[test]
fn the_first_default_route_counts_in_gos_spellings() {
    for (query, is_default_route) in [
        ("default-route=true", true),
        ("default-route=1&default-route=false", true),
        ("default-route=T", true),
        ("default-route=false&default-route=true", false),
        ("default-route", false),
        ("default-route=yes", false),
        ("default-route=tRUE", false),
        ("default%2Droute=%74rue", true),
    ] {
        let identifiers = parse(query).unwrap();
        assert_eq!(identifiers.is_default_route(), is_default_route, "{query}");
    }
}

#[test]
fn a_broken_query_is_refused_in_upstreams_words() {
    let lead = "fail to parse url encoded string: ";
    for (query, reason) in [
        (
            "host=a;ipv4=10.0.0.1",
            "invalid semicolon separator in query",
        ),
        ("host=%zz", "invalid URL escape \"%zz\""),
        ("host=%zzz", "invalid URL escape \"%zz\""),
        ("host=a%", "invalid URL escape \"%\""),
        ("host=a%4", "invalid URL escape \"%4\""),
        ("%g1=a&host=%zz", "invalid URL escape \"%g1\""),
        // Go keeps the first bad escape, but a semicolon takes its place.
        ("host=%zz&b;c", "invalid semicolon separator in query"),
        ("uid=%zz", "invalid URL escape \"%zz\""),
    ] {
        assert_eq!(parse(query), Err(format!("{lead}{reason}")), "{query}");
    }
}

#[test]
fn plus_is_a_space_and_bytes_that_are_no_text_are_replaced() {
    let identifiers = parse("host=a+b&host=%ff%C3%BC").unwrap();
    let values: Vec<_> = identifiers
        .claims()
        .map(|claim| claim.value.as_str())
        .collect();
    assert_eq!(values, ["a b", "\u{fffd}\u{fc}"]);
}

#[test]
fn several_spellings_of_one_host_are_one_destination() {
    assert_eq!(
        hosts("ipv6=fd00:0:0::7&ipv6=fd00::7&host=[fd00::7]"),
        [any_port("fd00::7")].into()
    );
    assert_eq!(
        hosts("ipv4=10.0.0.7&ipv6=::ffff:10.0.0.7&host=Node.&host=node"),
        [any_port("10.0.0.7"), any_port("node")].into()
    );
}

#[test]
fn a_host_with_a_port_is_another_destination_than_the_host() {
    let with_port = Destination {
        host: Host::read("node"),
        port: Some(443),
    };
    assert_eq!(hosts("host=node:443"), [with_port].into());
    assert_ne!(hosts("host=node:443"), hosts("host=node"));
}

#[test]
fn a_variable_that_nobody_replaced_is_a_misfit_and_no_failure() {
    let identifiers =
        parse("ipv4=${HOST_IP}&ipv6=&ipv4=fd00::7&cidr=10.0.0.0/33&cidr=x&host=ok").unwrap();
    let misfits: Vec<_> = identifiers.misfits().collect();
    assert_eq!(
        misfits,
        [
            "ipv4=${HOST_IP}",
            "ipv6=",
            "ipv4=fd00::7",
            "cidr=10.0.0.0/33",
            "cidr=x"
        ]
    );
    assert!(identifiers.destinations().contains(&any_port("ok")));
}

#[test]
fn two_sets_and_too_much_are_refused() {
    let mut headers = HeaderMap::new();
    headers.append(HEADER, "host=a".parse().unwrap());
    assert!(Identifiers::from_headers(&headers).is_ok());
    headers.append(HEADER, "host=b".parse().unwrap());
    let status = Status::from(Identifiers::from_headers(&headers).unwrap_err());
    assert_eq!(
        (status.code, status.message.as_str()),
        (
            Code::Unknown,
            "expected at most one set of agent identifiers in the context, got [host=a host=b]"
        )
    );
    let many = |count| vec!["host=a"; count].join("&");
    assert!(parse(&many(MAX_VALUES)).is_ok());
    assert_eq!(
        parse(&many(MAX_VALUES + 1)),
        Err("more than 512 agent identifiers".into())
    );
    assert_eq!(
        parse(&format!("host={}", "x".repeat(MAX_BYTES))),
        Err("agent identifiers of 16389 bytes are longer than 16384".into())
    );
}
