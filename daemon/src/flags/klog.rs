//! The logging flags of klog, which both of upstream's binaries take.

use std::path::PathBuf;
use std::str::FromStr;

use clap::ValueEnum;

// A plain doc comment would be taken by clap for the description of every program that flattens this struct, in place
// of its own; clap reads literals only, so the macro hides the text from it.
#[doc = concat!(
    "klog's flags, and our `--logging-format`. Flatten it into a binary's flags and hand it to\n",
    "[`logging::init`](crate::logging::init).\n\n",
    "Four flags are taken so that existing manifests start, and do nothing here, for lack of what they would steer:\n",
    "`--vmodule` and `--log-backtrace-at` name Go source files, `--add-dir-header` and `--skip-log-headers` shape\n",
    "lines that we don't write.",
)]
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Logging")]
#[expect(
    clippy::struct_excessive_bools,
    reason = "one field a flag of upstream's"
)]
pub struct LogFlags {
    /// How much to log: 0-2 info, 3-4 info (upstream's default), 5-7 debug, 8 and above trace; from 10 the HTTP and TLS
    /// libraries log too. A negative number logs warnings and errors only.
    #[arg(short = 'v', long = "v", default_value_t = 4, value_name = "LEVEL")]
    pub v: i32,

    /// Lines as text, or as a JSON object each.
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub logging_format: LogFormat,

    /// Log to stderr instead of files; with true, no flag about files has an effect.
    #[arg(long, default_value_t = true)]
    pub logtostderr: bool,

    /// Log to stderr as well as to files; without effect when --logtostderr is true.
    #[arg(long)]
    pub alsologtostderr: bool,

    /// The lowest severity that --alsologtostderr copies to stderr: INFO, WARNING, ERROR, FATAL or 0-3.
    #[arg(long, default_value = "INFO", value_name = "SEVERITY")]
    pub alsologtostderrthreshold: Severity,

    /// When logging to a file, lines of this severity and above also go to stderr: INFO, WARNING, ERROR, FATAL or 0-3.
    #[arg(long, default_value = "ERROR", value_name = "SEVERITY")]
    pub stderrthreshold: Severity,

    /// With true, --stderrthreshold has no effect while --logtostderr is true; with false it then filters what goes to
    /// stderr.
    #[arg(long, default_value_t = true)]
    pub legacy_stderr_threshold_behavior: bool,

    /// Directory of the log file, if --log-file is empty and --logtostderr is false.
    #[arg(long, default_value = "", value_name = "DIR")]
    pub log_dir: PathBuf,

    /// Log file, if --logtostderr is false.
    #[arg(long, default_value = "", value_name = "FILE")]
    pub log_file: PathBuf,

    /// Largest size of the log file in MiB, 0 for no limit; a full file is kept once, under the name with `.old`.
    #[arg(long, default_value_t = 1800, value_name = "MIB")]
    pub log_file_max_size: u64,

    /// Log the message alone, without time and level.
    #[arg(long)]
    pub skip_headers: bool,

    /// Write a line to the log of its own severity only. Always so here: there is one file.
    #[arg(long)]
    pub one_output: bool,

    /// Accepted without effect: verbosity by Go source file.
    #[arg(long, default_value = "", value_name = "PATTERN=LEVEL,...")]
    pub vmodule: String,

    /// Accepted without effect: print the stack at a line of Go source.
    #[arg(long, default_value = ":0", value_name = "FILE:LINE")]
    pub log_backtrace_at: String,

    /// Accepted without effect: the directory of the Go source file in each line.
    #[arg(long)]
    pub add_dir_header: bool,

    /// Accepted without effect: leave out the header of a log file. We write none.
    #[arg(long)]
    pub skip_log_headers: bool,
}

/// How a log line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
#[non_exhaustive]
pub enum LogFormat {
    /// Time, level, target, message and fields on a line.
    #[default]
    Text,
    /// A JSON object on a line.
    Json,
}

/// klog's severities.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Ordinary lines, at any verbosity.
    Info,
    /// Something an operator can act on.
    Warning,
    /// Something failed.
    Error,
    /// The process ends.
    Fatal,
}

/// Text that names no severity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a severity: write INFO, WARNING, ERROR, FATAL or a number from 0 to 3")]
pub struct UnknownSeverity;

impl FromStr for Severity {
    type Err = UnknownSeverity;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.to_ascii_uppercase().as_str() {
            "INFO" | "0" => Ok(Self::Info),
            "WARNING" | "1" => Ok(Self::Warning),
            "ERROR" | "2" => Ok(Self::Error),
            "FATAL" | "3" => Ok(Self::Fatal),
            _ => Err(UnknownSeverity),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_severity_is_a_name_in_any_case_or_a_number() {
        for (text, want) in [
            ("INFO", Severity::Info),
            ("0", Severity::Info),
            ("warning", Severity::Warning),
            ("2", Severity::Error),
            ("Fatal", Severity::Fatal),
        ] {
            assert_eq!(text.parse(), Ok(want), "{text}");
        }
        for text in ["", "4", "-1", "warn"] {
            assert_eq!(text.parse::<Severity>(), Err(UnknownSeverity), "{text}");
        }
    }
}
