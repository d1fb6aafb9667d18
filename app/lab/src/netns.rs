//! Starting programs inside a network namespace.

use anyhow::{Context, Result, anyhow};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Command};

/// Moves the calling thread, and with it what it starts from now on, into the namespace at
/// `namespace` (a path such as `/run/netns/NAME`).
pub fn enter(namespace: &Path) -> Result<()> {
    let file = File::open(namespace)
        .with_context(|| format!("there is no network namespace {}", namespace.display()))?;
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
        .with_context(|| format!("cannot enter the network namespace {}", namespace.display()))
}

/// Starts `command` in a namespace. The caller stays where it is.
pub fn spawn(namespace: &Path, command: &mut Command) -> Result<Child> {
    // A namespace belongs to a thread, and a child inherits that of the thread that starts it:
    // a thread that lives for this alone needs no way back.
    let started = std::thread::scope(|scope| {
        let starter = scope.spawn(|| {
            enter(namespace)?;
            let program = command.get_program().to_owned();
            command.spawn().with_context(|| format!("cannot start {}", Path::new(&program).display()))
        });
        starter.join()
    });
    started.unwrap_or_else(|_| Err(anyhow!("the thread that starts programs has panicked")))
}
