//! Requests of operators, and the answers.

use super::inputs::Asker;
use super::{Body, BoxError};
use crate::background::Background;
use crate::clock;
use crate::control::{Op, Request};
use crate::recent::Wanted;
use plover_disk::Disks;
use plover_replica::newest::{self, BootRefused, DiskCopy, LastInSync};
use plover_replica::{Event, Role};
use plover_types::{Micros, PAGE_BYTES, Payload, ReplicaId};
use plover_vm::QemuVm;
use serde_json::{Value, json};
use std::sync::mpsc::{SendError, Sender};

impl Body {
    pub(super) fn take_control(&mut self) -> Result<(), BoxError> {
        for request in self.control.take() {
            match request {
                Request::Stop { at_once } => self.on_stop(at_once)?,
                Request::Attach { output, reply } if self.role != Role::Leader => {
                    self.ask_leader(&Op::Console, Some(output), reply);
                }
                Request::Attach { output, reply } => {
                    let _ = reply.send(self.attach(output));
                }
                Request::Reload {
                    file,
                    dry_run,
                    reply,
                } => {
                    let answer = self.reload(*file, dry_run)?;
                    let _ = reply.send(answer);
                }
                Request::BackupFolder { reply } => {
                    let _ = reply.send(self.backup_folder());
                }
                Request::Snapshot {
                    room,
                    with_memory,
                    reply,
                } => self.want_backup(room, with_memory, reply),
                Request::CopyMemory { bytes_per_s, reply } => {
                    let _ = reply.send(self.copy_memory(bytes_per_s));
                }
                Request::RunningBackup { number, reply } => {
                    let _ = reply.send(self.backup.running(number));
                }
                Request::Restored { guest, step } => self.go_on_restoring(guest, step)?,
                Request::Answer { asker, answer } => self.reply(asker, &answer),
                Request::Ask { of, op, reply } => self.ask(of, &op, None, reply),
                Request::View { reply } => {
                    if let Err(SendError(Ok((number, _)))) = reply.send(self.seat_viewer()) {
                        self.viewer_left(number);
                    }
                }
                Request::Passed { to, id, passed } => {
                    let answer = match passed {
                        true => json!({"ok": true}),
                        false => json!({"error": "the viewer has gone"}),
                    };
                    self.tell_answer(to, id, &answer);
                }
                Request::ViewerLeft { number } => self.viewer_left(number),
                Request::Typed(bytes) => self.typed(bytes)?,
                Request::ConsoleLeft => self.consoles_left(),
                Request::Op { op, reply } if op.is_for_leader() && self.role != Role::Leader => {
                    self.ask_leader(&op, None, reply);
                }
                Request::Op { op, reply } => {
                    match op.of().filter(|of| *of != self.config.group.me) {
                        Some(of) => self.ask_member(of, &op, reply),
                        None => self.request(op, Asker::Here(reply))?,
                    }
                }
            }
        }
        Ok(())
    }

    /// Carries a request out and answers it: an input to the guest once it is safe, what waits for a disk when that has
    /// answered, and all others at once.
    pub(super) fn request(&mut self, op: Op, asker: Asker) -> Result<(), BoxError> {
        match op {
            Op::Guest { order } => return self.ask_agent(order, asker),
            Op::Drain {
                until_restart: true,
            } => return self.drain_until_restart(true, asker),
            Op::Undrain {
                until_restart: true,
            } => return self.drain_until_restart(false, asker),
            Op::Drain { .. } => return self.drain(true, asker),
            Op::Undrain { .. } => return self.drain(false, asker),
            Op::DiskRoom { disk, bytes, .. } => {
                self.tell_room(disk, bytes, asker);
                return Ok(());
            }
            _ => {}
        }
        if let Asker::There(peer, id) = asker {
            match &op {
                Op::Look { viewer } => {
                    let answer = self.look_from(peer, *viewer);
                    self.tell_answer(peer, id, &answer);
                    return Ok(());
                }
                Op::Viewed {
                    viewer,
                    to_guest,
                    bytes,
                } => {
                    if let Some(answer) = self.pass_on(peer, id, (*viewer, *to_guest), bytes) {
                        self.tell_answer(peer, id, &answer);
                    }
                    return Ok(());
                }
                _ => {}
            }
        }
        match op.into_input() {
            Ok(input) => self.give_input(input, asker),
            Err(op) => {
                let answer = self.carry_out(op)?;
                self.reply(asker, &answer);
                Ok(())
            }
        }
    }

