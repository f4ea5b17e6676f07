//! Go's durations, read and printed as the Go standard library does.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A signed number of nanoseconds in Go's syntax: `1h0m0s`, `100ms`, `1.5h`, `-2us`, `0`. The range is that of Go's
/// `time.Duration`, about ±292 years.
///
/// Fractions are cut to whole nanoseconds, exactly; Go goes through floating point and may be one nanosecond off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct GoDuration(i64);

/// Text that is not a Go duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GoDurationError {
    /// Nothing at all, or a sign or unit without digits.
    #[error("not a duration, expected for example 30s, 100ms or 1h0m0s")]
    NoNumber,
    /// Digits without a unit; only a plain 0 may stand alone.
    #[error("missing unit in duration, for example {number}s")]
    MissingUnit {
        /// The digits as written.
        number: String,
    },
    /// A unit other than `ns`, `us`, `ms`, `s`, `m`, `h`.
    #[error("unknown unit {unit:?} in duration, expected ns, us, ms, s, m or h")]
    UnknownUnit {
        /// The unit as written.
        unit: String,
    },
    /// More than 64 bits of nanoseconds.
    #[error("duration is too long, at most about 292 years")]
    Overflow,
}

impl GoDuration {
    /// Exactly zero.
    pub const ZERO: Self = Self(0);

    /// From nanoseconds.
    pub const fn from_nanos(nanos: i64) -> Self {
        Self(nanos)
    }

    /// In nanoseconds.
    pub const fn as_nanos(self) -> i64 {
        self.0
    }

    /// As an unsigned duration; `None` if it is negative.
    pub fn to_duration(self) -> Option<Duration> {
        u64::try_from(self.0).ok().map(Duration::from_nanos)
    }
}

impl TryFrom<Duration> for GoDuration {
    type Error = GoDurationError;

    fn try_from(duration: Duration) -> Result<Self, Self::Error> {
        i64::try_from(duration.as_nanos())
            .map(Self)
            .map_err(|_| GoDurationError::Overflow)
    }
}

impl FromStr for GoDuration {
    type Err = GoDurationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (sign, mut rest) = match (text.strip_prefix('-'), text.strip_prefix('+')) {
            (Some(rest), _) => (-1, rest),
            (_, Some(rest)) => (1, rest),
            _ => (1, text),
        };
        if rest == "0" {
            return Ok(Self::ZERO);
        }
        if rest.is_empty() {
            return Err(GoDurationError::NoNumber);
        }
        let mut total: i128 = 0;
        while !rest.is_empty() {
            let (nanos, tail) = component(rest)?;
            // Each component is below 2^64 * 3.6e12, so a few of them cannot leave i128; the sum is checked at once.
            total = total.checked_add(nanos).ok_or(GoDurationError::Overflow)?;
            i64::try_from(sign * total).map_err(|_| GoDurationError::Overflow)?;
            rest = tail;
        }
        i64::try_from(sign * total)
            .map(Self)
            .map_err(|_| GoDurationError::Overflow)
    }
}

/// One number and its unit at the front of `text`, in nanoseconds, and what follows.
fn component(text: &str) -> Result<(i128, &str), GoDurationError> {
    let (whole, rest) = digits(text);
    let (fraction, rest) = rest.strip_prefix('.').map_or(("", rest), digits);
    if whole.is_empty() && fraction.is_empty() {
        return Err(GoDurationError::NoNumber);
    }
    let end = rest
        .find(|c: char| c == '.' || c.is_ascii_digit())
        .unwrap_or(rest.len());
    let (unit, tail) = rest.split_at(end);
    let scale: i128 = match unit {
        "ns" => 1,
        // The micro sign and the Greek letter mu look alike; Go takes both.
        "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        "" => {
            let number = text
                .get(..text.len() - rest.len())
                .unwrap_or(text)
                .to_owned();
            return Err(GoDurationError::MissingUnit { number });
        }
        unit => {
            return Err(GoDurationError::UnknownUnit {
                unit: unit.to_owned(),
            });
        }
    };
    let whole: u64 = if whole.is_empty() {
        0
    } else {
        whole.parse().map_err(|_| GoDurationError::Overflow)?
    };
    Ok((
        i128::from(whole) * scale + fraction_of(fraction, scale),
        tail,
    ))
}

/// `0.<digits>` of `scale`, cut to a whole number. Digits past the eighteenth are below a nanosecond of any unit.
fn fraction_of(digits: &str, scale: i128) -> i128 {
    let mut value: i128 = 0;
    let mut divisor: i128 = 1;
    for digit in digits.bytes().take(18) {
        value = value * 10 + i128::from(digit.saturating_sub(b'0'));
        divisor *= 10;
    }
    value * scale / divisor
}

fn digits(text: &str) -> (&str, &str) {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    text.split_at(end)
}

/// As Go's `Duration.String`: the largest unit below a second, or hours, minutes and seconds without leading zero
/// units.
impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.unsigned_abs();
        if self.0 < 0 {
            f.write_str("-")?;
        }
        match nanos {
            0 => f.write_str("0s"),
            1..1_000 => write!(f, "{nanos}ns"),
            1_000..1_000_000 => decimal(f, nanos, 1_000, 3).and_then(|()| f.write_str("\u{b5}s")),
            1_000_000..1_000_000_000 => {
                decimal(f, nanos, 1_000_000, 6).and_then(|()| f.write_str("ms"))
            }
            _ => {
                let minutes = nanos / 60_000_000_000;
                if minutes >= 60 {
                    write!(f, "{}h", minutes / 60)?;
                }
                if minutes > 0 {
                    write!(f, "{}m", minutes % 60)?;
                }
                decimal(f, nanos % 60_000_000_000, 1_000_000_000, 9).and_then(|()| f.write_str("s"))
            }
        }
    }
}

