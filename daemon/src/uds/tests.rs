use std::os::unix::fs::{FileTypeExt as _, symlink};
use std::os::unix::net::{UnixDatagram, UnixStream};

use super::*;

const FLAG: &str = "--uds-name";

fn names(directory: &Path) -> Vec<OsString> {
    fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect()
}

#[test]
fn the_socket_has_its_final_mode_serves_and_is_alone_in_its_directory() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("server.socket");
    let (listener, file) = UdsListener::bind(FLAG, &path, true).unwrap().into_parts();
    let found = fs::symlink_metadata(&path).unwrap();
    assert!(found.file_type().is_socket());
    assert_eq!(found.mode() & 0o7777, MODE);
    assert_eq!(names(directory.path()), ["server.socket"]);
    assert_eq!(file.path(), path);
    UnixStream::connect(&path).unwrap();
    listener.set_nonblocking(false).unwrap();
    listener.accept().unwrap();
    drop(file);
    assert!(names(directory.path()).is_empty());
}

#[test]
fn not_even_the_temporary_file_is_open_to_others() {
    let directory = tempfile::tempdir().unwrap();
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
    fchmod(&socket).unwrap();
    let opened = File::open(directory.path()).unwrap();
    let temporary = Temporary::bind(&socket, directory.path(), &opened, OsStr::new("s")).unwrap();
    // Without fchmod, it is 0777 less the umask, which leaves others something under all usual ones.
    assert_eq!(
        fs::symlink_metadata(&temporary.path).unwrap().mode() & 0o007,
        0
    );
    drop(temporary);
    assert!(names(directory.path()).is_empty());
}

#[test]
fn a_path_of_the_greatest_length_is_served_and_one_byte_more_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let room = MAX_PATH_BYTES - directory.path().as_os_str().len() - 1;
    let path = directory.path().join("s".repeat(room));
    let bound = UdsListener::bind(FLAG, &path, true).unwrap();
    assert_eq!(names(directory.path()), [OsString::from("s".repeat(room))]);
    UnixStream::connect(&path).unwrap();
    drop(bound);

    let path = directory.path().join("s".repeat(room + 1));
    let error = UdsListener::bind(FLAG, &path, true)
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        format!("--uds-name: socket path {path:?} has 108 bytes, the limit is 107")
    );
}

#[test]
fn the_socket_of_a_process_that_is_gone_is_replaced_only_if_wanted() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    drop(UnixListener::bind(&path).unwrap()); // the standard library leaves the file

    let error = UdsListener::bind(FLAG, &path, false).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("--uds-name: listen on {path:?}: address already in use")
    );
    assert!(path.exists());

    let _bound = UdsListener::bind(FLAG, &path, true).unwrap();
    UnixStream::connect(&path).unwrap();
}

#[test]
fn a_file_and_a_dangling_link_are_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    fs::write(&path, "left over").unwrap();
    drop(UdsListener::bind(FLAG, &path, true).unwrap());
    symlink("nowhere", &path).unwrap();
    let _bound = UdsListener::bind(FLAG, &path, true).unwrap();
    UnixStream::connect(&path).unwrap();
}

#[test]
fn the_socket_of_a_live_process_is_never_removed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let _held = UdsListener::bind(FLAG, &path, true).unwrap();
    let error = UdsListener::bind(FLAG, &path, true).unwrap_err();
    assert!(matches!(error, UdsError::InUse { .. }), "{error}");
    UnixStream::connect(&path).unwrap();

    let link = directory.path().join("link");
    symlink(&path, &link).unwrap();
    assert!(matches!(
        UdsListener::bind(FLAG, &link, true),
        Err(UdsError::InUse { .. })
    ));
    assert_eq!(names(directory.path()).len(), 2);
}

#[test]
fn a_live_socket_with_a_full_queue_or_of_another_type_is_live() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("full");
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
    socket.bind(&SockAddr::unix(&path).unwrap()).unwrap();
    socket.listen(0).unwrap();
    let _waiting = UnixStream::connect(&path).unwrap();
    assert!(matches!(
        UdsListener::bind(FLAG, &path, true),
        Err(UdsError::InUse { .. })
    ));

    let path = directory.path().join("datagram");
    let _held = UnixDatagram::bind(&path).unwrap();
    assert!(matches!(
        UdsListener::bind(FLAG, &path, true),
        Err(UdsError::InUse { .. })
    ));
}

#[test]
fn a_directory_is_not_removed() {
    let directory = tempfile::tempdir().unwrap();
    let error = UdsListener::bind(FLAG, directory.path(), true).unwrap_err();
    assert!(matches!(error, UdsError::NotAFile { .. }), "{error}");
    assert!(directory.path().is_dir());
    assert!(matches!(
        UdsListener::bind(FLAG, Path::new(""), true),
        Err(UdsError::NotAFile { .. })
    ));
}

#[test]
fn a_missing_directory_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("missing/s");
    let error = UdsListener::bind(FLAG, &path, true)
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with(&format!(
            "--uds-name: open the directory of {path:?}: No such file"
        )),
        "{error}"
    );
}

#[test]
fn the_file_of_a_successor_survives_the_end_of_its_predecessor() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let first = UdsListener::bind(FLAG, &path, true).unwrap();
    fs::remove_file(&path).unwrap();
    let _second = UdsListener::bind(FLAG, &path, true).unwrap();
    drop(first);
    UnixStream::connect(&path).unwrap();
}
