//! The target's end of a copy: a guest that has never run, whose pages follow another replica's.
//!
//! A witness keeps one as its warm copy, and one that joins becomes a secondary with it. It counts
//! for nothing before its first syncvm, so pages are written as they come, and nothing is lost with
//! it but time.

use super::offer::Offer;
use super::stream::COMPARE_PAGES;
use crate::api::{Action, Warm};
use crate::canary::canary;
use crate::context::Context;
use crate::guest::Power;
use crate::jobs::Job;
use crate::leader::join::WINDOW_CHUNKS;
use crate::phase::Phase;
use crate::replica::Replica;
use plover_syncvm::chunk;
use plover_syncvm::message::Body;
use plover_types::{Digest, HashKey, MachineWords, PageNo, ReplicaId};

/// Chunks, and comparisons, of a source that may be under way here at most. A source has [`WINDOW_CHUNKS`] under way, and
/// as many anew each time that the copy is opened anew while this host's disk is slow. Beyond, a source would fill the
/// memory.
const UNDER_WAY_MAX: u32 = 8 * WINDOW_CHUNKS;

/// A guest that stands and is written from outside.
#[derive(Clone, Debug)]
pub(crate) struct CopyTarget {
    /// The replica that sends its pages.
    pub source: ReplicaId,
    pub attempt: u64,
    /// The stream that was offered last.
    offered: u64,
    /// The machine that the source's hypervisor has made.
    pub(super) machine: MachineWords,
    /// The stream that its pages follow, and how many of its chunks.
    pub follows: Option<u64>,
    chunks: u32,
    /// Chunks that are being written, and comparisons that are being hashed.
    under_way: u32,
    /// Nothing was written into it since its hypervisor started: its memory is as at power-on.
    is_blank: bool,
    /// The guest's state was loaded into it: the join ends with the next one.
    pub has_state: bool,
}

impl CopyTarget {
    pub fn new(source: ReplicaId, offer: &Offer) -> Self {
        Self {
            source,
            attempt: offer.attempt,
            offered: offer.stream,
            machine: offer.machine.clone(),
            follows: None,
            chunks: 0,
            under_way: 0,
            is_blank: true,
            has_state: false,
        }
    }

    /// Whether it is this opening.
    pub fn is_of(&self, from: ReplicaId, attempt: u64) -> bool {
        self.source == from && self.attempt == attempt
    }

    /// Whether a window of an earlier opening is not done: its disk hangs, or is far behind.
    pub(super) fn is_behind(&self) -> bool {
        self.under_way >= WINDOW_CHUNKS
    }

    /// The stream is offered anew, by this source or another.
    pub(super) fn is_offered(&mut self, source: ReplicaId, offer: &Offer) {
        self.source = source;
        self.attempt = offer.attempt;
        self.offered = offer.stream;
        self.machine = offer.machine.clone();
    }

    /// The hypervisor stands: the source may send.
    pub fn is_ready(&mut self, cx: &mut Context) {
        let ram_pages = cx.config.layout.ram_pages();
        let keep_from = match cx.config.warm {
            Warm::Full => 0,
            Warm::Disk => ram_pages,
            Warm::Off => cx.config.layout.pages(),
        };
        let written = (self.follows == Some(self.offered)).then_some(self.chunks);
        if written.is_none() {
            self.follows = None;
            self.chunks = 0;
        }
        let ready = Body::CopyReady {
            attempt: self.attempt,
            written,
            compare_from: if self.is_blank { ram_pages } else { 0 },
            keep_from,
        };
        cx.send_bulk(self.source, ready);
    }

    fn on_copy(&mut self, cx: &mut Context, seq: u32, chunk: Vec<u8>) {
        let pages = cx.config.layout.pages();
        if seq != self.chunks {
            return;
        }
        if let Some(error) = chunk::read(&chunk, pages).find_map(Result::err) {
            return cx.cut_link(
                self.source,
                &format!("pages of a copy that are not whole: {error}"),
            );
        }
        if !self.has_room(cx) {
            return;
        }
        self.follows = Some(self.offered);
        self.is_blank = false;
        // A copy may be kept up for months.
        self.chunks = self.chunks.wrapping_add(1);
        let written = Job::CopyWritten(self.attempt, self.chunks);
        let chunks = vec![chunk];
        cx.ask(written, |job| Action::WriteChunks { job, chunks });
    }

    /// Whether the source keeps within what may be under way. If so, there is one more.
    fn has_room(&mut self, cx: &mut Context) -> bool {
        let has_room = self.under_way < UNDER_WAY_MAX;
        if has_room {
            self.under_way += 1;
        } else {
            let why =
                format!("more of a copy than the {UNDER_WAY_MAX} parts that may be under way");
            cx.cut_link(self.source, &why);
        }
        has_room
    }

    /// The source wants to know what is here already.
    fn on_compare(&mut self, cx: &mut Context, (first, count): (u32, u32), key: HashKey) {
        let pages = cx.config.layout.pages();
        let end = first.checked_add(count).filter(|end| *end <= pages);
        let Some(end) = end.filter(|_| (1..=COMPARE_PAGES).contains(&count)) else {
            return cx.cut_link(
                self.source,
                "a comparison of pages outside the guest, or of too many",
            );
        };
        if !self.has_room(cx) {
            return;
        }
        let pages = (first..end).map(PageNo).collect();
        let compare = Job::CompareTarget(self.attempt, first);
        cx.ask(compare, |job| Action::Hash { job, key, pages });
    }
}

