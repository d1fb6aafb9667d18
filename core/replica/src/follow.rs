//! The secondary's side of a syncvm (PLOVER §4.4).
//!
//! ```text
//!  Draining ─▶ Pausing ─▶ Scanning ─▶ Receiving ─▶ (end mark) ─┬────────────────────────────▶┬─────────▶ Loading ─▶ done
//!     └───────────┴───────────┴────────────┴──▶ given up:      └▶ Saving ▶ Resetting ▶ Fetching ▶┤
//!                       the guest goes on from its own state      (machine types that need a reset)└▶ Durable ▶┘
//!                                                                                             (guests with disks)
//! ```
//!
//! The end mark (`follow_end`) is the point of no return. Before it, a lost leader means that this side
//! drops what it has staged and goes on from its own state. After it, this side goes forward to the staged
//! state whatever happens: it acknowledges, and from its acknowledgement on the leader may release the
//! slot's outputs. So the stages behind the end mark may outlive the phase: a secondary that is elected
//! meanwhile finishes them as leader.
//!
//! A device reset writes guest RAM (virtio queues, option ROMs), and after it there is no way
//! back to the own state. So it comes after the end mark and before the acknowledgement. Pages
//! it writes that were not staged held what the leader holds: they are copied before and put back
//! after. A replica that joins does not know them yet and fetches them from the leader, which
//! still stands. See [`resetting`] and docs/decisions/0003.
//!
//! Memory is gone with its host; disks are not, so a host that dies while they are half written
//! must find them whole when it is back. The staged blocks are therefore durable as a whole before the
//! acknowledgement, and written after it. See docs/decisions/0012.

mod checkpoint;
mod going_forward;
mod hashing;
mod join_end;
mod resetting;
mod resting;
mod stage;
#[cfg(test)]
pub(crate) mod tests;

pub(crate) use self::checkpoint::Kept;
use self::stage::{Complete, LeaderDirty, Stage, Stopped};
pub(crate) use self::stage::{EarlyDirty, FollowSync};
use crate::api::{Action, Note, Role};
use crate::canary::canary;
use crate::guest::{Cut, Input, Power};
use crate::jobs::Job;
use crate::replica::Replica;
use plover_matching::Translation;
use plover_syncvm::StagingError;
use plover_syncvm::message::Body;
use plover_types::{DeviceState, Micros, SyncNo, Unconsumed, Viewstamp};

/// Staged chunks between two acknowledgements of the transfer window.
const CHUNKS_PER_ACK: u32 = 8;

impl Replica {
    /// The log cuts the input stream here. A guest that is still busy with the last syncvm
    /// comes to this one when it is done.
    pub(crate) fn on_syncvm_entry(&mut self, sync: SyncNo, at: Viewstamp, rests: bool) {
        if !sync.is_sane() {
            return self
                .cx
                .reject_leader("a syncvm with a number that counting does not reach");
        }
        self.cx.group.sync_no = self.cx.group.sync_no.max(sync);
        if at.view != self.cx.group.view || self.cx.group.leader.is_none() {
            return;
        }
        let cut = Cut { sync, at, rests };
        match self.role() {
            Role::Leader => {
                if let Some((leader, cx)) = self.leading() {
                    leader.reach_cut(cx, sync);
                }
            }
            Role::Secondary | Role::Joining if self.leave_if_passed_over() => {}
            Role::Secondary => {
                // It waits at the gate, if that is shut, before the gate may open: older cuts are passed over then.
                let cx = &mut self.cx;
                let reached = cx.guest.give(cx.now, Input::Cut(cut), &mut cx.out);
                // A syncvm without its end mark was given up by the leader.
                self.abort_follow("the leader has begun another one");
                // The inputs before it stay with a guest that rests, for this syncvm may be given up.
                if reached.is_some() || (self.is_resting() && self.follow.is_none()) {
                    self.begin_follow(cut);
                }
            }
            Role::Joining if self.cx.guest.power == Power::Paused => {
                let follow = self.follow.as_ref();
                if follow.is_some_and(FollowSync::is_past_the_end_mark) {
                    // The leader's next slot ended before our first state was loaded.
                    let cx = &mut self.cx;
                    let cut = cx.guest.give(cx.now, Input::Cut(cut), &mut cx.out);
                    assert_eq!(cut, None, "the gate is shut while a state is loaded");
                } else {
                    // Its guest has never run, so a syncvm that was given up leaves no trace.
                    self.follow = None;
                    self.cx.guest.forget_backlog();
                    self.begin_follow(cut);
                }
            }
            _ => {}
        }
    }

