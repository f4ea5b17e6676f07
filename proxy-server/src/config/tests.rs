use super::*;
use crate::testing::{self, Files};

fn config(files: &Files, more: &[&str]) -> Result<Config, String> {
    let mut args = files.flags();
    args.extend(more.iter().map(|&arg| arg.to_owned()));
    let cli = daemon::flags::parse::<Cli, _>(args).unwrap().cli;
    Config::new(&cli).map_err(|error| error.to_string())
}

#[test]
fn a_plain_start_line_gives_safe_defaults() {
    let files = testing::files();
    let config = config(&files, &["--server-id=a"]).unwrap();
    assert_eq!((config.server_id.as_str(), config.server_count), ("a", 1));
    assert_eq!(
        (config.dial_timeout, config.keepalive),
        (DIAL_TIMEOUT, keepalive::DEFAULT_INTERVAL)
    );
    assert!(config.warnings.is_empty(), "{:?}", config.warnings);
    assert!(matches!(config.frontend, FrontendConfig::Uds { .. }));
}

#[test]
fn all_faults_are_told_at_once_each_with_its_flag() {
    let files = testing::files();
    let error = config(
        &files,
        &[
            "--mode=tcp",
            "--agent-port=80",
            "--health-port=50000",
            "--proxy-strategies=best",
            "--cluster-key=",
            "--backend-dial-timeout=-1s",
            "--server-count=-1",
            "--server-port=1",
        ],
    )
    .unwrap_err();
    for part in [
        "mode must be set to either 'grpc' or 'http-connect' not \"tcp\"",
        "reserved port 80 for the agent port",
        "ephemeral port 50000 for the health port",
        "unknown proxy strategy: best",
        "cannot have cluster key empty",
        "backend-dial-timeout must be >= 0, got -1s",
        "--server-count must be",
        "server port should be set to 0 not 1 for UDS",
    ] {
        assert!(error.contains(part), "no «{part}» in {error}");
    }
}

#[test]
fn a_tcp_frontend_needs_its_three_files_and_a_socket_none() {
    let files = testing::files();
    let error = config(&files, &["--uds-name=", "--server-port=8090"]).unwrap_err();
    assert!(
        error.contains("--server-cert and --server-key must be set")
            && error.contains("server ca cert must be set"),
        "{error}"
    );
    let error = config(&files, &["--server-ca-cert=/x"]).unwrap_err();
    assert!(
        error.contains("server ca cert should not be set for UDS"),
        "{error}"
    );
    let tcp = files.tcp_flags();
    let tcp: Vec<_> = tcp.iter().map(String::as_str).collect();
    assert!(matches!(
        config(&files, &tcp).unwrap().frontend,
        FrontendConfig::Tcp { .. }
    ));
}

#[test]
fn faults_of_two_files_of_one_listener_are_both_told() {
    let files = testing::files();
    let error = config(
        &files,
        &[
            "--cluster-ca-cert=/nowhere/ca.crt",
            "--cluster-key=/nowhere/tls.key",
        ],
    )
    .unwrap_err();
    for part in [
        "--cluster-ca-cert: ",
        "/nowhere/ca.crt",
        "--cluster-key: ",
        "/nowhere/tls.key",
    ] {
        assert!(error.contains(part), "no «{part}» in {error}");
    }
}

#[test]
fn every_file_of_the_listeners_is_watched() {
    let files = testing::files();
    let tcp = files.tcp_flags();
    let tcp: Vec<_> = tcp.iter().map(String::as_str).collect();
    let status = config(&files, &tcp).unwrap().watcher.status().current();
    let watched: Vec<_> = status
        .files()
        .iter()
        .map(certs::status::FileStatus::file)
        .collect();
    let all = ["server.crt", "server.key", "ca.crt"].map(|name| files.path(name));
    assert_eq!(watched, all);
}

#[test]
fn a_missing_file_is_named_with_its_flag() {
    let files = testing::files();
    let error = config(&files, &["--cluster-ca-cert=/nowhere/ca.crt"]).unwrap_err();
    assert!(
        error.contains("--cluster-ca-cert") && error.contains("/nowhere/ca.crt"),
        "{error}"
    );
}

#[test]
fn token_authentication_needs_its_three_flags_and_empty_ones_mean_none() {
    let files = testing::files();
    let error = config(&files, &["--agent-service-account=konnectivity-agent"]).unwrap_err();
    for part in [
        "--agent-namespace cannot be empty when agent authentication is enabled",
        "--authentication-audience cannot be empty when agent authentication is enabled",
    ] {
        assert!(error.contains(part), "no «{part}» in {error}");
    }
    let empty = [
        "--agent-namespace=",
        "--agent-service-account=",
        "--authentication-audience=",
        "--kubeconfig=",
    ];
    let config_without = config(&files, &empty).unwrap();
    assert!(
        config_without.token_review.is_none() && config_without.kube_client.kubeconfig.is_none()
    );
    let whole = [
        "--cluster-ca-cert=",
        "--agent-namespace=kube-system",
        "--agent-service-account=konnectivity-agent",
        "--authentication-audience=system:konnectivity-server",
        "--kubeconfig-qps=75",
        "--kubeconfig-burst=150",
    ];
    let config = config(&files, &whole).unwrap();
    let review = config.token_review.unwrap();
    assert_eq!(
        [
            review.namespace.as_str(),
            &review.service_account,
            &review.audience
        ],
        [
            "kube-system",
            "konnectivity-agent",
            "system:konnectivity-server"
        ]
    );
    assert_eq!(
        (config.kube_client.qps, config.kube_client.burst),
        (75.0, 150)
    );
    assert!(config.warnings.is_empty(), "{:?}", config.warnings);
}

