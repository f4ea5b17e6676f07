//! The variables, by the rules of Go's `httpproxy` for an `https` URL, which grpc-go applies to a server's address.

use std::error::Error;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Uri;
use percent_encoding::percent_decode_str;

use super::no_proxy;
use crate::server_address::ServerAddress;

/// The first that is not empty counts.
const PROXY_VARIABLES: [&str; 2] = ["HTTPS_PROXY", "https_proxy"];
const EXCEPTION_VARIABLES: [&str; 2] = ["NO_PROXY", "no_proxy"];

/// Why the environment gives no way to servers; the operator's to solve. Never shows credentials.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EnvironmentError {
    /// Not a URL, or one without a host.
    #[error("{variable} is not a proxy's URL, [http://][USER:PASSWORD@]HOST[:PORT]")]
    Url {
        /// Which variable.
        variable: &'static str,
    },
    /// A proxy that is spoken to in another way.
    #[error("{variable} has the scheme {scheme:?}, only http and https proxies are supported")]
    Scheme {
        /// Which variable.
        variable: &'static str,
        /// Its scheme.
        scheme: String,
    },
    /// No certificate can prove such a name.
    #[error("{variable}: {host:?} is neither an IP address nor a DNS name")]
    Host {
        /// Which variable.
        variable: &'static str,
        /// Its host.
        host: String,
    },
    /// Nothing proves who an `https://` proxy is.
    #[error(
        "{variable} is an https proxy, for which SSL_CERT_FILE or the system must hold root certificates"
    )]
    Roots {
        /// Which variable.
        variable: &'static str,
        /// What is wrong with them.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
}

/// A proxy as a variable describes it. `Display` shows no credentials, and there is no `Debug`.
#[derive(Clone)]
pub(super) struct ProxyUrl {
    /// Where it was read.
    pub(super) variable: &'static str,
    pub(super) is_tls: bool,
    /// IPv6 without brackets.
    pub(super) host: String,
    pub(super) port: u16,
    /// `user:password` in base64.
    pub(super) credentials: Option<String>,
}

impl fmt::Display for ProxyUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_tls { "https" } else { "http" };
        let authority = ServerAddress::new(&self.host, self.port);
        write!(f, "{scheme}://{authority}")
    }
}

