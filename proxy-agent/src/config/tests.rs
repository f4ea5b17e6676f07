use std::fs;

use certs::issue::{Authority, Replace};
use tempfile::TempDir;

use super::*;

/// A folder with `ca.crt`, `agent.crt`, `agent.key`.
pub(crate) fn files() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::generate("test CA").unwrap();
    fs::write(folder.path().join("ca.crt"), authority.certificate_pem()).unwrap();
    let agent = authority.issue_client("agent").unwrap();
    agent.write(folder.path(), "agent", Replace::No).unwrap();
    folder
}

fn cli(args: &[&str]) -> Cli {
    daemon::flags::parse(std::iter::once("proxy-agent").chain(args.iter().copied()))
        .unwrap()
        .cli
}

/// With the three files.
pub(crate) fn full(folder: &TempDir, args: &[&str]) -> Cli {
    let mut cli = cli(args);
    cli.ca_cert = folder.path().join("ca.crt");
    cli.agent_cert = folder.path().join("agent.crt");
    cli.agent_key = folder.path().join("agent.key");
    cli
}

fn error(cli: &Cli) -> String {
    let error = Config::new(cli, "").unwrap_err();
    let mut text = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

fn invalid(args: &[&str]) -> String {
    let text = error(&cli(args));
    text.strip_prefix("failed to validate agent options with ")
        .unwrap()
        .to_owned()
}

#[test]
fn flags_and_files_make_a_configuration_and_its_debug_form_no_secret() {
    let folder = files();
    let config = Config::new(
        &full(&folder, &["--agent-id=a", "--alpn-proto=foo,bar"]),
        "b",
    )
    .unwrap();
    assert_eq!(config.authority, "127.0.0.1");
    assert_eq!(config.announcement.agent_id, "a");
    assert_eq!(config.announcement.identifiers, "");
    assert_eq!(
        config.tls.current().alpn_protocols,
        [&b"foo"[..], b"bar", b"adit/1", b"h2"]
    );
    assert_eq!(config.keepalive, None);
    let shown = format!("{config:?}");
    assert!(
        shown.contains("127.0.0.1:8091") && !shown.contains("PRIVATE"),
        "{shown}"
    );
}

#[test]
fn forwards_add_up_and_each_that_is_none_is_named() {
    let folder = files();
    let flags = [
        "--forward=127.0.0.1:1=a,[::1]:2=b",
        "--forward=unix:/run/c=c",
    ];
    let config = Config::new(&full(&folder, &flags), "").unwrap();
    let forwards: Vec<_> = config.forwards.iter().map(ToString::to_string).collect();
    assert_eq!(forwards, ["127.0.0.1:1=a", "[::1]:2=b", "unix:/run/c=c"]);
    assert_eq!(config.max_forwarded, 1024);
    let told = invalid(&["--forward=:6443=api", "--forward=h:1=a,h:1"]);
    let (one, other) = told.split_once("; ").unwrap();
    assert!(one.starts_with("--forward=:6443=api: say which address port 6443 is for"));
    assert!(other.starts_with("--forward=h:1: must be LISTEN=NAME"));
}

#[test]
fn one_kind_of_tunnel_can_be_pinned() {
    let folder = files();
    let offered = |args: &[&str]| {
        let config = Config::new(&full(&folder, args), "").unwrap();
        config.tls.current().alpn_protocols.clone()
    };
    let packet = ["--tunnel-protocol=packet", "--alpn-proto=a"];
    assert_eq!(offered(&packet), [&b"a"[..], b"h2"]);
    let stream = ["--tunnel-protocol=stream", "--alpn-proto=a"];
    assert_eq!(offered(&stream), [&b"a"[..], b"adit/1"]);
}

#[test]
fn without_a_certificate_the_authority_has_a_port() {
    let folder = files();
    let mut cli = full(&folder, &["--proxy-server-host=fd00::1"]);
    cli.agent_cert = PathBuf::new();
    cli.agent_key = PathBuf::new();
    assert_eq!(Config::new(&cli, "").unwrap().authority, "[fd00::1]:8091");
}

#[test]
fn the_id_is_that_of_the_flag_then_the_environment_then_random() {
    let folder = files();
    let id = |args: &[&str], variable| {
        Config::new(&full(&folder, args), variable)
            .unwrap()
            .announcement
            .agent_id
    };
    assert_eq!(id(&["--agent-id=flag"], "variable"), "flag");
    assert_eq!(id(&["--agent-id="], "variable"), "");
    assert_eq!(id(&[], "variable"), "variable");
    let random = id(&[], "");
    assert_eq!(random.len(), 36);
    assert_ne!(random, id(&[], ""));
}

#[test]
fn durations_are_kept_within_what_is_safe() {
    let folder = files();
    let of = |args: &[&str]| Config::new(&full(&folder, args), "").unwrap();
    assert_eq!(
        of(&["--keepalive-time=1h"]).keepalive,
        Some(Duration::from_secs(3600))
    );
    assert_eq!(of(&["--keepalive-time=1s"]).keepalive, Some(MIN_KEEPALIVE));
    assert_eq!(of(&["--keepalive-time=-1s"]).keepalive, Some(MIN_KEEPALIVE));
    assert_eq!(of(&["--sync-interval=0s"]).sync.interval, MIN_SYNC_INTERVAL);
}

#[test]
fn what_upstream_refuses_is_refused_in_its_words() {
    for (args, text) in [
        (
            &["--proxy-server-port=0"][..],
            "proxy server port 0 must be greater than 0",
        ),
        (
            &["--health-server-port=-1"],
            "health server port -1 must be greater than 0",
        ),
        (
            &["--admin-server-port=0"],
            "admin server port 0 must be greater than 0",
        ),
        (
            &["--xfr-channel-size=0"],
            "channel size 0 must be greater than 0",
        ),
        (
            &["--sync-interval=11s"],
            "sync interval 11s must be less than sync interval cap 10s",
        ),
        (
            &["--enable-contention-profiling"],
            "if --enable-contention-profiling is set, --enable-profiling must also be set",
        ),
        (
            &["--agent-identifiers=uid=1"],
            "agent address is invalid: unknown address type: uid",
        ),
        (
            &["--proxy-server-port=65536"],
            "proxy server port 65536 must be greater than 0 and at most 65535",
        ),
        (
            &["--proxy-server-host=a b"],
            "--proxy-server-host \"a b\" is neither an IP address nor a DNS name",
        ),
        (
            &["--agent-id=ü"],
            "--agent-id \"ü\" has characters other than printable ASCII",
        ),
        (
            &["--alpn-proto=a,,b"],
            "--alpn-proto \"\" must have 1 to 255 bytes",
        ),
        (
            &["--alpn-proto=a,h2", "--tunnel-protocol=stream"],
            "--alpn-proto has \"h2\", the name of a tunnel that --tunnel-protocol=stream excludes",
        ),
        (
            &["--alpn-proto=adit/1", "--tunnel-protocol=packet"],
            "--alpn-proto has \"adit/1\", the name of a tunnel that --tunnel-protocol=packet excludes",
        ),
        (
            &["--forward=[::1]:1=api", "--tunnel-protocol=packet"],
            "--forward needs the stream tunnel, which --tunnel-protocol=packet excludes",
        ),
        (
            &["--forward-max-connections=0"],
            "--forward-max-connections 0 must be at least 1",
        ),
    ] {
        let told = invalid(args);
        let flag = args[0].split('=').next().unwrap();
        assert!(told.contains(flag) && told.ends_with(text), "{told}");
    }
}

#[test]
fn a_certificate_needs_a_key_and_the_reverse() {
    let folder = files();
    let mut without_key = full(&folder, &[]);
    without_key.agent_key = PathBuf::new();
    let certificate = folder.path().join("agent.crt");
    assert_eq!(
        error(&without_key),
        format!(
            "failed to validate agent options with --agent-key: cannot have agent key empty when agent cert is set to {certificate:?}"
        )
    );
    let mut without_certificate = full(&folder, &[]);
    without_certificate.agent_cert = PathBuf::new();
    assert!(
        error(&without_certificate)
            .contains("cannot have agent cert empty when agent key is set to")
    );
}

#[test]
fn everything_wrong_is_reported_at_once() {
    assert_eq!(
        invalid(&[
            "--ca-cert=/missing/ca",
            "--proxy-server-port=0",
            "--xfr-channel-size=0"
        ]),
        "--ca-cert: error checking agent CA cert /missing/ca, got No such file or directory (os error 2); \
         --proxy-server-port: proxy server port 0 must be greater than 0; \
         --xfr-channel-size: channel size 0 must be greater than 0"
    );
}

#[test]
fn a_file_that_cannot_be_used_is_named_with_its_flag() {
    let folder = files();
    let ca = folder.path().join("ca.crt");
    fs::write(&ca, "nothing").unwrap();
    assert_eq!(
        error(&full(&folder, &[])),
        format!("--ca-cert: no certificate in {}", ca.display())
    );
    assert_eq!(
        error(&cli(&[])),
        "failed to run proxy connection with failed to load CA cert: --ca-cert is not set"
    );
}

#[test]
fn leases_drain_and_egress_are_checked() {
    let text = invalid(&[
        "--kubeconfig=/nowhere/config",
        "--server-count-source=min",
        "--drain-idle=-1s",
        "--memory-budget=1000",
        "--egress-allow=10.0.0.0/99",
    ]);
    for part in [
        "error checking KubeconfigPath \"/nowhere/config\", got ",
        "--server-count-source must be one of '', 'default', 'max', got min",
        "--drain-idle must be >= 0, got -1s",
        "--memory-budget 1000 must be at least 4194304 bytes",
        "10.0.0.0/99",
    ] {
        assert!(text.contains(part), "no «{part}» in {text}");
    }
}

#[test]
fn leases_are_counted_only_when_told_to_and_the_old_flag_is_taken() {
    let folder = files();
    assert!(
        Config::new(&full(&folder, &[]), "")
            .unwrap()
            .leases
            .is_none()
    );
    let flags = [
        "--count-server-leases",
        "--lease-namespace=ns",
        "--lease-label=a=b",
        "--server-count-source=max",
    ];
    let leases = Config::new(&full(&folder, &flags), "")
        .unwrap()
        .leases
        .unwrap();
    assert_eq!(
        (
            leases.leases.namespace.as_str(),
            leases.leases.selector.as_str(),
            leases.or_more
        ),
        ("ns", "a=b", true)
    );
}

#[test]
fn a_draining_agent_leaves_when_idle_unless_told_never_to() {
    let folder = files();
    let drain = |args: &[&str]| Config::new(&full(&folder, args), "").unwrap().drain;
    assert_eq!(
        drain(&[]),
        DrainConfig {
            idle: Some(Duration::from_secs(5)),
            timeout: Some(Duration::from_secs(3600)),
        }
    );
    assert_eq!(
        drain(&["--drain-idle=0", "--drain-timeout=0s"]),
        DrainConfig {
            idle: None,
            timeout: None
        }
    );
}
