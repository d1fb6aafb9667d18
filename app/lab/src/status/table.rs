//! A lab's status as text: the table, the troubles, and what to do about them.

use super::{LabStatus, ReplicaStatus};
use plover_node::SPLIT_WARNING;
use std::fmt;

impl LabStatus {
    /// Advice for the operator when no replica holds the guest; `None` while one does.
    fn after_a_loss(&self) -> Option<String> {
        let down = || self.replicas.iter().filter(|replica| !replica.answers());
        if self.replicas.iter().any(ReplicaStatus::holds_state)
            || down().count() == self.replicas.len()
        {
            return None;
        }
        let lost = "No replica holds the guest's state.";
        let down: Vec<String> = down().map(|replica| replica.id.to_string()).collect();
        Some(if !down.is_empty() {
            format!(
                "{lost} Replica {} may: bring all back (`plover lab restart --replica ID`).",
                down.join(" or ")
            )
        } else if let Some(holder) = self.newest_disks() {
            format!(
                "{lost} Replica {holder} has the newest copy of its disks: `plover lab bootstrap` boots \
                 the guest from it."
            )
        } else if self.had_disks() {
            format!(
                "{lost} No replica that was in sync last has a whole copy of its disks either: \
                 what the others have is older than what clients have seen."
            )
        } else {
            format!(
                "{lost} `plover lab bootstrap` boots a new guest, without what the old one held."
            )
        })
    }
}

impl ReplicaStatus {
    /// The copy of its guest that it makes or keeps warm on another replica, if there is one.
    fn copy_in_words(&self) -> Option<String> {
        let copy = self.more.get("copy")?;
        let bytes = |key: &str| copy.get(key)?.as_u64();
        let (to, of) = (bytes("to")?, bytes("bytes")?);
        let behind = bytes("bytes_behind")?.min(of);
        let percent = (of - behind) * 100 / of.max(1);
        let kind = match self.role.as_str() {
            "leader" => "the copy that joins",
            _ => "the warm copy",
        };
        let closed = match copy.get("open").and_then(serde_json::Value::as_bool) {
            Some(true) => "",
            _ => ", which takes nothing at present",
        };
        Some(format!(
            "replica {to} has {percent}% of replica {}'s {} MiB: {kind} lacks {}{closed}",
            self.id,
            of >> 20,
            mebibytes(behind)
        ))
    }
}

/// The table that `plover lab status` prints.
impl fmt::Display for LabStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protected = match self.policy.as_str() {
            "none" => "unreplicated",
            _ if self.protected => "protected",
            _ => "NOT PROTECTED",
        };
        writeln!(
            f,
            "guest {}  {protected}  policy {}",
            self.guest_ip, self.policy
        )?;
        writeln!(
            f,
            "{:>7}  {:<10} {:>6}  {:<8} {:>8} {:>8}  {:>7} {:>9} {:>8}  {:>6} {:>6}",
            "replica",
            "role",
            "view",
            "in sync",
            "plover",
            "qemu",
            "syncs",
            "pause",
            "slot",
            "dirty",
            "same"
        )?;
        for replica in &self.replicas {
            let or_dash = |value: Option<String>| value.unwrap_or_else(|| "-".into());
            let view = replica
                .view
                .zip(replica.view_leader)
                .map(|(n, l)| format!("{n}@r{l}"));
            let isr = (!replica.isr.is_empty()).then(|| {
                replica
                    .isr
                    .iter()
                    .map(u8::to_string)
                    .collect::<Vec<_>>()
                    .join(",")
            });
            let sync = &replica.sync;
            // A former leader still knows what its syncs cost. Only the present leader's are shown.
            let leads = replica.role == "leader" && sync.count > 0;
            let synced = |text: String| if leads { text } else { "-".into() };
            writeln!(
                f,
                "{:>7}  {:<10} {:>6}  {:<8} {:>8} {:>8}  {:>7} {:>9} {:>8}  {:>6} {:>6}",
                replica.id,
                replica.role,
                or_dash(view),
                or_dash(isr),
                or_dash(replica.plover_pid.map(|pid| pid.to_string())),
                or_dash(replica.qemu_pid.map(|pid| pid.to_string())),
                synced(sync.count.to_string()),
                synced(milliseconds(sync.pause_us_p50)),
                synced(milliseconds(sync.slot_us_p50)),
                synced(sync.dirty.to_string()),
                synced(sync.same.to_string()),
            )?;
        }
        for replica in &self.replicas {
            if let Some(trouble) = &replica.trouble {
                writeln!(f, "Replica {}: {trouble}", replica.id)?;
            }
            if let Some(words) = replica.copy_in_words() {
                writeln!(f, "{words}")?;
            }
        }
        if self.replicas.iter().any(ReplicaStatus::can_split) {
            writeln!(f, "Warning: {SPLIT_WARNING}.")?;
        }
        match self.after_a_loss() {
            Some(advice) => writeln!(f, "{advice}"),
            None => Ok(()),
        }
    }
}