/// The proxy on the way to `server`, if there is to be one.
///
/// # Errors
/// [`EnvironmentError`] of a variable that would be used.
pub(super) fn proxy_for(
    server: &ServerAddress,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Option<ProxyUrl>, EnvironmentError> {
    let find = |names: [&'static str; 2]| {
        names.into_iter().find_map(|name| {
            let value = variable(name)?;
            let value = value.trim();
            (!value.is_empty()).then(|| (name, value.to_owned()))
        })
    };
    let Some((name, value)) = find(PROXY_VARIABLES) else {
        return Ok(None);
    };
    let exceptions = find(EXCEPTION_VARIABLES).map(|(_, value)| value);
    if no_proxy::is_excepted(server, exceptions.as_deref().unwrap_or_default()) {
        return Ok(None);
    }
    parse(name, &value).map(Some)
}

/// A value without a scheme is that of an `http` proxy.
fn parse(variable: &'static str, value: &str) -> Result<ProxyUrl, EnvironmentError> {
    let (scheme, rest) = value.split_once("://").unwrap_or(("http", value));
    let is_tls = match scheme.to_ascii_lowercase().as_str() {
        "http" => false,
        "https" => true,
        other => {
            return Err(EnvironmentError::Scheme {
                variable,
                scheme: other.to_owned(),
            });
        }
    };
    let bad = || EnvironmentError::Url { variable };
    let uri: Uri = format!("http://{rest}").parse().map_err(|_| bad())?;
    let authority = uri.authority().ok_or_else(bad)?;
    let host = authority.host();
    let bare = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    let host = bare.unwrap_or(host);
    let (user, address) = match authority.as_str().rsplit_once('@') {
        Some((user, address)) => (Some(user), address),
        None => (None, authority.as_str()),
    };
    let port = authority.port_u16();
    // A port that is out of range is no port for `http`, and would quietly become the default one.
    let has_port = address
        .rsplit_once(':')
        .is_some_and(|(_, port)| !port.contains(']'));
    if host.is_empty() || has_port && port.is_none_or(|port| port == 0) {
        return Err(bad());
    }
    Ok(ProxyUrl {
        variable,
        is_tls,
        host: host.to_owned(),
        port: port.unwrap_or(if is_tls { 443 } else { 80 }),
        credentials: user.map(credentials),
    })
}

/// `user:password`, each decoded, in base64 (RFC 7617).
fn credentials(user_info: &str) -> String {
    let (user, password) = user_info.split_once(':').unwrap_or((user_info, ""));
    let mut plain: Vec<u8> = percent_decode_str(user).collect();
    plain.push(b':');
    plain.extend(percent_decode_str(password));
    STANDARD.encode(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(variables: &[(&str, &str)]) -> Result<Option<ProxyUrl>, EnvironmentError> {
        proxy_for(&ServerAddress::new("server.example", 8091), |name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    fn shown(value: &str) -> String {
        match find(&[("HTTPS_PROXY", value)]) {
            Ok(Some(url)) => url.to_string(),
            Ok(None) => "direct".to_owned(),
            Err(error) => error.to_string(),
        }
    }

    /// deployments-in-the-field.md D07 is the empty one.
    #[test]
    fn a_proxy_is_a_url_with_defaults() {
        for (value, url) in [
            ("", "direct"),
            (" ", "direct"),
            ("squid", "http://squid:80"),
            ("squid:3128", "http://squid:3128"),
            ("http://squid:3128/", "http://squid:3128"),
            ("https://squid", "https://squid:443"),
            ("HTTP://10.0.0.1", "http://10.0.0.1:80"),
            ("http://[fd00::1]:8080", "http://[fd00::1]:8080"),
            ("http://[fd00::1]", "http://[fd00::1]:80"),
        ] {
            assert_eq!(shown(value), url, "{value:?}");
        }
    }

    #[test]
    fn what_is_no_proxy_is_refused_without_its_password() {
        for value in [
            "http://",
            "http://user:secret@",
            "http://user:secret@squid:99999",
            "http://user:secret@squid:port",
            "http://user:secret@squ id",
        ] {
            assert_eq!(
                shown(value),
                "HTTPS_PROXY is not a proxy's URL, [http://][USER:PASSWORD@]HOST[:PORT]",
                "{value:?}"
            );
        }
        assert_eq!(
            shown("socks5://user:secret@squid"),
            "HTTPS_PROXY has the scheme \"socks5\", only http and https proxies are supported"
        );
    }

    #[test]
    fn credentials_are_decoded_sent_as_basic_and_not_shown() {
        for (user_info, plain) in [
            ("Aladdin:open%20sesame", "Aladdin:open sesame"),
            ("user", "user:"),
            ("user:a%3Ab%40c", "user:a:b@c"),
        ] {
            let value = format!("http://{user_info}@squid:3128");
            let url = find(&[("HTTPS_PROXY", &value)]).unwrap().unwrap();
            assert_eq!(url.credentials, Some(STANDARD.encode(plain)));
            assert_eq!(url.to_string(), "http://squid:3128");
        }
    }

    #[test]
    fn the_first_variable_that_is_not_empty_counts_and_others_do_not() {
        let of = |variables| find(variables).unwrap().map(|url| url.host);
        assert_eq!(
            of(&[("HTTPS_PROXY", ""), ("https_proxy", "small")]).as_deref(),
            Some("small")
        );
        assert_eq!(
            of(&[("HTTPS_PROXY", "big"), ("https_proxy", "small")]).as_deref(),
            Some("big")
        );
        assert_eq!(of(&[("HTTP_PROXY", "a"), ("ALL_PROXY", "b")]), None);
        assert_eq!(of(&[("HTTPS_PROXY", "a"), ("no_proxy", ".example")]), None);
        // An exception makes the variable's faults irrelevant.
        assert_eq!(
            of(&[("HTTPS_PROXY", "socks5://a"), ("NO_PROXY", "*")]),
            None
        );
    }
}