/// An agent's hello would be answered with more than it reads.
#[test]
fn a_server_id_has_a_length_that_fits_an_answer_to_a_hello() {
    let files = testing::files();
    let id = |len| config(&files, &[&format!("--server-id={}", "a".repeat(len))]);
    assert!(id(256).is_ok());
    let error = id(257).unwrap_err();
    assert!(
        error.contains("--server-id is longer than 256 bytes"),
        "{error}"
    );
}

#[test]
fn a_lease_needs_labels_and_a_server_id_that_makes_a_name() {
    let files = testing::files();
    let error = config(
        &files,
        &[
            "--enable-lease-controller",
            "--lease-label=a",
            "--server-id=A_b",
        ],
    )
    .unwrap_err();
    for part in ["invalid label format: a", "--server-id"] {
        assert!(error.contains(part), "no «{part}» in {error}");
    }
    let lease = config(&files, &["--enable-lease-controller", "--server-id=a-1"])
        .unwrap()
        .lease
        .unwrap();
    assert_eq!(
        (lease.namespace.as_str(), lease.labels.to_string().as_str()),
        ("kube-system", "k8s-app=konnectivity-server")
    );
}

#[test]
fn files_that_do_not_exist_are_told_in_upstreams_words() {
    let files = testing::files();
    let error = config(
        &files,
        &[
            "--cluster-cert=/nowhere/a.crt",
            "--cluster-key=/nowhere/a.key",
            "--cluster-ca-cert=/nowhere/ca.crt",
            "--kubeconfig=/nowhere/config",
        ],
    )
    .unwrap_err();
    for part in [
        "error checking cluster key /nowhere/a.key, got ",
        "error checking cluster cert /nowhere/a.crt, got ",
        "error checking cluster CA cert /nowhere/ca.crt, got ",
        "checking KubeconfigPath \"/nowhere/config\", got ",
    ] {
        assert!(error.contains(part), "no «{part}» in {error}");
    }
}

#[test]
fn each_egress_rule_that_is_none_is_named() {
    let files = testing::files();
    let error = config(&files, &["--egress-deny=10.0.0.0/99", "--egress-allow=a:0"]).unwrap_err();
    for part in ["10.0.0.0/99", "a:0"] {
        assert!(error.contains(part), "no «{part}» in {error}");
    }
}

#[test]
fn readiness_can_only_wait_for_strategies_that_there_are() {
    let files = testing::files();
    let both = "--proxy-strategies=destHost,defaultRoute";
    let plain = config(&files, &[both]).unwrap();
    assert_eq!(plain.ready_strategies, None);
    assert_eq!(plain.shutdown_delay, Duration::ZERO);
    let wanted = config(&files, &[both, "--ready-strategies=defaultRoute"]).unwrap();
    assert_eq!(wanted.ready_strategies.unwrap().to_string(), "defaultRoute");
    let error = config(&files, &["--ready-strategies=destHost"]).unwrap_err();
    assert!(
        error.contains("--ready-strategies: destHost is not among --proxy-strategies default"),
        "{error}"
    );
    let error = config(&files, &["--shutdown-delay=-1s"]).unwrap_err();
    assert!(
        error.contains("shutdown-delay must be >= 0, got -1s"),
        "{error}"
    );
}

#[test]
fn a_proof_that_no_agent_can_show_is_refused() {
    let files = testing::files();
    for (flags, needs) in [
        (
            &["--bind-agent-identity=certificate", "--cluster-ca-cert="][..],
            "--cluster-ca-cert",
        ),
        (&["--bind-agent-identity=token"], "--agent-namespace"),
    ] {
        let error = config(&files, flags).unwrap_err();
        assert!(error.contains(&format!("needs {needs}")), "{error}");
    }
    let bound = config(&files, &["--bind-agent-identity=certificate"]).unwrap();
    assert_eq!(bound.binding, Binding::Certificate);
}

#[test]
fn agents_are_offered_the_tunnels_that_the_flag_names_the_stream_tunnel_first() {
    let files = testing::files();
    for (flag, protocol, alpn) in [
        ("", TunnelProtocol::Auto, &["adit/1", "h2"][..]),
        ("auto", TunnelProtocol::Auto, &["adit/1", "h2"]),
        ("packet", TunnelProtocol::Packet, &["h2"]),
        ("stream", TunnelProtocol::Stream, &["adit/1"]),
    ] {
        let flag = format!("--tunnel-protocol={flag}");
        let flags: &[&str] = if flag.ends_with('=') { &[] } else { &[&flag] };
        let config = config(&files, flags).unwrap();
        assert_eq!(config.tunnel_protocol, protocol);
        let tls = config.agent_tls.current();
        let offered = tls.alpn_protocols.iter().map(Vec::as_slice);
        assert!(
            offered.eq(alpn.iter().map(|name| name.as_bytes())),
            "{flag}"
        );
    }
}

