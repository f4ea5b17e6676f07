mod presented;
mod warnings;

use std::fs;
use std::os::unix::fs::symlink;

use rustls::pki_types::CertificateDer;
use tempfile::TempDir;

use super::*;
use crate::dates::Validity;
use crate::issue::{Authority, AuthoritySpec, Files, Issued, Leaf, Replace};
use crate::pem;
use crate::status::{FileState, FileStatus, Outcome};
use crate::tls::ALPN_AGENT;

const NAMES: &[&str] = &["server.example"];

/// A folder with a CA and a server's pair, watched as one set.
struct World {
    dir: TempDir,
    authority: Authority,
    watcher: Watcher,
    server: Current<Arc<ServerConfig>>,
}

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::generate("CA").unwrap();
        fs::write(dir.path().join("ca.crt"), authority.certificate_pem()).unwrap();
        let issued = authority.issue_server(NAMES).unwrap();
        issued.write(dir.path(), "tls", Replace::No).unwrap();
        let mut watcher = Watcher::new();
        let options = TlsOptions::default();
        let files = files(dir.path());
        let server = watcher.server(files, ALPN_AGENT, &options).unwrap();
        Self {
            dir,
            authority,
            watcher,
            server,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        fs::write(self.path(name), content).unwrap();
    }

    fn write_pair(&self, issued: &Issued) {
        self.write("tls.key", issued.key_pem());
        self.write("tls.crt", issued.certificate_pem());
    }

    fn renewed(&self) -> Issued {
        self.authority.issue_server(NAMES).unwrap()
    }

    fn poll(&mut self, times: u32) {
        for _ in 0..times {
            self.watcher.poll_once(Timestamp::now());
        }
    }

    /// Whether the configuration changed since this was last asked.
    fn changed(&mut self) -> bool {
        let changed = self.server.has_changed();
        let _config = self.server.current_seen();
        changed
    }

    fn file(&self, name: &str) -> FileStatus {
        let status = self.watcher.status().current();
        let path = self.path(name);
        let mut files = status.files().iter();
        files.find(|file| file.file() == path).unwrap().clone()
    }

    fn counts(&self, name: &str) -> (u64, u64) {
        let file = self.file(name);
        (
            file.changes(Outcome::Reloaded),
            file.changes(Outcome::Refused),
        )
    }

    fn reason(&self, name: &str) -> String {
        match self.file(name).state() {
            FileState::Stale { reason, .. } => reason.clone(),
            FileState::Fresh => panic!("{name} is fresh"),
        }
    }

    /// Polls until a change would be taken up, and checks that it is not, and why.
    fn expect_refusal(&mut self, file: &str, words: &str) {
        let before = self.counts(file);
        self.poll(5);
        assert!(!self.changed(), "in use despite {words}");
        let reason = self.reason(file);
        assert!(reason.contains(words), "{reason}");
        let once = (before.0, before.1 + 1);
        assert_eq!(self.counts(file), once, "counted once: {words}");
        assert!(!self.watcher.status().current().is_fresh());
    }

    /// Polls until a change is taken up, and checks that it is.
    fn expect_reload(&mut self) {
        self.poll(2);
        assert!(self.changed());
        assert!(self.watcher.status().current().is_fresh());
    }
}

fn files(dir: &Path) -> ServerFiles {
    ServerFiles {
        certificate: dir.join("tls.crt"),
        key: dir.join("tls.key"),
        client_ca: Some(dir.join("ca.crt")),
    }
}

#[test]
fn files_that_stay_are_never_published_again() {
    let mut world = World::new();
    world.poll(10);
    assert!(!world.changed());
    assert_eq!(world.counts("tls.crt"), (0, 0));
}

#[test]
fn the_same_content_written_again_is_no_change() {
    let mut world = World::new();
    let content = fs::read(world.path("tls.crt")).unwrap();
    world.write("tls.crt", content);
    world.poll(3);
    assert!(!world.changed());
}

#[test]
fn a_renewed_pair_is_in_use_after_two_polls() {
    let mut world = World::new();
    world.write_pair(&world.renewed());
    world.poll(1);
    assert!(!world.changed(), "perhaps still being written");
    world.poll(1);
    assert!(world.changed());
    assert_eq!(world.counts("tls.crt"), (1, 0));
    assert_eq!(world.counts("tls.key"), (1, 0));
    assert_eq!(world.counts("ca.crt"), (0, 0));
    world.poll(5);
    assert!(!world.changed());
}

