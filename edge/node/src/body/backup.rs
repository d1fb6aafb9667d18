//! Backups: a snapshot of the disks at a sync, which threads of the control socket serve.
//!
//! It is taken on the secondary, in the moment in which its copy is the leader's at a sync: what the sync has brought is
//! written, and the guest does not run yet. Everything that clients were told before is in it. From then on it concerns
//! only the files of this host, whatever becomes of this replica's role.
//!
//! The memory is copied before, while the guest runs, and what is left of it in that moment. So this replica has to stay
//! secondary until then.

use super::Body;
use crate::clock;
use crate::control::{Running, Taken};
use crate::variables;
use plover_disk::{MachineState, MemoryCopy, Snapshot, SnapshotRoom};
use plover_replica::Role;
use plover_types::{PAGE_BYTES, PageNo, PageSet, SyncNo};
use plover_vm::QemuVm;
use serde_json::json;
use std::path::PathBuf;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The backup that is to be taken, and the last one.
#[derive(Debug, Default)]
pub(super) struct Backup {
    wanted: Option<Wanted>,
    /// The number of the last one that was asked of the disks, which may have refused it.
    number: u64,
    /// The last one that was taken. Filled by the disks' thread.
    last: Arc<Mutex<Last>>,
    copying: Option<Copying>,
}

/// A backup that lasts as long as its client reads it.
#[derive(Debug, Default)]
struct Last {
    number: u64,
    snapshot: Weak<Snapshot>,
    memory: Weak<MemoryCopy>,
}

#[derive(Debug)]
struct Wanted {
    room: SnapshotRoom,
    with_memory: bool,
    reply: Sender<Result<Taken, String>>,
}

/// The copy of the memory that runs.
#[derive(Debug)]
struct Copying {
    /// The client's. Its file may be as large as the memory, and whoever lets it go waits until the file system has freed it.
    copy: Weak<MemoryCopy>,
    /// The pages that the guest or a sync has written since the last sync.
    written: PageSet,
    /// The last state of the devices; empty before the first one.
    devices: Vec<u8>,
}

impl Backup {
    /// The backup with this number, while it lasts.
    pub(super) fn running(&self, number: u64) -> Result<Running, String> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let snapshot = last.snapshot.upgrade().filter(|_| number == last.number);
        let snapshot = snapshot.ok_or("this backup has ended: begin another one")?;
        Ok(Running {
            snapshot,
            memory: last.memory.upgrade(),
        })
    }

    /// The guest has written these pages.
    pub(super) fn scanned(&mut self, pages: &PageSet) {
        if let Some(copying) = &mut self.copying {
            copying.written.union_with(pages);
        }
    }

    /// A sync has written this page.
    pub(super) fn wrote(&mut self, page: PageNo) {
        if let Some(copying) = &mut self.copying {
            copying.written.insert(page);
        }
    }

    /// This state of devices is loaded.
    pub(super) fn loads(&mut self, devices: &[u8]) {
        if let Some(copying) = &mut self.copying {
            copying.devices = devices.to_vec();
        }
    }

    /// The copy of the memory that runs ends.
    pub(super) fn forget_memory(&mut self, why: &str) {
        let copying = self.copying.take();
        if let Some(copy) = copying.and_then(|it| it.copy.upgrade()) {
            copy.end(why);
        }
    }

    /// The memory is the leader's at a sync.
    fn applied(&mut self) {
        let Some(copying) = &mut self.copying else {
            return;
        };
        match copying.copy.upgrade().filter(|copy| copy.owed().is_ok()) {
            Some(copy) => {
                copy.wrote(&copying.written);
                copying.written.clear();
            }
            // Its client has left.
            None => self.copying = None,
        }
    }

    /// The memory is the one of the backup, unless too much of it is left to be copied. Returns it, and the bytes of its image.
    fn finish_memory(&mut self, machine: String) -> Option<Result<FinishedMemory, String>> {
        let copying = self.copying.take();
        let copying = copying.and_then(|it| Some((it.copy.upgrade()?, it)));
        let Some((copy, copying)) = copying else {
            return Some(Err("the copy of the guest's memory has ended".into()));
        };
        let owed = match copy.owed() {
            Ok(owed) => owed,
            Err(why) => return Some(Err(why)),
        };
        // One that began within this sync has no state of devices yet.
        if copy.is_close() == Ok(false) || copying.devices.is_empty() {
            self.copying = Some(copying);
            return None;
        }
        let since = clock::now();
        let devices = copying.devices;
        let finished = copy.finish(&MachineState { machine, devices });
        tracing::info!(
            event = "memory_copied",
            pages = owed,
            us = clock::now().since(since).0,
            "the guest's memory is copied: its last {owed} pages while it stood still"
        );
        Some(finished.map(|bytes| (Arc::downgrade(&copy), Some(bytes))))
    }
}

