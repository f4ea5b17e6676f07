//! Every way a certificate, key or CA file can be wrong, with real files.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use certs::issue::{Authority, Files, Leaf, Replace};
use certs::pem::MAX_FILE_BYTES;
use certs::{Identity, LoadError, Roots, Validity};
use tempfile::TempDir;

/// A folder with an authority and one good pair.
struct Folder {
    dir: TempDir,
    authority: Authority,
    good: Files,
}

impl Folder {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::generate("test CA").unwrap();
        let issued = authority.issue_server(&["server.example"]).unwrap();
        let good = issued.write(dir.path(), "good", Replace::No).unwrap();
        Self {
            dir,
            authority,
            good,
        }
    }

    fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.dir.path().join(name);
        fs::write(&path, content).unwrap();
        path
    }

    fn load_certificate(&self, file: &Path) -> LoadError {
        Identity::load(file, &self.good.key).unwrap_err()
    }

    fn load_key(&self, file: &Path) -> LoadError {
        Identity::load(&self.good.certificate, file).unwrap_err()
    }
}

/// The error names the file, in the words an operator sees.
fn names(error: &LoadError, file: &Path) {
    let text = error.to_string();
    assert!(text.contains(file.to_str().unwrap()), "{text}");
}

#[test]
fn a_good_pair_and_a_good_bundle_load() {
    let folder = Folder::new();
    let identity = Identity::load(&folder.good.certificate, &folder.good.key).unwrap();
    assert_eq!(identity.chain().len(), 1);
    let bundle = folder.file("ca.crt", folder.authority.certificate_pem());
    assert_eq!(Roots::load(&bundle).unwrap().validities().len(), 1);
}

#[test]
fn a_missing_file_is_named_with_the_reason_of_the_system() {
    let folder = Folder::new();
    let file = folder.dir.path().join("missing.crt");
    let error = folder.load_certificate(&file);
    names(&error, &file);
    assert!(
        matches!(error, LoadError::Read { source, .. } if source.kind() == std::io::ErrorKind::NotFound)
    );
}

#[test]
fn a_file_without_read_permission_is_named() {
    let folder = Folder::new();
    fs::set_permissions(&folder.good.key, fs::Permissions::from_mode(0o000)).unwrap();
    if fs::File::open(&folder.good.key).is_ok() {
        writeln!(std::io::stderr(), "skipped: this user may read any file").unwrap();
        return;
    }
    let error = folder.load_key(&folder.good.key);
    names(&error, &folder.good.key);
    assert!(matches!(error, LoadError::Read { .. }));
}

#[test]
fn a_folder_is_refused_as_no_file() {
    let folder = Folder::new();
    let error = folder.load_certificate(folder.dir.path());
    names(&error, folder.dir.path());
    assert!(matches!(error, LoadError::NotAFile { .. }));
}

#[test]
fn a_socket_is_refused_as_no_file() {
    let folder = Folder::new();
    let path = folder.dir.path().join("s");
    let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    assert!(matches!(folder.load_key(&path), LoadError::NotAFile { .. }));
}

#[test]
fn an_empty_or_blank_file_is_called_empty() {
    let folder = Folder::new();
    for content in ["", " \r\n\t\n"] {
        let file = folder.file("empty", content);
        for error in [folder.load_certificate(&file), folder.load_key(&file)] {
            names(&error, &file);
            assert!(matches!(error, LoadError::Empty { .. }), "{error}");
        }
    }
}

#[test]
fn a_file_over_the_limit_is_refused_and_one_at_the_limit_is_read() {
    let folder = Folder::new();
    let mut content = fs::read(&folder.good.certificate).unwrap();
    content.resize(MAX_FILE_BYTES, b'\n');
    let file = folder.file("large.crt", &content);
    Identity::load(&file, &folder.good.key).unwrap();

    content.push(b'\n');
    let file = folder.file("large.crt", &content);
    let error = folder.load_certificate(&file);
    names(&error, &file);
    assert!(matches!(error, LoadError::TooLarge { .. }));
}

#[test]
fn a_certificate_file_with_only_a_key_has_no_certificate() {
    let folder = Folder::new();
    let error = folder.load_certificate(&folder.good.key);
    names(&error, &folder.good.key);
    assert!(matches!(error, LoadError::NoCertificate { .. }));
    let error = Roots::load(&folder.good.key).unwrap_err();
    assert!(matches!(error, LoadError::NoCertificate { .. }));
}

#[test]
fn random_bytes_have_no_certificate_and_no_key() {
    let folder = Folder::new();
    let file = folder.file("random", (0..=255).cycle().take(5000).collect::<Vec<u8>>());
    assert!(matches!(
        folder.load_certificate(&file),
        LoadError::NoCertificate { .. }
    ));
    assert!(matches!(folder.load_key(&file), LoadError::NoKey { .. }));
}