#[test]
fn a_mounted_secret_swapped_by_symlink_is_taken_up_whole() {
    let mut world = World::new();
    let dir = world.path("mount");
    let ca = world.path("ca.crt");
    let version = |name: &str, issued: &Issued| {
        let version = dir.join(name);
        fs::create_dir_all(&version).unwrap();
        issued.write(&version, "tls", Replace::No).unwrap();
        fs::copy(&ca, version.join("ca.crt")).unwrap();
    };
    version("..2026_01", &world.renewed());
    symlink("..2026_01", dir.join("..data")).unwrap();
    for name in ["tls.crt", "tls.key", "ca.crt"] {
        symlink(Path::new("..data").join(name), dir.join(name)).unwrap();
    }
    let options = TlsOptions::default();
    let mut server = world
        .watcher
        .server(files(&dir), ALPN_AGENT, &options)
        .unwrap();

    // As kubelet: the new folder, a new symlink beside, renamed over the old one, the old folder removed.
    version("..2026_02", &world.renewed());
    symlink("..2026_02", dir.join("..data_tmp")).unwrap();
    fs::rename(dir.join("..data_tmp"), dir.join("..data")).unwrap();
    fs::remove_dir_all(dir.join("..2026_01")).unwrap();
    world.poll(2);
    assert!(server.has_changed());
    let _config = server.current_seen();
    let status = world.watcher.status().current();
    let file = status.files().iter();
    let file = file.filter(|file| file.file() == dir.join("tls.key"));
    assert_eq!(
        file.map(|file| file.changes(Outcome::Reloaded))
            .sum::<u64>(),
        1
    );
}

#[test]
fn a_half_swapped_pair_waits_for_its_other_half() {
    let mut world = World::new();
    let issued = world.renewed();
    world.write("tls.crt", issued.certificate_pem());
    world.poll(1);
    assert!(!world.changed());
    assert_eq!(world.counts("tls.crt"), (0, 0), "too early to complain");
    world.write("tls.key", issued.key_pem());
    world.expect_reload();
    assert_eq!(world.counts("tls.crt"), (1, 0));
}

#[test]
fn a_key_of_another_certificate_is_refused_until_its_own_comes() {
    let mut world = World::new();
    let (one, other) = (world.renewed(), world.renewed());
    world.write("tls.crt", one.certificate_pem());
    world.write("tls.key", other.key_pem());
    world.expect_refusal("tls.crt", "does not match");
    world.write("tls.key", one.key_pem());
    world.expect_reload();
    assert_eq!(world.counts("tls.key"), (1, 1));
}

#[test]
fn a_file_that_is_empty_for_a_moment_goes_unnoticed() {
    let mut world = World::new();
    let content = fs::read(world.path("tls.crt")).unwrap();
    world.write("tls.crt", "");
    world.poll(1);
    world.write("tls.crt", content);
    world.poll(3);
    assert!(!world.changed());
    assert!(world.watcher.status().current().is_fresh());
    assert_eq!(world.counts("tls.crt"), (0, 0));
}

#[test]
fn broken_files_keep_the_last_good_and_are_told_once_each() {
    let mut world = World::new();
    let good = fs::read_to_string(world.path("tls.crt")).unwrap();
    for (content, words) in [
        ("", "is empty"),
        (&good[..good.len() / 2], "broken PEM block"),
        ("garbage", "no certificate"),
        ("\u{feff}-----BEGIN", "byte order mark"),
        ("\u{0}\u{1}\u{2}", "no certificate"),
    ] {
        world.write("tls.crt", content);
        world.expect_refusal("tls.crt", words);
        assert_eq!(world.file("tls.key").state(), &FileState::Fresh);
    }
    world.write("tls.crt", &good);
    world.poll(1);
    assert!(world.watcher.status().current().is_fresh());
    assert!(!world.changed(), "the last good again, which is in use");
}

#[test]
fn a_file_that_is_gone_keeps_the_last_good() {
    let mut world = World::new();
    fs::remove_file(world.path("tls.key")).unwrap();
    world.expect_refusal("tls.key", "No such file");
    world.write_pair(&world.renewed());
    world.expect_reload();
}

#[test]
fn a_larger_file_than_allowed_keeps_the_last_good() {
    let mut world = World::new();
    world.write("ca.crt", vec![b'\n'; 10 * pem::MAX_FILE_BYTES]);
    world.expect_refusal("ca.crt", "is larger than");
}

#[test]
fn der_and_an_encrypted_key_are_refused_by_name() {
    let mut world = World::new();
    let issued = world.renewed();
    world.write("tls.crt", &issued.chain()[0]);
    world.expect_refusal("tls.crt", "is DER, not PEM");
    world.write("tls.crt", issued.certificate_pem());
    world.write("tls.key", "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n");
    world.expect_refusal("tls.key", "is encrypted");
}

#[test]
fn an_expired_new_certificate_is_refused() {
    let mut world = World::new();
    let leaf = Leaf::server(NAMES).valid(Validity::over());
    world.write_pair(&world.authority.issue(&leaf).unwrap());
    world.expect_refusal("tls.crt", "expired");
}

