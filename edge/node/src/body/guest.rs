//! The hypervisor: its start, its end, its events and its orders.

use super::work::Work;
use super::{Body, BoxError, FRAMES_PER_TURN};
use crate::clock;
use crate::control::ConsoleOutput;
use crate::host::{self, CpuConfig};
use plover_disk::Attachment;
use plover_replica::{Area, Event, JobId, Note, OperatorInput, Role};
use plover_types::{Frame, Micros, SyncNo, Unconsumed};
use plover_vm::{AtEnd, GuestEnd, QemuVm, VmCommand, VmEvent};
use rustix::process::Pid;
use serde_json::{Value, json};
use std::io::Write;

/// The console log is cut at this size.
const CONSOLE_LOG_BYTES_MAX: u64 = 1 << 20;

/// Rounds that take a paused guest's last frames: many times the frames that its socket holds. A QEMU that is a stranger's by now may
/// send for ever.
const ROUNDS_AT_PAUSE_MAX: usize = 1024;
/// The sockets of all NICs hold less.
const BYTES_AT_PAUSE_MAX: usize = 256 << 20;

/// Pages that the guest may write before a syncvm is due: 256 MiB.
const WRITTEN_MAX: u64 = 65_536;
/// The time from a scan to the first look at how much that is, and the least and the longest one to the next look. The loop
/// does not wake for it, because a leader's heartbeats wake it.
pub(super) const LOOK_AFTER: Micros = Micros::from_ms(100);
const LOOK_WITHIN: Micros = Micros::from_ms(300);

/// An operator's order about the guest's power, for the log.
fn in_words(input: &OperatorInput) -> Option<&'static str> {
    Some(match input {
        OperatorInput::Console(_) | OperatorInput::Agent(_) => return None,
        OperatorInput::PowerButton => "presses the guest's power button",
        OperatorInput::Start => "switches the guest on",
        OperatorInput::Reboot => "reboots the guest: its power button is pressed",
        OperatorInput::Reset => "resets the guest",
        OperatorInput::Pause => "pauses the guest: it stands still until 'plover unpause'",
        OperatorInput::Unpause => "lets the guest go on",
    })
}

impl Body {
    pub(super) fn take_vm(&mut self) -> Result<(), BoxError> {
        let Some(vm) = &mut self.vm else {
            return Ok(());
        };
        let mut happened = Vec::new();
        vm.poll(&mut happened);
        let mut printed = Vec::new();
        vm.console_read(&mut printed);
        if !printed.is_empty() {
            self.print(&printed)?;
        }
        self.read_agent()?;
        if !happened.is_empty() {
            // Outputs from before an event are reported before it.
            self.take_outputs()?;
        }
        for event in happened {
            let event = match event {
                VmEvent::Started => {
                    self.place();
                    let words = self.vm.as_ref().map(QemuVm::machine_words);
                    match self.guest_started(words.unwrap_or_default()) {
                        Some(event) => event,
                        None => continue,
                    }
                }
                VmEvent::Paused => {
                    let paused = self.paused();
                    if let Some(said) = self.take_replies() {
                        self.apply(said)?;
                    }
                    paused
                }
                VmEvent::Resumed => Event::GuestResumed,
                VmEvent::ResetDone => match self.guest_reset() {
                    Some(event) => event,
                    None => continue,
                },
                VmEvent::StateSaved(state) => Event::StateSaved(state),
                VmEvent::StateLoaded => match self.state_loaded() {
                    Some(event) => event,
                    None => continue,
                },
                VmEvent::Probed => Event::Probed,
                VmEvent::Collected => {
                    self.collected();
                    // The answer to a scan must not wait for something else to happen.
                    while let Some(event) = self.events.pop_front() {
                        self.apply(event)?;
                    }
                    continue;
                }
                VmEvent::DiskResized { disk, result } => match self.disk_resized(disk, result) {
                    Some(event) => event,
                    None => continue,
                },
                VmEvent::Failed { command, error } => {
                    let refused = format!("QEMU refused {command}: {error}");
                    self.guest_is_gone(self.blame_restore(refused))
                }
                VmEvent::Died(why) => self.guest_is_gone(self.blame_restore(why)),
                VmEvent::GuestReset => {
                    tracing::info!(event = "guest_reboots", "the guest reboots");
                    continue;
                }
                VmEvent::GuestEnded { how, then } => {
                    self.guest_ended(how, then)?;
                    continue;
                }
            };
            self.apply(event)?;
        }
        Ok(())
    }

