//! Log lines: tracing, steered by klog's flags ([`LogFlags`]).
//!
//! | `-v` | our crates | libraries (HTTP, TLS) |
//! |---|---|---|
//! | below 0 | warn | warn |
//! | 0 to 4 | info | warn |
//! | 5 to 7 | debug | warn |
//! | 8, 9 | trace | warn |
//! | 10 and above | trace | debug |
//!
//! Of HTTP/2 (`h2`) errors alone are logged below 10: it warns of what a peer does, each time.
//!
//! Levels 3 and 4 log what 0 to 2 do: upstream's default is 4, and its manifests must not become chatty here. Libraries
//! never log at trace, where they would show bytes that pass through; no level of ours shows payload. The environment
//! variable [`FILTER_VARIABLE`] replaces the table by directives of its own, for debugging.
//!
//! Lines go to stderr, unless `--logtostderr=false` and a file is named; see [`LogFlags`] for the rest. Writing is
//! synchronous: a line is out when the call returns, and a reader of stderr that stops reading stops the process, as it
//! does upstream.

mod file;
mod line;

use std::io;
use std::path::PathBuf;
use std::sync::Mutex;

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::{EnvFilter, ParseError};
use tracing_subscriber::fmt::{self, MakeWriter};
use tracing_subscriber::layer::{Layer, Layered, SubscriberExt as _};
use tracing_subscriber::registry::Registry;
use tracing_subscriber::util::{SubscriberInitExt as _, TryInitError};

use crate::flags::{LogFlags, LogFormat, Severity};
use file::LogFile;
use line::Lines;

/// Environment variable with filter directives as [`EnvFilter`] takes them, for example `proxy_server=trace,h2=debug`.
pub const FILTER_VARIABLE: &str = "ADIT_LOG";

/// The crates whose level `-v` sets.
const OURS: [&str; 6] = [
    "certs",
    "daemon",
    "egress_config",
    "proxy_agent",
    "proxy_server",
    "tunnel",
];

/// Why nothing can be logged; the operator's to solve.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoggingError {
    /// The log file cannot be opened.
    #[error("{flag}: cannot open log file {path:?}: {cause}")]
    Open {
        /// The flag that named it.
        flag: &'static str,
        /// Its path.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// [`FILTER_VARIABLE`] holds something else than directives.
    #[error("{FILTER_VARIABLE}: {cause}")]
    Filter {
        /// What is wrong with it.
        cause: ParseError,
    },
    /// A subscriber is installed already.
    #[error("logging is set up already")]
    Twice {
        /// What the installation said.
        source: TryInitError,
    },
}

/// Installs the process's log; for `main`, once. `program` names the file in `--log-dir`, `filter` is the content of
/// [`FILTER_VARIABLE`], if it is set.
///
/// # Errors
///
/// [`LoggingError`]; then nothing is installed.
pub fn init(flags: &LogFlags, program: &str, filter: Option<&str>) -> Result<(), LoggingError> {
    subscriber(flags, program, filter, io::stderr)?
        .try_init()
        .map_err(|source| LoggingError::Twice { source })?;
    if !flags.vmodule.is_empty() {
        tracing::warn!("--vmodule has no effect: it names Go source files; see {FILTER_VARIABLE}");
    }
    Ok(())
}

type Filtered = Layered<EnvFilter, Registry>;
type Sink = Box<dyn Layer<Filtered> + Send + Sync>;

/// A log that is not installed yet.
fn subscriber<W>(
    flags: &LogFlags,
    program: &str,
    filter: Option<&str>,
    stderr: W,
) -> Result<Layered<Vec<Sink>, Filtered>, LoggingError>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let directives = match filter {
        Some(text) if !text.trim().is_empty() => text.to_owned(),
        _ => directives(flags.v),
    };
    let filter = EnvFilter::try_new(directives).map_err(|cause| LoggingError::Filter { cause })?;
    let sinks = Sinks::of(flags, program);
    let mut layers = Vec::new();
    if let Some((flag, path)) = sinks.file {
        let limit = flags.log_file_max_size.saturating_mul(1 << 20);
        let file = LogFile::open(path.clone(), limit).map_err(|cause| LoggingError::Open {
            flag,
            path,
            cause,
        })?;
        layers.push(lines(flags, Mutex::new(file), LevelFilter::TRACE));
    }
    if let Some(lowest) = sinks.stderr {
        layers.push(lines(flags, stderr, lowest));
    }
    Ok(tracing_subscriber::registry().with(filter).with(layers))
}