#[test]
fn a_certificate_of_the_near_future_is_taken_up_when_its_time_comes() {
    let mut world = World::new();
    let leaf = Leaf::server(NAMES).valid(Validity::to_come());
    world.write_pair(&world.authority.issue(&leaf).unwrap());
    world.expect_refusal("tls.crt", "is not valid before");
    world.watcher.poll_once(leaf.validity.not_before);
    assert!(world.changed());
}

#[test]
fn a_new_certificate_without_names_is_refused() {
    let mut world = World::new();
    let leaf = world.authority.issue(&Leaf::server(&[])).unwrap();
    world.write_pair(&leaf);
    world.expect_refusal("tls.crt", "no subjectAltName");
}

#[test]
fn a_bundle_with_garbage_between_good_certificates_is_refused_whole() {
    let mut world = World::new();
    let good = world.authority.certificate_pem();
    // Base64 of "hello" where a certificate should be.
    let bad = "-----BEGIN CERTIFICATE-----\naGVsbG8=\n-----END CERTIFICATE-----\n";
    world.write("ca.crt", format!("{good}{bad}{good}"));
    world.expect_refusal("ca.crt", "certificate 2");
}

#[test]
fn a_bundle_seen_between_two_certificates_while_it_is_written_is_not_taken_up() {
    let mut world = World::new();
    let second = Authority::generate("CA 2").unwrap().certificate_pem();
    let third = Authority::generate("CA 3").unwrap().certificate_pem();
    world.write("ca.crt", &second);
    world.poll(1);
    world.write("ca.crt", format!("{second}{third}"));
    world.poll(1);
    assert!(!world.changed());
    world.expect_reload();
    assert_eq!(world.counts("ca.crt"), (1, 0));
}

#[test]
fn a_bundle_without_a_valid_authority_is_refused_and_with_one_it_is_noted() {
    let mut world = World::new();
    let old = Authority::generate_valid("old", Validity::over()).unwrap();
    world.write("ca.crt", old.certificate_pem());
    world.expect_refusal("ca.crt", "expired");
    let both = old.certificate_pem() + &world.authority.certificate_pem();
    world.write("ca.crt", both);
    world.expect_reload();
    let notes = world.file("ca.crt").notes().join(";");
    assert!(notes.contains("1 of 2"), "{notes}");
    let end = world.authority.validity().not_after;
    assert_eq!(world.file("ca.crt").not_after(), Some(end));
}

#[test]
fn a_root_that_ends_is_no_longer_trusted_although_no_file_changed() {
    let mut world = World::new();
    let short = Validity::days(30);
    let old = Authority::generate_valid("old", short).unwrap();
    let both = old.certificate_pem() + &world.authority.certificate_pem();
    world.write("ca.crt", both);
    world.expect_reload();
    assert_eq!(world.file("ca.crt").not_after(), Some(short.not_after));

    world.watcher.poll_once(short.not_after);
    assert!(!world.changed());
    world.watcher.poll_once(short.not_after.plus_seconds(1));
    assert!(world.changed());
    let file = world.file("ca.crt");
    assert_eq!(file.not_after(), Some(world.authority.validity().not_after));
    assert!(file.notes().join(";").contains("1 of 2"));
    assert_eq!(file.changes(Outcome::Reloaded), 1, "no file changed");
    world.watcher.poll_once(short.not_after.plus_seconds(2));
    assert!(!world.changed());
}

#[test]
fn files_that_never_come_to_rest_are_tried_all_the_same() {
    let mut world = World::new();
    let issued = world.renewed();
    world.write("tls.key", issued.key_pem());
    for n in 1..MAX_RESTLESS_POLLS {
        world.write("tls.crt", format!("{}# {n}\n", issued.certificate_pem()));
        world.poll(1);
        assert!(!world.changed());
    }
    world.write("tls.crt", issued.certificate_pem());
    world.poll(1);
    assert!(world.changed());
}

#[test]
fn a_chain_with_an_older_authority_of_the_same_name_is_refused() {
    let mut world = World::new();
    let old = Authority::generate("CA").unwrap();
    let issued = Authority::generate("CA").unwrap();
    let issued = issued.issue_server(NAMES).unwrap();
    world.write("tls.key", issued.key_pem());
    world.write("tls.crt", issued.certificate_pem() + &old.certificate_pem());
    world.expect_refusal("tls.crt", "not signed by the issuer");
}

