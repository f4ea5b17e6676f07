//! How much memory the process may use: the limit of its cgroup, which is what a container's memory limit becomes.

use std::fs;
use std::path::Path;

/// The least limit on memory, in bytes, of the process's cgroup and those above it; `None` if there is none, or none can be
/// read. Reads a few files of `/proc` and `/sys`.
pub fn limit() -> Option<u64> {
    limit_of(
        &fs::read_to_string("/proc/self/cgroup").ok()?,
        Path::new("/sys/fs/cgroup"),
    )
}

/// `groups` is what cgroups(7) says of `/proc/pid/cgroup`: a line `id:controllers:path` for each hierarchy.
fn limit_of(groups: &str, mount: &Path) -> Option<u64> {
    groups
        .lines()
        .filter_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let (controllers, path) = (fields.next()?, fields.next()?);
            let (hierarchy, file) = if controllers.is_empty() {
                (mount.to_owned(), "memory.max")
            } else if controllers.split(',').any(|name| name == "memory") {
                (mount.join("memory"), "memory.limit_in_bytes")
            } else {
                return None;
            };
            // Inside a container the path may be the host's, and the mount is the container's own group: folders that
            // are not there are passed over, the last one is the mount itself.
            Path::new(path.trim_start_matches('/'))
                .ancestors()
                .filter_map(|group| fs::read_to_string(hierarchy.join(group).join(file)).ok())
                // `max` stands for no limit.
                .filter_map(|limit| limit.trim().parse().ok())
                .min()
        })
        .min()
        // The first version says "none" by the largest multiple of a page.
        .filter(|limit| *limit < u64::MAX / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (file, content) in files {
            let file = folder.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, content).unwrap();
        }
        folder
    }

    #[test]
    fn the_least_limit_on_the_way_up_counts() {
        let mount = mount(&[
            ("pod/memory.max", "200\n"),
            ("pod/container/memory.max", "max\n"),
            ("memory.max", "900\n"),
        ]);
        assert_eq!(limit_of("0::/pod/container\n", mount.path()), Some(200));
        assert_eq!(limit_of("0::/\n", mount.path()), Some(900));
    }

    #[test]
    fn a_container_finds_its_own_limit_under_the_hosts_path() {
        let mount = mount(&[("memory/memory.limit_in_bytes", "31457280\n")]);
        let groups = "4:memory:/kubepods/pod1/abc\n3:cpu,cpuacct:/x\n0::/\n";
        assert_eq!(limit_of(groups, mount.path()), Some(31_457_280));
    }

    #[test]
    fn no_limit_is_none() {
        let mount = mount(&[
            ("memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("memory.max", "max\n"),
        ]);
        assert_eq!(limit_of("4:memory:/\n0::/\n", mount.path()), None);
        assert_eq!(
            limit_of("nonsense\n0::/gone\n::\n", Path::new("/nowhere")),
            None
        );
    }
}