#[test]
fn a_key_file_with_only_a_certificate_has_no_key() {
    let folder = Folder::new();
    let error = folder.load_key(&folder.good.certificate);
    names(&error, &folder.good.certificate);
    assert!(matches!(error, LoadError::NoKey { .. }));
}

#[test]
fn one_file_may_hold_both_certificate_and_key() {
    let folder = Folder::new();
    let both = fs::read_to_string(&folder.good.key).unwrap()
        + &fs::read_to_string(&folder.good.certificate).unwrap();
    let file = folder.file("both.pem", both);
    Identity::load(&file, &file).unwrap();
}

#[test]
fn der_is_recognised_and_told_how_to_convert() {
    let folder = Folder::new();
    let issued = folder.authority.issue_client("a").unwrap();
    let certificate = folder.file("a.der", &issued.chain()[0]);
    let key = folder.file("key.der", issued.key().secret_der());
    for error in [folder.load_certificate(&certificate), folder.load_key(&key)] {
        assert!(matches!(error, LoadError::Der { .. }), "{error}");
        assert!(error.to_string().contains("openssl"), "{error}");
    }
}

#[test]
fn text_and_other_blocks_between_good_certificates_are_skipped() {
    let folder = Folder::new();
    let second = Authority::generate("second CA").unwrap();
    let bundle = format!(
        "# the first\n{}\0\u{fffd} garbage = between\n-----BEGIN WHATEVER-----\n!!!\n-----END WHATEVER-----\n{}the end",
        folder.authority.certificate_pem(),
        second.certificate_pem(),
    );
    let file = folder.file("ca.crt", bundle);
    assert_eq!(Roots::load(&file).unwrap().validities().len(), 2);
}

#[test]
fn windows_line_ends_and_a_missing_last_line_end_are_fine() {
    let folder = Folder::new();
    let pem = folder.authority.certificate_pem();
    let file = folder.file(
        "ca.crt",
        pem.trim_end().replace("\r\n", "\n").replace('\n', "\r\n"),
    );
    Roots::load(&file).unwrap();
}

#[test]
fn a_byte_order_mark_is_named_since_the_first_block_would_be_lost_behind_it() {
    let folder = Folder::new();
    let pem = folder.authority.certificate_pem();
    let file = folder.file("ca.crt", format!("\u{feff}{pem}{pem}"));
    let error = Roots::load(&file).unwrap_err();
    names(&error, &file);
    assert!(matches!(error, LoadError::ByteOrderMark { .. }), "{error}");
    let utf16: Vec<_> = format!("\u{feff}{pem}")
        .encode_utf16()
        .flat_map(u16::to_le_bytes)
        .collect();
    let file = folder.file("utf16.crt", utf16);
    let error = folder.load_certificate(&file);
    assert!(matches!(error, LoadError::ByteOrderMark { .. }), "{error}");
}

#[test]
fn a_certificate_block_that_does_not_parse_refuses_the_bundle_with_its_position() {
    let folder = Folder::new();
    let good = folder.authority.certificate_pem();
    // Base64 of the five bytes "hello".
    let bad = "-----BEGIN CERTIFICATE-----\naGVsbG8=\n-----END CERTIFICATE-----\n";
    let file = folder.file("ca.crt", format!("{good}{bad}{good}"));
    let error = Roots::load(&file).unwrap_err();
    names(&error, &file);
    assert!(
        matches!(error, LoadError::BadCertificate { position: 2, .. }),
        "{error}"
    );
    let error = folder.load_certificate(&file);
    assert!(
        matches!(error, LoadError::BadCertificate { position: 2, .. }),
        "{error}"
    );
}

#[test]
fn bytes_behind_a_certificate_inside_its_block_refuse_it() {
    let folder = Folder::new();
    let mut der = folder.authority.issue_client("a").unwrap().chain()[0].to_vec();
    der.push(0);
    let error = Roots::from_certificates(Path::new("x"), vec![der.into()]).unwrap_err();
    assert!(
        matches!(error, LoadError::BadCertificate { position: 1, .. }),
        "{error}"
    );
}

#[test]
fn broken_base64_and_cut_off_blocks_are_broken_pem() {
    let folder = Folder::new();
    let good = fs::read_to_string(&folder.good.certificate).unwrap();
    let garbage = good.replacen("\nMII", "\n!!!MII", 1);
    assert_ne!(garbage, good);
    let cut = &good[..good.len() / 2];
    let first_line = good.replacen("CERTIFICATE-----", "CERTIFICATE---", 1);
    for content in [garbage.as_str(), cut, first_line.as_str()] {
        let file = folder.file("broken.crt", content);
        let error = folder.load_certificate(&file);
        names(&error, &file);
        assert!(matches!(error, LoadError::Pem { .. }), "{error}");
        assert!(matches!(
            Roots::load(&file).unwrap_err(),
            LoadError::Pem { .. }
        ));
    }
}

