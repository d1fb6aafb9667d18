//! Backups: a snapshot of the disks at a sync, which threads of the control socket serve.
//!
//! It is taken on the secondary, in the moment in which its copy is the leader's at a sync: what the sync has brought is
//! written, and the guest does not run yet. Everything that clients were told before is in it. From then on it concerns
//! only the files of this host, whatever becomes of this replica's role.

use super::Body;
use crate::control::Taken;
use plover_disk::{Snapshot, SnapshotLimits};
use plover_replica::Role;
use plover_types::SyncNo;
use plover_vm::QemuVm;
use serde_json::json;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The backup that is to be taken, and the last one.
#[derive(Debug, Default)]
pub(super) struct Backup {
    wanted: Option<(SnapshotLimits, Sender<Result<Taken, String>>)>,
    number: u64,
    /// Filled by the disks' thread.
    last: Arc<Mutex<Weak<Snapshot>>>,
}

impl Backup {
    /// The snapshot of the backup with this number, while it lasts.
    pub(super) fn running(&self, number: u64) -> Result<Arc<Snapshot>, String> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let running = last.upgrade().filter(|_| number == self.number);
        running.ok_or_else(|| "this backup has ended: begin another one".into())
    }
}

/// A mark as it is told.
fn mark(number: u64) -> String {
    format!("{number:016x}")
}

impl Body {
    /// An operator wants a backup: it is taken at the next sync.
    pub(super) fn want_backup(
        &mut self,
        limits: SnapshotLimits,
        reply: Sender<Result<Taken, String>>,
    ) {
        match self.why_no_backup() {
            Some(why) => {
                let _ = reply.send(Err(why));
            }
            None => self.backup.wanted = Some((limits, reply)),
        }
    }

    fn why_no_backup(&self) -> Option<String> {
        if self.disks.as_ref().is_none_or(|disks| disks.blocks() == 0) {
            return Some(
                "this guest has no disk that it can write: there is nothing to back up".into(),
            );
        }
        if self.role == Role::Secondary {
            return None;
        }
        let status = self.replica.status();
        let secondary = status.leader.and_then(|leader| {
            let mut others = status.in_sync.iter().filter(|id| *id != leader);
            others.next()
        });
        Some(match secondary {
            Some(secondary) if secondary != status.id => format!(
                "a backup is read from the secondary's disks, and that is replica {}: run this command on its host",
                secondary.0
            ),
            _ => "a backup is read from the secondary's disks, and no replica is secondary at present: try again when \
                  `plover status` says that the guest is protected"
                .into(),
        })
    }

    /// This replica's role has changed.
    pub(super) fn dismiss_backup(&mut self) {
        if let Some((_, reply)) = self.backup.wanted.take_if(|_| self.role != Role::Secondary) {
            let why = self.why_no_backup().unwrap_or_default();
            let _ = reply.send(Err(why));
        }
    }

    /// The state of this sync is applied, and the guest does not run yet.
    pub(super) fn take_backup(&mut self, sync: SyncNo) {
        let Some(disks) = self.vm.as_ref().and_then(QemuVm::disks) else {
            return;
        };
        let Some((limits, reply)) = self.backup.wanted.take_if(|_| self.role == Role::Secondary)
        else {
            return;
        };
        self.backup.number += 1;
        let mut about = self.about_backup(sync);
        let last = Arc::clone(&self.backup.last);
        disks.snapshot(limits, move |snapshot| {
            let taken = snapshot.map(|snapshot| {
                let snapshot = Arc::new(snapshot);
                about["mark"] = mark(snapshot.mark()).into();
                about["since"] = snapshot.since().map(mark).into();
                let disks = snapshot.disks().iter();
                about["disks"] = disks
                    .map(|disk| json!({"disk": disk.disk, "bytes": disk.bytes}))
                    .collect();
                *last.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(&snapshot);
                Taken { snapshot, about }
            });
            // A client that has given up drops it.
            let _ = reply.send(taken);
        });
        tracing::info!(event = "backup_begun", %sync, "a backup of the guest's disks begins, as of sync {sync}");
    }

    fn about_backup(&self, sync: SyncNo) -> serde_json::Value {
        let status = self.replica.status();
        let guest = &self.config.guest;
        let machine = self.vm.as_ref().map(QemuVm::machine_words);
        json!({
            "ok": true,
            "backup": self.backup.number,
            "group": self.config.group.name,
            "replica": status.id.0,
            "view": status.view.to_string(),
            "sync": sync.0,
            "qemu": machine.unwrap_or_default().needed,
            "guest": {
                "machine": self.qemu.machine.to_string(),
                "vcpus": guest.vcpus,
                "mem_mib": guest.mem_mib,
                "mac": guest.mac.to_string(),
            },
            "read_only_disks": self.config.disk.iter().filter(|disk| disk.readonly).count(),
        })
    }
}