    fn carry_out(&mut self, op: Op) -> Result<Value, BoxError> {
        Ok(match op {
            Op::Status => self.status(),
            Op::Logs {
                last,
                process,
                after: count,
                ..
            } => {
                let after = Wanted::After { process, count };
                let mut answer = self.log.answer(last.map_or(after, Wanted::Last));
                answer["id"] = self.config.group.me.into();
                answer
            }
            Op::Switchover { to } => self.switch_over(to)?,
            Op::Member { order } => self.change_members(order)?,
            Op::PeerOff { id, seen_at_us } => self.peer_is_off(id, Micros(seen_at_us))?,
            Op::Bootstrap { others } => match self.why_not_bootstrap(&others) {
                Some(why) => json!({"error": why}),
                None => {
                    let vain = self.replica.consensus_core().check_bootstrap().err();
                    self.apply(Event::Bootstrap)?;
                    json!({"ok": true, "in_vain": vain.map(|why| why.to_string())})
                }
            },
            Op::Shutdown => {
                self.on_stop(true)?;
                json!({"ok": true})
            }
            Op::CrashInPhase { phase } => {
                self.crash_in = Some(phase);
                json!({"ok": true})
            }
            Op::CrashInArea { area } => {
                self.crash_at = Some(area);
                json!({"ok": true})
            }
            Op::StopInRelease => {
                self.stops_in_release = true;
                json!({"ok": true})
            }
            Op::Console
            | Op::Display
            | Op::Backup { .. }
            | Op::BackupDisk { .. }
            | Op::BackupMemory { .. }
            | Op::CopyMemory { .. } => {
                json!({"error": "this is a connection of its own, to a replica's own socket"})
            }
            Op::DiskGrow { disk, bytes } => self.grow_disk(disk, bytes),
            Op::DiskTell { disk, bytes } => self.tell_of_disk(disk, bytes),
            Op::Reload { .. } => {
                json!({"error": "a replica reads its file on its own host: run this there"})
            }
            Op::Power
            | Op::Start
            | Op::Reboot
            | Op::Reset
            | Op::Pause
            | Op::Unpause
            | Op::Type { .. } => {
                json!({"error": "inputs to the guest are answered when they are safe"})
            }
            Op::Guest { .. } | Op::Drain { .. } | Op::Undrain { .. } | Op::DiskRoom { .. } => {
                json!({"error": "this is answered when somebody else has answered"})
            }
            Op::Stops | Op::Look { .. } | Op::Viewed { .. } => {
                json!({"error": "this is what replicas tell each other"})
            }
            Op::Group => json!({"error": "ask for the group on a replica's own socket"}),
        })
    }

    /// Another replica is asked for something that it alone knows.
    fn ask_member(&mut self, of: u8, op: &Op, reply: Sender<Value>) {
        let members = self.replica.members();
        if members.contains(ReplicaId(of)) {
            return self.ask(ReplicaId(of), op, None, reply);
        }
        let why = format!(
            "replica {of} is no member of the group: name one of {}",
            members.in_words()
        );
        let _ = reply.send(json!({"error": why}));
    }

    /// Hands over to another replica, as soon as no sync runs.
    fn switch_over(&mut self, to: Option<u8>) -> Result<Value, BoxError> {
        let to = to.map(ReplicaId);
        if self.role != Role::Leader {
            return Ok(json!({"error": self.not_leading("does not lead")}));
        }
        if let Some(why) = self.replica.why_not_switch_over(to) {
            return Ok(json!({"error": why.to_string()}));
        }
        let status = self.replica.status();
        let heir = status.in_sync.iter().find(|id| *id != status.id);
        self.apply(Event::SwitchOver { to })?;
        Ok(
            json!({"ok": true, "from": status.id.0, "to": heir.map(|heir| heir.0), "view": status.view.to_string()}),
        )
    }

    /// The same, and nothing is written down.
    fn drain_until_restart(&mut self, drained: bool, asker: Asker) -> Result<(), BoxError> {
        self.storage.set_drained_until_restart(drained);
        self.reply(asker, &json!({"ok": true}));
        self.apply(Event::Drain(self.storage.is_drained()))
    }

    /// This host is drained, or not any more. That counts at once, and is answered when it is written down: a host is often
    /// drained because its disk is slow.
    fn drain(&mut self, drained: bool, asker: Asker) -> Result<(), BoxError> {
        let write_down = self.storage.set_drained(drained);
        self.answer_later(asker, move || match write_down() {
            Ok(()) => json!({"ok": true}),
            Err(error) => json!({"error": format!(
                "it is so until its process ends, and could not be written down: {error}"
            )}),
        });
        self.apply(Event::Drain(drained))
    }

