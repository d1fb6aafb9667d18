//! Which replica's copy of the disks a guest may go on from, after all replicas have lost it.
//!
//! Every replica keeps on its disk the newest in-sync set that it heard of. A leader writes that
//! down before it serves on the strength of it, so with all replicas asked the newest of these sets
//! is the last there was, and each of its members has a copy that explains what clients have seen.

use crate::Fault;
use crate::lab::Lab;
use crate::progress::Progress;
use crate::status::{LabStatus, ReplicaStatus};
use anyhow::{Context, Result, bail};
use serde::Deserialize;
use toml::{Table, Value};

/// What a replica remembers of the last in-sync set, as its status tells it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
struct Remembered {
    isr: Vec<u8>,
    generation: u64,
    index: u64,
}

/// What one replica's disks are worth.
#[derive(Clone, Debug)]
struct Copy {
    id: u8,
    remembered: Remembered,
    whole: bool,
}

impl Lab {
    /// Lets a replica that has the newest copy of the guest's disks be the one that boots it. The
    /// replicas are started again for it, if that is another one than configured.
    pub(crate) fn choose_disks(&mut self, status: &LabStatus, progress: &Progress) -> Result<()> {
        let copies = copies(status);
        if copies.is_empty() {
            return Ok(());
        }
        if copies.len() < status.replicas.len() {
            bail!("all replicas must be up to say who has the newest copy of the guest's disks");
        }
        let configured = first_leader(&self.read_config(0)?);
        let holder = newest(&copies, configured).context(
            "no replica that was in sync last has a whole copy of the guest's disks; what the \
             others have is older than what clients have seen",
        )?;
        if holder == configured {
            return Ok(());
        }
        progress.say(format!(
            "replica {holder} has the newest disks: it is to boot the guest"
        ));
        let ids: Vec<u8> = self.ids().collect();
        for id in &ids {
            let mut config = self.read_config(*id)?;
            if let Some(Value::Table(group)) = config.get_mut("group") {
                group.insert("first_leader".into(), i64::from(holder).into());
            }
            let path = self.files(*id).config();
            std::fs::write(&path, config.to_string())
                .with_context(|| format!("cannot write {}", path.display()))?;
            self.fault(Fault::Kill, *id)?;
        }
        for id in ids {
            self.restart(id, progress)?;
        }
        Ok(())
    }

    fn read_config(&self, id: u8) -> Result<Table> {
        let path = self.files(id).config();
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        text.parse()
            .with_context(|| format!("{} is no configuration", path.display()))
    }
}

impl LabStatus {
    /// Whether the guest had disks, which outlive it.
    pub fn had_disks(&self) -> bool {
        let used = |copy: &Copy| !copy.remembered.isr.is_empty();
        copies(self).iter().any(used)
    }

    /// The replica whose copy of the guest's disks explains all that clients have seen; none while
    /// not all replicas have said what they remember, and if no such copy is whole.
    pub fn newest_disks(&self) -> Option<u8> {
        let copies = copies(self);
        let preferred = copies.first()?.id;
        let all = copies.len() == self.replicas.len();
        all.then(|| newest(&copies, preferred)).flatten()
    }
}

fn copies(status: &LabStatus) -> Vec<Copy> {
    let of = |replica: &ReplicaStatus| {
        let remembered = replica.more.get("last_in_sync")?.clone();
        Some(Copy {
            id: replica.id,
            remembered: serde_json::from_value(remembered).ok()?,
            whole: replica.more.get("disks_whole")?.as_bool()?,
        })
    };
    status.replicas.iter().filter_map(of).collect()
}

fn first_leader(config: &Table) -> u8 {
    let group = config.get("group").and_then(Value::as_table);
    let configured = group.and_then(|group| group.get("first_leader")?.as_integer());
    configured.and_then(|id| u8::try_from(id).ok()).unwrap_or(0)
}

/// Of those that were in sync last and have a whole copy, `preferred` if it is one of them.
fn newest(copies: &[Copy], preferred: u8) -> Option<u8> {
    let last = copies
        .iter()
        .max_by_key(|copy| (copy.remembered.generation, copy.remembered.index))?;
    let isr = &last.remembered.isr;
    let good = |copy: &&Copy| copy.whole && isr.contains(&copy.id);
    copies
        .iter()
        .filter(good)
        .map(|copy| copy.id)
        .min_by_key(|id| *id != preferred)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(id: u8, isr: &[u8], generation: u64, index: u64, whole: bool) -> Copy {
        let remembered = Remembered {
            isr: isr.to_vec(),
            generation,
            index,
        };
        Copy {
            id,
            remembered,
            whole,
        }
    }

    #[test]
    fn the_last_in_sync_set_decides() {
        let old = copy(0, &[0, 1], 16, 3, true);
        let alone = copy(1, &[1], 16, 90, true);
        let witness = copy(2, &[0, 1], 16, 3, true);
        let all = [old.clone(), alone, witness.clone()];
        assert_eq!(newest(&all, 0), Some(1), "0 was left behind");
        let both = [old.clone(), copy(1, &[0, 1], 16, 3, true), witness.clone()];
        assert_eq!(newest(&both, 0), Some(0));
        assert_eq!(newest(&both, 2), Some(0));
        let torn = [
            copy(0, &[0, 1], 16, 3, false),
            copy(1, &[0, 1], 16, 3, true),
        ];
        assert_eq!(newest(&torn, 0), Some(1));
        let reborn = [copy(0, &[0], 33, 1, false), copy(1, &[1], 16, 90, true)];
        assert_eq!(
            newest(&reborn, 1),
            None,
            "an older generation is no substitute"
        );
    }
}