#[test]
fn a_missing_intermediate_is_noted_and_the_certificate_used() {
    let mut world = World::new();
    let root = Authority::create(&AuthoritySpec::new("root").with_intermediates(1)).unwrap();
    let middle = root.issue_authority("middle").unwrap();
    let issued = middle.issue_server(NAMES).unwrap();
    world.write("ca.crt", root.certificate_pem());
    world.write_pair(&issued);
    world.expect_reload();
    assert_eq!(world.file("tls.crt").notes(), [] as [String; 0]);

    let pem = issued.certificate_pem();
    let first = pem.split_inclusive("-----END CERTIFICATE-----\n").next();
    world.write("tls.crt", first.unwrap());
    world.expect_reload();
    let notes = world.file("tls.crt").notes().join(";");
    assert!(notes.contains("\"CN=middle\""), "{notes}");
}

#[test]
fn expiry_follows_the_certificate_in_use() {
    let mut world = World::new();
    let leaf = Leaf::server(NAMES).valid(Validity::days(3));
    world.write_pair(&world.authority.issue(&leaf).unwrap());
    world.expect_reload();
    let end = leaf.validity.not_after;
    let left = world.file("tls.crt").expiry_seconds(end.plus_days(-2));
    assert_eq!(left, Some(2 * 86_400));
    assert_eq!(world.file("tls.key").expiry_seconds(end), None);
    // What is refused does not count.
    world.write("tls.crt", "");
    world.poll(2);
    assert_eq!(world.file("tls.crt").not_after(), Some(end));
}

#[test]
fn a_dialler_learns_of_its_own_certificate_and_of_the_ca() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let authority = Authority::generate("CA").unwrap();
    let ca = dir.join("ca.crt");
    fs::write(&ca, authority.certificate_pem()).unwrap();
    let pair = |replace| {
        let issued = authority.issue_client("agent").unwrap();
        issued.write(dir, "agent", replace).unwrap()
    };
    let Files { certificate, key } = pair(Replace::No);
    let mut watcher = Watcher::new();
    let client_files = ClientFiles {
        ca: ca.clone(),
        identity: Some((certificate, key)),
    };
    let options = TlsOptions::default();
    let mut client = watcher.client(client_files, ALPN_AGENT, &options).unwrap();
    let now = Timestamp::now();

    pair(Replace::Yes);
    watcher.poll_once(now);
    watcher.poll_once(now);
    assert!(client.has_changed(), "own certificate");
    let before = client.current_seen();

    let more = Authority::generate("CA 2").unwrap().certificate_pem();
    fs::write(&ca, authority.certificate_pem() + &more).unwrap();
    watcher.poll_once(now);
    watcher.poll_once(now);
    assert!(client.has_changed(), "CA");
    assert!(!Arc::ptr_eq(&before, &client.current_seen()));
}

#[test]
fn a_token_is_trimmed_and_taken_up_anew() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    fs::write(&file, "one\n").unwrap();
    let mut watcher = Watcher::new();
    let token = watcher.token(&file).unwrap();
    assert_eq!(token.current().as_str(), "one");
    for (content, expected) in [
        ("two\n", "two"),
        ("", "two"),
        ("a b", "two"),
        ("three", "three"),
    ] {
        fs::write(&file, content).unwrap();
        watcher.poll_once(Timestamp::now());
        watcher.poll_once(Timestamp::now());
        assert_eq!(token.current().as_str(), expected);
    }
}

#[test]
fn files_that_are_bad_at_the_start_are_an_error() {
    let world = World::new();
    world.write("tls.crt", "");
    let mut watcher = Watcher::new();
    let options = TlsOptions::default();
    let error = watcher.server(files(world.dir.path()), ALPN_AGENT, &options);
    let error = error.unwrap_err().to_string();
    assert!(error.contains("tls.crt is empty"), "{error}");
    assert_eq!(watcher.status().current().files(), []);
}

#[tokio::test(start_paused = true)]
async fn the_running_watcher_takes_up_a_change_within_two_intervals() {
    let World {
        dir,
        authority,
        watcher,
        mut server,
    } = World::new();
    let running = watcher.run(DEFAULT_INTERVAL);
    let begun = tokio::time::Instant::now();
    authority
        .issue_server(NAMES)
        .unwrap()
        .write(dir.path(), "tls", Replace::Yes)
        .unwrap();
    tokio::select! {
        error = running => panic!("{error}"),
        () = server.changed() => {}
    }
    assert!(begun.elapsed() <= 2 * DEFAULT_INTERVAL);
}

#[tokio::test(start_paused = true)]
async fn after_the_watcher_is_gone_what_is_in_use_stays() {
    let World {
        watcher,
        mut server,
        ..
    } = World::new();
    let before = server.current_seen();
    drop(watcher);
    let waited = tokio::time::timeout(Duration::from_secs(3600), server.changed());
    assert!(waited.await.is_err());
    assert!(Arc::ptr_eq(&before, &server.current()));
}