    /// Somebody knows that the other one of two replicas is off.
    fn peer_is_off(&mut self, id: u8, seen_at: Micros) -> Result<Value, BoxError> {
        let peer = ReplicaId(id);
        let status = self.replica.status();
        let others = self.replica.members();
        let why = if !self.config.group.fencing {
            Some("this group waits for no such word: it has no `group.fencing`".to_owned())
        } else if peer == status.id || !others.contains(peer) {
            Some(format!("replica {id} is not the other one of this group"))
        } else if seen_at > clock::now() {
            Some("this was seen in the future: give the clock that goes on while a host is suspended".into())
        } else if !self
            .replica
            .consensus_core()
            .other_is_silent(clock::now(), seen_at)
        {
            Some(format!(
                "replica {id} was heard just before that: make sure that it is off, and say so again"
            ))
        } else {
            None
        };
        if let Some(why) = why {
            return Ok(json!({"error": why}));
        }
        tracing::warn!(event = "peer_off", "replica {id} is said to be off");
        let awaited = self.replica.consensus_core().status().awaits_off == Some(peer);
        self.apply(Event::PeerOff { peer, seen_at })?;
        Ok(json!({"ok": true, "awaited": awaited}))
    }

    pub(super) fn is_guest_off(&self) -> bool {
        self.vm.as_ref().is_some_and(QemuVm::is_off)
    }

    /// An operator has paused the guest. (The pauses of syncs are another thing.)
    pub(super) fn is_guest_paused(&self) -> bool {
        self.vm.as_ref().is_some_and(QemuVm::stands)
    }

    /// Why the guest must not start from this replica's disks, by its own record and the operator's
    /// statements about the other replicas.
    fn why_not_bootstrap(&self, others: &[DiskCopy]) -> Option<String> {
        let disks = self.disks.as_ref()?;
        let first = self.replica.consensus_core().first_leader();
        if first.0 != self.config.group.me {
            return None;
        }
        let own = DiskCopy {
            id: ReplicaId(self.config.group.me),
            last_in_sync: self.storage.guest().into(),
            disks_whole: disks.is_whole(),
        };
        match newest::may_boot(&own, others) {
            Ok(()) => None,
            Err(BootRefused::NotWhole) if disks.failure().is_some() => disks.failure(),
            Err(refused) => Some(refused.to_string()),
        }
    }

    /// Bytes to and from the peers since the start, as they travelled: by lane, and those of the bulk
    /// lane by payload. `plain_bytes_out` is the sum before compression.
    fn traffic(&self) -> serde_json::Value {
        let stats = self.fabric.as_ref().map(|f| f.stats()).unwrap_or_default();
        let mut traffic = json!({
            "log_bytes_out": stats.log.bytes_out,
            "log_bytes_in": stats.log.bytes_in,
            "bulk_bytes_out": stats.bulk.bytes_out,
            "bulk_bytes_in": stats.bulk.bytes_in,
            "copy_bytes_out": self.replica.status().copied_bytes,
            "plain_bytes_out": self.packer.plain_bytes(),
        });
        for (payload, bytes) in self.packer.bytes_out() {
            if !matches!(payload, Payload::Log | Payload::Copy) {
                traffic[format!("{}_bytes_out", payload.name())] = bytes.into();
            }
        }
        traffic
    }

    /// The peers with which no link comes up because one end refuses the other, by id, and why.
    fn refused(&self) -> serde_json::Value {
        let peers = self.replica.members().iter();
        let refused = peers.filter_map(|peer| {
            let why = self.fabric.as_ref()?.refusal(peer)?;
            Some((peer, why))
        });
        let refused = refused.chain(self.set_aside.clone());
        let refused = refused.map(|(peer, why)| (peer.0.to_string(), why.into()));
        serde_json::Value::Object(refused.collect())
    }

    /// This replica's state in a line, as `systemctl status` shows it.
    pub(super) fn in_a_line(&self) -> String {
        let status = self.replica.status();
        let ids: Vec<String> = status.in_sync.iter().map(|id| id.0.to_string()).collect();
        let role = match status.role {
            _ if self.set_aside.is_some() => {
                "takes no part: another process of this replica does".into()
            }
            Role::Recovering if self.waits_to_be_added() => {
                "belongs to no group yet: waits for the other replicas of a new one, or to be added"
                    .into()
            }
            Role::Recovering => "recovers the log from the other replicas".into(),
            Role::Witness => match status.keeps_copy_of {
                Some(source) => format!("is witness, with a copy of replica {}", source.0),
                None => "is witness".into(),
            },
            Role::Joining => "joins: it gets a full copy".into(),
            Role::Secondary => "is secondary".into(),
            Role::Leader if self.is_guest_off() => "leads; the guest is off".into(),
            Role::Leader if status.protected => "leads; the guest is protected".into(),
            Role::Leader => "leads; the guest is not protected".into(),
            Role::Deposed => "is deposed, and does not know yet who leads now".into(),
        };
        let mut line = format!(
            "{}: replica {} {role}; in sync: {}",
            self.config.group.name,
            status.id.0,
            ids.join(", ")
        );
        if let Some(change) = self.replica.group_record().change {
            line += &format!("; {change}");
        }
        if self.storage.is_drained() {
            line += "; drained";
        }
        if self.leaving.is_some() {
            line += "; hands over before it ends";
        }
        line
    }

