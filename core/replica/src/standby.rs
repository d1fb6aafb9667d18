//! The target's end of a copy: a guest that has never run, whose pages follow another replica's.
//!
//! A witness keeps one as its warm copy, and one that joins becomes a secondary with it. It counts
//! for nothing before its first syncvm, so pages are written as they come, and nothing is lost with
//! it but time.

use crate::api::{Action, Canary, Role, Warm};
use crate::guest::Power;
use crate::replica::{Asked, Replica};
use plover_syncvm::message::{Body, CopyPurpose};
use plover_syncvm::{Ledger, chunk};
use plover_types::{Digest, PageNo, ReplicaId};

/// A guest that stands and is written from outside.
#[derive(Debug)]
pub(crate) struct Standby {
    /// Who sends its pages.
    pub source: ReplicaId,
    attempt: u64,
    /// The stream that was offered last.
    offered: u64,
    /// The stream that its pages follow, and how many of its chunks.
    pub follows: Option<u64>,
    chunks: u32,
    /// Nothing was written into it since its hypervisor started: its memory is as at power-on.
    is_blank: bool,
}

/// What a source offers.
#[derive(Debug)]
pub(crate) struct Offer {
    pub attempt: u64,
    pub stream: u64,
    pub policy: String,
    /// The guest's pages, and how many of them are blocks of disks.
    pub size: (u32, u32),
}

impl Replica {
    pub(crate) fn on_copy_start(&mut self, from: ReplicaId, purpose: CopyPurpose, offer: &Offer) {
        let attempt = offer.attempt;
        let is_free = match purpose {
            CopyPurpose::Join => matches!(
                self.role,
                Role::Witness | Role::Joining | Role::Secondary | Role::Deposed
            ),
            CopyPurpose::Warm => self.role == Role::Witness,
        };
        if !is_free {
            return;
        }
        let unwanted = purpose == CopyPurpose::Warm && self.config.warm == Warm::Off;
        let why = if unwanted {
            Some("this replica is configured with warm_witness = \"off\"".to_string())
        } else {
            self.why_not_copy(&offer.policy, offer.size)
        };
        if let Some(why) = why {
            self.send_bulk(from, Body::CopyFailed { attempt, why });
            return;
        }
        let stands = self.keep_standby();
        if !stands {
            self.drop_guest();
        }
        self.set_role(Role::Witness);
        if purpose == CopyPurpose::Join {
            self.begin_joining();
        }
        match &mut self.standby {
            Some(standby) => {
                standby.source = from;
                standby.attempt = attempt;
                standby.offered = offer.stream;
            }
            None => {
                self.standby = Some(Standby {
                    source: from,
                    attempt,
                    offered: offer.stream,
                    follows: None,
                    chunks: 0,
                    is_blank: true,
                });
            }
        }
        if !stands {
            self.ledger = Ledger::settled(self.config.pages);
            self.guest.power = Power::Starting;
            self.out.push(Action::StartGuest);
        } else if self.guest.power == Power::Paused {
            self.standby_is_ready();
        }
    }

    /// What keeps this replica from running the leader's guest: it is configured for another.
    fn why_not_copy(&self, policy: &str, (pages, blocks): (u32, u32)) -> Option<String> {
        let own = self.config.policy.to_string();
        if policy != own {
            return Some(format!(
                "the [policy] of its configuration is another than the leader's: {own} instead of \
                 {policy}"
            ));
        }
        let (own_pages, own_blocks) = (self.config.pages, self.config.disk_blocks);
        ((pages, blocks) != (own_pages, own_blocks)).then(|| {
            format!(
                "the guest has {} MiB of RAM and disks of {blocks} blocks (4 KiB), this replica is \
                 configured for {} MiB and {own_blocks} blocks",
                pages.saturating_sub(blocks) / 256,
                own_pages.saturating_sub(own_blocks) / 256,
            )
        })
    }

    /// Gives up whatever else this replica did with its guest, if that has never run and no syncvm
    /// has touched it. Returns whether it is still there.
    fn keep_standby(&mut self) -> bool {
        let keeps = self.standby.is_some()
            && self.follow.is_none()
            && matches!(self.role, Role::Witness | Role::Joining)
            && matches!(self.guest.power, Power::Starting | Power::Paused);
        if keeps {
            let power = self.guest.power;
            self.guest.off(self.delivered);
            self.guest.power = power;
            self.joined = None;
            self.early_dirty = None;
        }
        keeps
    }

