//! Any bytes as certificate, key, CA and token file, through everything that looks into them.

#![no_main]

use std::path::Path;
use std::sync::LazyLock;

use certs::{
    Authority, Identity, Issued, LoadError, Roots, Timestamp, Token, describe, pem, verify,
};
use libfuzzer_sys::{
    arbitrary::{self, Arbitrary},
    fuzz_target,
};

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    /// Whether the bytes are a block's content, else a whole file.
    block: Option<Block>,
    bytes: &'a [u8],
}

/// Base64 is hard to guess; with this the fuzzer gets at what is behind it.
#[derive(Arbitrary, Clone, Copy, Debug)]
enum Block {
    Certificate,
    Pkcs8,
    Sec1,
    Pkcs1,
}

impl Block {
    fn label(self) -> &'static str {
        match self {
            Self::Certificate => "CERTIFICATE",
            Self::Pkcs8 => "PRIVATE KEY",
            Self::Sec1 => "EC PRIVATE KEY",
            Self::Pkcs1 => "RSA PRIVATE KEY",
        }
    }
}

fuzz_target!(|input: Input<'_>| {
    let file = Path::new("the-file");
    let bytes = match input.block {
        None => input.bytes.to_vec(),
        Some(block) => wrap(block.label(), input.bytes),
    };

    if let Ok(token) = Token::from_bytes(file, &bytes) {
        assert!(!token.as_str().is_empty());
        assert_eq!(token.as_str().trim(), token.as_str());
    }

    let key = pem::private_key_in(file, &bytes);
    check_error(key.as_ref().err());
    let certificates = pem::certificates_in(file, &bytes);
    check_error(certificates.as_ref().err());
    // A key file is also tried as the key of a certificate that is fine, and a certificate file with a key that is.
    static OTHER: LazyLock<Issued> = LazyLock::new(|| {
        let issued = Authority::generate("CA").and_then(|ca| ca.issue_client("a"));
        issued.expect("there is randomness")
    });
    let other = &*OTHER;
    if let Ok(key) = key {
        let chain = certificates
            .as_ref()
            .map_or_else(|_| other.chain(), Clone::clone);
        check_error(Identity::from_parts(file, chain, file, key).err().as_ref());
    }
    let Ok(certificates) = certificates else {
        return;
    };
    assert!(!certificates.is_empty());
    let now = Timestamp::now();
    // All of them parsed, so none is left out.
    assert_eq!(
        describe::describe(&certificates, now).len(),
        certificates.len()
    );
    let identity = Identity::from_parts(file, certificates.clone(), file, other.key());
    check_error(identity.as_ref().err());
    let roots = Roots::from_certificates(file, certificates.clone());
    check_error(roots.as_ref().err());
    if let Ok(roots) = roots {
        check_error(roots.check_dates(now).err().as_ref());
        assert!(roots.next_expiry(now).is_some());
        for verdict in [
            verify::client(&certificates, &roots, now),
            verify::server(&certificates, "a.example", &roots, now),
        ] {
            if let Err(error) = verdict {
                assert!(error.to_string().len() < 1 << 16);
            }
        }
        if let Ok(identity) = identity {
            for fault in identity.review_as_server(Some(&roots)) {
                check_error(Some(&fault));
            }
        }
    }
});

/// Whatever is wrong, the operator learns of which file, on one line of bounded length.
fn check_error(error: Option<&LoadError>) {
    let Some(error) = error else { return };
    let text = error.to_string();
    assert!(text.contains("the-file"), "{text}");
    assert!(text.len() < 4096 && !text.contains('\n'), "{text}");
}

/// A PEM block around `der`.
fn wrap(label: &str, der: &[u8]) -> Vec<u8> {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut block = format!("-----BEGIN {label}-----\n").into_bytes();
    for (group, chunk) in der.chunks(3).enumerate() {
        let bits = (0..3).fold(0, |bits, at| {
            bits << 8 | u32::from(chunk.get(at).copied().unwrap_or(0))
        });
        for digit in 0..4 {
            let index = (bits >> (18 - 6 * digit)) & 0x3f;
            block.push(if digit > chunk.len() {
                b'='
            } else {
                DIGITS[index as usize]
            });
        }
        if group % 16 == 15 {
            block.push(b'\n');
        }
    }
    block.extend(format!("\n-----END {label}-----\n").bytes());
    block
}