/// The table of the module's description.
fn directives(v: i32) -> String {
    let (ours, libraries, http2) = match v {
        ..0 => ("warn", "warn", "error"),
        0..=4 => ("info", "warn", "error"),
        5..=7 => ("debug", "warn", "error"),
        8..=9 => ("trace", "warn", "error"),
        10.. => ("trace", "debug", "debug"),
    };
    let libraries = format!("{libraries},h2={http2}");
    OURS.iter().fold(libraries, |directives, name| {
        format!("{directives},{name}={ours}")
    })
}

/// Where lines go.
#[derive(Debug, PartialEq, Eq)]
struct Sinks {
    /// The flag that asked for a file, and its path.
    file: Option<(&'static str, PathBuf)>,
    /// Up to which level lines go to stderr, if any do.
    stderr: Option<LevelFilter>,
}

impl Sinks {
    /// klog's rules, but for one: asked for files without being told where, klog writes into the temporary directory,
    /// which a container seldom has; we keep to stderr.
    fn of(flags: &LogFlags, program: &str) -> Self {
        let file = if flags.logtostderr {
            None
        } else if !flags.log_file.as_os_str().is_empty() {
            Some(("--log-file", flags.log_file.clone()))
        } else if !flags.log_dir.as_os_str().is_empty() {
            Some(("--log-dir", flags.log_dir.join(format!("{program}.log"))))
        } else {
            None
        };
        let lowest = match (&file, flags.logtostderr) {
            (Some(_), _) if flags.alsologtostderr => {
                flags.alsologtostderrthreshold.min(flags.stderrthreshold)
            }
            (Some(_), _) => flags.stderrthreshold,
            (None, true) if !flags.legacy_stderr_threshold_behavior => flags.stderrthreshold,
            (None, _) => Severity::Info,
        };
        Self {
            file,
            stderr: Some(levels_from(lowest)),
        }
    }
}

/// Verbosity is no severity: every line that is no warning and no error is an INFO line, at any level of ours.
fn levels_from(lowest: Severity) -> LevelFilter {
    match lowest {
        Severity::Info => LevelFilter::TRACE,
        Severity::Warning => LevelFilter::WARN,
        Severity::Error | Severity::Fatal => LevelFilter::ERROR,
    }
}

fn lines<W>(flags: &LogFlags, writer: W, lowest: LevelFilter) -> Sink
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let layer = fmt::layer().with_ansi(false);
    match (flags.logging_format, flags.skip_headers) {
        (LogFormat::Text, false) => layer.with_writer(Lines(writer)).with_filter(lowest).boxed(),
        (LogFormat::Text, true) => layer
            .with_writer(Lines(writer))
            .without_time()
            .with_level(false)
            .with_target(false)
            .with_filter(lowest)
            .boxed(),
        // JSON escapes what is in it by itself.
        (LogFormat::Json, false) => layer
            .with_writer(writer)
            .json()
            .flatten_event(true)
            .with_filter(lowest)
            .boxed(),
        (LogFormat::Json, true) => layer
            .with_writer(writer)
            .json()
            .flatten_event(true)
            .without_time()
            .with_level(false)
            .with_target(false)
            .with_filter(lowest)
            .boxed(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::Arc;

    use clap::Parser;
    use tracing::subscriber::with_default;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        log: LogFlags,
    }

    fn flags(args: &[&str]) -> LogFlags {
        crate::flags::parse::<Cli, _>(std::iter::once("tool").chain(args.iter().copied()))
            .unwrap()
            .cli
            .log
    }

    #[derive(Clone, Default)]
    struct Captured(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Captured {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// What reaches stderr of `emit`.
    fn stderr_of(args: &[&str], filter: Option<&str>, emit: impl FnOnce()) -> String {
        let captured = Captured::default();
        let writer = captured.clone();
        let log = subscriber(&flags(args), "tool", filter, move || writer.clone()).unwrap();
        with_default(log, emit);
        let bytes = captured.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    fn every_level() {
        tracing::error!("an error");
        tracing::warn!("a warning");
        tracing::info!("an info");
        tracing::debug!("a debug");
        tracing::trace!("a trace");
        tracing::info!(target: "h2::proto", "library info");
        tracing::debug!(target: "h2::proto", "library debug");
        tracing::trace!(target: "h2::proto", "library trace");
    }

    fn count(args: &[&str]) -> usize {
        stderr_of(args, None, every_level).lines().count()
    }

    #[test]
    fn verbosity_opens_our_levels_and_at_ten_the_libraries() {
        for (v, lines) in [
            ("-v=-1", 2),
            ("-v=0", 3),
            ("-v=4", 3),
            ("-v=5", 4),
            ("-v=7", 4),
            ("-v=8", 5),
            ("-v=9", 5),
        ] {
            assert_eq!(count(&[v]), lines, "{v}");
        }
        let all = stderr_of(&["-v=10"], None, every_level);
        assert!(
            all.contains("library debug") && !all.contains("library trace"),
            "{all}"
        );
        assert_eq!(count(&[]), 3);
    }

    #[test]
    fn directives_replace_the_verbosity() {
        let text = stderr_of(&["-v=10"], Some("h2=info"), every_level);
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(matches!(
            subscriber(&flags(&[]), "tool", Some("daemon=loud"), io::stderr),
            Err(LoggingError::Filter { .. })
        ));
    }

    #[test]
    fn a_text_line_has_level_target_message_and_fields_and_no_colour() {
        let text = stderr_of(&[], None, || tracing::info!(agent = "a1", "connected"));
        assert!(
            text.ends_with(" INFO daemon::logging::tests: connected agent=\"a1\"\n"),
            "{text}"
        );
        assert!(!text.contains('\u{1b}'));
        let bare = stderr_of(&["--skip-headers"], None, || {
            tracing::info!(agent = "a1", "connected")
        });
        assert_eq!(bare, "connected agent=\"a1\"\n");
    }

    #[test]
    fn a_json_line_is_an_object() {
        let text = stderr_of(&["--logging-format=json"], None, || {
            tracing::warn!(agent = "a1", "gone")
        });
        assert!(text.starts_with('{') && text.ends_with("}\n"), "{text}");
        for part in [
            r#""level":"WARN""#,
            r#""message":"gone""#,
            r#""agent":"a1""#,
        ] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn with_logtostderr_the_file_flags_have_no_effect() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.log");
        let file = format!("--log-file={}", path.display());
        assert_eq!(
            count(&["--logtostderr=true", &file, "--log-file-max-size=0"]),
            3
        );
        assert!(!path.exists());
    }

    #[test]
    fn a_log_file_takes_all_lines_and_stderr_those_from_its_threshold() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.log");
        let file = format!("--log-file={}", path.display());
        assert_eq!(count(&["--logtostderr=false", &file]), 1);
        assert_eq!(
            count(&["--logtostderr=false", &file, "--stderrthreshold=WARNING"]),
            2
        );
        assert_eq!(
            count(&["--logtostderr=false", &file, "--alsologtostderr"]),
            3
        );
        assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 9);
    }

    #[test]
    fn a_log_directory_gets_a_file_of_the_programs_name() {
        let directory = tempfile::tempdir().unwrap();
        count(&[
            "--logtostderr=false",
            &format!("--log-dir={}", directory.path().display()),
        ]);
        assert_eq!(
            fs::read_to_string(directory.path().join("tool.log"))
                .unwrap()
                .lines()
                .count(),
            3
        );
    }

    #[test]
    fn the_stderr_threshold_counts_with_logtostderr_only_without_the_legacy_behaviour() {
        assert_eq!(count(&["--stderrthreshold=ERROR"]), 3);
        assert_eq!(
            count(&[
                "--stderrthreshold=ERROR",
                "--legacy-stderr-threshold-behavior=false"
            ]),
            1
        );
    }

    #[test]
    fn a_file_that_cannot_be_opened_is_named_with_its_flag() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("missing/x.log");
        let args = [
            "--logtostderr=false",
            &format!("--log-file={}", path.display()),
        ];
        let error = subscriber(&flags(&args), "tool", None, io::stderr)
            .err()
            .unwrap()
            .to_string();
        assert!(
            error.starts_with(&format!("--log-file: cannot open log file {path:?}: ")),
            "{error}"
        );
    }
}