    fn status(&self) -> serde_json::Value {
        let status = self.replica.status();
        let now = clock::now();
        let mut answer = json!({
            "id": status.id.0,
            "group": self.config.group.name,
            "policy": self.config.policy.name.name(),
            "role": status.role,
            "view": status.view.to_string(),
            "leader": status.leader.map(|l| l.0),
            "isr": status.in_sync.iter().map(|r| r.0).collect::<Vec<_>>(),
            "protected": status.protected,
            "serving": status.serving,
            "holds_state": status.holds_state,
            "guest_running": status.guest_running && !self.is_guest_off() && !self.is_guest_paused(),
            "guest_off": self.is_guest_off(),
            "held_outputs": status.held_outputs,
            "idle_threshold_us": status.idle_threshold.0,
            "slot_longest_us": status.slot_longest.0,
            "commit": status.commit.0,
            "rejected": status.rejected,
            "refused": self.refused(),
            "plover_pid": std::process::id(),
            "last_in_sync": LastInSync::from(self.storage.guest()),
            "disks_whole": self.disks.as_ref().map(Disks::is_whole),
            "disk_failure": self.disks.as_ref().and_then(Disks::failure),
            "copy": status.warm.map(|copy| json!({
                "to": copy.peer.0,
                "open": copy.open,
                "whole": copy.whole,
                "bytes_behind": u64::from(copy.behind) * PAGE_BYTES as u64,
                "bytes": u64::from(copy.of) * PAGE_BYTES as u64,
            })),
            "keeps_copy_of": status.keeps_copy_of.map(|source| source.0),
            "qemu_pid": self.vm.as_ref().and_then(QemuVm::pid),
            "machine": self.qemu.machine.to_string(),
            "accel": self.qemu.accel.to_string(),
            "suspected_after_us": status.suspected_after.0,
            "suspicions": self.suspicions,
            "dropped_inputs": self.dropped_inputs,
            "dropped_outputs": self.dropped_outputs,
            "last_failure": self.last_failure,
            "unprotected_because": self.unprotected,
            "mono_us": now.0,
            "sync": self.metrics.to_json(),
            "outputs": self.held.to_json(now),
            "traffic": self.traffic(),
            "memory": memory(),
        });
        let members = self.replica.members().iter().map(|r| r.0);
        answer["members"] = members.collect();
        self.tell_of_members(&mut answer);
        self.tell_of_versions(&mut answer);
        answer["guest_paused"] = self.is_guest_paused().into();
        answer["guest_reboots"] = self.vm.as_ref().is_some_and(QemuVm::reboots).into();
        answer["secondary_rests"] = serde_json::to_value(status.rest).unwrap_or_default();
        answer["reaches_clients"] = self.uplink.is_up().into();
        if let Some((peer, why)) = &self.copy_refused {
            answer["copy_refused"] = json!({"peer": peer, "why": why});
        }
        answer["disks"] = self.disk_sizes();
        answer["waiting_keys"] = self.waiting_keys.clone().into();
        answer["inputs"] = self.inputs.into();
        let damaged = self.fabric.as_ref().map(|fabric| fabric.stats().damaged);
        answer["links_cut"] = damaged.unwrap_or_default().into();
        answer["lines_lost"] = json!(Background::lost());
        answer["drained"] = self.storage.is_drained().into();
        answer["leaving"] = self.leaving.is_some().into();
        answer["last_failover"] = self.failover.last().clone();
        answer["takeovers"] = self.failover.counts();
        answer["times_deposed"] = self.lost_leads.deposed().into();
        answer["handovers"] = self.lost_leads.handovers();
        answer["warm_witness"] = json!(self.config.group.warm_witness);
        answer["copies_failed"] = self.failures.copies.into();
        answer["syncs_failed"] = self.failures.syncs.into();
        answer["guests_lost"] = self.failures.guests.into();
        answer["disk_stage_histogram"] = self.staged.to_json();
        answer
    }
}

/// Memory of this process in KiB: `private` is its own, `shared` the guest's mapping.
fn memory() -> serde_json::Value {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = |name: &str| -> u64 {
        text.lines()
            .find_map(|l| {
                l.strip_prefix(name)?
                    .trim_start_matches(':')
                    .split_whitespace()
                    .next()
            })
            .and_then(|n| n.parse().ok())
            .unwrap_or(0)
    };
    json!({
        "rss_kib": field("VmRSS"),
        "private_kib": field("RssAnon") + field("RssFile"),
        "shared_kib": field("RssShmem"),
    })
}