#[test]
fn targets_for_agents_are_off_by_default_and_read_from_lists() {
    let files = testing::files();
    let plain = config(&files, &[]).unwrap();
    assert!(plain.forward_targets.is_empty());
    assert_eq!(plain.forward_max_connections, 1024);
    let flags = [
        "--forward-target=api=10.0.0.1:6443,web=[fd00::1]:443",
        "--forward-target=dns=localhost:53",
        "--forward-allow=api=node-*,web=node-1",
        "--forward-max-connections=7",
    ];
    let config = config(&files, &flags).unwrap();
    let targets = config.forward_targets.iter().map(ToString::to_string);
    assert_eq!(
        targets.collect::<Vec<_>>(),
        ["10.0.0.1:6443", "localhost:53", "[fd00::1]:443"]
    );
    assert_eq!(config.forward_max_connections, 7);
    assert_eq!(
        config.warnings,
        [
            "--forward-target=dns=localhost:53: without a --forward-allow=dns=PATTERN no agent may use it"
        ]
    );
}

#[test]
fn every_target_and_pattern_that_is_none_is_told_with_its_flag_and_value() {
    let files = testing::files();
    let error = config(
        &files,
        &[
            "--forward-target=api=h:1,api=h:2,b=h",
            "--forward-allow=x=*",
            "--forward-max-connections=0",
        ],
    )
    .unwrap_err();
    for part in [
        "--forward-target=api=h:2: api is there already",
        "--forward-target=b=h: must end with a port",
        "--forward-allow=x=*: no --forward-target is called \"x\"",
        "--forward-max-connections must be at least 1, got 0",
    ] {
        assert!(error.contains(part), "no «{part}» in {error}");
    }
}

#[test]
fn patterns_that_no_agent_can_match_are_worth_a_warning() {
    let files = testing::files();
    let flags = [
        "--cluster-ca-cert=",
        "--forward-target=api=h:1",
        "--forward-allow=api=*",
    ];
    let warnings = config(&files, &flags).unwrap().warnings.join("\n");
    assert!(
        warnings.contains("--forward-allow: matches no agent"),
        "{warnings}"
    );
}

/// What the agent listener and an agent that offers `names` agree on, in memory.
fn negotiated(files: &Files, flag: &str, names: &[&[u8]]) -> Result<Option<Vec<u8>>, String> {
    let flags = [flag, "--cluster-ca-cert="];
    let server = config(files, &flags).unwrap().agent_tls.current();
    let roots = certs::Roots::load(&files.path("ca.crt")).unwrap();
    let client = certs::client_config(&roots, None, names, &certs::TlsOptions::default()).unwrap();
    let mut server = rustls::ServerConnection::new(server).unwrap();
    let name = "localhost".try_into().unwrap();
    let mut client = rustls::ClientConnection::new(client, name).unwrap();
    let mut bytes = Vec::new();
    while server.is_handshaking() || client.is_handshaking() {
        client.write_tls(&mut bytes).unwrap();
        server.read_tls(&mut &bytes[..]).unwrap();
        server
            .process_new_packets()
            .map_err(|error| error.to_string())?;
        bytes.clear();
        server.write_tls(&mut bytes).unwrap();
        client.read_tls(&mut &bytes[..]).unwrap();
        client.process_new_packets().unwrap();
        bytes.clear();
    }
    Ok(server.alpn_protocol().map(<[u8]>::to_vec))
}

#[test]
fn an_agent_gets_the_stream_tunnel_whatever_its_order_if_neither_side_rules_it_out() {
    let files = testing::files();
    let (auto, packet, stream) = (
        "--tunnel-protocol=auto",
        "--tunnel-protocol=packet",
        "--tunnel-protocol=stream",
    );
    let chosen = |flag, names: &[&[u8]], name: &[u8]| {
        assert_eq!(negotiated(&files, flag, names), Ok(Some(name.to_vec())));
    };
    chosen(auto, &[b"adit/1", b"h2"], b"adit/1");
    chosen(auto, &[b"h2", b"router", b"adit/1"], b"adit/1");
    // An agent of upstream, and one of ours with a name for a router.
    chosen(auto, &[b"h2"], b"h2");
    chosen(packet, &[b"router", b"adit/1", b"h2"], b"h2");
    chosen(stream, &[b"h2", b"adit/1"], b"adit/1");
    for (flag, names) in [(stream, &[&b"h2"[..]]), (packet, &[b"adit/1"])] {
        let refused = negotiated(&files, flag, names).unwrap_err();
        assert_eq!(refused, rustls::Error::NoApplicationProtocol.to_string());
    }
    // Who says nothing is not refused by the handshake.
    assert_eq!(negotiated(&files, auto, &[]), Ok(None));
}