    /// An attempt to join is over before its first syncvm. What was copied is a warm copy, where
    /// one is wanted.
    pub(crate) fn leave_join(&mut self) {
        if self.config.warm != Warm::Full || !self.keep_standby() {
            self.drop_guest();
        }
        self.set_role(Role::Witness);
    }

    /// The hypervisor stands: the source may send.
    pub(crate) fn standby_is_ready(&mut self) {
        let ram_pages = self.config.pages - self.config.disk_blocks;
        let keep_from = match self.config.warm {
            Warm::Full => 0,
            Warm::Disk => ram_pages,
            Warm::Off => self.config.pages,
        };
        let Some(standby) = &mut self.standby else {
            return;
        };
        let written = (standby.follows == Some(standby.offered)).then_some(standby.chunks);
        if written.is_none() {
            standby.follows = None;
            standby.chunks = 0;
        }
        let ready = Body::CopyReady {
            attempt: standby.attempt,
            written,
            compare_from: if standby.is_blank { ram_pages } else { 0 },
            keep_from,
        };
        let source = standby.source;
        self.send_bulk(source, ready);
    }

    fn standby_of(&mut self, from: ReplicaId, attempt: u64) -> Option<&mut Standby> {
        let is_ready = self.guest.power == Power::Paused
            && self.follow.is_none()
            && matches!(self.role, Role::Witness | Role::Joining);
        self.standby
            .as_mut()
            .filter(|s| is_ready && s.source == from && s.attempt == attempt)
    }

    pub(crate) fn on_copy(&mut self, from: ReplicaId, attempt: u64, seq: u32, chunk: Vec<u8>) {
        let pages = self.config.pages;
        let Some(standby) = self.standby_of(from, attempt) else {
            return;
        };
        if seq != standby.chunks || chunk::read(&chunk, pages).any(|page| page.is_err()) {
            return;
        }
        standby.follows = Some(standby.offered);
        standby.is_blank = false;
        standby.chunks += 1;
        let chunks = standby.chunks;
        self.writes.push_back(Asked::Written(attempt, chunks));
        self.out.push(Action::WriteChunks(vec![chunk]));
    }

    /// So that a source is never further ahead than its window, however slow this side's disk is.
    pub(crate) fn standby_written(&mut self, attempt: u64, chunks: u32) {
        let standby = self.standby.as_ref().filter(|s| s.attempt == attempt);
        if let Some(source) = standby.map(|standby| standby.source) {
            self.send_bulk(source, Body::CopyAck { attempt, chunks });
        }
    }

    /// The source wants to know what is here already.
    pub(crate) fn on_compare(
        &mut self,
        from: ReplicaId,
        attempt: u64,
        (first, count): (u32, u32),
        key: [u8; 32],
    ) {
        let pages = self.config.pages;
        if count == 0 || self.standby_of(from, attempt).is_none() {
            return;
        }
        let Some(end) = first.checked_add(count).filter(|end| *end <= pages) else {
            return;
        };
        self.hashes.push_back(Asked::Standby(attempt, first));
        let pages = (first..end).map(PageNo).collect();
        self.out.push(Action::Hash { key, pages });
    }

    pub(crate) fn standby_hashed(&mut self, attempt: u64, first: u32, digests: &[Digest]) {
        let Some(standby) = self.standby.as_ref().filter(|s| s.attempt == attempt) else {
            return;
        };
        let source = standby.source;
        let is_one = digests.windows(2).all(|two| two[0] == two[1]);
        let said = if is_one { &digests[..1] } else { digests };
        let body = Body::Compared {
            attempt,
            first,
            digests: Digest::to_bytes(said),
        };
        self.send_bulk(source, body);
    }

    /// The hypervisor of a warm copy is gone, with its memory.
    pub(crate) fn standby_died(&mut self, why: String) {
        if let Some(standby) = self.standby.take() {
            let attempt = standby.attempt;
            self.send_bulk(standby.source, Body::CopyFailed { attempt, why });
        }
        self.drop_guest();
    }

    /// Writes page chunks that a syncvm brought.
    pub(crate) fn write_chunks(&mut self, chunks: Vec<Vec<u8>>) {
        if chunks.is_empty() {
            return;
        }
        let forgets = self.canary(Canary::WarmForgetsSyncs);
        if let Some(stream) = self.stream.as_mut().filter(|_| !forgets) {
            for chunk in &chunks {
                let pages = chunk::read(chunk, self.config.pages).flatten();
                pages.for_each(|(page, _)| stream.owe_page(page));
            }
        }
        self.writes.push_back(Asked::Nothing);
        self.out.push(Action::WriteChunks(chunks));
    }
}