    /// This side's part of a syncvm begins, unless its leader is gone. Returns whether it does.
    pub(crate) fn begin_follow_if_due(&mut self, cut: Cut) -> bool {
        let group = &self.cx.group;
        let is_due = cut.at.view == group.view && group.leader.is_some();
        if is_due {
            self.begin_follow(cut);
        }
        is_due
    }

    fn begin_follow(&mut self, Cut { sync, rests, .. }: Cut) {
        assert!(self.follow.is_none(), "one syncvm at a time");
        let resting = self.is_resting();
        if resting && canary!(self.cx, ForgetAtCut) {
            self.cx.guest.skip_to_cut(sync);
        }
        self.cx.guest.shut_gate();
        let view = self.cx.group.view;
        // That of a later one may be here already, if the leader has given this one up.
        let is_of_this = |early: &mut EarlyDirty| early.sync == sync && early.view == view;
        let leaders = self.early_dirty.take_if(is_of_this);
        let leaders = leaders.map(|early| early.dirty);
        let since = self.cx.now;
        let stands = resting || self.role() == Role::Joining;
        let wait_max = match resting {
            true => Micros::ZERO,
            false => self.cx.rules.wait.begin(),
        };
        let stage = if stands {
            Stage::Scanning {
                stopped: Stopped::default(),
                own: None,
                leaders,
            }
        } else {
            Stage::Draining {
                since,
                wait_max,
                leaders,
            }
        };
        self.follow = Some(FollowSync {
            sync,
            since,
            rests,
            stage,
        });
        if stands {
            self.cx.ask(Job::FollowSync(sync), Action::Scan);
        }
    }

    /// Draining ends when the guest is idle or has been waited for long enough.
    pub(crate) fn tick_follow(&mut self) {
        let Self { cx, follow, .. } = self;
        let Some(FollowSync { stage, .. }) = follow else {
            return;
        };
        if let Stage::Draining {
            since,
            wait_max,
            leaders,
        } = stage
        {
            let waited = cx.now.since(*since);
            let is_idle = cx.guest.activity.is_idle;
            if cx.guest.power == Power::Running && (is_idle || waited >= *wait_max) {
                cx.rules.wait.learn(waited, is_idle);
                let leaders = leaders.take();
                *stage = Stage::Pausing {
                    wait: waited,
                    leaders,
                };
                cx.guest.pause(cx.now, &mut cx.out);
            }
        }
    }

    pub(crate) fn follow_deadline(&self) -> Micros {
        match self.follow.as_ref().map(|follow| &follow.stage) {
            Some(Stage::Draining {
                since, wait_max, ..
            }) if self.cx.guest.power == Power::Running => *since + *wait_max,
            _ => Micros::NEVER,
        }
    }

    pub(crate) fn follow_paused(&mut self, unconsumed: Unconsumed) {
        let Some(follow) = &mut self.follow else {
            return;
        };
        if let Stage::Pausing { wait, leaders } = &mut follow.stage {
            let (wait, leaders) = (*wait, leaders.take());
            follow.stage = Stage::Scanning {
                stopped: Stopped { wait, unconsumed },
                own: None,
                leaders,
            };
            self.cx.ask(Job::FollowSync(follow.sync), Action::Scan);
        }
    }

    pub(crate) fn follow_pages(&mut self, number: SyncNo, seq: u32, chunk: Vec<u8>) {
        let Some(leader) = self.cx.group.leader else {
            return;
        };
        let Some(Stage::Receiving { staging, .. }) = self.follow_stage(number) else {
            return;
        };
        match staging.push(seq, chunk) {
            Ok(()) => {}
            // The chunk before it was lost.
            Err(error @ StagingError::OutOfOrder { .. }) => {
                return self.cx.reject_leader(&error.to_string());
            }
            Err(error) => return self.cut_for_pages(&error),
        }
        let chunks = staging.chunks();
        if chunks % CHUNKS_PER_ACK == 0 {
            let sync = number;
            self.cx.send_bulk(leader, Body::PagesAck { sync, chunks });
        }
    }