    /// The guest has ended by itself. Operators read so on its console, where the line is held as the guest's own
    /// output is.
    fn guest_ended(&mut self, how: GuestEnd, then: AtEnd) -> Result<(), BoxError> {
        let how = match how {
            GuestEnd::PowerOff => "the guest has powered off",
            GuestEnd::Reboot => "the guest wanted to reboot",
            GuestEnd::Crash => "the guest has crashed",
        };
        let then = match then {
            AtEnd::Restart => "it boots again",
            AtEnd::Destroy => "it is off until 'plover start'",
        };
        tracing::warn!(event = "guest_ended", "the guest has ended: {how}; {then}");
        self.print(format!("\r\n[{how}; {then}]\r\n").as_bytes())?;
        // The other copy is to know it soon, also where nothing else asks for a syncvm.
        self.apply(Event::SyncDue)
    }

    pub(super) fn take_outputs(&mut self) -> Result<(), BoxError> {
        let mut outputs = Vec::new();
        if let Some(vm) = &mut self.vm {
            vm.take_outputs(FRAMES_PER_TURN, &mut outputs);
        }
        self.outputs_left = outputs.len() >= FRAMES_PER_TURN;
        if !outputs.is_empty() {
            self.learn_addresses(&outputs);
            if let Some(said) = self.take_replies() {
                self.apply(said)?;
            }
            self.apply(Event::Outputs(outputs))?;
            if self.crash_at == Some(Area::A) && self.replica.awaits_a_match() {
                self.crash();
            }
        }
        Ok(())
    }

    fn learn_addresses(&mut self, sent: &[Frame]) {
        for frames in sent.chunk_by(|one, other| one.nic() == other.nic()) {
            let nic = frames.first().map_or(0, Frame::nic);
            if let Some(announcement) = self.announcements.get_mut(usize::from(nic)) {
                announcement.learn(frames);
            }
        }
    }

    /// Words of programs in this leader's guest about their replies. Each word comes before its reply.
    fn take_replies(&mut self) -> Option<Event> {
        let leads = self.role == Role::Leader && self.replica.policy().clean_replies;
        let vm = self.vm.as_mut().filter(|_| leads)?;
        let mut replies = Vec::new();
        let lost = vm.take_replies(&mut replies);
        (lost || !replies.is_empty()).then_some(Event::Replies { replies, lost })
    }

    /// The guest is paused: collects all frames that it has sent and all inputs that it has not consumed.
    fn paused(&mut self) -> Event {
        let (mut outputs, mut unconsumed) = (Vec::new(), Unconsumed::default());
        if let Some(vm) = &mut self.vm {
            let mut bytes = 0;
            for _ in 0..ROUNDS_AT_PAUSE_MAX {
                let before = outputs.len();
                vm.take_outputs(FRAMES_PER_TURN, &mut outputs);
                bytes += outputs[before..].iter().map(|it| it.0.len()).sum::<usize>();
                if outputs.len() == before || bytes > BYTES_AT_PAUSE_MAX {
                    break;
                }
            }
            unconsumed = vm.take_unconsumed();
        }
        self.drop_unread_of_agent();
        self.learn_addresses(&outputs);
        Event::GuestPaused {
            outputs,
            unconsumed,
        }
    }

    pub(super) fn guest_is_gone(&mut self, why: String) -> Event {
        tracing::error!(event = "guest_lost", "this replica's guest is lost: {why}");
        self.leave_guest();
        self.printed.forget();
        self.agent.forget_said();
        self.last_failure = Some(why.clone());
        Event::GuestDied(why)
    }

    /// Ends the guest that runs here, if one does.
    pub(super) fn leave_guest(&mut self) {
        self.resizing.forget();
        self.restoring.forget();
        self.backup
            .forget_memory("this replica's guest was lost: begin another backup");
        self.give_up_start();
        if let Some(vm) = self.vm.take() {
            vm.leave();
        }
    }

    /// Has UEFI variables written that the guest has changed: `at_once`, or if it is time to look.
    pub(super) fn look_at_variables(&mut self, at_once: bool) {
        // While a guest is copied to this replica they are of two moments.
        let is_whole = matches!(self.role, Role::Leader | Role::Secondary);
        match self.vm.as_ref().filter(|_| is_whole) {
            Some(vm) if at_once => self.variables.keep(vm),
            Some(vm) => self.variables.look(clock::now(), vm),
            None => {}
        }
    }

    /// Gives the hypervisor an order, after the work on its pages that was asked for before.
    pub(super) fn order(&mut self, command: VmCommand) {
        self.begin(Work::Order(command));
    }

