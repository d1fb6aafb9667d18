//! The folders of a replica: whose they are, where they are, and whether a replica that begins with them would be refused.

use super::{Report, Verdict};
use plover_node::{ReplicaConfig, check_state_dir, why_not_private};
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Writes by which the disk is timed.
const DISK_TRIES: usize = 20;
/// A disk that takes longer than this for a small write holds up a group with `durability = "disk"`, and the journal of
/// a guest's disks.
const DISK_SLOW: Duration = Duration::from_millis(10);
/// The user of the service.
const SERVICE_USER: &str = "plover";
/// `statfs` of file systems in memory: `TMPFS_MAGIC` and `RAMFS_MAGIC` of `linux/magic.h`.
const IN_MEMORY: [i64; 2] = [0x0102_1994, 0x8584_58f6];

/// Looks at `paths.state_dir` and `paths.run_dir`.
pub fn state(report: &mut Report, config: &ReplicaConfig) {
    let (state, run) = (&config.paths.state_dir, &config.paths.run_dir);
    for (key, dir) in [("paths.state_dir", state), ("paths.run_dir", run)] {
        if let Some(why) = why_refused(key, dir, service_user()) {
            report.add(key, Verdict::Missing, why);
        }
    }
    if let Some(why) = why_not_made(run) {
        report.add("paths.run_dir", Verdict::Weak, why);
    }
    if let Err(error) = check_state_dir(config) {
        report.add("paths.state_dir", Verdict::Missing, error.to_string());
    }
    // The directory is made when the replica starts; its nearest parent is on the same file system.
    let there = state.ancestors().find(|dir| dir.is_dir()).unwrap_or(state);
    if is_in_memory(there) {
        report.add(
            "paths.state_dir",
            Verdict::Weak,
            "it is on a file system in memory, which a reboot empties: what this replica has promised is lost then, and \
             after a power failure of all hosts the group as well, with any group.durability; name a folder on a disk",
        );
    }
    time(report, state, there);
}

/// Why this user cannot make a folder that is not there. The service's unit makes that of the service.
fn why_not_made(dir: &Path) -> Option<String> {
    let there = dir.ancestors().find(|dir| dir.is_dir())?;
    let may_write = rustix::fs::access(there, rustix::fs::Access::WRITE_OK).is_ok();
    (there != dir && !may_write).then(|| {
        format!(
            "{} is not there, and this user may not make it in {}: the service does; without it, as root: install -d -o USER {}",
            dir.display(),
            there.display(),
            dir.display()
        )
    })
}

/// Why a replica would refuse a folder that is there already.
fn why_refused(key: &str, dir: &Path, service: Option<u32>) -> Option<String> {
    if !dir.exists() {
        return None;
    }
    if !dir.is_dir() {
        return Some(format!("{} is no folder: name one", dir.display()));
    }
    let me = rustix::process::geteuid();
    // Root looks at the folders of the service, too.
    let users = [Some(me.as_raw()), service.filter(|_| me.is_root())];
    let refusals = users.into_iter().flatten();
    let mut refusals = refusals.map(|user| why_not_private(key, dir, user));
    refusals.try_fold(None, |_, why| why.map(Some))?
}

/// The user as which the service runs, if there is one.
fn service_user() -> Option<u32> {
    let told = Command::new("id")
        .args(["-u", SERVICE_USER])
        .output()
        .ok()?;
    String::from_utf8(told.stdout).ok()?.trim().parse().ok()
}

fn is_in_memory(dir: &Path) -> bool {
    let found = rustix::fs::statfs(dir).map(|about| IN_MEMORY.contains(&about.f_type));
    found.unwrap_or(false)
}

/// Times small writes.
fn time(report: &mut Report, dir: &Path, there: &Path) {
    let what = format!("state in {}", dir.display());
    let mut times = match sync_times(there) {
        Ok(times) => times,
        Err(error) => {
            let found = format!("cannot write in {}: {error}", there.display());
            return report.add(what, Verdict::Missing, found);
        }
    };
    times.sort_unstable();
    let (median, worst) = (times[times.len() / 2], times[times.len() - 1]);
    let mut found = format!(
        "a write is on the disk after {:.1} ms, {:.1} at worst",
        median.as_secs_f64() * 1e3,
        worst.as_secs_f64() * 1e3
    );
    if median <= DISK_SLOW {
        return report.add(what, Verdict::Good, found);
    }
    found += ": a quicker disk makes failovers of guests with disks quicker";
    report.add(what, Verdict::Weak, found);
}

/// How long small writes take until they are on the disk.
fn sync_times(dir: &Path) -> std::io::Result<Vec<Duration>> {
    // Without a name: an interrupted check leaves nothing.
    let mut made = tempfile::tempfile_in(dir)?;
    let timed = (0..DISK_TRIES).map(|_| {
        let begun = Instant::now();
        made.write_all(&[0; 512])?;
        made.sync_data()?;
        Ok(begun.elapsed())
    });
    timed.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_disk_is_timed_and_left_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(sync_times(dir.path()).unwrap().len(), DISK_TRIES);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_folder_that_others_write_in_is_refused_and_one_that_is_not_there_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let refused = |path: &Path| why_refused("paths.state_dir", path, None);
        assert_eq!(refused(dir.path()), None);
        assert_eq!(refused(&dir.path().join("none")), None);
        let open = std::fs::Permissions::from_mode(0o770);
        std::fs::set_permissions(dir.path(), open).unwrap();
        let why = refused(dir.path()).unwrap();
        assert!(why.contains("770") && why.contains("chmod"), "{why}");
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(refused(&file).unwrap().contains("is no folder"));
    }

    /// A folder of the service is right though root looks at it; one of a third user is not.
    #[test]
    fn root_looks_for_the_service() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: only root gives folders away");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::chown(dir.path(), Some(4242), None).unwrap();
        let refused = |service| why_refused("paths.state_dir", dir.path(), service);
        assert_eq!(refused(Some(4242)), None);
        for service in [None, Some(4243)] {
            let why = refused(service).unwrap();
            assert!(why.contains("its owner is 4242"), "{why}");
        }
    }

    #[test]
    fn a_file_system_in_memory_is_known() {
        assert!(is_in_memory(Path::new("/dev/shm")) || !Path::new("/dev/shm").exists());
        assert!(!is_in_memory(Path::new("/proc")));
    }
}
