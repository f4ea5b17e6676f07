//! Minimum TLS version and cipher suites under Go's names, as upstream's flags take them (wire-protocol.md 5.8, T18).

use std::str::FromStr;

use rustls::SupportedCipherSuite;
use rustls::crypto::aws_lc_rs::cipher_suite;

/// What an operator may narrow. The default is TLS 1.2 and every suite we have.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TlsOptions {
    /// Lowest version a handshake may end in.
    pub min_version: MinVersion,
    /// Suites for TLS 1.2. As with Go, those of TLS 1.3 are always on.
    pub cipher_suites: CipherSuites,
}

/// A minimum TLS version, by the name Go gives it.
///
/// `VersionTLS10` and `VersionTLS11` are accepted and raised to 1.2, which is the oldest that rustls speaks;
/// [`clamped`](Self::clamped) tells the caller to warn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MinVersion {
    version: Version,
    clamped: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Version {
    #[default]
    Tls12,
    Tls13,
}

impl MinVersion {
    /// TLS 1.2, the default.
    pub const TLS12: Self = Self {
        version: Version::Tls12,
        clamped: false,
    };
    /// TLS 1.3.
    pub const TLS13: Self = Self {
        version: Version::Tls13,
        clamped: false,
    };

    /// Whether a version older than 1.2 was asked for and raised. The caller should warn.
    #[must_use]
    pub fn clamped(self) -> bool {
        self.clamped
    }

    /// Whether only TLS 1.3 is left.
    #[must_use]
    pub fn is_tls13(self) -> bool {
        self.version == Version::Tls13
    }
}

/// A value for `--tls-min-version` or `--cipher-suites` that is not known.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum OptionError {
    /// Not one of Go's four names.
    #[error(
        "no TLS version is named \"{name}\"; write VersionTLS12 or VersionTLS13 (VersionTLS10 and VersionTLS11 mean 1.2)"
    )]
    Version {
        /// What was given.
        name: String,
    },
    /// Not a suite that Go takes for secure.
    #[error(
        "cipher suite \"{name}\" is unknown or insecure; known are {}",
        known_names()
    )]
    CipherSuite {
        /// What was given.
        name: String,
    },
}

impl FromStr for MinVersion {
    type Err = OptionError;

    /// Reads Go's name; the empty string is the default, 1.2. Letter case matters, as upstream.
    fn from_str(name: &str) -> Result<Self, OptionError> {
        match name {
            "" | "VersionTLS12" => Ok(Self::TLS12),
            "VersionTLS13" => Ok(Self::TLS13),
            "VersionTLS10" | "VersionTLS11" => Ok(Self {
                version: Version::Tls12,
                clamped: true,
            }),
            _ => Err(OptionError::Version {
                name: name.to_owned(),
            }),
        }
    }
}

/// Which TLS 1.2 suites may be used. TLS 1.3 suites and the order of preference cannot be chosen, as with Go.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CipherSuites {
    /// `None`: all we have. An empty list leaves TLS 1.3 alone.
    tls12: Option<Vec<SupportedCipherSuite>>,
    ignored: Vec<&'static str>,
}

impl CipherSuites {
    /// Reads suite names as `--cipher-suites` gives them. No names, or only blank ones, mean all suites.
    ///
    /// The ECDHE CBC names are accepted and ignored, since rustls has no CBC ([`ignored`](Self::ignored) lists them, for
    /// a warning); so are those of TLS 1.3, which are on in any case.
    ///
    /// # Errors
    ///
    /// [`OptionError::CipherSuite`] for the first name that Go does not list as secure.
    pub fn parse<S: AsRef<str>>(names: &[S]) -> Result<Self, OptionError> {
        let mut names = names
            .iter()
            .map(|name| name.as_ref().trim())
            .filter(|name| !name.is_empty())
            .peekable();
        if names.peek().is_none() {
            return Ok(Self::default());
        }
        let (mut tls12, mut ignored) = (Vec::new(), Vec::new());
        for name in names {
            let known = GO_SUITES.iter().find(|(known, _)| *known == name);
            match known {
                Some((_, Suite::Tls12(suite))) => tls12.push(*suite),
                Some((_, Suite::Tls13)) => {}
                Some((known, Suite::Cbc)) => ignored.push(*known),
                None => {
                    return Err(OptionError::CipherSuite {
                        name: name.to_owned(),
                    });
                }
            }
        }
        Ok(Self {
            tls12: Some(tls12),
            ignored,
        })
    }