    pub(super) fn order_now(&mut self, command: VmCommand) {
        let command = match command {
            VmCommand::LoadState(state) => match self.resize_before(state) {
                Some(state) => VmCommand::LoadState(state),
                None => return,
            },
            other => other,
        };
        if command == VmCommand::Pause {
            self.hold_keys();
        }
        if let Some(vm) = &mut self.vm {
            vm.command(command);
            // Some orders are answered at once.
            self.ready.vm = true;
        }
    }

    /// Has the pages counted, now and then, that the guest has written since the last scan.
    pub(super) fn look_at_written(&mut self) {
        let leads = self.role == Role::Leader;
        let Some(vm) = self.vm.as_ref().filter(|_| leads) else {
            return;
        };
        if clock::now() >= self.look_at_written_at && vm.runs_undisturbed() {
            self.look_at_written_at = Micros::NEVER;
            self.collect(None);
        }
    }

    /// Makes QEMU say what the guest has written, for a scan or to count it.
    pub(super) fn collect(&mut self, scan: Option<JobId>) {
        self.scans.push_back(scan);
        self.order_now(VmCommand::Collect);
    }

    /// QEMU has said it. When it is much, a syncvm is due, so that the next pause stays short. If not, it is
    /// looked at again halfway to the time at which it will be: after each look the first write to a page is dear again.
    fn collected(&mut self) {
        if let Some(Some(job)) = self.scans.pop_front() {
            return self.scan_now(job);
        }
        let leads = self.role == Role::Leader;
        let Some(vm) = self.vm.as_ref().filter(|_| leads) else {
            return;
        };
        let (written, now) = (vm.written_since_scan(), clock::now());
        let Some(more) = WRITTEN_MAX.checked_sub(written) else {
            return self.events.push_back(Event::SyncDue);
        };
        let left = now.since(self.scanned_at).0 * more / written.max(1);
        self.look_at_written_at = now + Micros(left / 2).clamp(LOOK_AFTER, LOOK_WITHIN);
    }

    pub(super) fn feed(&mut self, frames: &[Frame]) {
        if let Some(vm) = &mut self.vm {
            self.dropped_inputs += (frames.len() - vm.feed(frames)) as u64;
        }
    }

    pub(super) fn operate(&mut self, input: &OperatorInput) {
        let Some(vm) = &mut self.vm else { return };
        match input {
            OperatorInput::Console(bytes) => {
                let lost = vm.console_write(bytes);
                if lost > 0 && self.role == Role::Leader {
                    let why =
                        format!("{lost} bytes that were typed are lost: the guest reads none");
                    self.show(format!("\r\n[{why}]\r\n").as_bytes());
                }
            }
            OperatorInput::Agent(bytes) => vm.agent_write(bytes),
            OperatorInput::PowerButton => vm.command(VmCommand::PowerButton),
            OperatorInput::Start => vm.command(VmCommand::Start),
            OperatorInput::Reboot => vm.command(VmCommand::Reboot),
            OperatorInput::Reset => vm.command(VmCommand::HardReset),
            OperatorInput::Pause => vm.command(VmCommand::Stand),
            OperatorInput::Unpause => vm.command(VmCommand::GoOn),
        }
        if let Some(what) = in_words(input) {
            tracing::warn!(event = "operator_acted", "an operator {what}");
            // The other copy is to know it soon, also where nothing else asks for a syncvm.
            self.events.push_back(Event::SyncDue);
        }
    }

    /// Gives this process and its guest the CPUs of its role, and the guest's vCPUs the nice value of the
    /// role; called when the guest has all its threads. QEMU's main thread keeps its priority, since a
    /// leader waits for it in every syncvm. A priority that this user may not raise again is not lowered.
    pub(super) fn place(&self) {
        let guest = self.vm.as_ref().and_then(QemuVm::pid);
        let guest = guest.and_then(|pid| Pid::from_raw(pid.try_into().ok()?));
        if let Some(cpus) = self.cpus() {
            host::keep_on(rustix::process::getpid(), &cpus.replica);
            if let Some(guest) = guest {
                host::keep_on(guest, &cpus.guest);
                host::gather_work(guest);
            }
        }
        if let Some(guest) = guest.filter(|_| host::may_raise_priority()) {
            let nice = match self.role {
                Role::Secondary => self.config.secondary_nice(),
                _ => 0,
            };
            host::renice_vcpus(guest, nice);
        }
    }

    pub(super) fn cpus(&self) -> Option<&CpuConfig> {
        let host = self.config.host.as_ref()?;
        Some(host.of(self.role == Role::Leader))
    }

