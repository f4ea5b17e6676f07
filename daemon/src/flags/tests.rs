use clap::Parser;

use super::*;

/// A tool.
///
/// At length.
#[derive(Debug, Parser)]
#[command(name = "tool")]
struct Cli {
    #[arg(long, default_value = "")]
    kubeconfig: String,
    #[arg(long, default_value_t = 8090)]
    server_port: i64,
    #[arg(long)]
    sync_forever: bool,
    #[arg(long, default_value_t = true)]
    delete_existing_uds_file: bool,
    #[arg(long)]
    maybe: Option<bool>,
    #[arg(long, default_value = "1h")]
    keepalive_time: GoDuration,
    #[arg(long)]
    alpn_proto: Vec<StringSlice>,
    #[arg(long, env = "ADIT_TEST_NO_SUCH_VARIABLE")]
    server_id: Option<String>,
    #[command(flatten)]
    log: LogFlags,
}

fn ok(args: &[&str]) -> Parsed<Cli> {
    let args = std::iter::once("tool").chain(args.iter().copied());
    parse(args).unwrap_or_else(|stop| panic!("{stop:?}"))
}

fn error(args: &[&str]) -> String {
    match parse::<Cli, _>(std::iter::once("tool").chain(args.iter().copied())) {
        Err(Stop::Invalid(error)) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_value_may_be_attached_or_be_the_next_argument() {
    let cli = ok(&["--kubeconfig=/a", "--server-port", "0"]).cli;
    assert_eq!((cli.kubeconfig.as_str(), cli.server_port), ("/a", 0));
    assert_eq!(ok(&["--kubeconfig=a=b"]).cli.kubeconfig, "a=b");
}

#[test]
fn a_value_that_begins_with_a_hyphen_is_still_the_value() {
    assert_eq!(ok(&["--server-port", "-1"]).cli.server_port, -1);
    assert_eq!(
        ok(&["--kubeconfig", "--server-port"]).cli.kubeconfig,
        "--server-port"
    );
}

#[test]
fn an_empty_value_is_the_empty_string() {
    assert_eq!(ok(&["--kubeconfig=/a", "--kubeconfig="]).cli.kubeconfig, "");
    assert_eq!(ok(&["--kubeconfig", ""]).cli.kubeconfig, "");
    assert_eq!(ok(&["--server-id="]).cli.server_id.as_deref(), Some(""));
}

#[test]
fn booleans_take_every_spelling_of_go() {
    for (text, want) in [
        ("1", true),
        ("t", true),
        ("T", true),
        ("TRUE", true),
        ("true", true),
        ("True", true),
        ("0", false),
        ("f", false),
        ("F", false),
        ("FALSE", false),
        ("false", false),
        ("False", false),
    ] {
        let cli = ok(&[
            &format!("--sync-forever={text}"),
            &format!("--delete-existing-uds-file={text}"),
        ])
        .cli;
        assert_eq!(
            (cli.sync_forever, cli.delete_existing_uds_file),
            (want, want),
            "{text}"
        );
    }
}

#[test]
fn a_bare_boolean_is_true_and_leaves_the_next_argument_alone() {
    let cli = ok(&["--sync-forever", "false", "--maybe"]).cli;
    assert!(cli.sync_forever);
    assert_eq!(cli.maybe, Some(true));
    let cli = ok(&[]).cli;
    assert!(!cli.sync_forever && cli.delete_existing_uds_file);
    assert_eq!(cli.maybe, None);
}

#[test]
fn a_boolean_with_another_value_is_refused() {
    assert_eq!(
        error(&["--sync-forever=yes"]),
        "invalid argument \"yes\" for \"--sync-forever\" flag: not a boolean: write true or false"
    );
    assert!(
        error(&["--sync-forever="])
            .starts_with("invalid argument \"\" for \"--sync-forever\" flag")
            || error(&["--sync-forever="]) == "flag needs an argument: --sync-forever"
    );
}

#[test]
fn the_last_of_a_repeated_scalar_wins() {
    let cli = ok(&[
        "--server-port=1",
        "--sync-forever",
        "--server-port=2",
        "--sync-forever=false",
    ])
    .cli;
    assert_eq!((cli.server_port, cli.sync_forever), (2, false));
}

#[test]
fn a_repeated_list_grows() {
    let cli = ok(&["--alpn-proto=a,b", "--alpn-proto", "[c]", "--alpn-proto=[]"]).cli;
    assert_eq!(StringSlice::concat(cli.alpn_proto), ["a", "b", "c"]);
    assert!(StringSlice::concat(ok(&["--alpn-proto=[]"]).cli.alpn_proto).is_empty());
    assert!(StringSlice::concat(ok(&["--alpn-proto="]).cli.alpn_proto).is_empty());
    assert!(ok(&[]).cli.alpn_proto.is_empty());
}

#[test]
fn the_short_verbosity_flag_takes_all_three_forms() {
    for args in [
        &["-v=8"][..],
        &["-v", "8"],
        &["-v8"],
        &["--v=8"],
        &["--v", "8"],
        &["--v=3", "-v=8"],
    ] {
        assert_eq!(ok(args).cli.log.v, 8, "{args:?}");
    }
    assert_eq!(ok(&[]).cli.log.v, 4);
    assert_eq!(ok(&["-v=-1"]).cli.log.v, -1);
}

#[test]
fn the_klog_flags_of_published_manifests_are_accepted() {
    let cli = ok(&[
        "--logtostderr=true",
        "--log-file=/var/log/x.log",
        "--log-file-max-size=0",
        "--stderrthreshold=INFO",
        "--alsologtostderr",
        "--alsologtostderrthreshold=2",
        "--legacy-stderr-threshold-behavior=false",
        "--vmodule=server=4,agent*=9",
        "--log-dir=",
        "--log-backtrace-at=server.go:12",
        "--add-dir-header",
        "--skip-headers=false",
        "--skip-log-headers",
        "--one-output",
    ])
    .cli;
    assert_eq!(cli.log.log_file_max_size, 0);
    assert_eq!(cli.log.stderrthreshold, Severity::Info);
    assert!(cli.log.logtostderr && cli.log.alsologtostderr && cli.log.one_output);
}

#[test]
fn positional_arguments_are_ignored() {
    let cli = ok(&[
        "serve",
        "--server-port=7",
        "now",
        "-",
        "--",
        "--no-such-flag",
    ])
    .cli;
    assert_eq!(cli.server_port, 7);
}

#[test]
fn underscores_are_refused_and_the_real_flag_is_named() {
    assert_eq!(
        error(&["--log_file=/x"]),
        "unknown flag: --log_file, did you mean --log-file?"
    );
    assert_eq!(error(&["--zzz"]), "unknown flag: --zzz");
    assert_eq!(error(&["-x"]), "unknown flag: -x");
    assert!(
        error(&["--server-por=1"])
            .starts_with("unknown flag: --server-por, did you mean --server-port")
    );
}

#[test]
fn a_missing_value_is_named() {
    assert_eq!(
        error(&["--kubeconfig"]),
        "flag needs an argument: --kubeconfig"
    );
    assert_eq!(error(&["-v"]), "flag needs an argument: --v");
}

#[test]
fn a_bare_number_is_no_duration() {
    assert_eq!(
        error(&["--keepalive-time=5"]),
        "invalid argument \"5\" for \"--keepalive-time\" flag: missing unit in duration, for example 5s"
    );
}

#[test]
fn a_number_that_is_none_is_refused_with_flag_and_value() {
    assert!(
        error(&["--server-port=http"])
            .starts_with("invalid argument \"http\" for \"--server-port\" flag: ")
    );
}

#[test]
fn a_fixed_choice_lists_what_it_takes() {
    assert_eq!(
        error(&["--logging-format=xml"]),
        "invalid argument \"xml\" for \"--logging-format\" flag: must be one of text, json"
    );
}

#[test]
fn help_is_not_an_error() {
    for flag in ["--help", "-h"] {
        match parse::<Cli, _>(["tool", flag]) {
            Err(Stop::Help(text)) => {
                assert!(
                    text.contains("--keepalive-time") && text.contains("A tool"),
                    "{text}"
                );
                assert!(!text.contains(IGNORED), "{text}");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn exit_codes_are_zero_for_help_and_one_for_a_mistake() {
    let code = |flag| {
        format!(
            "{:?}",
            parse_or_exit_code::<Cli, _>(["tool", flag])
                .map(|_| ())
                .unwrap_err()
        )
    };
    assert_eq!(code("--help"), format!("{:?}", ExitCode::SUCCESS));
    assert_eq!(code("--nope"), format!("{:?}", ExitCode::FAILURE));
}

#[test]
fn only_flags_on_the_command_line_count_as_given() {
    let parsed = ok(&["--server-port=8090", "-v=2"]);
    assert!(parsed.given("server-port") && parsed.given("v"));
    assert!(!parsed.given("kubeconfig"));
    assert_eq!(parsed.all_given().collect::<Vec<_>>(), ["server-port", "v"]);
}
