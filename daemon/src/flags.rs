//! Command lines in the syntax of Go's pflag, which is what every published Konnectivity manifest is written in
//! (wire-protocol.md 6.1, deployments-in-the-field.md 17).
//!
//! A binary declares an ordinary `#[derive(clap::Parser)]` struct; [`parse`] bends clap's rules to pflag's before it
//! reads the arguments:
//!
//! - `--x=v` and `--x v` are the same, also when `v` begins with a hyphen; `--x=` is the empty string;
//! - a `bool` is set by `--b` alone and by `--b=<any spelling of Go's>`, and never takes the next argument;
//! - of a repeated scalar the last wins, a repeated list ([`StringSlice`]) grows;
//! - positional arguments are ignored, abbreviations and underscores are not accepted.

mod duration;
mod klog;
mod slice;

use std::any::TypeId;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::{ArgAction, OsStringValueParser, TypedValueParser as _, ValueParser};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, Command, CommandFactory, FromArgMatches};

pub use duration::{GoDuration, GoDurationError};
pub use klog::{LogFlags, LogFormat, Severity, UnknownSeverity};
pub use slice::{StringSlice, StringSliceError};

/// The id of the argument that swallows positional arguments.
const IGNORED: &str = "ignored-positional-arguments";

/// A command line that was understood.
#[derive(Debug, Clone)]
pub struct Parsed<C> {
    /// The values, defaults filled in.
    pub cli: C,
    given: BTreeSet<String>,
}

impl<C> Parsed<C> {
    /// Whether the flag of this long name, without hyphens, stood on the command line; its default or an environment
    /// variable does not count. For notes about deprecated flags.
    pub fn given(&self, long: &str) -> bool {
        self.given.contains(long)
    }

    /// Writes pflag's line about each of the flags that stood on the command line to stderr: `Flag --x has been deprecated,
    /// <what to do>`.
    pub fn note_deprecated(&self, flags: &[(&str, &str)]) {
        for (long, advice) in flags.iter().filter(|(long, _)| self.given(long)) {
            // A closed stderr leaves nobody to tell.
            writeln!(
                std::io::stderr(),
                "Flag --{long} has been deprecated, {advice}"
            )
            .ok();
        }
    }

    /// The long names of all flags that stood on the command line, in alphabetical order.
    pub fn all_given(&self) -> impl Iterator<Item = &str> {
        self.given.iter().map(String::as_str)
    }
}

/// Why [`parse`] gave no values.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stop {
    /// `--help` or `-h`: the text to print on stdout before a successful exit.
    Help(String),
    /// The operator's mistake.
    Invalid(FlagError),
}

/// A command line that cannot be used; the operator's fault. The words are pflag's, so that scripts which look for
/// them keep working.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FlagError {
    /// No such flag exists.
    #[error("unknown flag: {flag}{}", Suggestion(nearest.as_deref()))]
    Unknown {
        /// The flag as written, without a value.
        flag: String,
        /// The real flag whose name is closest, if one is close.
        nearest: Option<String>,
    },
    /// The command line ended where a value had to come.
    #[error("flag needs an argument: {flag}")]
    NeedsValue {
        /// The flag, with its hyphens.
        flag: String,
    },
    /// The value is not of the flag's type.
    #[error("invalid argument {value:?} for \"{flag}\" flag: {reason}")]
    Value {
        /// The flag, with its hyphens.
        flag: String,
        /// The value as written.
        value: String,
        /// What the flag's type says about it.
        reason: String,
    },
    /// Anything else that clap refuses, for instance a required flag that is missing.
    #[error("{text}")]
    Other {
        /// clap's words, on one line.
        text: String,
    },
}

/// `, did you mean …?`, or nothing.
struct Suggestion<'a>(Option<&'a str>);

impl fmt::Display for Suggestion<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(flag) => write!(f, ", did you mean {flag}?"),
            None => Ok(()),
        }
    }
}

/// Reads a command line; the first argument is the program's name. Prints nothing.
pub fn parse<C, I>(args: I) -> Result<Parsed<C>, Stop>
where
    C: CommandFactory + FromArgMatches,
    I: IntoIterator,
    I::Item: Into<OsString> + Clone,
{
    let mut command = go_syntax(C::command());
    let mut matches = command.try_get_matches_from_mut(args).map_err(stop)?;
    let given = command
        .get_arguments()
        .filter(|arg| matches.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine))
        .filter_map(|arg| arg.get_long().map(str::to_owned))
        .collect();
    let cli =
        C::from_arg_matches_mut(&mut matches).map_err(|error| stop(error.format(&mut command)))?;
    Ok(Parsed { cli, given })
}

