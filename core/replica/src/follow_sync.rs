//! The secondary's side of a syncvm (PLOVER §4.4; design §3 steps 5 to 8, §4).
//!
//! ```text
//!  Draining ─▶ Pausing ─▶ Scanning ─▶ Receiving ─▶ (end mark) ─┬────────────────────────────▶┬─────────▶ Loading ─▶ done
//!     └───────────┴───────────┴────────────┴──▶ given up:      └▶ Saving ▶ Resetting ▶ Fetching ▶┤
//!                       the guest goes on from its own state      (machine types that need a reset)└▶ Durable ▶┘
//!                                                                                             (guests with disks)
//! ```
//!
//! The end mark is the line: before it, a lost leader means that this side drops what it has
//! staged and goes on from its own state; after it, this side goes forward to the staged state
//! whatever happens, since the leader may have released the slot's outputs.
//!
//! A device reset writes guest RAM (virtio queues, option ROMs), and after it there is no way
//! back to the own state. So it comes after the end mark and before the acknowledgement. Pages
//! it writes that were not staged held what the leader holds; those that earlier resets wrote
//! are copied before and put back after, and a page never seen before is fetched from the
//! leader, which still stands. See docs/decisions/0003.
//!
//! Memory is gone with its host; disks are not, so a host that dies while they are half written
//! must find them whole when it is back. What is staged for them is therefore durable as a whole
//! before the acknowledgement, and written after it. See docs/decisions/0012.

mod checkpoint;

pub(crate) use self::checkpoint::Kept;
use crate::api::{Action, Canary, Note, Role};
use crate::guest::{Cut, Input, Power};
use crate::replica::{Asked, Replica};
use plover_guard::Known;
use plover_syncvm::message::Body;
use plover_syncvm::{Partial, Staged, Staging};
use plover_types::{Digest, Micros, PageNo, PageSet, Runs, SyncNo, Unconsumed, View, Viewstamp};

/// Digests in one message: 64 KiB.
const DIGESTS_PER_MESSAGE: usize = 4096;

/// Block hashes in one message: 64 KiB.
const BLOCK_HASHES_PER_MESSAGE: usize = 8192;

/// Staged chunks between two acknowledgements of the transfer window.
const CHUNKS_PER_ACK: u32 = 8;

/// The leader's dirty pages, come before the log entry of their syncvm (another lane).
#[derive(Debug)]
pub(crate) struct EarlyDirty {
    sync: SyncNo,
    view: View,
    set: PageSet,
    key: [u8; 32],
}

#[derive(Debug)]
enum Stage {
    /// The guest finishes the inputs before the cut.
    Draining,
    /// It is being paused.
    Pausing,
    /// Its dirty pages are collected; the leader's may be awaited.
    Scanning,
    /// Hashes are sent; pages arrive.
    Receiving(Staging),
    /// The pages that a reset will write are copied aside.
    Saving(Staged),
    /// The devices are being reset.
    Resetting(Staged, Vec<u8>),
    /// Pages that the reset wrote beside the known ones are fetched.
    Fetching(Staged, Vec<u8>),
    /// What is staged for disks is being made durable; pages to put back after a reset.
    Durable(Staged, Option<Vec<u8>>),
    /// The staged state is in memory; devices are being loaded.
    Loading(Staged),
}

/// A syncvm that this secondary takes part in.
#[derive(Debug)]
pub(crate) struct FollowSync {
    sync: SyncNo,
    stage: Stage,
    /// When the cut reached this side.
    since: Micros,
    wait: Micros,
    wait_max: Micros,
    unconsumed: Unconsumed,
    scanned: bool,
    dirty: Option<(PageSet, [u8; 32])>,
    /// What is known of the union's hashes, while the rest is being hashed.
    partial: Option<Partial>,
    /// The session's, once hashes were asked for.
    key: [u8; 32],
    own: Runs,
    /// The leader wants to hear what the guest sends after this.
    compare: bool,
    /// The numbers of connections that come with the state.
    known: Vec<Known>,
}

impl FollowSync {
    fn is_past_the_end_mark(&self) -> bool {
        matches!(
            self.stage,
            Stage::Saving(_)
                | Stage::Resetting(..)
                | Stage::Fetching(..)
                | Stage::Durable(..)
                | Stage::Loading(_)
        )
    }

    pub fn is_draining(&self) -> bool {
        matches!(self.stage, Stage::Draining)
    }
}

