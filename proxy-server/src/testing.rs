//! What this crate's tests share.

use std::path::PathBuf;

use certs::issue::{Authority, Replace};
use tempfile::TempDir;

/// A CA, a server's certificate and a place for a socket; gone when dropped.
pub(crate) struct Files {
    dir: TempDir,
}

pub(crate) fn files() -> Files {
    let dir = tempfile::tempdir().expect("temporary folder");
    let ca = Authority::generate("test CA").expect("CA");
    ca.write(dir.path(), "ca", Replace::No).expect("write CA");
    ca.issue_server(&["localhost", "127.0.0.1"])
        .expect("leaf")
        .write(dir.path(), "server", Replace::No)
        .expect("write leaf");
    Files { dir }
}

impl Files {
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn flag(&self, flag: &str, name: &str) -> String {
        format!("--{flag}={}", self.path(name).display())
    }

    /// A whole command line with a Unix socket.
    pub(crate) fn flags(&self) -> Vec<String> {
        vec![
            "proxy-server".to_owned(),
            self.flag("uds-name", "frontend.sock"),
            "--server-port=0".to_owned(),
            self.flag("cluster-cert", "server.crt"),
            self.flag("cluster-key", "server.key"),
            self.flag("cluster-ca-cert", "ca.crt"),
        ]
    }

    /// What turns [`Self::flags`] into a TCP frontend.
    pub(crate) fn tcp_flags(&self) -> Vec<String> {
        vec![
            "--uds-name=".to_owned(),
            "--server-port=8090".to_owned(),
            self.flag("server-cert", "server.crt"),
            self.flag("server-key", "server.key"),
            self.flag("server-ca-cert", "ca.crt"),
        ]
    }
}
