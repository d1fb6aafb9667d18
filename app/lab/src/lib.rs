//! A lab of replicas in network namespaces on one machine.
//!
//! Three replicas need three hosts. A lab makes them out of one: each host is a network
//! namespace with one `plover replica` and its QEMU, a switch connects them, and a client lives
//! on a host of its own. It is a tool for people who want to see a failover; `proof/lab` builds the
//! demo and the tests on real replicas on it.
//!
//! ```text
//!  Lab::up ──▶ Lab ──▶ status, fault, restart, exec, console, logs ──▶ down
//! ```
//!
//! | question | module |
//! |---|---|
//! | what may be chosen, what a daemon gets to read | [`options`], [`guests`], [`config`], [`image`] |
//! | what must be there | [`prerequisites`] |
//! | making and removing | [`up`], [`down`] |
//! | what exists, across commands and crashes | [`state`], [`process`] |
//! | hosts, switch, cuts | [`net`] |
//! | talking to daemons, reading what they did | [`control`], [`status`], [`trace`], [`logs`] |
//! | the guest's console | [`console`] |
//!
//! Two rules keep a lab from doing harm. A process is only ever signalled if it is in one of the lab's
//! namespaces or was started by it and has the same start time ([`process`]). And a lab is found by its
//! name alone, so that it can be taken down when all its records are lost ([`down`]).
//!
//! Making a lab needs root and QEMU, so this example compiles `fail_over` and does not call it:
//!
//! ```
//! use plover_lab::options::{Options, PolicyName};
//! use plover_lab::progress::Progress;
//! use plover_lab::{Fault, Lab, Target};
//!
//! /// Kills the host of the leader, and waits until the guest is protected again.
//! fn fail_over(options: &Options) -> anyhow::Result<()> {
//!     let progress = Progress::interruptible(false)?;
//!     let lab = Lab::up(options, &progress)?;
//!     let leader = lab.find(&Target::Role("leader".into()))?;
//!     lab.fault(Fault::Kill, leader)?;
//!     while !lab.status().is_settled() {
//!         progress.sleep(std::time::Duration::from_millis(20))?;
//!     }
//!     lab.down()
//! }
//!
//! let mut options = Options {
//!     name: "example".parse().expect("a name of letters, digits and dashes"),
//!     disks: vec!["data.qcow2,bus=scsi".parse().expect("an image and its bus")],
//!     ..Options::default()
//! };
//! assert_eq!(options.replicas(), 3);
//! assert_eq!(options.disks[0].bus.as_deref(), Some("scsi"));
//! options.policy = PolicyName::None; // the baseline, without protection
//! assert_eq!(options.replicas(), 1);

//! ```

pub mod backup;
pub mod config;
pub mod console;
pub mod control;
mod cpus;
mod daemon;
mod disks;
pub mod down;
mod fault;
pub mod grow;
mod growing;
pub mod guest_agent;
pub mod guests;
pub mod image;
mod lab;
pub mod leaving;
pub mod logs;
pub mod net;
mod newest;
pub mod operate;
pub mod options;
pub mod prerequisites;
pub mod process;
pub mod progress;
mod silence;
pub mod state;
pub mod status;
pub mod trace;
pub mod up;

pub use fault::{Fault, NothingThere, Target};
pub use lab::Lab;
