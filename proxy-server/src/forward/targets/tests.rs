use super::*;

fn parse(targets: &[&str], allow: &[&str]) -> Result<ForwardTargets, Vec<String>> {
    ForwardTargets::parse(targets, allow)
        .map_err(|errors| errors.iter().map(ToString::to_string).collect())
}

fn error(targets: &[&str], allow: &[&str]) -> String {
    let errors = parse(targets, allow).unwrap_err();
    assert_eq!(errors.len(), 1, "{errors:?}");
    errors.concat()
}

fn node(name: &str) -> VerifiedNames {
    VerifiedNames::new(&[], None, Some(name))
}

#[test]
fn a_target_is_a_name_or_an_address_with_a_port() {
    for (value, host, port) in [
        ("api=10.0.0.1:6443", "10.0.0.1", 6443),
        ("api=[fd00::1]:1", "fd00::1", 1),
        ("a.b_c-D9=api.example.:65535", "api.example.", 65535),
        ("a=localhost:80", "localhost", 80),
    ] {
        let targets = parse(&[value], &[]).unwrap();
        let target = targets.iter().next().unwrap();
        assert_eq!((target.host(), target.port()), (host, port));
        assert_eq!(format!("{}={target}", target.name()), value);
        assert!(!target.is_open());
    }
    assert!(parse(&[&format!("{}=a:1", "n".repeat(63))], &[]).is_ok());
}

#[test]
fn what_is_no_target_is_told_with_its_flag_and_value() {
    for value in ["", "api", "10.0.0.1:6443"] {
        let told = error(&[value], &[]);
        let wanted = format!("--forward-target={value}: must be NAME=HOST:PORT");
        assert!(told.starts_with(&wanted), "{told}");
    }
    let long = format!("{}=a:1", "n".repeat(64));
    for value in ["=a:1", "-a=a:1", "a.=a:1", "a b=a:1", "ä=a:1", &long] {
        let told = error(&[value], &[]);
        let wanted = format!("--forward-target={value}: the name must have 1 to 63 ");
        assert!(told.starts_with(&wanted), "{told}");
    }
    for value in ["a=", "a=h", "a=h:", "a=h:0", "a=h:65536", "a=h:+1", "a=h:x"] {
        let told = error(&[value], &[]);
        let wanted = format!("--forward-target={value}: must end with a port from 1 to 65535");
        assert_eq!(told, wanted);
    }
    let long = format!("a={}:1", "h".repeat(255));
    for value in [
        "a=:1", "a=::1:1", "a=[::1:1", "a=[h]:1", "a=[]:1", "a=h/x:1", "a=u@h:1", "a=h\0:1", &long,
    ] {
        let told = error(&[value], &[]);
        let wanted = format!("--forward-target={value}: must have a name or an address before");
        assert!(told.starts_with(&wanted), "{told}");
    }
    assert_eq!(
        error(&["a=h:1", "b=h:1", "a=i:2"], &[]),
        "--forward-target=a=i:2: a is there already, and leads to h:1"
    );
}

#[test]
fn what_is_no_pattern_is_told_with_its_flag_and_value() {
    let targets = &["api=h:1"][..];
    assert_eq!(
        error(targets, &["api"]),
        "--forward-allow=api: must be NAME=PATTERN, for example api=node-*"
    );
    assert_eq!(
        error(targets, &["API=*"]),
        "--forward-allow=API=*: no --forward-target is called \"API\""
    );
    assert_eq!(
        error(targets, &["api="]),
        "--forward-allow=api=: the pattern is empty; '*' matches every name"
    );
    let all = parse(&["a", "b=h:0"], &["c=*"]).unwrap_err();
    assert_eq!(all.len(), 3, "{all:?}");
}

#[test]
fn more_than_anybody_has_is_refused() {
    let targets: Vec<_> = (0..101).map(|number| format!("t{number}=h:1")).collect();
    let errors = ForwardTargets::parse(&targets, &[]).unwrap_err();
    let [TargetError::TooMany { count: 101, .. }] = errors[..] else {
        panic!("{errors:?}");
    };
    let allow = vec!["t0=*"; 1001];
    assert_eq!(
        error(&["t0=h:1"], &allow),
        "--forward-allow: given 1001 times, and at most 1000 are taken"
    );
}

#[test]
fn nobody_may_use_a_target_that_no_pattern_opens() {
    let targets = parse(&["api=h:1", "web=h:2"], &["web=*"]).unwrap();
    let names = node("node-1");
    assert_eq!(
        targets.check("api", &names),
        Err(ForwardRefusal::NotAllowed)
    );
    assert_eq!(targets.check("API", &names), Err(ForwardRefusal::Unknown));
    assert_eq!(
        targets.check("web", &names).map(|target| target.port()),
        Ok(2)
    );
    assert_eq!(
        ForwardTargets::default().check("api", &names),
        Err(ForwardRefusal::Unknown)
    );
}

#[test]
fn any_pattern_that_matches_any_verified_name_opens_its_target_alone() {
    let targets = parse(
        &["api=h:1", "web=h:2"],
        &["api=master-*", "api=*.NODES.example", "web=node-2"],
    )
    .unwrap();
    let may = |target: &str, name: &str| targets.check(target, &node(name)).is_ok();
    assert!(may("api", "a.nodes.example") && may("api", "Master-1"));
    assert!(!may("api", "node-2") && may("web", "node-2"));
    let both = VerifiedNames::new(&[], Some("agent-x7"), Some("node-2"));
    assert!(targets.check("web", &both).is_ok());
}

#[test]
fn every_name_is_none_if_nothing_was_verified() {
    let targets = parse(&["api=h:1"], &["api=*"]).unwrap();
    let refused = targets.check("api", &VerifiedNames::default());
    assert_eq!(refused, Err(ForwardRefusal::NotAllowed));
}

#[test]
fn an_agent_cannot_tell_a_target_that_it_may_not_use_from_one_that_is_not_there() {
    let names = node("node-1");
    let reason = ForwardRefusal::NotAllowed.reason("api", &names);
    assert_eq!(reason, ForwardRefusal::Unknown.reason("api", &names));
    assert_eq!(
        reason,
        "no forward target \"api\" is open to this agent: the server must have a --forward-target of that name, and a --forward-allow for it that matches what the agent is verified as: \"node-1\""
    );
    let unverified = ForwardRefusal::Unknown.reason("api", &VerifiedNames::default());
    assert!(
        unverified.ends_with(
            "the agent a certificate or a token bound to a Pod, as nothing shows who it is"
        ),
        "{unverified}"
    );
    assert_ne!(
        ForwardRefusal::Unknown.cause(),
        ForwardRefusal::NotAllowed.cause()
    );
}

#[test]
fn a_reason_is_short_and_on_one_line_whatever_was_asked_for() {
    let name = format!("a\nb{}", "ü".repeat(10_000));
    let odd = "\u{200b}".repeat(80);
    let names = VerifiedNames::new(&[], Some(&odd), Some("node-1"));
    let reason = ForwardRefusal::Unknown.reason(&name, &names);
    assert_eq!(reason.chars().count(), MAX_REASON);
    assert!(
        !reason.contains('\n') && reason.contains("--forward-allow"),
        "{reason}"
    );
}
