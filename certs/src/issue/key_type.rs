//! The kinds of key that can be made.

use std::fmt;
use std::str::FromStr;

use rcgen::{
    KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ED25519, PKCS_RSA_SHA256,
    RsaKeySize,
};

/// A kind of key. Every one of them works with kube-apiserver, with upstream and between Adit's own ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyType {
    /// ECDSA on P-256: the cheapest to handshake with that every peer takes.
    #[default]
    P256,
    /// ECDSA on P-384.
    P384,
    /// Ed25519.
    Ed25519,
    /// RSA of 2048 bits, as kubeadm makes by default. Takes a good part of a second to generate.
    Rsa2048,
    /// RSA of 3072 bits. Takes seconds to generate.
    Rsa3072,
}

impl KeyType {
    /// All of them, the default first.
    pub const ALL: [Self; 5] = [
        Self::P256,
        Self::P384,
        Self::Ed25519,
        Self::Rsa2048,
        Self::Rsa3072,
    ];

    /// The name for flags, such as `p256`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::P256 => "p256",
            Self::P384 => "p384",
            Self::Ed25519 => "ed25519",
            Self::Rsa2048 => "rsa2048",
            Self::Rsa3072 => "rsa3072",
        }
    }

    pub(crate) fn generate(self) -> Result<KeyPair, rcgen::Error> {
        match self {
            Self::P256 => KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256),
            Self::P384 => KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384),
            Self::Ed25519 => KeyPair::generate_for(&PKCS_ED25519),
            Self::Rsa2048 => KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048),
            Self::Rsa3072 => KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_3072),
        }
    }
}

impl fmt::Display for KeyType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that stands for no [`KeyType`].
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("no key type is named \"{name}\"; known are p256, p384, ed25519, rsa2048 and rsa3072")]
pub struct UnknownKeyType {
    name: String,
}

impl FromStr for KeyType {
    type Err = UnknownKeyType;

    /// Reads [`name`](Self::name); `rsa` means 2048 bits.
    fn from_str(name: &str) -> Result<Self, UnknownKeyType> {
        if name == "rsa" {
            return Ok(Self::Rsa2048);
        }
        let known = Self::ALL.into_iter().find(|known| known.name() == name);
        known.ok_or_else(|| UnknownKeyType {
            name: name.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_read_back_and_others_are_refused_by_name() {
        for key_type in KeyType::ALL {
            assert_eq!(key_type.name().parse(), Ok(key_type));
        }
        assert_eq!("rsa".parse(), Ok(KeyType::Rsa2048));
        let error = "dsa".parse::<KeyType>().unwrap_err();
        assert!(error.to_string().contains("\"dsa\""), "{error}");
    }
}
