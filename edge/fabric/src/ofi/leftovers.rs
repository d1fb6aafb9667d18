//! Files that the `shm` provider leaves in `/dev/shm` when its process is killed.
//!
//! Each endpoint of that provider is a file there, named `PID:UID:N`. libfabric removes it when
//! the endpoint is closed, and from handlers of some signals, but nothing can run on SIGKILL. A
//! replica that is killed and restarted again and again would fill the memory.
//!
//! Which files are ours? A process id may be of another container that shares the directory, so a
//! dead one proves nothing. So each fabric keeps a list of its files beside them, under a name
//! that is made of group and replica id. Who starts as the same replica reads the list of its
//! dead predecessor, removes what it names and no other file, and begins a list of its own. A
//! file is only removed if it has the form of such a name, belongs to our user, and its process
//! is gone.

use plover_types::ReplicaId;
use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use tracing::{debug, info};

/// Where the provider puts them.
const SHARED_MEMORY: &str = "/dev/shm";
/// A list is never longer: two files for each of 15 peers, and names are short.
const LIST_BYTES_MAX: u64 = 64 << 10;

/// The files of one fabric, and the list that outlives it.
#[derive(Debug)]
pub(super) struct Leftovers {
    folder: PathBuf,
    list: PathBuf,
    files: BTreeSet<String>,
}

impl Leftovers {
    /// Removes what the last life of this replica left, and begins a list.
    pub fn clear(group: &str, me: ReplicaId) -> Self {
        Self::clear_in(Path::new(SHARED_MEMORY), group, me)
    }

    fn clear_in(folder: &Path, group: &str, me: ReplicaId) -> Self {
        // The name may hold anything; its checksum may not. That two groups of one host share one
        // does no harm: only files of dead processes are removed.
        let list = format!(
            "plover-ofi.{:08x}.{}",
            crc32c::crc32c(group.as_bytes()),
            me.0
        );
        let leftovers = Self {
            folder: folder.to_path_buf(),
            list: folder.join(list),
            files: BTreeSet::new(),
        };
        match leftovers.read_list() {
            Ok(list) => list.lines().for_each(|name| leftovers.remove(name)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => debug!(list = %leftovers.list.display(), %error, "not read"),
        }
        leftovers
    }

    /// Notes a file that now exists. `address` is the endpoint's, as the provider encodes it:
    /// `fi_shm://PID:UID:N`.
    pub fn add<'a>(&mut self, address: &'a [u8]) -> Option<&'a str> {
        let text = address.split(|&byte| byte == 0).next()?;
        let text = std::str::from_utf8(text).ok()?;
        let name = text.rsplit_once("://").map_or(text, |(_, name)| name);
        process_of(name)?;
        // Those of closed endpoints are gone by now.
        self.files.retain(|name| self.folder.join(name).exists());
        self.files.insert(name.to_owned());
        self.write_list();
        Some(name)
    }

    fn read_list(&self) -> io::Result<String> {
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NOFOLLOW)
            .open(&self.list)?;
        if file.metadata()?.uid() != rustix::process::geteuid().as_raw() {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let mut list = String::new();
        file.take(LIST_BYTES_MAX).read_to_string(&mut list)?;
        Ok(list)
    }

    fn write_list(&self) {
        let write = || {
            let mut file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .custom_flags(libc::O_NOFOLLOW)
                .open(&self.list)?;
            let lines: String = self.files.iter().map(|name| format!("{name}\n")).collect();
            file.write_all(lines.as_bytes())
        };
        // Without the list, files may stay behind after a kill; that is no reason not to serve.
        if let Err(error) = write() {
            debug!(list = %self.list.display(), %error, "not written");
        }
    }

    fn remove(&self, name: &str) {
        let Some(process) = process_of(name) else {
            return;
        };
        if Path::new("/proc").join(process.to_string()).exists() {
            return;
        }
        let path = self.folder.join(name);
        let ours = fs::symlink_metadata(&path).is_ok_and(|about| {
            about.is_file() && about.uid() == rustix::process::geteuid().as_raw()
        });
        if ours && fs::remove_file(&path).is_ok() {
            info!(file = %path.display(), "removed what a killed replica left");
        }
    }
}

impl Drop for Leftovers {
    fn drop(&mut self) {
        // All ports are closed by now.
        let _ = fs::remove_file(&self.list);
    }
}

/// The process that a file of the provider belongs to, if `name` is the name of one.
fn process_of(name: &str) -> Option<u32> {
    let mut parts = name.split(':');
    let process = parts.next()?.parse().ok()?;
    let rest: Vec<&str> = parts.collect();
    let number = |part: &&str| part.parse::<u32>().is_ok();
    (rest.len() == 2 && rest.iter().all(number)).then_some(process)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process id that no process has: beyond the kernel's largest.
    const DEAD: u32 = 1 << 23;

    #[test]
    fn only_names_of_the_provider_are_names() {
        assert_eq!(process_of("27723:0:1"), Some(27723));
        for name in [
            "",
            "sem.x",
            "12",
            "12:0",
            "12:0:1:2",
            "../12:0:1",
            "12:0:x",
            "a:0:1",
        ] {
            assert_eq!(process_of(name), None, "{name}");
        }
    }

    #[test]
    fn a_dead_predecessors_files_are_removed_and_no_others() {
        let folder = std::env::temp_dir().join(format!("plover-leftovers-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let own = std::process::id();
        let names = |process: u32| [format!("{process}:0:0"), format!("{process}:0:1")];
        let (dead, alive, foreign) = (names(DEAD), names(own), names(DEAD + 1));
        for name in dead.iter().chain(&alive).chain(&foreign) {
            fs::write(folder.join(name), b"x").unwrap();
        }
        let me = ReplicaId(1);
        let mut killed = Leftovers::clear_in(&folder, "a/group", me);
        for name in dead.iter().chain(&alive) {
            let address = format!("fi_shm://{name}\0");
            assert_eq!(killed.add(address.as_bytes()), Some(name.as_str()));
        }
        // As SIGKILL does it.
        let _killed = std::mem::ManuallyDrop::new(killed);
        let _other_replica = Leftovers::clear_in(&folder, "a/group", ReplicaId(2));
        assert!(folder.join(&dead[0]).exists(), "another replica's file");
        let next = Leftovers::clear_in(&folder, "a/group", me);
        for name in &dead {
            assert!(!folder.join(name).exists(), "{name} is left");
        }
        for name in alive.iter().chain(&foreign) {
            assert!(folder.join(name).exists(), "{name} was removed");
        }
        drop(next);
        let lists = fs::read_dir(&folder).unwrap();
        assert_eq!(
            lists.count(),
            alive.len() + foreign.len(),
            "no list is left"
        );
        fs::remove_dir_all(&folder).unwrap();
    }
}