    /// Test hooks that crash this replica in a given phase of a sync that it leads. Not in the sync that ends a join:
    /// nobody else holds the guest before that is acknowledged.
    pub(super) fn at_phase(&mut self, phase: plover_syncvm::Phase, note: &Note) {
        if phase == plover_syncvm::Phase::Scan {
            if let Note::SyncPhase { sync, .. } = note {
                self.checksum(sync.0);
            }
        }
        let transfers = phase == plover_syncvm::Phase::Transfer;
        let is_due = self.crash_in == Some(phase) || (transfers && self.crash_at == Some(Area::D));
        if is_due && self.replica.status().protected {
            self.crash();
        }
    }

    /// If a test hook is to crash or stop this replica during this release: how many of the frames go out before that.
    pub(super) fn fault_in_release(&self, slot: SyncNo, frames: usize) -> Option<usize> {
        if self.stops_in_release {
            return Some(frames / 2);
        }
        let area = self.crash_at.filter(|_| self.replica.is_match(slot))?;
        match area {
            Area::B => Some(0),
            Area::C => Some(frames.div_ceil(2)),
            Area::A | Area::D => None,
        }
    }

    /// Does what that hook asks for.
    pub(super) fn fail_in_release(&mut self) {
        if std::mem::take(&mut self.stops_in_release) {
            for process in [self.supervisor, rustix::process::getpid()] {
                let _ = rustix::process::kill_process(process, rustix::process::Signal::STOP);
            }
        } else {
            self.crash();
        }
    }

    /// A test hook that crashes a secondary, with memory and disks left between two syncs.
    pub(super) fn crash_in_apply(&mut self, job: JobId, chunks: &[Vec<u8>]) {
        let hook = self.crash_in == Some(plover_syncvm::Phase::Apply);
        if hook && self.role == Role::Secondary {
            let half = chunks[..chunks.len().div_ceil(2)].to_vec();
            half.iter().for_each(|chunk| self.write_memory(chunk));
            self.write_blocks(job, half);
            let disks = self.vm.as_ref().and_then(QemuVm::disks);
            disks.into_iter().for_each(Attachment::wait_until_written);
            self.crash();
        }
    }

    /// Ends the replica and its guest as a loss of the host's power would.
    pub(super) fn crash(&mut self) {
        if let Some(fabric) = &mut self.fabric {
            // Messages that were written before the crash are sent.
            fabric.flush();
        }
        // The first, since it would report the death of the others.
        let _ = rustix::process::kill_process(self.supervisor, rustix::process::Signal::KILL);
        if let Some(pid) = self.vm.as_ref().and_then(QemuVm::pid) {
            if let Some(pid) = rustix::process::Pid::from_raw(pid as i32) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
        let me = rustix::process::getpid();
        let _ = rustix::process::kill_process(me, rustix::process::Signal::KILL);
    }

    /// The guest has printed. The console log gets the output at once, operators as soon as the guest's
    /// state is safe.
    fn print(&mut self, bytes: &[u8]) -> Result<(), BoxError> {
        if self.console_log_bytes < CONSOLE_LOG_BYTES_MAX {
            self.console_log_bytes += bytes.len() as u64;
            let _ = self.console_log.write_all(bytes);
        }
        // A secondary holds its output too, to show it if it takes over.
        self.printed.hold(bytes);
        if self.console.is_empty() && !self.relay.is_looked_at() {
            return Ok(());
        }
        self.apply(Event::Printed)
    }

    pub(super) fn show(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.show_elsewhere(bytes);
        self.console.retain(|console| console.show(bytes));
    }

    /// Opens the console for an operator; only a leader's shows anything.
    pub(super) fn attach(&mut self, output: ConsoleOutput) -> Value {
        if self.role != Role::Leader {
            return json!({"error": self.not_leading("does not lead")});
        }
        self.console.push(output);
        json!({"ok": true})
    }

    /// This replica no longer leads. It says so on the open consoles and closes them; otherwise they
    /// would show nothing, without a reason.
    pub(super) fn dismiss_operators(&mut self) {
        let why = self.not_leading("leads no more");
        let why = format!("\r\n[{why}: what you typed last may not have reached the guest]\r\n");
        self.show(why.as_bytes());
        self.console.clear();
        self.close_consoles_elsewhere();
        self.hide_display();
    }

    /// A message that this replica `does_not`, and which one leads instead, if known.
    pub(super) fn not_leading(&self, does_not: &str) -> String {
        let status = self.replica.status();
        let who = match status.leader.filter(|leader| *leader != status.id) {
            Some(leader) => format!("; replica {} does", leader.0),
            None => String::new(),
        };
        format!("replica {} {does_not}{who}", status.id.0)
    }
}
