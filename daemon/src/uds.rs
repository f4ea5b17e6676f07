//! The socket file of a frontend.
//!
//! kube-apiserver dials the path over and over while the server is still starting, and other users of the host may look
//! at it meanwhile. So the file appears under its name in one step, already listening and with its final mode, and it
//! never replaces the socket of a process that lives (wire-protocol.md 5.2, field-tests R70 and R145):
//!
//! 1. bind to a random name beside the path. bind(2) takes the file's mode from the socket's own, less the umask; that
//!    mode is set beforehand, so not even the temporary file is ever open to others. The process's umask, which all
//!    threads share, is left alone.
//! 2. chmod to exactly [`MODE`], for the umask may have taken bits away; listen.
//! 3. link(2) it to the path, which unlike rename(2) fails if anything is there, and unlink the temporary name.
//!
//! Tools that list sockets by the address they were bound to show the temporary name, which begins with the real one's
//! where that leaves room.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata, Permissions};
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use socket2::{Domain, SockAddr, Socket, Type};

/// Longest path of a socket in bytes: `sun_path` holds 108, the last of them NUL (unix(7)).
pub const MAX_PATH_BYTES: usize = 107;

/// Mode of the socket file: its user and group may connect.
pub const MODE: u32 = 0o770;

/// Why there is no socket; the operator's to solve. Every text names the flag and the path.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UdsError {
    /// The path doesn't fit into a socket address.
    #[error("{flag}: socket path {path:?} has {bytes} bytes, the limit is {MAX_PATH_BYTES}")]
    PathTooLong {
        /// The flag that set the path.
        flag: String,
        /// The path.
        path: PathBuf,
        /// Its length.
        bytes: usize,
    },
    /// Something is at the path, and it is not to be deleted.
    #[error("{flag}: listen on {path:?}: address already in use")]
    Exists {
        /// The flag that set the path.
        flag: String,
        /// The path.
        path: PathBuf,
    },
    /// The socket at the path belongs to a process that lives.
    #[error("{flag}: listen on {path:?}: address already in use by a live process")]
    InUse {
        /// The flag that set the path.
        flag: String,
        /// The path.
        path: PathBuf,
    },
    /// The path is a directory, or names none of its entries.
    #[error("{flag}: listen on {path:?}: not the path of a file")]
    NotAFile {
        /// The flag that set the path.
        flag: String,
        /// The path.
        path: PathBuf,
    },
    /// A step failed.
    #[error("{flag}: {step} {path:?}: {cause}")]
    Io {
        /// The flag that set the path.
        flag: String,
        /// The path.
        path: PathBuf,
        /// What was being done to it.
        step: &'static str,
        /// What the system said.
        cause: io::Error,
    },
}

/// A listening socket and its file.
#[derive(Debug)]
pub struct UdsListener {
    listener: UnixListener,
    file: SocketFile,
}

impl UdsListener {
    /// Listens at `path`, non-blocking, with a queue of [`BACKLOG`](crate::listen::BACKLOG); `flag` is named in errors.
    ///
    /// With `delete_existing`, whatever else is at the path is removed first: the socket of a process that is gone, a
    /// file, a symbolic link; never a directory, nor a socket that answers. Of two processes that start at once one may
    /// win by removing what the other has just made, but only in the moment between its check and its removal.
    ///
    /// # Errors
    ///
    /// [`UdsError`]; then nothing is left behind, save that a stale file may be gone.
    pub fn bind(flag: &str, path: &Path, delete_existing: bool) -> Result<Self, UdsError> {
        let place = Place { flag, path };
        let bytes = path.as_os_str().as_bytes().len();
        if bytes > MAX_PATH_BYTES {
            return Err(UdsError::PathTooLong {
                flag: flag.to_owned(),
                path: path.to_owned(),
                bytes,
            });
        }
        let name = path.file_name().ok_or_else(|| place.not_a_file())?;
        if let Some(found) = place.found()? {
            if !delete_existing {
                return Err(place.exists());
            }
            place.remove_unless_live(&found)?;
        }
        place.create(name)
    }

    /// The listener, to be handed to [`tokio::net::UnixListener::from_std`], and its file, to be kept as long as it
    /// serves.
    pub fn into_parts(self) -> (UnixListener, SocketFile) {
        (self.listener, self.file)
    }
}

/// The file of a listening socket. Dropped, it removes the file, if the path still leads to it and not to a successor's.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl SocketFile {
    /// The path that clients dial.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn is_at_path(&self) -> bool {
        fs::symlink_metadata(&self.path)
            .is_ok_and(|found| (found.dev(), found.ino()) == (self.device, self.inode))
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.is_at_path()
            && let Err(error) = fs::remove_file(&self.path)
        {
            tracing::warn!(path = %self.path.display(), %error, "could not remove the socket file");
        }
    }
}

/// A path and the flag it came from.
#[derive(Debug, Clone, Copy)]
struct Place<'a> {
    flag: &'a str,
    path: &'a Path,
}

