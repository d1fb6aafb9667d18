//! The replicas that run on this host, found by their control sockets.

use crate::cli::At;
use anyhow::{Result, bail};
use plover_lab::control::Control;
use plover_node::{ReplicaConfig, has_left};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where `plover init` puts the run directories: one a guest.
pub const RUN: &str = "/run/plover";

/// The folder of the configurations of a host's replicas, which the unit `plover@` reads.
pub const CONFIGURATIONS: &str = "/etc/plover";

/// A state directory that has not answered after this time hangs.
const STATE_WITHIN: Duration = Duration::from_secs(1);

impl At {
    /// The directory to look in.
    pub fn root(&self) -> &Path {
        self.run_dir.as_deref().unwrap_or(Path::new(RUN))
    }

    /// The run directory of the replica that is asked: the one that is named; or the only one in the directory
    /// that is named, or in `/run/plover`.
    ///
    /// # Errors
    /// There are several.
    pub fn run_dir(&self) -> Result<PathBuf> {
        let root = self.root();
        let found = guests_in(root, Path::new(CONFIGURATIONS));
        match &found[..] {
            // It says itself that nobody answers there.
            [] => Ok(root.to_path_buf()),
            [only] => Ok(only.clone()),
            several => {
                let names: Vec<_> = several
                    .iter()
                    .map(|dir| dir.display().to_string())
                    .collect();
                bail!(
                    "this host has {} replicas: choose one with --run-dir, of {}; `plover status --all` shows all",
                    names.len(),
                    names.join(", ")
                )
            }
        }
    }

    /// The replica that is asked.
    ///
    /// # Errors
    /// As for [`At::run_dir`].
    pub fn control(&self) -> Result<Control> {
        Ok(Control::in_run_dir(&self.run_dir()?))
    }
}

/// The run directories of the replicas that run, and of those that do not, but have run since the host booted and have not
/// left their group. So an order is not another guest's because the one that was meant is down.
fn guests_in(root: &Path, configurations: &Path) -> Vec<PathBuf> {
    let (found, down) = have_run_in(root, configurations);
    // Where no other replica has run, nothing is asked of a disk that may hang.
    let is_clear = found.len() + down.len() < 2;
    together(found, down, |config| !is_clear && has_surely_left(config))
}

/// The same, for whom nothing follows from the number: one that has left is never among them.
pub fn all_in(root: &Path, configurations: &Path) -> Vec<PathBuf> {
    let (found, down) = have_run_in(root, configurations);
    together(found, down, has_surely_left)
}

/// A replica that is down: its run directory, and its configuration, if that can be read.
type Down = (PathBuf, Option<ReplicaConfig>);

/// The run directories of those that run, and those that do not.
fn have_run_in(root: &Path, configurations: &Path) -> (Vec<PathBuf>, Vec<Down>) {
    let found = replicas_in(root);
    if found.iter().any(|dir| dir == root) {
        return (found, Vec::new());
    }
    let entries = std::fs::read_dir(configurations).into_iter().flatten();
    let files = entries.flatten().map(|entry| entry.path());
    let files = files.filter(|file| file.extension().is_some_and(|it| it == "toml"));
    let down = files.filter_map(|file| {
        let config = ReplicaConfig::load(&file).ok();
        let dir = match &config {
            Some(config) => config.paths.run_dir.clone(),
            // A mistake in it may be the reason why its replica is down.
            None => root.join(file.file_stem()?),
        };
        let has_run = dir.starts_with(root) && dir.is_dir();
        (has_run && !found.contains(&dir)).then_some((dir, config))
    });
    let down = down.collect();
    (found, down)
}

fn together(
    mut found: Vec<PathBuf>,
    down: Vec<Down>,
    is_out: impl Fn(&ReplicaConfig) -> bool,
) -> Vec<PathBuf> {
    let down = down.into_iter();
    let down = down.filter(|(_, config)| !config.as_ref().is_some_and(&is_out));
    found.extend(down.map(|(dir, _)| dir));
    found.sort();
    found
}

/// Whether a replica has left its group, by its state directory; it has not if that does not answer.
fn has_surely_left(config: &ReplicaConfig) -> bool {
    let (answer, answered) = std::sync::mpsc::channel();
    let config = config.clone();
    // A disk that hangs keeps it.
    std::thread::spawn(move || {
        let _ = answer.send(has_left(&config));
    });
    answered.recv_timeout(STATE_WITHIN).unwrap_or(false)
}

/// The run directories that have a control socket: `root` itself, or else those in it, by name. One that this user may not
/// look into counts as well.
pub fn replicas_in(root: &Path) -> Vec<PathBuf> {
    let has_socket = |dir: &PathBuf| match dir.join("control.sock").symlink_metadata() {
        Ok(_) => true,
        Err(error) => error.kind() == ErrorKind::PermissionDenied,
    };
    let root = root.to_path_buf();
    if has_socket(&root) {
        return vec![root];
    }
    let entries = std::fs::read_dir(&root).into_iter().flatten().flatten();
    let mut found: Vec<_> = entries
        .map(|entry| entry.path())
        .filter(has_socket)
        .collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::configuration;

    #[test]
    fn the_only_replica_of_a_host_needs_no_name() {
        let dir = tempfile::tempdir().unwrap();
        let at = |run_dir: &Path| At {
            run_dir: Some(run_dir.into()),
        };
        let make = |name: &str| {
            let run_dir = dir.path().join(name);
            std::fs::create_dir(&run_dir).unwrap();
            std::fs::write(run_dir.join("control.sock"), "").unwrap();
            run_dir
        };
        std::fs::create_dir(dir.path().join("no-replica")).unwrap();
        assert_eq!(at(dir.path()).run_dir().unwrap(), dir.path());
        let shop = make("shop");
        assert_eq!(at(dir.path()).run_dir().unwrap(), shop);
        let mail = make("mail");
        let told = at(dir.path()).run_dir().unwrap_err().to_string();
        assert!(
            told.contains("2 replicas") && told.contains("/mail, "),
            "{told}"
        );
        assert_eq!(at(&shop).run_dir().unwrap(), shop);
        assert_eq!(replicas_in(dir.path()), [mail, shop]);
    }

    #[test]
    fn a_replica_that_is_down_counts_and_one_that_has_not_run_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let (run, etc) = (dir.path().join("run"), dir.path().join("etc"));
        for made in [&run.join("mail"), &run.join("shop"), &run.join("old"), &etc] {
            std::fs::create_dir_all(made).unwrap();
        }
        std::fs::write(run.join("mail/control.sock"), "").unwrap();
        for name in ["shop", "spare"] {
            let text = configuration(name, dir.path(), &run.join(name));
            std::fs::write(etc.join(format!("{name}.toml")), text).unwrap();
        }
        let both = [run.join("mail"), run.join("shop")];
        assert_eq!(guests_in(&run, &etc), both);
        std::fs::write(etc.join("shop.toml"), "a mistake").unwrap();
        assert_eq!(guests_in(&run, &etc), both);
    }
}