/// An amount of memory for people.
fn mebibytes(bytes: u64) -> String {
    let tenths = bytes / (1 << 20) * 10 + (bytes % (1 << 20)) * 10 / (1 << 20);
    format!("{}.{} MiB", tenths / 10, tenths % 10)
}

/// A duration for people.
pub fn milliseconds(us: u64) -> String {
    format!("{}.{} ms", us / 1000, us % 1000 / 100)
}

#[cfg(test)]
mod tests {
    use super::super::last_error;
    use super::super::tests::{lab, said};
    use super::*;

    #[test]
    fn after_a_loss_the_newest_disks_are_named() {
        let lost = |id, isr: &[u8], index: u64| {
            let mut it = said(id, "witness", "1@r0", false);
            let remembered = serde_json::json!({"isr": isr, "generation": 16, "index": index});
            it.more.insert("last_in_sync".into(), remembered);
            it.more.insert("disks_whole".into(), true.into());
            it
        };
        let all = vec![lost(0, &[0, 1], 3), lost(1, &[1], 90), lost(2, &[0, 1], 3)];
        let told = lab(all.clone()).to_string();
        assert!(told.contains("Replica 1 has the newest copy"), "{told}");
        let mut two = all.clone();
        two[1] = ReplicaStatus::mute(1, "down", None);
        let told = lab(two).to_string();
        assert!(told.contains("Replica 1 may: bring all back"), "{told}");
        let mut alive = all.clone();
        alive[2].more.insert("holds_state".into(), true.into());
        assert!(!lab(alive).to_string().contains("No replica"));
        let mut torn = all;
        torn[1].more.insert("disks_whole".into(), false.into());
        let told = lab(torn).to_string();
        assert!(told.contains("older than what clients have seen"), "{told}");
        let bare = lab(vec![said(0, "witness", "1@r0", false)]).to_string();
        assert!(bare.contains("boots a new guest"), "{bare}");
    }

    #[test]
    fn troubles_are_told_below_the_table() {
        let mut full = said(1, "witness", "1@r0", false);
        full.trouble = Some("cannot write the disk image /d: make room".into());
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        assert_eq!(last_error(&log), None);
        std::fs::write(&log, "INFO role\nplover: there is no disk image /d\n").unwrap();
        let ended = ReplicaStatus {
            trouble: last_error(&log),
            ..ReplicaStatus::mute(2, "down", None)
        };
        let table = lab(vec![said(0, "leader", "1@r0", false), full, ended]).to_string();
        for line in [
            "Replica 1: cannot write the disk image /d: make room",
            "Replica 2: there is no disk image /d",
        ] {
            assert!(table.lines().any(|found| found == line), "{table}");
        }
        std::fs::write(&log, "plover: old\nINFO role\n").unwrap();
        assert_eq!(last_error(&log), None, "it ran on after that");
    }

    #[test]
    fn two_replicas_say_that_they_can_split() {
        let mut one = said(0, "leader", "1@r0", true);
        assert!(!lab(vec![one.clone()]).to_string().contains("Warning"));
        one.more.insert("can_split".into(), true.into());
        let table = lab(vec![one, said(1, "secondary", "1@r0", false)]).to_string();
        assert!(table.contains("Warning: two replicas without"), "{table}");
    }

    #[test]
    fn a_copy_is_told_in_bytes_and_percent() {
        let mut secondary = said(1, "secondary", "1@r0", false);
        let copy = serde_json::json!({
            "to": 2, "open": true, "bytes": 256 << 20, "bytes_behind": (64 << 20) + (1 << 19),
        });
        secondary.more.insert("copy".into(), copy);
        let table = lab(vec![secondary]).to_string();
        let told = "replica 2 has 74% of replica 1's 256 MiB: the warm copy lacks 64.5 MiB\n";
        assert!(table.contains(told), "{table}");
    }
}
