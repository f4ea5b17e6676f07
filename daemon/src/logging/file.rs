//! A log file of bounded size.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;

/// A file that lines are appended to. When a line would take it past the limit, it is renamed to `<path>.old`, over the
/// one before, and begun anew: the two hold at most twice the limit.
#[derive(Debug)]
pub(super) struct LogFile {
    path: PathBuf,
    file: File,
    size: u64,
    limit: u64,
}

impl LogFile {
    /// Opens or creates the file; a `limit` of 0 bytes is none.
    pub(super) fn open(path: PathBuf, limit: u64) -> io::Result<Self> {
        let file = append(&path)?;
        let size = file.metadata()?.len();
        Ok(Self {
            path,
            file,
            size,
            limit,
        })
    }

    fn begin_anew(&mut self) -> io::Result<()> {
        let mut old = self.path.clone().into_os_string();
        old.push(".old");
        fs::rename(&self.path, old)?;
        self.file = append(&self.path)?;
        self.size = 0;
        Ok(())
    }
}

fn append(path: &PathBuf) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).open(path)
}

impl Write for LogFile {
    /// The log hands over whole lines, so that no line is split between files. If a new file cannot be begun, the old
    /// one grows: a line too many is better than none.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let more = line.len() as u64;
        if self.limit != 0 && self.size > 0 && self.size.saturating_add(more) > self.limit {
            self.begin_anew().ok();
        }
        let written = self.file.write(line)?;
        self.size = self.size.saturating_add(written as u64);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_file_is_kept_once_and_begun_anew() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.log");
        let mut log = LogFile::open(path.clone(), 10).unwrap();
        for line in ["one..\n", "two\n", "three\n", "four\n"] {
            log.write_all(line.as_bytes()).unwrap();
        }
        assert_eq!(
            fs::read_to_string(directory.path().join("x.log.old")).unwrap(),
            "three\n"
        );
        assert_eq!(fs::read_to_string(&path).unwrap(), "four\n");
    }

    #[test]
    fn what_the_file_held_before_counts_and_stays() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.log");
        fs::write(&path, "before\n").unwrap();
        LogFile::open(path.clone(), 0)
            .unwrap()
            .write_all(b"after\n")
            .unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "before\nafter\n");
        LogFile::open(path.clone(), 14)
            .unwrap()
            .write_all(b"new\n")
            .unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new\n");
    }

    #[test]
    fn a_line_longer_than_the_limit_is_written_whole() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.log");
        LogFile::open(path.clone(), 2)
            .unwrap()
            .write_all(b"a long line\n")
            .unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "a long line\n");
    }
}