    /// Names that were given and have no effect because rustls has no CBC suites.
    #[must_use]
    pub fn ignored(&self) -> &[&'static str] {
        &self.ignored
    }

    pub(crate) fn allows_tls12(&self, suite: SupportedCipherSuite) -> bool {
        self.tls12
            .as_ref()
            .is_none_or(|allowed| allowed.contains(&suite))
    }
}

enum Suite {
    Tls13,
    Tls12(SupportedCipherSuite),
    Cbc,
}

/// The names of `tls.CipherSuites()` in Go 1.26.
static GO_SUITES: &[(&str, Suite)] = &[
    ("TLS_AES_128_GCM_SHA256", Suite::Tls13),
    ("TLS_AES_256_GCM_SHA384", Suite::Tls13),
    ("TLS_CHACHA20_POLY1305_SHA256", Suite::Tls13),
    ("TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA", Suite::Cbc),
    ("TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA", Suite::Cbc),
    ("TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA", Suite::Cbc),
    ("TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA", Suite::Cbc),
    (
        "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
        Suite::Tls12(cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256),
    ),
    (
        "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
        Suite::Tls12(cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384),
    ),
    (
        "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
        Suite::Tls12(cipher_suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256),
    ),
    (
        "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
        Suite::Tls12(cipher_suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384),
    ),
    (
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
        Suite::Tls12(cipher_suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256),
    ),
    (
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
        Suite::Tls12(cipher_suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256),
    ),
];

fn known_names() -> String {
    let names: Vec<_> = GO_SUITES.iter().map(|(name, _)| *name).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_version_names_are_read_and_old_ones_are_raised_with_a_flag() {
        assert_eq!("".parse(), Ok(MinVersion::TLS12));
        assert_eq!("VersionTLS12".parse(), Ok(MinVersion::TLS12));
        assert_eq!("VersionTLS13".parse(), Ok(MinVersion::TLS13));
        for old in ["VersionTLS10", "VersionTLS11"] {
            let version: MinVersion = old.parse().unwrap();
            assert!(version.clamped() && !version.is_tls13(), "{old}");
        }
        assert!(!MinVersion::TLS12.clamped());
    }

    #[test]
    fn an_unknown_version_is_refused_by_name() {
        for bad in ["1.2", "versiontls12", "VersionTLS14", "VersionSSL30"] {
            let error = bad.parse::<MinVersion>().unwrap_err();
            assert!(error.to_string().contains(bad), "{error}");
        }
    }

    #[test]
    fn no_names_or_blank_names_leave_every_suite_on() {
        assert_eq!(
            CipherSuites::parse::<&str>(&[]),
            Ok(CipherSuites::default())
        );
        assert_eq!(CipherSuites::parse(&["", " "]), Ok(CipherSuites::default()));
    }

    #[test]
    fn all_thirteen_names_of_go_are_accepted() {
        let names: Vec<_> = GO_SUITES.iter().map(|(name, _)| *name).collect();
        assert_eq!(names.len(), 13);
        let suites = CipherSuites::parse(&names).unwrap();
        assert_eq!(suites.ignored().len(), 4);
        assert_eq!(suites.tls12.map(|suites| suites.len()), Some(6));
    }

    #[test]
    fn each_go_name_stands_for_the_suite_of_that_name() {
        for (name, suite) in GO_SUITES {
            if let Suite::Tls12(suite) = suite {
                assert_eq!(&format!("{:?}", suite.suite()), name);
            }
        }
    }

    #[test]
    fn insecure_and_unknown_suites_are_refused_by_name() {
        for bad in [
            "TLS_RSA_WITH_AES_128_GCM_SHA256",
            "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256",
            "TLS_RSA_WITH_RC4_128_SHA",
            "tls_aes_128_gcm_sha256",
        ] {
            let error = CipherSuites::parse(&["TLS_AES_128_GCM_SHA256", bad]).unwrap_err();
            assert!(error.to_string().contains(bad), "{error}");
        }
    }

    #[test]
    fn a_list_of_cbc_names_alone_leaves_no_suite_of_tls_1_2() {
        let suites = CipherSuites::parse(&["TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA"]).unwrap();
        assert!(!suites.allows_tls12(cipher_suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256));
        assert_eq!(suites.ignored(), ["TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA"]);
    }
}