impl Replica {
    /// The target that this replica is, if it is one.
    pub(crate) fn target_mut(&mut self) -> Option<&mut CopyTarget> {
        match &mut self.phase {
            Phase::Witness { copy } => copy.as_mut(),
            Phase::Joining { copy } => Some(copy),
            _ => None,
        }
    }

    /// Ends any other use of this replica's guest, if the guest has never run and no syncvm has touched it.
    /// Returns the target of the copy if there still is one.
    pub(super) fn take_target(&mut self) -> Option<CopyTarget> {
        let stands = matches!(self.cx.guest.power, Power::Starting | Power::Paused);
        if !stands || self.follow.is_some() {
            return None;
        }
        let copy = match &mut self.phase {
            Phase::Witness { copy } => copy.take()?,
            Phase::Joining { copy } if !copy.has_state => copy.clone(),
            _ => return None,
        };
        let guest = &mut self.cx.guest;
        let (power, machine) = (guest.power, std::mem::take(&mut guest.machine));
        guest.off(self.cx.group.delivered);
        (guest.power, guest.machine) = (power, machine);
        self.early_dirty = None;
        Some(copy)
    }

    /// An attempt to join is over before its first syncvm. The pages copied so far stay as a warm copy,
    /// where one is wanted.
    pub(crate) fn leave_join(&mut self) {
        // Its pages are staged, and not in the guest yet.
        self.follow.take_if(|it| !it.is_past_the_end_mark());
        let wanted = self.cx.config.warm == Warm::Full;
        let copy = if wanted { self.take_target() } else { None };
        if copy.is_none() {
            self.drop_guest();
        }
        self.enter(Phase::Witness { copy });
    }

    /// This side of the present opening, while its guest may be written.
    fn target_of(
        &mut self,
        from: ReplicaId,
        attempt: u64,
    ) -> Option<(&mut CopyTarget, &mut Context)> {
        let Self {
            cx, phase, follow, ..
        } = self;
        let (Phase::Witness { copy: Some(copy) } | Phase::Joining { copy }) = phase else {
            return None;
        };
        if !copy.is_of(from, attempt) {
            return None;
        }
        // A leader that still copies has not begun the syncvm that ends the join. The log had an older one, of
        // the secondary before.
        follow.take_if(|follow| !follow.is_past_the_end_mark());
        let is_ready = cx.guest.power == Power::Paused && follow.is_none();
        is_ready.then_some((copy, cx))
    }

    pub(crate) fn on_copy(&mut self, from: ReplicaId, attempt: u64, seq: u32, chunk: Vec<u8>) {
        if let Some((target, cx)) = self.target_of(from, attempt) {
            target.on_copy(cx, seq, chunk);
        }
    }

    pub(crate) fn on_compare(
        &mut self,
        from: ReplicaId,
        attempt: u64,
        pages: (u32, u32),
        key: HashKey,
    ) {
        if let Some((target, cx)) = self.target_of(from, attempt) {
            target.on_compare(cx, pages, key);
        }
    }

    /// One thing less is under way.
    fn is_done(&mut self) {
        if let Some(target) = self.target_mut() {
            target.under_way = target.under_way.saturating_sub(1);
        }
    }

    /// The peer to answer about this opening.
    fn source_of(&mut self, attempt: u64) -> Option<ReplicaId> {
        let target = self.target_mut().filter(|t| t.attempt == attempt)?;
        Some(target.source)
    }

    /// Acknowledges the chunk, so that a source is never further ahead than its window, however slow this
    /// side's disk is.
    pub(crate) fn target_written(&mut self, attempt: u64, chunks: u32) {
        self.is_done();
        if let Some(source) = self.source_of(attempt) {
            self.cx.send_bulk(source, Body::CopyAck { attempt, chunks });
        }
    }

    pub(crate) fn target_hashed(&mut self, attempt: u64, first: u32, digests: &[Digest]) {
        self.is_done();
        let Some(source) = self.source_of(attempt) else {
            return;
        };
        let is_one = digests.windows(2).all(|two| two[0] == two[1]);
        let sent = if is_one { &digests[..1] } else { digests };
        let body = Body::Compared {
            attempt,
            first,
            digests: Digest::to_bytes(sent),
        };
        self.cx.send_bulk(source, body);
    }

    /// The hypervisor of a copy is gone, with its memory.
    pub(crate) fn target_died(&mut self, why: String) {
        if let Some(target) = self.target_mut() {
            let (source, attempt) = (target.source, target.attempt);
            self.cx.send_bulk(source, Body::CopyFailed { attempt, why });
        }
        self.drop_guest();
    }
}

impl Context {
    /// Writes page chunks that a syncvm brought.
    pub(crate) fn write_chunks(&mut self, chunks: Vec<Vec<u8>>) {
        if chunks.is_empty() {
            return;
        }
        let forgets = canary!(self, WarmForgetsSyncs);
        let pages = self.config.layout.pages();
        if let Some(stream) = self.peers.copy_mut().filter(|_| !forgets) {
            for chunk in &chunks {
                let pages = chunk::read(chunk, pages).flatten();
                pages.for_each(|(page, _)| stream.owe_page(page));
            }
        }
        self.ask(Job::Applied, |job| Action::WriteChunks { job, chunks });
    }
}

#[cfg(test)]
mod tests;
