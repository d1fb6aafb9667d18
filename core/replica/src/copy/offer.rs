//! The offer of a copy, and whether this replica can take it.

use super::target::CopyTarget;
use crate::api::{BootReason, Note, Role, Warm};
use crate::guest::Power;
use crate::phase::Phase;
use crate::replica::Replica;
use plover_syncvm::Ledger;
use plover_syncvm::message::{Body, CopyPurpose};
use plover_types::{MachineWords, ReplicaId};

/// A source's offer.
#[derive(Debug)]
pub(crate) struct Offer {
    pub attempt: u64,
    pub stream: u64,
    pub policy: String,
    pub machine: MachineWords,
    /// The guest's pages, and how many of them are blocks of disks.
    pub size: (u32, u32),
}

/// The parts of a machine's words that another one's lack.
fn only_in(words: &str, others: &str) -> String {
    let others: Vec<&str> = others.split(", ").collect();
    let parts = words.split(", ").filter(|part| !others.contains(part));
    let parts: Vec<&str> = parts.collect();
    match parts.is_empty() {
        true => "nothing".into(),
        false => parts.join(", "),
    }
}

impl Replica {
    pub(crate) fn on_copy_start(&mut self, from: ReplicaId, purpose: CopyPurpose, offer: &Offer) {
        let attempt = offer.attempt;
        let is_free = match purpose {
            CopyPurpose::Join => self.role() != Role::Leader,
            CopyPurpose::Warm => self.role() == Role::Witness,
        };
        if purpose == CopyPurpose::Join && self.role() == Role::Recovering {
            let why = "this replica has just started, and learns the group's log first".into();
            self.cx.send_bulk(from, Body::CopyFailed { attempt, why });
            return;
        }
        if !is_free {
            return;
        }
        let unwanted = purpose == CopyPurpose::Warm && self.cx.config.warm == Warm::Off;
        let is_behind = self.target_mut().is_some_and(|copy| copy.is_behind());
        let why = if unwanted {
            Some("this replica is configured with warm_witness = \"off\"".to_string())
        } else if is_behind {
            Some("its disk has not written yet what it had of a copy before".to_string())
        } else {
            self.why_not_copy(&offer.policy, offer.size)
        };
        if let Some(why) = why {
            self.cx.send_bulk(from, Body::CopyFailed { attempt, why });
            return;
        }
        let kept = self.take_target();
        let stands = kept.is_some();
        if !stands {
            self.drop_guest();
        }
        self.become_witness();
        let copy = match kept {
            Some(mut copy) => {
                copy.is_offered(from, offer);
                copy
            }
            None => CopyTarget::new(from, offer),
        };
        match purpose {
            CopyPurpose::Join => self.enter(Phase::Joining { copy }),
            CopyPurpose::Warm => self.phase = Phase::Witness { copy: Some(copy) },
        }
        if !stands {
            self.cx.memory.ledger = Ledger::settled(self.cx.config.layout.pages());
            self.cx.start_guest(BootReason::Copy);
        } else if self.cx.guest.power == Power::Paused {
            self.target_is_ready();
        }
    }

    /// The hypervisor stands: a state of the source's will load here, or this replica says why not.
    pub(crate) fn target_is_ready(&mut self) {
        let own = self.cx.guest.machine.clone();
        let Some(source) = self.target_mut().map(|copy| copy.machine.clone()) else {
            return;
        };
        let differences = |own, source| (only_in(own, source), only_in(source, own));
        if own.needed != source.needed {
            let (own, source) = differences(&own.needed, &source.needed);
            let why = format!(
                "its hypervisor makes another machine than the source's: {own} instead of {source}"
            );
            self.target_died(why);
            return self.become_witness();
        }
        let lacks = own.lacks(&source);
        if !lacks.is_empty() {
            let why = format!(
                "its processor lacks features that the guest has found in the source's ({}): give the guest a processor that \
                 all hosts can run, with guest.cpu (`plover check --processors`)",
                lacks.join(", ")
            );
            self.target_died(why);
            return self.become_witness();
        }
        if own.wanted != source.wanted {
            let (own, source) = differences(&own.wanted, &source.wanted);
            self.cx.note(Note::MachineDiffers { own, source });
        }
        let Self { cx, phase, .. } = self;
        if let Phase::Witness { copy: Some(copy) } | Phase::Joining { copy } = phase {
            copy.is_ready(cx);
        }
    }

    /// Why this replica cannot run the leader's guest: it is configured for another.
    fn why_not_copy(&self, policy: &str, (pages, blocks): (u32, u32)) -> Option<String> {
        let own = self.cx.config.promises();
        if policy != own {
            return Some(format!(
                "the [policy] or group.fencing of its configuration is another than the leader's: {own} instead of \
                 {policy}"
            ));
        }
        let (own_pages, own_blocks) = (
            self.cx.config.layout.pages(),
            self.cx.config.layout.disk_blocks(),
        );
        ((pages, blocks) != (own_pages, own_blocks)).then(|| {
            format!(
                "the guest has {} MiB of RAM and disks of {blocks} blocks (4 KiB), this replica is \
                 configured for {} MiB and {own_blocks} blocks",
                pages.saturating_sub(blocks) / 256,
                own_pages.saturating_sub(own_blocks) / 256,
            )
        })
    }
}