impl Place<'_> {
    fn io(self, step: &'static str) -> impl FnOnce(io::Error) -> UdsError {
        let (flag, path) = (self.flag.to_owned(), self.path.to_owned());
        move |cause| UdsError::Io {
            flag,
            path,
            step,
            cause,
        }
    }

    fn exists(self) -> UdsError {
        UdsError::Exists {
            flag: self.flag.to_owned(),
            path: self.path.to_owned(),
        }
    }

    fn not_a_file(self) -> UdsError {
        UdsError::NotAFile {
            flag: self.flag.to_owned(),
            path: self.path.to_owned(),
        }
    }

    /// What is at the path, a link itself and not where it leads.
    fn found(self) -> Result<Option<Metadata>, UdsError> {
        match fs::symlink_metadata(self.path) {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.io("look at")(error)),
        }
    }

    fn remove_unless_live(self, found: &Metadata) -> Result<(), UdsError> {
        if found.is_dir() {
            return Err(self.not_a_file());
        }
        if self.is_live()? {
            return Err(UdsError::InUse {
                flag: self.flag.to_owned(),
                path: self.path.to_owned(),
            });
        }
        match self.found()? {
            None => Ok(()),
            Some(now) if (now.dev(), now.ino()) == (found.dev(), found.ino()) => {
                match fs::remove_file(self.path) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => {
                        Err(self.io("remove existing")(error))
                    }
                    _ => Ok(()),
                }
            }
            // Someone else has just started here.
            Some(_) => Err(UdsError::InUse {
                flag: self.flag.to_owned(),
                path: self.path.to_owned(),
            }),
        }
    }

    /// Whether a process serves the socket at the path. It sees a connection that closes at once.
    fn is_live(self) -> Result<bool, UdsError> {
        let step = "check whether a process serves";
        let address = SockAddr::unix(self.path).map_err(self.io(step))?;
        // Non-blocking: on a live socket whose queue is full, connect(2) would wait.
        let probe =
            Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None).map_err(self.io(step))?;
        match probe.connect(&address) {
            Ok(()) => Ok(true),
            // Refused: no listener, or no socket at all. Not found: gone meanwhile, or a link to nowhere.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound
                ) =>
            {
                Ok(false)
            }
            // A full queue, or a socket of another type: somebody's.
            Err(error)
                if error.kind() == io::ErrorKind::WouldBlock
                    || error.raw_os_error() == Some(EPROTOTYPE) =>
            {
                Ok(true)
            }
            Err(error) => Err(self.io(step)(error)),
        }
    }

    /// The three steps of the module's description.
    fn create(self, name: &OsStr) -> Result<UdsListener, UdsError> {
        let parent = match self.path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let directory = File::open(parent).map_err(self.io("open the directory of"))?;
        let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)
            .map_err(self.io("make a socket for"))?;
        fchmod(&socket).map_err(self.io("set the mode of"))?;

        let temporary = Temporary::bind(&socket, parent, &directory, name)
            .map_err(self.io("create a socket beside"))?;
        fs::set_permissions(&temporary.path, Permissions::from_mode(MODE))
            .map_err(self.io("set the mode of"))?;
        let made = fs::symlink_metadata(&temporary.path).map_err(self.io("look at"))?;
        socket
            .listen(crate::listen::BACKLOG)
            .map_err(self.io("listen on"))?;
        fs::hard_link(&temporary.path, self.path).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => self.exists(),
            _ => self.io("create")(error),
        })?;
        let file = SocketFile {
            path: self.path.to_owned(),
            device: made.dev(),
            inode: made.ino(),
        };
        Ok(UdsListener {
            listener: socket.into(),
            file,
        })
    }
}

const EPROTOTYPE: i32 = 91;

/// Sets the mode that bind(2) will give the file, before there is one.
fn fchmod(socket: &Socket) -> io::Result<()> {
    File::from(socket.as_fd().try_clone_to_owned()?).set_permissions(Permissions::from_mode(MODE))
}

/// A name that is removed when this is dropped.
#[derive(Debug)]
struct Temporary {
    path: PathBuf,
}

impl Temporary {
    /// Binds to a name that nobody has.
    fn bind(socket: &Socket, parent: &Path, directory: &File, name: &OsStr) -> io::Result<Self> {
        // A taken name is a coincidence of 32 random bits, or another attempt's leftover.
        const ATTEMPTS: u32 = 8;
        let mut last = None;
        for attempt in 0..ATTEMPTS {
            let temporary = temporary_name(name, attempt);
            let address = match SockAddr::unix(parent.join(&temporary)) {
                Ok(address) if parent.join(&temporary).as_os_str().len() <= MAX_PATH_BYTES => {
                    address
                }
                // Too long with the suffix: reach the directory by a short path.
                _ => SockAddr::unix(
                    Path::new("/proc/self/fd")
                        .join(directory.as_raw_fd().to_string())
                        .join(&temporary),
                )?,
            };
            match socket.bind(&address) {
                Ok(()) => {
                    return Ok(Self {
                        path: parent.join(temporary),
                    });
                }
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => last = Some(error),
                Err(error) => return Err(error),
            }
        }
        Err(last.unwrap_or_else(|| io::ErrorKind::AddrInUse.into()))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "could not remove a temporary socket file");
        }
    }
}

/// `<name>.<8 hexadecimal digits>`, the name cut so that the whole is no file name too long for the directory.
fn temporary_name(name: &OsStr, attempt: u32) -> OsString {
    // Keyed at random for each value: the standard library's only source of randomness.
    let random = RandomState::new().hash_one((std::process::id(), attempt));
    let mut temporary = OsString::from(OsStr::from_bytes(
        name.as_bytes().get(..64).unwrap_or(name.as_bytes()),
    ));
    temporary.push(format!(".{:08x}", random & 0xffff_ffff));
    temporary
}

#[cfg(test)]
mod tests;
