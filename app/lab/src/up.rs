//! Making a lab.
//!
//! ```text
//!  prerequisites ─▶ directory ─▶ configurations ─▶ network ─▶ daemons ─▶ wait ─▶ protected
//!                   └───────── any failure, or Ctrl-C: everything is taken down ──────┘
//! ```
//!
//! All checks that need nothing of the lab come before anything is made, in an order in which a person
//! can mend what they find.

use crate::config::{self, Place};
use crate::daemon::{LAST_LINES, indented};
use crate::disks;
use crate::down::{down_locked, remove_hosts};
use crate::image::Image;
use crate::lab::Lab;
use crate::net::{GUEST_IP, Topology, replica_ip};
use crate::options::{DiskImage, Options};
use crate::prerequisites::{self, Missing};
use crate::process::Process;
use crate::progress::{Interrupted, Progress};
use crate::silence::{self, Reminder};
use crate::state::{LabDir, LabState, ReplicaState};
use crate::status::LabStatus;
use anyhow::{Context, Result, bail};
use plover_node::ReplicaConfig;
use std::net::SocketAddrV4;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The port on which replicas listen for each other.
const REPLICATION_PORT: u16 = 7700;

/// An emulated guest boots in about ten seconds on an idle machine and is copied in a few more. The rest
/// is for slow and busy machines.
const UP_WITHIN: Duration = Duration::from_secs(240);

/// If the guest is lost on its way up, and no replica has it back after this time, we stop waiting.
const LOST_FOR: Duration = Duration::from_secs(5);

/// The lines of each log below an error that has named the likely causes already.
const FEW_LINES: usize = 4;

/// How long one attempt to reach the guest may take. The guest does not answer until it has configured
/// its address, and an attempt must not hold up the other messages.
const ANSWER_WITHIN: Duration = Duration::from_millis(500);

impl Lab {
    /// Makes a lab, and returns when its guest answers and is protected (under `none`: answers).
    ///
    /// # Errors
    /// [`Missing`] when the machine lacks something, [`Interrupted`] on Ctrl-C. Nothing is left
    /// after any error.
    pub fn up(options: &Options, progress: &Progress) -> Result<Self> {
        let image = prerequisites::check(options)?;
        let overlay = match &options.overlay {
            Some(path) => config::read_overlay(path)?,
            None => toml::Table::new(),
        };
        let program = match &options.program {
            Some(program) => program.clone(),
            None => std::env::current_exe().context("cannot find the program that is running")?,
        };
        let dir = LabDir::of(&options.name);
        let lock = dir.create()?;
        match build(options, &dir, program, image.as_ref(), &overlay, progress) {
            Ok(lab) => Ok(lab),
            Err(error) => {
                if !error.is::<Missing>() {
                    progress.say("taking down what was made");
                }
                // The first error is the one to report, unless taking down failed as well.
                match down_locked(&dir, lock) {
                    Ok(()) => Err(error),
                    Err(second) => {
                        Err(error.context(format!("and taking down failed: {second:#}")))
                    }
                }
            }
        }
    }

    /// Takes the lab down.
    pub fn down(self) -> Result<()> {
        crate::down::down(self.name()).map(|_| ())
    }
}

fn build(
    options: &Options,
    dir: &LabDir,
    program: PathBuf,
    image: Option<&Image>,
    overlay: &toml::Table,
    progress: &Progress,
) -> Result<Lab> {
    let ids = 0..options.replicas();
    let spares = ids.end..ids.end + options.spare;
    let mut state = LabState {
        builder: Process::me(),
        guest_ip: GUEST_IP,
        guest: options.guest,
        answers: options.answers,
        policy: options.policy.name().into(),
        program,
        replicas: ids
            .clone()
            .chain(spares.clone())
            .map(|id| ReplicaState { id, daemon: None })
            .collect(),
    };
    dir.save(&state)?;
    configure(options, dir, image, overlay, progress)?;
    progress.check()?;

    // The directory was free, so a crash left the namespaces of this name.
    remove_hosts(dir)?;
    let topology = Topology::create(options.name.as_str(), ids.len() + spares.len())?;
    (1..options.nics).try_for_each(|nic| topology.add_network(nic))?;
    progress.say(format!(
        "{} in namespaces plover-{name}-r*, client in plover-{name}-client",
        if ids.len() == 1 {
            "one replica".into()
        } else {
            format!("{} replicas", ids.len())
        },
        name = options.name
    ));
    let mut lab = Lab {
        dir: dir.clone(),
        state: state.clone(),
        topology,
    };
    for id in ids {
        progress.check()?;
        lab.start_daemon(id)?;
        dir.save(&lab.state)?;
    }
    wait(&lab, options, progress)?;
    state.replicas.clone_from(&lab.state.replicas);
    state.builder = None;
    dir.save(&state)?;
    lab.state = state;
    Ok(lab)
}

