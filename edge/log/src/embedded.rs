//! For a program around the server that keeps its own state: it reads the log by index, proposes without
//! waiting, says itself up to where the log may be trimmed, and whether this replica may lead.

use crate::envelope::Envelope;
use crate::mail::Mail;
use crate::pending::Origin;
use crate::{Error, Server, ServerError, StateMachine};
use plover_types::{Index, Micros, ReplicaSet, Viewstamp};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// Longer than anybody waits.
const FOR_EVER: Duration = Duration::from_secs(3600);

impl<M: StateMachine> Server<M> {
    /// [`turn`](Self::turn) also ends its sleep when `waker` is readable, until the caller has read it.
    pub fn watch(&mut self, waker: BorrowedFd<'_>) -> Result<(), ServerError> {
        let watched = self.clients.watch(waker);
        watched.map_err(ServerError::system("watch a descriptor"))?;
        self.embedded = true;
        Ok(())
    }

    /// Appends an entry to the leader's log without waiting for its commit. It may still be lost if this
    /// replica is deposed.
    ///
    /// # Errors
    /// Nothing was proposed: another replica leads, the log is full, or the entry is too large.
    pub fn propose_only(&mut self, entry: &[u8]) -> Result<Viewstamp, Error> {
        self.propose(None, entry, Origin::Server)?;
        Ok(self.core.status().last)
    }

    /// Appends an entry through the leader. It may be lost on its way: the caller repeats what matters.
    pub fn suggest(&mut self, entry: &[u8]) {
        match self.core.status().leader {
            Some(leader) if leader == self.config.me => drop(self.propose_only(entry)),
            Some(leader) => self.send(leader, &Mail::Propose(entry.to_vec())),
            None => {}
        }
    }

    /// The entry at `index`, while the log holds it: its viewstamp, and the bytes if it is the
    /// application's.
    pub fn entry(&self, index: Index) -> Option<(Viewstamp, Option<&[u8]>)> {
        let entry = self.core.entry(index)?;
        let is_app = entry.kind == apus::EntryKind::App;
        let bytes = match Envelope::take(&entry.payload) {
            Some(Envelope::Plain(bytes) | Envelope::Session(_, bytes)) if is_app => Some(bytes),
            _ => None,
        };
        Some((entry.viewstamp, bytes))
    }

    /// The viewstamp at `index`, if the log holds that entry, or it is the last one that was trimmed.
    pub fn viewstamp(&self, index: Index) -> Option<Viewstamp> {
        self.core.viewstamp(index)
    }

    /// The replicas to which a link is up.
    pub fn peers_up(&self) -> ReplicaSet {
        self.linked
    }

    /// The most bytes of one entry.
    pub fn entry_bytes_max(&self) -> usize {
        self.entry_bytes_max
    }

    /// The payload bytes that the log may hold.
    pub fn log_bytes_max(&self) -> usize {
        self.config.log_bytes_max
    }

    /// Every replica has lost the log, and the operator has to [begin](Self::begin) a new one.
    pub fn is_lost(&self) -> bool {
        self.lost
    }

    /// Sets whether this replica stands for election. A leader that may not lead any more hands over.
    pub fn set_may_lead(&mut self, may: bool) {
        if !may && self.leads() {
            let now = self.now();
            self.core.hand_over(now, &mut self.commands);
        }
        self.core.set_abstains(!may);
    }

    /// Until when no other replica can lead, if this one does. A point of time that is over means that another one may.
    pub fn leased_until(&self) -> Instant {
        // In this order: a pause between the two makes it earlier, and not later.
        let now = Instant::now();
        let left = self.core.lease_until().since(self.now());
        match left {
            Micros::ZERO => self.started,
            // A group of one has it for ever.
            left => now + Duration::from_micros(left.0).min(FOR_EVER),
        }
    }

    /// The leader trims the log up to `index`, which is applied. With
    /// [`Config::retain_bytes`](crate::Config) at its maximum nothing else does.
    pub fn trim_behind(&mut self, index: Index) {
        if self.leads() {
            self.core.trim(index.min(self.state.applied.index));
        }
    }
}
