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
mod going_forward;
mod hashing;

pub(crate) use self::checkpoint::Kept;
use crate::api::{Action, Note, Role};
use crate::guest::{Cut, Input, Power};
use crate::replica::{Asked, Replica};
use plover_matching::Translation;
use plover_syncvm::message::Body;
use plover_syncvm::{Staged, Staging};
use plover_types::{Micros, PageNo, PageSet, Runs, SyncNo, Unconsumed, View, Viewstamp};

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
    /// The session's, once hashes were asked for.
    key: [u8; 32],
    /// The divergent pages, once their blocks' hashes were asked for, and the mark of those that
    /// the leader remembers.
    narrowed: (Vec<PageNo>, u64),
    own: Runs,
    /// The leader wants to hear what the guest sends after this.
    compare: bool,
    /// The sequence-number translations that come with the state.
    translations: Vec<Translation>,
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
            narrowed: Default::default(),
            dirty: dirty.map(|d| (d.set, d.key)),
            key: [0; 32],
            own: Runs::default(),
            compare: false,
            translations: Vec::new(),
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
        (compare, translations): (bool, Vec<Translation>),
    ) {
        let checkpoint = self.takes_checkpoints();
        let Some(follow) = self.follow.as_mut().filter(|f| f.sync == number) else {
            return;
        };
        if !matches!(follow.stage, Stage::Receiving(_)) {
            return;
        }
        follow.compare = compare;
        follow.translations = translations;
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
