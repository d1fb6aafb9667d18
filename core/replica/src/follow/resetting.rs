//! The reset of the devices, on machine types that need one before a state is loaded (docs/decisions/0003).
//!
//! A reset writes guest RAM: the rings of its queues, and option ROMs. After it there is no way back to the
//! own state. A page that it writes, and that is neither staged nor saved aside, is lost here; only the leader
//! has its content then, and a leader that dies now costs the guest. So this side saves aside, before the
//! reset, every page that the reset may write:
//!
//! | page | why a reset may write it |
//! |---|---|
//! | an earlier reset has written it | ROMs, and the queues that are in use for long |
//! | either guest has written it in this slot | the driver that sets a queue up writes its pages |
//! | either guest had written it in the last one | the leader's driver did so, and its state came with that sync |
//!
//! A replica that joins knows none of this: it saves nothing, fetches what it lacks, and so learns the pages.
//! The queues of the guest come with its first state. So its guest stands until a second state comes, and the
//! reset before that one is of the leader's queues and of no others; only then the in-sync set names it
//! (`leader::join`). A member of the in-sync set has to fetch only a queue of the leader's that its own guest had
//! taken down when the reset would have shown it (docs/decisions/0003, "What is left").

use super::{Complete, Stage};
use crate::api::{Action, Role};
use crate::context::Memory;
use crate::hypervisor::Order;
use crate::jobs::Job;
use crate::phase::Phase;
use crate::replica::Replica;
use plover_syncvm::message::Body;
use plover_types::{PageNo, PageSet, SyncNo};

/// Pages that are read at once: 1 MiB, so that this replica is not silent for long.
const PAGES_PER_READ: usize = 256;

/// Pages that are saved aside, to be put back after the reset.
#[derive(Debug)]
pub(super) struct Aside {
    set: PageSet,
    /// Those that are not read yet.
    left: Vec<PageNo>,
    chunks: Vec<Vec<u8>>,
}

impl Memory {
    /// The leader's state is this side's now.
    pub(super) fn remember_written(&mut self, is_first: bool) {
        self.recent_pages.clear();
        if !is_first {
            self.recent_pages.union_with(self.ledger.owed());
        }
    }

    /// The pages that a reset may write; none is known to a replica that `joins`.
    fn may_be_reset(&self, joins: bool) -> PageSet {
        let mut set = self.reset_pages.clone();
        if !joins {
            set.union_with(self.ledger.owed());
            set.union_with(&self.recent_pages);
        }
        set
    }
}

impl Replica {
    /// Whether the state that was loaded is the first of a replica that joins.
    pub(super) fn is_first_state(&mut self) -> bool {
        match &mut self.phase {
            Phase::Joining { copy } => !std::mem::replace(&mut copy.has_state, true),
            _ => false,
        }
    }

    /// A replica that joins has its first state: its guest stands until the second one. The cut of that syncvm
    /// may be here already.
    pub(super) fn await_second_state(&mut self) {
        if let Some(cut) = self.cx.guest.newest_cut() {
            self.cx.guest.skip_to_cut(cut.sync);
            self.begin_follow_if_due(cut);
        }
    }

    /// The end mark has come: what a reset may write is saved aside, but for pages that are staged whole.
    pub(super) fn save_aside(&mut self, number: SyncNo, complete: Complete) {
        let joins = self.role() == Role::Joining;
        let ram_pages = self.cx.config.layout.ram_pages();
        let mut set = self.cx.memory.may_be_reset(joins);
        set.subtract(&complete.staged.touched);
        let left = set.iter().filter(|page| page.0 < ram_pages).collect();
        let chunks = Vec::new();
        self.save_next(number, complete, Aside { set, left, chunks });
    }

    fn save_next(&mut self, number: SyncNo, complete: Complete, mut aside: Aside) {
        if aside.left.is_empty() {
            self.follow_on(number, Stage::Resetting(complete, aside));
            return self.cx.order(Order::Reset, Action::Reset);
        }
        let rest = aside.left.len().saturating_sub(PAGES_PER_READ);
        let pages = aside.left.split_off(rest);
        self.follow_on(number, Stage::Saving(complete, aside));
        let job = Job::FollowSync(number);
        self.cx.ask(job, |job| Action::ReadPages { job, pages });
    }

    /// Some of the pages are saved.
    pub(crate) fn follow_restore_read(&mut self, number: SyncNo, chunk: Vec<u8>) {
        let saving = |stage: &Stage| matches!(stage, Stage::Saving(..));
        if let Some(Stage::Saving(complete, mut aside)) = self.take_follow(number, saving) {
            aside.chunks.push(chunk);
            self.save_next(number, complete, aside);
        }
    }

    pub(crate) fn follow_reset_done(&mut self) {
        let Some(follow) = &self.follow else { return };
        if matches!(follow.stage, Stage::Resetting(..)) {
            self.cx.ask(Job::FollowSync(follow.sync), Action::Scan);
        }
    }

    /// Takes the pages that the reset has written. The staged pages overwrite them, or they are put back.
    /// Those that are in neither set are fetched from the leader.
    pub(super) fn follow_reset_scanned(
        &mut self,
        number: SyncNo,
        (mut complete, aside): (Complete, Aside),
        written: &PageSet,
    ) {
        // Settled when the staged state is in place.
        let memory = &mut self.cx.memory;
        memory.ledger.owe(written);
        memory.reset_pages.union_with(written);
        let mut missing = written.clone();
        missing.subtract(&complete.staged.touched);
        missing.subtract(&aside.set);
        if missing.is_empty() {
            return self.make_durable(number, complete, aside.chunks);
        }
        let runs = missing.to_runs();
        complete.staged.expected = missing;
        self.follow_on(number, Stage::Fetching(complete, aside));
        let leader = self.cx.group.leader;
        match leader.filter(|leader| self.cx.peers.is_linked(*leader)) {
            Some(leader) => {
                let sync = number;
                self.cx.send_bulk(leader, Body::Fetch { sync, runs });
            }
            None => self.lose_guest_in_fetch(),
        }
    }

    pub(crate) fn follow_fetched(&mut self, number: SyncNo, chunk: Vec<u8>, last: bool) {
        let fetching = |stage: &Stage| matches!(stage, Stage::Fetching(..));
        let Some(Stage::Fetching(mut complete, aside)) = self.take_follow(number, fetching) else {
            return;
        };
        let added = complete.staged.add(chunk);
        if added.is_ok() && last {
            return self.make_durable(number, complete, aside.chunks);
        }
        self.follow_on(number, Stage::Fetching(complete, aside));
        if let Err(error) = added {
            let why = format!("pages that were not asked for: {error}");
            self.cx.cut_leader(&why);
            self.lose_guest_in_fetch();
        }
    }

    /// The leader is gone while a page that only it holds is missing.
    pub(super) fn lose_guest_in_fetch(&mut self) {
        self.follow = None;
        let why = "the leader was lost while pages written by a device reset were fetched";
        self.on_guest_died(why.to_string());
    }
}