    /// The leader sends pages that make no sense, or without end.
    fn cut_for_pages(&mut self, error: &StagingError) {
        self.cx
            .cut_leader(&format!("pages of a syncvm that are not whole: {error}"));
        self.abort_follow("the leader's pages make no sense");
    }

    /// The end mark: everything is staged, there is no way back.
    pub(crate) fn follow_end(
        &mut self,
        number: SyncNo,
        chunks: u32,
        device: DeviceState,
        refeed: Unconsumed,
        (compare, translations): (bool, Vec<Translation>),
    ) {
        let has_run = self.role() == Role::Secondary && !self.is_resting();
        let checkpoint = self.cx.takes_checkpoints();
        let Some(leader) = self.cx.group.leader else {
            return;
        };
        let Some(follow) = self.follow.take_if(|follow| follow.sync == number) else {
            return;
        };
        let FollowSync {
            sync,
            since,
            rests,
            stage,
        } = follow;
        let (staging, stopped) = match stage {
            Stage::Receiving {
                staging, stopped, ..
            } => (staging, stopped),
            stage => {
                self.follow = Some(FollowSync {
                    sync,
                    since,
                    rests,
                    stage,
                });
                return;
            }
        };
        if !checkpoint && has_run {
            self.cx.rules.wait.ended(self.cx.now.since(since));
        }
        let staged = match staging.finish(chunks, device, refeed) {
            Ok(staged) => staged,
            Err(error) => {
                let why = format!("the secondary's copy of the syncvm is not whole: {error}");
                self.cx.reject_leader(&why);
                self.give_up_follow(sync, stopped.unconsumed, &why);
                self.cx.send_bulk(leader, Body::GaveUp { sync, why });
                return;
            }
        };
        self.cx.guest.streams.complete(sync);
        if checkpoint {
            return self.keep_checkpoint(staged);
        }
        if self.is_resting() {
            self.cx.guest.skip_to_cut(sync);
        }
        let complete = Complete {
            staged,
            compare,
            translations,
            rests,
        };
        if self.cx.config.needs_reset {
            self.save_aside(sync, complete);
        } else {
            self.make_durable(sync, complete, Vec::new());
        }
    }

    /// The stage of the syncvm that a message or an answer is about, if that is the running one.
    fn follow_stage(&mut self, sync: SyncNo) -> Option<&mut Stage> {
        let follow = self.follow.as_mut().filter(|follow| follow.sync == sync)?;
        Some(&mut follow.stage)
    }

    /// The syncvm goes on; behind the end mark nobody asks any more when it began, and the stage says how it ends.
    fn follow_on(&mut self, sync: SyncNo, stage: Stage) {
        self.follow = Some(FollowSync {
            sync,
            since: self.cx.now,
            rests: false,
            stage,
        });
    }

    /// Gives the syncvm up if its end mark has not come; carries it through otherwise.
    pub(crate) fn abort_follow(&mut self, why: &str) {
        let Some(follow) = &self.follow else { return };
        if matches!(follow.stage, Stage::Fetching(..)) {
            return self.lose_guest_in_fetch();
        }
        if follow.is_past_the_end_mark() {
            return;
        }
        if let Some(follow) = self.follow.take() {
            let unconsumed = match follow.stage {
                Stage::Scanning { stopped, .. } | Stage::Receiving { stopped, .. } => {
                    stopped.unconsumed
                }
                _ => Unconsumed::default(),
            };
            self.give_up_follow(follow.sync, unconsumed, why);
        }
    }

    fn give_up_follow(&mut self, sync: SyncNo, unconsumed: Unconsumed, why: &str) {
        let why = why.to_string();
        self.cx.note(Note::SyncFailed { sync, why });
        if self.role() == Role::Joining {
            // Its guest has never run; the leader begins the attempt anew.
            return self.leave_join();
        }
        match self.cx.guest.power {
            // A guest that rests goes on resting, with the last state.
            _ if self.is_resting() => {}
            Power::Running => self.open_gate(),
            Power::Pausing => self.cx.guest.resume_when_paused = true,
            // A guest that waits goes on waiting, with the last checkpoint.
            Power::Paused if self.cx.takes_checkpoints() => {}
            Power::Paused => self.resume_guest(unconsumed),
            Power::Off | Power::Starting => {}
        }
    }
}
