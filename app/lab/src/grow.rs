//! A disk of the guest gets more room while it runs: `plover disk grow`.
//!
//! The daemons take two orders, `disk_grow` and `disk_tell`, and each may be given again. This is what gives them in order,
//! and gives them again when the lead has moved meanwhile.

use crate::control::Control;
use crate::status::{GroupStatus, ReplicaStatus};
use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// How often the group is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// After a guest was told, the leader is looked at for so long: a leader that dies before its next sync has told nobody.
/// An idle guest is synced twice a second.
const SYNCED_WITHIN: Duration = Duration::from_millis(1200);

/// Gives a disk so many bytes on all replicas, and tells the guest. `say` hears of each step.
///
/// # Errors
/// A replica is silent or has no room for it; then nothing has changed. Or it is not done within the time: the images have the
/// old size or the new one, and the guest was not told; the same order goes on from there.
pub fn grow_disk(
    control: &Control,
    disk: usize,
    bytes: u64,
    within: Duration,
    mut say: impl FnMut(&str),
) -> Result<()> {
    has_room_everywhere(control, disk, bytes)?;
    let deadline = Instant::now() + within;
    // By which leader, in which view, and when.
    let mut told: Option<(u8, Option<u64>, Instant)> = None;
    let (mut ordered, mut said, mut refused) = (false, String::new(), String::new());
    let mut say = |words: String| {
        if words != said {
            say(&words);
            said = words;
        }
    };
    loop {
        let status = GroupStatus::ask(control)?;
        if Instant::now() > deadline {
            bail!(
                "not done within {} s: the images have the old size or the new one, and the guest may not know the new one; \
                 give the order again{refused}\n{status}",
                within.as_secs()
            );
        }
        let is_safe = status.protected || status.policy == "none";
        let leader = status.leader().filter(|it| it.serving && is_safe);
        let Some(leader) = leader.filter(|it| !it.resizes()) else {
            std::thread::sleep(LOOK_EVERY);
            continue;
        };
        if let Some(why) = leader.refused_to_resize().filter(|_| ordered) {
            bail!("replica {}: {why}; the guest knows the old size", leader.id);
        }
        if let Some(larger) = leader.disk_bytes(disk).filter(|has| *has > bytes) {
            bail!(
                "disk {disk} has {} MiB by now, and no disk is made smaller",
                larger >> 20
            );
        }
        // One is refused if the lead moves at this moment, and then given again.
        let mut order = |op: &str| {
            let ordered = control.request(&json!({"op": op, "disk": disk, "bytes": bytes}));
            ordered.map_or_else(
                |error| {
                    refused = format!("; the last time it was refused: {error}");
                    false
                },
                |_| true,
            )
        };
        match told {
            Some((id, view, at)) if (id, view) == (leader.id, leader.view) => {
                let is_synced = at.elapsed() > SYNCED_WITHIN;
                if is_synced {
                    return Ok(());
                }
            }
            _ if leader.disk_bytes(disk) != Some(bytes) => {
                say(format!(
                    "the image of disk {disk} grows on replica {}",
                    leader.id
                ));
                ordered |= order("disk_grow");
            }
            _ if holders(&status).all(|it| it.disk_bytes(disk) == Some(bytes)) => {
                say(format!("replica {} tells the guest", leader.id));
                let given = order("disk_tell");
                ordered |= given;
                told = given.then(|| (leader.id, leader.view, Instant::now()));
            }
            _ => {}
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// The replicas that hold the guest.
fn holders(status: &GroupStatus) -> impl Iterator<Item = &ReplicaStatus> {
    let holds =
        |it: &&ReplicaStatus| matches!(it.role.as_str(), "leader" | "secondary" | "joining");
    status.replicas.iter().filter(holds)
}

fn has_room_everywhere(control: &Control, disk: usize, bytes: u64) -> Result<()> {
    let status = GroupStatus::ask(control)?;
    for replica in &status.replicas {
        ensure!(
            replica.answers(),
            "nothing has changed: replica {} does not answer, so it is not known whether its host has room",
            replica.id
        );
        let order = json!({"op": "disk_room", "of": replica.id, "disk": disk, "bytes": bytes});
        control
            .request(&order)
            .with_context(|| format!("nothing has changed: replica {}", replica.id))?;
    }
    Ok(())
}

impl ReplicaStatus {
    fn disks(&self) -> &Value {
        self.more.get("disks").unwrap_or(&Value::Null)
    }

    /// Whether it gives a disk another size at this moment.
    fn resizes(&self) -> bool {
        self.disks()["resizing"].as_bool().unwrap_or(false)
    }

    fn refused_to_resize(&self) -> Option<&str> {
        self.disks()["refused"].as_str()
    }

    /// The size of its image of a disk.
    pub fn disk_bytes(&self, disk: usize) -> Option<u64> {
        self.disks()["list"][disk]["bytes"].as_u64()
    }
}
