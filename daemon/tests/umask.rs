//! The mode of a socket file doesn't depend on the umask, which is the process's, so the test runs itself under another.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use daemon::uds::{MODE, UdsListener};

#[test]
fn the_socket_file_has_its_mode() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let _bound = UdsListener::bind("--uds-name", &path, true).unwrap();
    assert_eq!(
        fs::symlink_metadata(&path).unwrap().permissions().mode() & 0o7777,
        MODE
    );
}

#[test]
fn the_socket_file_has_its_mode_under_any_umask() {
    for umask in ["000", "027", "077"] {
        let run = Command::new("sh")
            .args([
                "-c",
                &format!("umask {umask} && exec \"$0\" --exact the_socket_file_has_its_mode"),
            ])
            .arg(std::env::current_exe().unwrap())
            .output()
            .unwrap();
        let output = String::from_utf8_lossy(&run.stdout);
        assert!(
            run.status.success() && output.contains("1 passed"),
            "umask {umask}: {output}"
        );
    }
}