/// The memory of a backup and the bytes of its image; none for a backup of the disks alone.
type FinishedMemory = (Weak<MemoryCopy>, Option<u64>);

/// A mark as it is told.
fn mark(number: u64) -> String {
    format!("{number:016x}")
}

impl Body {
    /// The folder for the old content of blocks that are written while a backup runs.
    pub(super) fn backup_folder(&self) -> Result<PathBuf, String> {
        match self.why_no_backup() {
            Some(why) => Err(why),
            None => Ok(self.config.paths.state_dir.clone()),
        }
    }

    /// An operator wants a backup: it is taken at the next sync.
    pub(super) fn want_backup(
        &mut self,
        room: SnapshotRoom,
        with_memory: bool,
        reply: Sender<Result<Taken, String>>,
    ) {
        match self.why_no_backup() {
            Some(why) => {
                let _ = reply.send(Err(why));
            }
            None => {
                self.backup.wanted = Some(Wanted {
                    room,
                    with_memory,
                    reply,
                });
            }
        }
    }

    /// An operator wants the guest's memory in a backup: a copy of it begins.
    pub(super) fn copy_memory(&mut self, bytes_per_s: u64) -> Result<Arc<MemoryCopy>, String> {
        let (None, Some(vm)) = (self.why_no_backup(), &self.vm) else {
            return Err(self.why_no_backup().unwrap_or_default());
        };
        let runs = |copying: &Copying| {
            let copy = copying.copy.upgrade();
            copy.is_some_and(|copy| copy.owed().is_ok())
        };
        if self.backup.copying.as_ref().is_some_and(runs) {
            return Err("another backup copies this guest's memory: wait for its end".to_string());
        }
        let bytes = u64::from(self.layout.ram_pages()) * PAGE_BYTES as u64;
        let dir = &self.config.paths.state_dir;
        let memory = vm.memory();
        let copy = memory.and_then(|ram| MemoryCopy::begin(ram, bytes, dir, bytes_per_s));
        let copy = copy.map_err(|error| format!("cannot copy the guest's memory: {error}"))?;
        self.backup.copying = Some(Copying {
            copy: Arc::downgrade(&copy),
            written: PageSet::new(self.layout.pages()),
            devices: Vec::new(),
        });
        Ok(copy)
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
        if self.role == Role::Secondary {
            return;
        }
        self.backup
            .forget_memory("this replica is no secondary any more: begin another backup");
        if let Some(Wanted { reply, .. }) = self.backup.wanted.take() {
            let why = self.why_no_backup().unwrap_or_default();
            let _ = reply.send(Err(why));
        }
    }

    /// The state of this sync is applied, and the guest does not run yet.
    pub(super) fn take_backup(&mut self, sync: SyncNo) {
        self.backup.applied();
        let Some(vm) = self.vm.as_ref().filter(|_| self.role == Role::Secondary) else {
            return;
        };
        let (Some(disks), Some(wanted)) = (vm.disks(), self.backup.wanted.take()) else {
            return;
        };
        let finished = match wanted.with_memory {
            true => self.backup.finish_memory(vm.machine_words().needed),
            false => Some(Ok((Weak::new(), None))),
        };
        let (memory, memory_bytes) = match finished {
            None => {
                self.backup.wanted = Some(wanted);
                return;
            }
            Some(Err(why)) => {
                let _ = wanted.reply.send(Err(why));
                return;
            }
            Some(Ok(finished)) => finished,
        };
        let Wanted { room, reply, .. } = wanted;
        self.backup.number += 1;
        let mut about = self.about_backup(sync);
        about["memory_bytes"] = memory_bytes.into();
        if self.qemu.firmware.is_uefi() {
            about["uefi_variables"] = variables::to_text(&vm.flash()).ok().into();
        }
        let (last, number) = (Arc::clone(&self.backup.last), self.backup.number);
        disks.snapshot(room, move |snapshot| {
            let taken = snapshot.map(|snapshot| {
                let snapshot = Arc::new(snapshot);
                about["mark"] = mark(snapshot.mark()).into();
                about["since"] = snapshot.since().map(mark).into();
                let disks = snapshot.disks().iter();
                about["disks"] = disks
                    .map(|disk| json!({"disk": disk.disk, "bytes": disk.bytes}))
                    .collect();
                // Only now: one that is refused leaves the one that runs alone.
                *last.lock().unwrap_or_else(PoisonError::into_inner) = Last {
                    number,
                    snapshot: Arc::downgrade(&snapshot),
                    memory,
                };
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
            "read_only_disks": self.config.disk.iter().filter(|disk| disk.is_read_only()).count(),
        })
    }
}