#[test]
fn an_encrypted_key_is_called_encrypted() {
    let folder = Folder::new();
    for content in [
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n",
        "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,00\n\nAAAA\n-----END RSA PRIVATE KEY-----\n",
    ] {
        let file = folder.file("encrypted.key", content);
        let error = folder.load_key(&file);
        names(&error, &file);
        assert!(matches!(error, LoadError::EncryptedKey { .. }), "{error}");
    }
}

#[test]
fn a_key_block_that_holds_no_key_cannot_be_used() {
    let folder = Folder::new();
    let file = folder.file(
        "bad.key",
        "-----BEGIN PRIVATE KEY-----\naGVsbG8=\n-----END PRIVATE KEY-----\n",
    );
    let error = folder.load_key(&file);
    names(&error, &file);
    assert!(matches!(error, LoadError::BadKey { .. }), "{error}");
}

#[test]
fn a_key_of_another_certificate_is_named_with_both_files() {
    let folder = Folder::new();
    let other = folder.authority.issue_server(&["server.example"]).unwrap();
    let other = other
        .write(folder.dir.path(), "other", Replace::No)
        .unwrap();
    let error = folder.load_key(&other.key);
    names(&error, &other.key);
    names(&error, &folder.good.certificate);
    assert!(matches!(error, LoadError::KeyMismatch { .. }));
}

#[test]
fn an_expired_certificate_is_named_with_its_last_moment() {
    let folder = Folder::new();
    let leaf = Leaf::server(&["server.example"]).valid(Validity::over());
    let issued = folder.authority.issue(&leaf).unwrap();
    let files = issued.write(folder.dir.path(), "old", Replace::No).unwrap();
    let error = Identity::load(&files.certificate, &files.key).unwrap_err();
    names(&error, &files.certificate);
    assert!(
        error
            .to_string()
            .contains(&leaf.validity.not_after.to_string()),
        "{error}"
    );
    assert!(matches!(error, LoadError::Expired { since, .. } if since == leaf.validity.not_after));
}

#[test]
fn a_certificate_of_the_future_is_named_with_its_first_moment() {
    let folder = Folder::new();
    let leaf = Leaf::server(&["server.example"]).valid(Validity::to_come());
    let issued = folder.authority.issue(&leaf).unwrap();
    let files = issued.write(folder.dir.path(), "new", Replace::No).unwrap();
    let error = Identity::load(&files.certificate, &files.key).unwrap_err();
    names(&error, &files.certificate);
    assert!(
        error
            .to_string()
            .contains(&leaf.validity.not_before.to_string()),
        "{error}"
    );
    assert!(
        matches!(error, LoadError::NotYetValid { before, .. } if before == leaf.validity.not_before)
    );
}

#[test]
fn an_expired_intermediate_makes_the_chain_expired() {
    let folder = Folder::new();
    let old = Authority::generate_valid("old CA", Validity::over()).unwrap();
    let chain = fs::read_to_string(&folder.good.certificate).unwrap() + &old.certificate_pem();
    let file = folder.file("chain.crt", chain);
    assert!(matches!(
        folder.load_certificate(&file),
        LoadError::Expired { .. }
    ));
}

#[test]
fn a_mounted_secret_is_read_through_its_symlinks() {
    let folder = Folder::new();
    let data = folder.dir.path().join("..2026");
    fs::create_dir(&data).unwrap();
    fs::rename(&folder.good.certificate, data.join("tls.crt")).unwrap();
    fs::rename(&folder.good.key, data.join("tls.key")).unwrap();
    symlink("..2026", folder.dir.path().join("..data")).unwrap();
    for name in ["tls.crt", "tls.key"] {
        symlink(format!("..data/{name}"), folder.dir.path().join(name)).unwrap();
    }
    let dir = folder.dir.path();
    Identity::load(&dir.join("tls.crt"), &dir.join("tls.key")).unwrap();
}

/// Keys as OpenSSL writes them, with certificates it signed: made once by hand and kept, since nothing here writes SEC1 or
/// PKCS#1. Valid for a century.
#[test]
fn keys_in_sec1_pkcs1_and_pkcs8_form_are_read() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    for (certificate, key) in [
        ("ec.crt", "ec.sec1.key"),
        ("ec.crt", "ec.pkcs8.key"),
        ("rsa.crt", "rsa.pkcs1.key"),
        ("rsa.crt", "rsa.pkcs8.key"),
    ] {
        Identity::load(&dir.join(certificate), &dir.join(key)).expect(key);
    }
}
