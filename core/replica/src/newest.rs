//! Decides which copy of its disks a guest may boot from, after all replicas have lost the guest itself.
//!
//! Every replica keeps on its disk the newest in-sync set that it has heard of. So with all replicas
//! asked, the newest of these sets is the last there was, and a whole copy of one of its members
//! explains what clients have seen. Except for a moment: a leader does not wait for its disk to hold a new set
//! before it serves on the strength of it, because a hung disk would then end the service. If all hosts lose
//! power before any of them has written the set, the set before it decides, and what clients were told since is
//! lost. A replica that asks only itself knows less: it can tell that its own copy is old, not that it is the
//! newest.

use crate::api::GuestRecord;
use plover_types::{Index, ReplicaId, View};
use serde::{Deserialize, Serialize};

/// An in-sync set and when it was agreed: the later of two has the greater pair of generation and index.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastInSync {
    generation: View,
    index: Index,
    isr: Vec<ReplicaId>,
}

impl From<GuestRecord> for LastInSync {
    fn from(record: GuestRecord) -> Self {
        Self {
            generation: record.generation,
            index: record.index,
            isr: record.in_sync.iter().collect(),
        }
    }
}

/// One replica's copy of the disks. The fields are those of its status.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskCopy {
    /// The replica.
    pub id: ReplicaId,
    /// The newest in-sync set that it has heard of.
    pub last_in_sync: LastInSync,
    /// Whether the copy is one moment of the guest's life, not half of one and half of another.
    pub disks_whole: bool,
}

impl DiskCopy {
    /// Whether it was ever the copy of a guest that ran.
    pub fn was_used(&self) -> bool {
        !self.last_in_sync.isr.is_empty()
    }
}

/// Why a replica must not boot the guest from its copy of the disks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BootRefused {
    /// A copy to it was not finished.
    #[error(
        "the copy of the guest's disks on this replica is not whole: start the guest on a replica that \
         has a whole one"
    )]
    NotWhole,
    /// Other replicas were in sync later.
    #[error(
        "this replica's copy of the guest's disks is old: replicas {} were in sync later; make one of \
         them group.first_leader on all hosts and start them again", words(.0)
    )]
    Old(Vec<ReplicaId>),
}

fn words(replicas: &[ReplicaId]) -> String {
    let names: Vec<String> = replicas.iter().map(ToString::to_string).collect();
    names.join(", ")
}

/// The members of the newest in-sync set that these replicas have heard of.
fn last_in_sync(copies: &[DiskCopy]) -> &[ReplicaId] {
    let newest = copies
        .iter()
        .max_by_key(|copy| (copy.last_in_sync.generation, copy.last_in_sync.index));
    newest.map_or(&[], |copy| &copy.last_in_sync.isr)
}

/// The replicas whose copies explain all that clients have seen, if `copies` are those of all replicas:
/// they were in sync last, and their copies are whole.
pub fn newest(copies: &[DiskCopy]) -> impl Iterator<Item = ReplicaId> {
    let isr = last_in_sync(copies);
    let good = move |copy: &&DiskCopy| copy.disks_whole && isr.contains(&copy.id);
    copies.iter().filter(good).map(|copy| copy.id)
}

/// Whether the replica with the copy `own` may boot the guest from it, as far as it and `others` know.
///
/// # Errors
/// [`BootRefused`] says what is wrong with the copy.
pub fn may_boot(own: &DiskCopy, others: &[DiskCopy]) -> Result<(), BootRefused> {
    let all = [std::slice::from_ref(own), others].concat();
    let isr = last_in_sync(&all);
    match () {
        () if !own.disks_whole => Err(BootRefused::NotWhole),
        () if !isr.is_empty() && !isr.contains(&own.id) => Err(BootRefused::Old(isr.to_vec())),
        () => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(id: u8, isr: &[u8], generation: u64, index: u64, disks_whole: bool) -> DiskCopy {
        let last_in_sync = LastInSync {
            generation: View(generation),
            index: Index(index),
            isr: isr.iter().copied().map(ReplicaId).collect(),
        };
        DiskCopy {
            id: ReplicaId(id),
            last_in_sync,
            disks_whole,
        }
    }

    fn newest_of(copies: &[DiskCopy]) -> Vec<u8> {
        newest(copies).map(|id| id.0).collect()
    }

    #[test]
    fn the_last_in_sync_set_decides() {
        let (old, witness) = (copy(0, &[0, 1], 16, 3, true), copy(2, &[0, 1], 16, 3, true));
        let alone = copy(1, &[1], 16, 90, true);
        assert_eq!(newest_of(&[old.clone(), alone, witness.clone()]), [1]);
        let both = [old, copy(1, &[0, 1], 16, 3, true), witness];
        assert_eq!(newest_of(&both), [0, 1]);
        let torn = [
            copy(0, &[0, 1], 16, 3, false),
            copy(1, &[0, 1], 16, 3, true),
        ];
        assert_eq!(newest_of(&torn), [1]);
        let reborn = [copy(0, &[0], 33, 1, false), copy(1, &[1], 16, 90, true)];
        assert_eq!(
            newest_of(&reborn),
            [],
            "an older generation is no substitute"
        );
    }

    #[test]
    fn a_replica_refuses_to_boot_from_a_copy_that_it_knows_to_be_old() {
        let old = copy(0, &[0, 1], 16, 3, true);
        assert_eq!(may_boot(&old, &[]), Ok(()), "it was in sync last it heard");
        let alone = copy(1, &[1], 16, 90, true);
        let refused = may_boot(&old, std::slice::from_ref(&alone));
        assert_eq!(refused, Err(BootRefused::Old(vec![ReplicaId(1)])));
        assert!(refused.unwrap_err().to_string().contains("replicas r1"));
        assert_eq!(may_boot(&alone, &[old]), Ok(()));
        let torn = copy(0, &[0], 16, 3, false);
        assert_eq!(may_boot(&torn, &[]), Err(BootRefused::NotWhole));
        let fresh = copy(0, &[], 0, 0, true);
        assert_eq!(may_boot(&fresh, &[]), Ok(()), "there was no guest yet");
    }
}