impl Replica {
    /// The log cuts the input stream here. A guest that is still busy with the last syncvm
    /// comes to this one when it is done.
    pub(crate) fn on_syncvm_entry(&mut self, sync: SyncNo, at: Viewstamp) {
        self.sync_no = self.sync_no.max(sync);
        if at.view != self.view || self.leader.is_none() {
            return;
        }
        match self.role {
            Role::Leader => self.lead_cut(sync),
            Role::Secondary if self.guest.power != Power::Off => {
                // A syncvm without its end mark was given up by the leader.
                self.abort_follow("the leader has begun another one");
                let cut = Input::Cut(Cut { sync, at });
                if self.guest.give(self.now, cut, &mut self.out).is_some() {
                    self.begin_follow(sync);
                }
            }
            Role::Joining if self.guest.power == Power::Paused => {
                if self
                    .follow
                    .as_ref()
                    .is_some_and(FollowSync::is_past_the_end_mark)
                {
                    // The leader's next slot ended before our first state was loaded.
                    let cut = Input::Cut(Cut { sync, at });
                    let cut = self.guest.give(self.now, cut, &mut self.out);
                    assert_eq!(cut, None, "the gate is shut while a state is loaded");
                } else {
                    // Its guest has never run, so a syncvm that was given up leaves no trace.
                    self.follow = None;
                    self.guest.forget_backlog();
                    self.begin_follow(sync);
                }
            }
            _ => {}
        }
    }

    /// This side's part of a syncvm begins.
    pub(crate) fn begin_follow(&mut self, sync: SyncNo) {
        assert!(self.follow.is_none(), "one syncvm at a time");
        let joining = self.role == Role::Joining;
        self.guest.shut_gate();
        let dirty = self
            .early_dirty
            .take()
            .filter(|d| d.sync == sync && d.view == self.view);
        self.follow = Some(FollowSync {
            sync,
            stage: if joining {
                Stage::Scanning
            } else {
                Stage::Draining
            },
            since: self.now,
            wait: Micros::ZERO,
            wait_max: self.wait_rule.begin(),
            unconsumed: Unconsumed::default(),
            scanned: false,
            dirty: dirty.map(|d| (d.set, d.key)),
            partial: None,
            key: [0; 32],
            own: Runs::default(),
            compare: false,
            known: Vec::new(),
        });
        if joining {
            self.scans.push_back(Asked::Follow(sync));
            self.out.push(Action::Scan);
        }
    }

    /// Draining ends when the guest is idle or has been waited for long enough.
    pub(crate) fn tick_follow(&mut self) {
        let Some(follow) = &mut self.follow else {
            return;
        };
        if !follow.is_draining() || self.guest.power != Power::Running {
            return;
        }
        let waited = self.now.since(follow.since);
        if self.guest_idle || waited >= follow.wait_max {
            follow.wait = waited;
            self.wait_rule.learn(waited, self.guest_idle);
            follow.stage = Stage::Pausing;
            self.guest.pause(&mut self.out);
        }
    }

    pub(crate) fn follow_deadline(&self) -> Micros {
        match &self.follow {
            Some(follow) if follow.is_draining() && self.guest.power == Power::Running => {
                follow.since + follow.wait_max
            }
            _ => Micros::NEVER,
        }
    }

    pub(crate) fn follow_paused(&mut self, unconsumed: Unconsumed) {
        let Some(follow) = &mut self.follow else {
            return;
        };
        follow.unconsumed = unconsumed;
        follow.stage = Stage::Scanning;
        self.scans.push_back(Asked::Follow(follow.sync));
        self.out.push(Action::Scan);
    }

    /// The leader's dirty pages; they may come before the log entry.
    pub(crate) fn follow_dirty(&mut self, sync: SyncNo, runs: &Runs, key: [u8; 32]) {
        if !self.holds_state && self.role != Role::Joining {
            return self.report_no_guest();
        }
        let Some(set) = runs.to_set(self.config.pages) else {
            return self.reject_leader("dirty pages outside the guest");
        };
        match &mut self.follow {
            Some(follow) if follow.sync == sync => {
                follow.dirty = Some((set, key));
                self.try_hash();
            }
            _ => {
                self.early_dirty = Some(EarlyDirty {
                    sync,
                    view: self.view,
                    set,
                    key,
                })
            }
        }
    }

    /// The leader believes that this replica has a guest.
    fn report_no_guest(&mut self) {
        if let Some(leader) = self.leader {
            let why = "this replica was restarted and holds no guest".to_string();
            self.send_bulk(leader, Body::GuestLost { why });
        }
    }