/// `value / unit` with as many of the `places` decimals as are needed.
fn decimal(f: &mut fmt::Formatter<'_>, value: u64, unit: u64, places: usize) -> fmt::Result {
    write!(f, "{}", value / unit)?;
    let fraction = value % unit;
    if fraction == 0 {
        return Ok(());
    }
    let padded = format!("{fraction:0places$}");
    write!(f, ".{}", padded.trim_end_matches('0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nanos(text: &str) -> Result<i64, GoDurationError> {
        text.parse().map(GoDuration::as_nanos)
    }

    /// What a Go program prints for `time.ParseDuration` and `Duration.String`.
    #[test]
    fn go_durations_are_read_and_printed_as_go_does() {
        for (text, want, printed) in [
            ("0", 0, "0s"),
            ("-0", 0, "0s"),
            ("0s", 0, "0s"),
            ("1ns", 1, "1ns"),
            ("1100ns", 1_100, "1.1\u{b5}s"),
            ("2us", 2_000, "2\u{b5}s"),
            ("2\u{b5}s", 2_000, "2\u{b5}s"),
            ("2\u{3bc}s", 2_000, "2\u{b5}s"),
            ("2200us", 2_200_000, "2.2ms"),
            ("100ms", 100_000_000, "100ms"),
            ("30s", 30_000_000_000, "30s"),
            ("3300ms", 3_300_000_000, "3.3s"),
            ("1m", 60_000_000_000, "1m0s"),
            ("1h", 3_600_000_000_000, "1h0m0s"),
            ("1h0m0s", 3_600_000_000_000, "1h0m0s"),
            ("1.5h", 5_400_000_000_000, "1h30m0s"),
            ("4m5.001s", 245_001_000_000, "4m5.001s"),
            ("5h6m7.001s", 18_367_001_000_000, "5h6m7.001s"),
            (".5s", 500_000_000, "500ms"),
            ("5.s", 5_000_000_000, "5s"),
            ("-5s", -5_000_000_000, "-5s"),
            ("+5s", 5_000_000_000, "5s"),
            (
                "9223372036854775807ns",
                i64::MAX,
                "2562047h47m16.854775807s",
            ),
        ] {
            assert_eq!(nanos(text), Ok(want), "{text}");
            assert_eq!(GoDuration::from_nanos(want).to_string(), printed, "{text}");
        }
        assert_eq!(
            GoDuration::from_nanos(i64::MIN).to_string(),
            "-2562047h47m16.854775808s"
        );
    }

    #[test]
    fn a_fraction_without_end_is_cut_to_whole_nanoseconds() {
        // Go, by way of floating point, reads the first as 20m0s.
        assert_eq!(nanos("0.3333333333333333333h"), Ok(1_199_999_999_999));
        assert_eq!(nanos("0.9999999999s"), Ok(999_999_999));
        assert_eq!(nanos("-9223372036854775808ns"), Ok(i64::MIN));
    }

    #[test]
    fn what_is_printed_reads_back_as_the_same() {
        for value in [
            1,
            999,
            1_001,
            1_234_567,
            61_000_000_001,
            86_400_000_000_000,
            -1_500_000_000,
            i64::MAX,
        ] {
            assert_eq!(
                nanos(&GoDuration::from_nanos(value).to_string()),
                Ok(value),
                "{value}"
            );
        }
    }

    #[test]
    fn a_bare_number_names_the_missing_unit() {
        assert_eq!(
            nanos("5"),
            Err(GoDurationError::MissingUnit {
                number: "5".to_owned()
            })
        );
        assert_eq!(
            nanos("1h5"),
            Err(GoDurationError::MissingUnit {
                number: "5".to_owned()
            })
        );
        assert_eq!(
            nanos("00"),
            Err(GoDurationError::MissingUnit {
                number: "00".to_owned()
            })
        );
    }

    #[test]
    fn an_unknown_unit_is_named() {
        assert_eq!(
            nanos("1d"),
            Err(GoDurationError::UnknownUnit {
                unit: "d".to_owned()
            })
        );
        assert_eq!(
            nanos("1 s"),
            Err(GoDurationError::UnknownUnit {
                unit: " s".to_owned()
            })
        );
        assert_eq!(
            nanos("1h-1m"),
            Err(GoDurationError::UnknownUnit {
                unit: "h-".to_owned()
            })
        );
    }

    #[test]
    fn text_without_a_number_is_refused() {
        for text in ["", "-", "+", ".", "s", ".s", "-.s", "--5s", "ten seconds"] {
            assert_eq!(nanos(text), Err(GoDurationError::NoNumber), "{text}");
        }
    }

    #[test]
    fn more_than_sixty_three_bits_are_an_overflow() {
        for text in [
            "9223372036854775808ns",
            "2562048h",
            "99999999999999999999s",
            "9223372036854775807ns1ns",
        ] {
            assert_eq!(nanos(text), Err(GoDurationError::Overflow), "{text}");
        }
        assert_eq!(
            GoDuration::try_from(Duration::MAX),
            Err(GoDurationError::Overflow)
        );
    }

    #[test]
    fn only_a_duration_that_is_not_negative_becomes_a_std_duration() {
        assert_eq!(
            GoDuration::from_nanos(5).to_duration(),
            Some(Duration::from_nanos(5))
        );
        assert_eq!(GoDuration::from_nanos(-5).to_duration(), None);
        assert_eq!(
            GoDuration::try_from(Duration::from_secs(1)),
            Ok(GoDuration::from_nanos(1_000_000_000))
        );
    }
}