/// Checks the user's disks, writes every replica's configuration, and has the daemon's own code check each.
/// Only then copies the disks, which can take minutes.
fn configure(
    options: &Options,
    dir: &LabDir,
    image: Option<&Image>,
    overlay: &toml::Table,
    progress: &Progress,
) -> Result<()> {
    disks::check(&options.disks, dir.path())?;
    let image = image.map(|image| image.copy_into(dir.path())).transpose()?;
    // The disk of the guest's image is the first that the guest sees.
    let own = image.as_ref().and_then(|image| image.disk.clone());
    let own = own.map(DiskImage::from);
    let images: Vec<DiskImage> = own.iter().chain(&options.disks).cloned().collect();
    let at = |id: u8| SocketAddrV4::new(replica_ip(id.into()), REPLICATION_PORT);
    let hosts = 0..options.replicas() + options.spare;
    let cpus = plover_node::usable_cpus().unwrap_or_default();
    let addresses: Vec<_> = hosts.clone().map(|id| (id, at(id))).collect();
    let (members, spares) = addresses.split_at(options.replicas().into());
    let trusted = dir.path().join("trusted");
    let mut keys = Vec::new();
    for id in hosts.clone() {
        let files = dir.replica(id);
        std::fs::create_dir_all(files.path())
            .with_context(|| format!("cannot create {}", files.path().display()))?;
        keys.push(files.key());
    }
    plover_fabric::keys::make_all(&keys, &trusted)?;
    for id in hosts.clone() {
        let files = dir.replica(id);
        let disks = disks::places(&images, dir, id);
        let table = config::generate(
            options,
            overlay,
            image.as_ref(),
            &Place {
                id,
                members,
                spares,
                disks: &disks,
                cpus: &cpus,
                files: &files,
                trusted: &trusted,
            },
        );
        std::fs::write(files.config(), table.to_string())
            .with_context(|| format!("cannot write {}", files.config().display()))?;
        let replica =
            ReplicaConfig::load(&files.config()).with_context(|| match &options.overlay {
                Some(overlay) => format!("with the keys of {}", overlay.display()),
                None => "with the options given".into(),
            })?;
        if id == 0 {
            let guest = replica.qemu();
            guest.validate().context("with the options given")?;
            prerequisites::check_hypervisor(&guest)?;
        }
    }
    for id in hosts {
        disks::prepare(&images, dir, id, progress)?;
    }
    Ok(())
}

/// Waits until the guest answers and is protected, and says what happens meanwhile.
fn wait(lab: &Lab, options: &Options, progress: &Progress) -> Result<()> {
    for id in 0..options.replicas() {
        lab.wait_for_daemon(id, progress)?;
    }
    progress.say("the guest boots");
    let deadline = Instant::now() + UP_WITHIN;
    let mut traces = lab.traces();
    let mut answers = false;
    let mut reminder = Reminder::new();
    let mut lost_since = None;
    loop {
        progress.check()?;
        for words in traces.take().iter().filter_map(|event| event.in_words()) {
            progress.say(words);
        }
        for id in lab.ids() {
            lab.check_daemon(id)?;
        }
        if !answers && lab.guest_answers(ANSWER_WITHIN) {
            answers = true;
            progress.say(format!("the guest answers at {}", lab.service()));
        }
        let status = lab.status();
        if answers && status.is_settled() {
            return Ok(());
        }
        if !answers {
            reminder.remind(lab, &status, options, progress);
        }
        match status.why_guest_is_lost() {
            None => lost_since = None,
            Some((id, why)) => {
                let since = *lost_since.get_or_insert_with(Instant::now);
                if since.elapsed() > LOST_FOR {
                    bail!(
                        "the guest could not be kept: replica {id} lost it ({why})\n{}",
                        lab.last_words(id, "lost it")
                    );
                }
            }
        }
        if Instant::now() > deadline {
            if answers {
                bail!(
                    "not ready after {} s: the guest answers but is not protected\n{status}{}",
                    UP_WITHIN.as_secs(),
                    last_lines_of_the_replicas(lab, &status, LAST_LINES)
                );
            }
            bail!(
                "{}\n{status}{}",
                silence::error(lab, &status, options, UP_WITHIN),
                last_lines_of_the_replicas(lab, &status, FEW_LINES)
            );
        }
        progress.sleep(Duration::from_millis(100))?;
    }
}

/// The last log lines of each replica, and the last console lines of each guest: a guest that hangs
/// looks idle from the other side.
fn last_lines_of_the_replicas(lab: &Lab, status: &LabStatus, count: usize) -> String {
    let mut words = status.leader().map_or_else(String::new, |leader| {
        let sync = &leader.sync;
        format!(
            "dirty in a slot: {} pages on the leader, {} on the secondary\n",
            sync.dirty_leader, sync.dirty_secondary
        )
    });
    for replica in &status.replicas {
        words += &lab.last_log(replica.id, &format!("is {}", replica.role), count);
        words += "\n";
        if replica.holds_state() {
            let printed = indented(&lab.last_print(replica.id, count));
            words += &format!("  its guest printed last:\n{printed}\n");
        }
    }
    words
}

/// Whether an error means that the command was asked to stop.
pub fn is_interruption(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| cause.is::<Interrupted>())
}