    pub(crate) fn follow_scanned(&mut self, sync: SyncNo, set: &PageSet) {
        let Some(follow) = self.follow.as_mut().filter(|f| f.sync == sync) else {
            return self.ledger.owe(set);
        };
        if let Stage::Resetting(..) = follow.stage {
            return self.follow_reset_scanned(set);
        }
        self.ledger.owe(set);
        follow.scanned = true;
        follow.own = self.ledger.owed().to_runs();
        self.try_hash();
    }

    /// Hashes the union once both sides' dirty pages are known.
    fn try_hash(&mut self) {
        let Some(follow) = &mut self.follow else {
            return;
        };
        if !matches!(follow.stage, Stage::Scanning) || !follow.scanned {
            return;
        }
        let Some((theirs, key)) = follow.dirty.take() else {
            return;
        };
        let number = follow.sync;
        follow.key = key;
        follow.stage = Stage::Receiving(Staging::new(number, self.config.pages));
        // Whatever becomes of this sync, these pages may differ until one succeeds.
        self.ledger.owe(&theirs);
        if self.sends_unhashed() {
            return self.say_hashes(number, &[]);
        }
        let union: Vec<PageNo> = self.ledger.owed().iter().collect();
        let partial = self.known_early(&key, &union);
        let pages = partial.missing().to_vec();
        if let Some(follow) = &mut self.follow {
            follow.partial = Some(partial);
        }
        self.hashes.push_back(Asked::Follow(number));
        self.out.push(Action::Hash { key, pages });
    }

    pub(crate) fn follow_hashed(&mut self, number: SyncNo, digests: &[Digest]) {
        let follow = self.follow.as_mut().filter(|f| f.sync == number);
        if let Some(partial) = follow.and_then(|follow| follow.partial.take()) {
            self.say_hashes(number, &partial.complete(digests));
        }
    }

    fn say_hashes(&mut self, number: SyncNo, digests: &[Digest]) {
        let Some(leader) = self.leader else { return };
        let Some(follow) = self.follow.as_mut().filter(|f| f.sync == number) else {
            return;
        };
        let (mut runs, wait) = (std::mem::take(&mut follow.own), follow.wait);
        let total = digests.len() as u32;
        let mut first = 0;
        loop {
            let part = &digests[first..(first + DIGESTS_PER_MESSAGE).min(digests.len())];
            let runs = std::mem::take(&mut runs);
            let body = Body::Hashes {
                sync: number,
                runs,
                first: first as u32,
                total,
                digests: Digest::to_bytes(part),
                wait,
            };
            self.send_bulk(leader, body);
            first += part.len();
            if first >= digests.len() {
                break;
            }
        }
    }

    /// The leader knows which pages differ and wants to know where.
    pub(crate) fn follow_blocks(&mut self, number: SyncNo, runs: &Runs) {
        let Some(set) = runs.to_set(self.config.pages) else {
            return self.reject_leader("divergent pages outside the guest");
        };
        let Some(follow) = self.follow.as_mut().filter(|f| f.sync == number) else {
            return;
        };
        if !matches!(follow.stage, Stage::Receiving(_)) {
            return;
        }
        let key = follow.key;
        self.block_hashes.push_back(Asked::Follow(number));
        let pages = set.iter().collect();
        self.out.push(Action::HashBlocks { key, pages });
    }

    pub(crate) fn follow_blocks_hashed(&mut self, number: SyncNo, hashes: &[u64]) {
        let Some(leader) = self.leader else { return };
        if self.follow.as_ref().is_none_or(|f| f.sync != number) {
            return;
        }
        let total = hashes.len() as u32;
        for (part, hashes) in hashes.chunks(BLOCK_HASHES_PER_MESSAGE).enumerate() {
            let body = Body::BlockHashes {
                sync: number,
                first: (part * BLOCK_HASHES_PER_MESSAGE) as u32,
                total,
                hashes: hashes.iter().flat_map(|h| h.to_le_bytes()).collect(),
            };
            self.send_bulk(leader, body);
        }
    }

