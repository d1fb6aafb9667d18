//! The body of a replica: it turns messages, frames and finished work into events, applies them to the
//! brain, and carries out the brain's actions.
//!
//! One thread owns the brain, the guest, the fabric and the TAP. It sleeps in one `ppoll` until a
//! descriptor is ready or a deadline comes. Between two sleeps it does one turn:
//!
//! ```text
//!  ppoll ─▶ fabric records ┐
//!        ─▶ guest events   ├─▶ Replica::apply ─▶ actions ─▶ guest, TAP, fabric, disk
//!        ─▶ TAP frames     │         ▲               │
//!        ─▶ control        ┘         └── answers ◀───┘ (scans, hashes, pages)
//! ```
//!
//! `plover-replica` makes all decisions. This crate makes none. The roles of a replica, and how it changes
//! them, are drawn there.
//!
//! [`supervise`] puts the replica into a process of its own, whose death is reported to the others.
//! [`run`] is a whole replica: it returns when the replica is told to stop. It needs root, QEMU and a TAP
//! device. Its configuration can be read and checked without them:
//!
//! ```
//! use plover_node::{PolicyName, ReplicaConfig};
//!
//! let dir = tempfile::tempdir().unwrap();
//! let path = dir.path().join("shop-db.toml");
//! let text = r#"
//!     [group]
//!     name = "shop-db"
//!     me = 0
//!     key_file = "/etc/plover/shop-db.key"
//!     trust_file = "/etc/plover/shop-db.trust"
//!     replica = [
//!         { id = 0, address = "192.0.2.10:7700" },
//!         { id = 1, address = "192.0.2.11:7700" },
//!         { id = 2, address = "192.0.2.12:7700" },
//!     ]
//!     [guest]
//!     machine = "microvm"
//!     kernel = "/boot/vmlinuz"
//!     mac = "52:54:00:77:00:01"
//!     [net]
//!     tap = "guest0"
//!     [paths]
//!     state_dir = "/var/lib/plover/shop-db"
//!     run_dir = "/run/plover/shop-db"
//! "#;
//! std::fs::write(&path, text).unwrap();
//! let config = ReplicaConfig::load(&path).unwrap();
//! assert_eq!(config.policy.name, PolicyName::default());
//!
//! // A mistake is refused by name.
//! std::fs::write(&path, text.replace("tap =", "tpa =")).unwrap();
//! let error = ReplicaConfig::load(&path).unwrap_err();
//! assert!(error.to_string().contains("tpa"));
//! ```

mod announce;
mod background;
mod body;
mod clock;
mod config;
mod control;
mod death;
mod disk_pages;
mod fabric;
#[doc(hidden)]
pub mod fuzz;
mod guest_agent;
mod histogram;
mod host;
mod images;
mod members;
mod metrics;
mod pack;
mod policy;
mod private;
mod recent;
mod relay;
mod service;
mod starter;
mod storage;
mod supervisor;
mod tap;
mod trace;
mod uplink;
mod variables;
mod viewer;

pub use announce::Announcement;
pub use background::Background;
pub use body::{ExitReason, SPLIT_WARNING, run};
pub use config::{
    Attached, Change, ConfigError, ConfigFile, Effect, GroupConfig, KEYS, PathConfig, PeerConfig,
    Reload, ReplicaConfig, SpareConfig, read,
};
pub use control::{StopHandle, accepted};
pub use fabric::{FabricName, open as open_fabric};
pub use host::{CpuConfig, HostConfig, usable_cpus};
pub use plover_replica::{Warm, newest};
pub use policy::{PolicyConfig, PolicyName, SyncName};
pub use private::{folder as private_folder, why_not_private};
pub use recent::RecentLog;
pub use storage::{StorageError, check_state_dir, has_left};
pub use supervisor::{Side, ThisProcess, supervise};
pub use variables::{UEFI_VARIABLES, uefi_variables_of};
pub use viewer::join_sockets;
