//! Booting the guest from the newest copy of its disks, after all replicas have lost it. The product
//! decides which copy that is ([`plover_node::newest`]).

use crate::Fault;
use crate::control::disk_copy;
use crate::lab::Lab;
use crate::progress::Progress;
use crate::status::GroupStatus;
use anyhow::{Context, Result, bail};
use plover_node::newest::{self, DiskCopy};
use toml::{Table, Value};

impl Lab {
    /// Makes a replica that has the newest copy of the guest's disks the one that boots it. If the
    /// configuration names another one, all replicas get a new configuration and are started again.
    pub(crate) fn choose_disks(&mut self, status: &GroupStatus, progress: &Progress) -> Result<()> {
        let copies = status.disk_copies();
        if copies.is_empty() {
            return Ok(());
        }
        if copies.len() < status.members().count() {
            bail!("all members must be up to say who has the newest copy of the guest's disks");
        }
        let configured = first_leader(&self.read_config(0)?);
        let holder = status.newest_disks_or(configured).context(
            "no replica that was in sync last has a whole copy of the guest's disks; what the \
             others have is older than what clients have seen",
        )?;
        if holder == configured {
            return Ok(());
        }
        progress.say(format!(
            "replica {holder} has the newest disks: it is to boot the guest"
        ));
        let ids: Vec<u8> = status.members().map(|replica| replica.id).collect();
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

impl GroupStatus {
    /// Each answering replica's copy of the guest's disks.
    fn disk_copies(&self) -> Vec<DiskCopy> {
        let copies = self.members();
        copies
            .filter_map(|replica| disk_copy(replica.id, &replica.more))
            .collect()
    }

    /// Whether the guest had disks, which outlive it.
    pub fn had_disks(&self) -> bool {
        self.disk_copies().iter().any(DiskCopy::was_used)
    }

    /// The replica whose copy of the guest's disks explains all that clients have seen. None unless all
    /// replicas have said what they remember, or if no such copy is whole.
    pub fn newest_disks(&self) -> Option<u8> {
        self.newest_disks_or(0)
    }

    /// As [`newest_disks`](Self::newest_disks); of several such replicas, `preferred` if it is one of
    /// them.
    fn newest_disks_or(&self, preferred: u8) -> Option<u8> {
        let copies = self.disk_copies();
        if copies.len() < self.members().count() {
            return None;
        }
        newest::newest(&copies)
            .map(|id| id.0)
            .min_by_key(|id| *id != preferred)
    }
}

fn first_leader(config: &Table) -> u8 {
    let group = config.get("group").and_then(Value::as_table);
    let configured = group.and_then(|group| group.get("first_leader")?.as_integer());
    configured.and_then(|id| u8::try_from(id).ok()).unwrap_or(0)
}