    pub(crate) fn follow_pages(&mut self, number: SyncNo, seq: u32, chunk: Vec<u8>) {
        let Some(leader) = self.leader else { return };
        let Some(follow) = self.follow.as_mut().filter(|f| f.sync == number) else {
            return;
        };
        let Stage::Receiving(staging) = &mut follow.stage else {
            return;
        };
        if let Err(error) = staging.push(seq, chunk) {
            return self.reject_leader(&error.to_string());
        }
        let chunks = staging.chunks();
        if chunks % CHUNKS_PER_ACK == 0 {
            self.send_bulk(
                leader,
                Body::PagesAck {
                    sync: number,
                    chunks,
                },
            );
        }
    }

    /// The end mark: everything is staged, there is no way back.
    pub(crate) fn follow_end(
        &mut self,
        number: SyncNo,
        chunks: u32,
        device: Vec<u8>,
        refeed: Unconsumed,
        (compare, known): (bool, Vec<Known>),
    ) {
        let checkpoint = self.takes_checkpoints();
        let Some(follow) = self.follow.as_mut().filter(|f| f.sync == number) else {
            return;
        };
        if !matches!(follow.stage, Stage::Receiving(_)) {
            return;
        }
        follow.compare = compare;
        follow.known = known;
        if !checkpoint && self.role == Role::Secondary {
            self.wait_rule.ended(self.now.since(follow.since));
        }
        let Stage::Receiving(staging) = std::mem::replace(&mut follow.stage, Stage::Scanning)
        else {
            return;
        };
        let staged = match staging.finish(chunks, device, refeed) {
            Ok(staged) => staged,
            Err(error) => {
                self.reject_leader(&error.to_string());
                return self.abort_follow("the syncvm is incomplete");
            }
        };
        if checkpoint {
            return self.keep_checkpoint(staged);
        }
        if !self.config.needs_reset {
            return self.make_durable(staged, None);
        }
        follow.stage = Stage::Saving(staged);
        let known: Vec<PageNo> = self.reset_pages.iter().collect();
        self.reads.push_back(Asked::Follow(number));
        self.out.push(Action::ReadPages(known));
    }

    pub(crate) fn follow_restore_read(&mut self, number: SyncNo, chunk: Vec<u8>) {
        let Some(follow) = self.follow.as_mut().filter(|f| f.sync == number) else {
            return;
        };
        match std::mem::replace(&mut follow.stage, Stage::Scanning) {
            Stage::Saving(staged) => {
                follow.stage = Stage::Resetting(staged, chunk);
                self.out.push(Action::Reset);
            }
            other => follow.stage = other,
        }
    }

    pub(crate) fn follow_reset_done(&mut self) {
        let Some(follow) = &self.follow else { return };
        if matches!(follow.stage, Stage::Resetting(..)) {
            self.scans.push_back(Asked::Follow(follow.sync));
            self.out.push(Action::Scan);
        }
    }

    /// What the reset wrote: put back, overwritten by the staged pages, or fetched.
    fn follow_reset_scanned(&mut self, written: &PageSet) {
        let Some(follow) = &mut self.follow else {
            return;
        };
        let Stage::Resetting(staged, restore) =
            std::mem::replace(&mut follow.stage, Stage::Scanning)
        else {
            return;
        };
        // Settled when the staged state is in place.
        self.ledger.owe(written);
        let number = follow.sync;
        let mut missing = written.clone();
        missing.subtract(&staged.touched);
        missing.subtract(&self.reset_pages);
        self.reset_pages.union_with(written);
        if missing.is_empty() {
            return self.make_durable(staged, Some(restore));
        }
        follow.stage = Stage::Fetching(staged, restore);
        match self.leader.filter(|l| self.links.contains(*l)) {
            Some(leader) => {
                let runs = missing.to_runs();
                self.send_bulk(leader, Body::Fetch { sync: number, runs });
            }
            None => self.lose_guest_in_fetch(),
        }
    }

    pub(crate) fn follow_fetched(&mut self, number: SyncNo, chunk: Vec<u8>, last: bool) {
        let Some(follow) = self.follow.as_mut().filter(|f| f.sync == number) else {
            return;
        };
        match std::mem::replace(&mut follow.stage, Stage::Scanning) {
            Stage::Fetching(mut staged, restore) => {
                if staged.add(chunk).is_err() {
                    follow.stage = Stage::Fetching(staged, restore);
                    self.lose_guest_in_fetch();
                } else if last {
                    self.make_durable(staged, Some(restore));
                } else {
                    follow.stage = Stage::Fetching(staged, restore);
                }
            }
            other => follow.stage = other,
        }
    }