/// [`parse`] for `main`: prints the help on stdout or the error on stderr and hands back the exit code to return,
/// 0 for help and 1 for an error.
///
/// ```no_run
/// # #[derive(clap::Parser)] struct Cli {}
/// # fn run(_: Cli) -> std::process::ExitCode { std::process::ExitCode::SUCCESS }
/// fn main() -> std::process::ExitCode {
///     match daemon::flags::parse_or_exit_code::<Cli, _>(std::env::args_os()) {
///         Ok(parsed) => run(parsed.cli),
///         Err(code) => code,
///     }
/// }
/// ```
pub fn parse_or_exit_code<C, I>(args: I) -> Result<Parsed<C>, ExitCode>
where
    C: CommandFactory + FromArgMatches,
    I: IntoIterator,
    I::Item: Into<OsString> + Clone,
{
    parse(args).map_err(|stop| match stop {
        // A closed stdout or stderr leaves nobody to tell, and the exit code still says what happened.
        Stop::Help(text) => {
            std::io::stdout().write_all(text.as_bytes()).ok();
            ExitCode::SUCCESS
        }
        Stop::Invalid(error) => {
            let name = C::command().get_name().to_owned();
            let code = report(&error);
            writeln!(std::io::stderr(), "Run '{name} --help' for the flags.").ok();
            code
        }
    })
}

/// Writes `Error: <text>` to stderr, the way cobra reports what ends a command, and returns exit code 1 for `main`.
/// The alternate form (`{:#}`) is used, so an `anyhow::Error` prints its whole chain.
pub fn report(error: &dyn fmt::Display) -> ExitCode {
    writeln!(std::io::stderr(), "Error: {error:#}").ok();
    ExitCode::FAILURE
}

/// Gives a command pflag's rules. It must not have positional arguments of its own.
fn go_syntax(command: Command) -> Command {
    command
        .mut_args(|arg| {
            let arg = arg.allow_hyphen_values(true);
            let set_true = matches!(arg.get_action(), ArgAction::SetTrue);
            let of = |id: TypeId| arg.get_value_parser().type_id() == id;
            if set_true && arg.get_default_values().is_empty() {
                go_bool_arg(arg).default_value("false")
            } else if set_true || of(TypeId::of::<bool>()) {
                go_bool_arg(arg)
            } else if of(TypeId::of::<PathBuf>()) {
                // clap's own parser refuses the empty path, which is how a manifest says "not set".
                arg.value_parser(OsStringValueParser::new().map(PathBuf::from))
            } else {
                arg
            }
        })
        .args_override_self(true)
        .infer_long_args(false)
        .arg(
            Arg::new(IGNORED)
                .action(ArgAction::Append)
                .num_args(0..)
                .value_parser(ValueParser::os_string())
                .hide(true),
        )
}

/// A boolean whose value, if any, is attached with `=`: pflag's `NoOptDefVal`.
fn go_bool_arg(arg: Arg) -> Arg {
    arg.action(ArgAction::Set)
        .num_args(0..=1)
        .require_equals(true)
        .default_missing_value("true")
        .hide_possible_values(true)
        .value_parser(ValueParser::new(go_bool))
}

/// Go's `strconv.ParseBool`.
fn go_bool(text: &str) -> Result<bool, NotABool> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(false),
        _ => Err(NotABool),
    }
}

#[derive(Debug, thiserror::Error)]
#[error("not a boolean: write true or false")]
struct NotABool;

/// Sorts clap's errors into ours.
fn stop(error: clap::Error) -> Stop {
    use std::error::Error as _;

    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        _ => None,
    };
    let flag = || context(ContextKind::InvalidArg).map(|arg| flag_name(&arg));
    let value = context(ContextKind::InvalidValue).unwrap_or_default();
    let error = match (error.kind(), flag()) {
        (ErrorKind::DisplayHelp | ErrorKind::DisplayVersion, _) => {
            return Stop::Help(error.render().to_string());
        }
        (ErrorKind::UnknownArgument, Some(flag)) => FlagError::Unknown {
            flag,
            nearest: context(ContextKind::SuggestedArg).map(|arg| flag_name(&arg)),
        },
        (ErrorKind::InvalidValue, Some(flag)) if value.is_empty() => FlagError::NeedsValue { flag },
        (ErrorKind::ValueValidation | ErrorKind::InvalidValue, Some(flag)) => {
            let reason = error
                .source()
                .map_or_else(|| choices(&error), ToString::to_string);
            FlagError::Value {
                flag,
                value,
                reason,
            }
        }
        _ => FlagError::Other {
            text: one_line(&error.render().to_string()),
        },
    };
    Stop::Invalid(error)
}

/// `--name` out of clap's `--name <NAME>` or `--name[=<NAME>]`.
fn flag_name(arg: &str) -> String {
    arg.chars()
        .take_while(|c| !matches!(c, ' ' | '[' | '=' | '<'))
        .collect()
}

/// What a flag with fixed values would have taken.
fn choices(error: &clap::Error) -> String {
    match error.get(ContextKind::ValidValue) {
        Some(ContextValue::Strings(values)) if !values.is_empty() => {
            format!("must be one of {}", values.join(", "))
        }
        _ => "not a valid value".to_owned(),
    }
}

/// clap's message without its `error: ` prefix, its usage and its tips.
fn one_line(rendered: &str) -> String {
    let message = rendered.split("\n\n").next().unwrap_or_default();
    let message = message.strip_prefix("error: ").unwrap_or(message);
    message.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests;
