//! A group's status as text: the table, and the sentences below it.

use super::{GroupStatus, LabStatus};
use std::fmt;

/// What `plover lab status` prints.
impl fmt::Display for LabStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.group.write(f, &self.guest_ip.to_string())
    }
}

/// What `plover status` prints.
impl fmt::Display for GroupStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, &self.name)
    }
}

impl GroupStatus {
    fn write(&self, f: &mut fmt::Formatter<'_>, guest: &str) -> fmt::Result {
        let protection = self.protection();
        writeln!(f, "guest {guest}  {protection}  policy {}", self.policy)?;
        self.write_rows(f)?;
        for sentence in self.sentences() {
            writeln!(f, "{sentence}")?;
        }
        Ok(())
    }

    /// Whether the guest is protected, in a word or two.
    pub fn protection(&self) -> &'static str {
        match self.policy.as_str() {
            "none" => "unreplicated",
            _ if self.protected => "protected",
            _ => "NOT PROTECTED",
        }
    }

    fn write_rows(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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
        Ok(())
    }
}

/// A duration for people.
pub fn milliseconds(us: u64) -> String {
    format!("{}.{} ms", us / 1000, us % 1000 / 100)
}