    /// What is staged for disks comes first onto this host's own, where there are any.
    fn make_durable(&mut self, staged: Staged, restore: Option<Vec<u8>>) {
        let Some(follow) = &mut self.follow else {
            return;
        };
        if self.config.disk_blocks == 0 {
            return self.acknowledge_and_apply(staged, restore);
        }
        let ram_pages = self.config.pages - self.config.disk_blocks;
        let (sync, chunks) = (follow.sync, staged.chunks_from(PageNo(ram_pages)));
        follow.stage = Stage::Durable(staged, restore);
        self.out.push(Action::StageDisks { sync, chunks });
        if self.canary(Canary::AckBeforeDisks) {
            self.follow_disks_staged(sync);
        }
    }

    pub(crate) fn follow_disks_staged(&mut self, number: SyncNo) {
        let Some(follow) = self.follow.as_mut().filter(|f| f.sync == number) else {
            return;
        };
        match std::mem::replace(&mut follow.stage, Stage::Scanning) {
            Stage::Durable(staged, restore) => self.acknowledge_and_apply(staged, restore),
            other => follow.stage = other,
        }
    }

    /// From the acknowledgement on the leader may release; the staged state is ours.
    fn acknowledge_and_apply(&mut self, mut staged: Staged, restore: Option<Vec<u8>>) {
        let Some(follow) = &mut self.follow else {
            return;
        };
        let number = follow.sync;
        let mut chunks: Vec<Vec<u8>> = restore.into_iter().filter(|c| !c.is_empty()).collect();
        chunks.append(&mut staged.chunks);
        let device = std::mem::take(&mut staged.device);
        follow.stage = Stage::Loading(staged);
        if let Some(leader) = self.leader {
            if self.role != Role::Leader {
                self.send_bulk(leader, Body::Ack { sync: number });
            }
        }
        self.write_chunks(chunks);
        self.out.push(Action::LoadState(device));
    }

    /// Memory and devices are the leader's at the cut.
    pub(crate) fn follow_state_loaded(&mut self) {
        let Some(follow) = self.follow.take() else {
            return;
        };
        let Stage::Loading(staged) = follow.stage else {
            self.follow = Some(follow);
            return;
        };
        self.ledger.settle();
        // Own outputs of the slot, and own unconsumed inputs, belong to a state that is gone.
        self.guard.discard_all();
        let compared = follow.compare && self.role != Role::Leader;
        let numbers = &mut self.guest.numbers;
        numbers.begin(follow.sync, compared, &follow.known);
        self.begin_saying(follow.sync, follow.compare);
        self.note(Note::Applied { sync: follow.sync });
        if self.role == Role::Joining {
            self.joiner_applied();
        }
        self.set_holds_state(true);
        self.idle.disturb();
        self.guest_idle = false;
        self.resume_guest(staged.refeed);
        self.serve_if_ready();
        // The in-sync set may have gone on without this replica while it was loading.
        self.leave_if_out();
    }

    /// Gives the syncvm up if its end mark has not come; carries it through otherwise.
    pub(crate) fn abort_follow(&mut self, why: &str) {
        let Some(follow) = &self.follow else { return };
        match follow.stage {
            Stage::Fetching(..) => return self.lose_guest_in_fetch(),
            Stage::Saving(_) | Stage::Resetting(..) | Stage::Durable(..) | Stage::Loading(_) => {
                return;
            }
            _ => {}
        }
        let Some(follow) = self.follow.take() else {
            return;
        };
        self.note(Note::SyncFailed {
            sync: follow.sync,
            why: why.to_string(),
        });
        if self.role == Role::Joining {
            // Its guest has never run; the leader begins the attempt anew.
            return self.leave_join();
        }
        match self.guest.power {
            Power::Running => self.open_gate(),
            Power::Pausing => self.guest.resume_when_paused = true,
            // A guest that waits goes on waiting, with the last checkpoint.
            Power::Paused if self.takes_checkpoints() => {}
            Power::Paused => self.resume_guest(follow.unconsumed),
            Power::Off | Power::Starting => {}
        }
    }

    /// The leader is gone while a page that only it holds is missing: the one moment in which
    /// a second event costs the guest (docs/decisions/0003).
    fn lose_guest_in_fetch(&mut self) {
        self.follow = None;
        let why = "the leader was lost while pages written by a device reset were fetched";
        self.on_guest_died(why.to_string());
    }

    pub(crate) fn reject_leader(&mut self, why: &str) {
        if let Some(from) = self.leader {
            self.note(Note::Rejected {
                from,
                why: why.to_string(),
            });
        }
    }
}
