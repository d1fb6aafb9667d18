//! Disks that get another size while the guest runs.
//!
//! QEMU refuses to grow a disk that is served over NBD ("Cannot grow NBD nodes"): its size is what the server said when
//! they connected. So QEMU gets a second connection, to a server that says the new size:
//!
//! ```text
//!   device ─▶ disk0 (raw) ─▶ disk0-0 (NBD, old size)      getfd, blockdev-add: disk0-1
//!   device ─▶ disk0 (raw) ─▶ disk0-1 (NBD, new size)      blockdev-reopen: QEMU waits for open requests first
//!                └ block_resize: the guest is told        blockdev-del: disk0-0, its connection ends
//! ```
//!
//! The sizes are a part of the guest's state, as its power is (`power`): they stand at the end of a saved state, behind
//! the devices. A replica gives its own disks these sizes before it loads the state (docs/decisions/0053).

use super::orders::Purpose;
use super::{Phase, QemuVm};
use crate::VmEvent;
use crate::qmp::QmpError;
use rustix::fd::{AsFd, OwnedFd};
use serde_json::json;

/// The end of the sizes in a state: they are there.
const MARK: &[u8; 8] = b"plvsizes";

/// The steps, in order.
const GET: &str = "getfd";
const ADD: &str = "blockdev-add";
const REOPEN: &str = "blockdev-reopen";
const RESIZE: &str = "block_resize";
const DELETE: &str = "blockdev-del";

/// The name of QEMU's node for a connection of a disk; they are counted from 0.
pub(super) fn connection(disk: usize, number: usize) -> String {
    format!("disk{disk}-{number}")
}

/// The disks' sizes that QEMU knows.
#[derive(Debug)]
pub(super) struct Sizes {
    /// In bytes; the last one that was told.
    told: Vec<u64>,
    /// The number of each disk's connection.
    connections: Vec<usize>,
    /// The first error of the steps that run.
    error: Option<String>,
}

impl Sizes {
    pub(super) fn new(told: Vec<u64>) -> Self {
        Self {
            connections: vec![0; told.len()],
            told,
            error: None,
        }
    }
}

/// Takes the sizes from the end of a state (in front of the machine's power); none if the disks cannot change theirs.
pub(super) fn take_sizes(state: &mut Vec<u8>) -> Vec<u64> {
    let taken = || {
        let rest = state.strip_suffix(MARK)?;
        let (rest, count) = rest.split_last_chunk()?;
        let bytes = usize::try_from(u32::from_le_bytes(*count))
            .ok()?
            .checked_mul(8)?;
        let at = rest.len().checked_sub(bytes)?;
        let sizes = rest[at..].chunks_exact(8);
        let sizes = sizes.filter_map(|it| it.try_into().ok().map(u64::from_le_bytes));
        Some((sizes.collect::<Vec<_>>(), at))
    };
    match taken() {
        Some((sizes, at)) => {
            state.truncate(at);
            sizes
        }
        None => Vec::new(),
    }
}

impl QemuVm {
    /// The sizes of the disks, in bytes, that this QEMU knows of.
    pub fn told_sizes(&self) -> &[u64] {
        &self.sizes.told
    }

    /// The sizes of the disks in a saved state; none if they cannot change. It is of another guest if it has no such end.
    pub fn sizes_in(state: &[u8]) -> Vec<u64> {
        let mut state = state.to_vec();
        match super::power::Life::take_from(&mut state) {
            Some(_) => take_sizes(&mut state),
            None => Vec::new(),
        }
    }

    /// The images' sizes are a part of the state, where they can change.
    pub(super) fn append_sizes(&self, state: &mut Vec<u8>) {
        let Some(disks) = self.disks.as_ref().filter(|disks| disks.may_grow()) else {
            return;
        };
        let sizes = disks.sizes();
        state.extend(sizes.iter().flat_map(|size| size.to_le_bytes()));
        state.extend((sizes.len() as u32).to_le_bytes());
        state.extend(MARK);
    }

    /// Has QEMU use a new connection to a disk, which [`plover_disk::Attachment::resize`] has made, and tells the guest its size →
    /// [`VmEvent::DiskResized`]. One disk at a time.
    pub fn resize_disk(&mut self, disk: usize, bytes: u64, connection: OwnedFd) {
        if self.phase != Phase::Ready || disk >= self.sizes.told.len() {
            return;
        }
        let old = self.sizes.connections[disk];
        self.sizes.connections[disk] += 1;
        self.sizes.told[disk] = bytes;
        self.sizes.error = None;
        let (old, new) = (self::connection(disk, old), self::connection(disk, old + 1));
        let sent = self.qmp.send_with(
            Purpose::Resize(disk, GET),
            GET,
            &json!({ "fdname": new }),
            connection.as_fd(),
        );
        if let Err(error) = sent {
            if error != QmpError::Closed || !self.process_ending() {
                self.give_up(&error.to_string());
            }
            return;
        }
        for (step, arguments) in [
            (
                ADD,
                json!({"driver": "nbd", "node-name": new, "discard": "unmap", "server": {"type": "fd", "str": new}}),
            ),
            (
                REOPEN,
                json!({"options": [{"driver": "raw", "node-name": format!("disk{disk}"), "file": new, "discard": "unmap"}]}),
            ),
            (
                RESIZE,
                json!({"node-name": format!("disk{disk}"), "size": bytes}),
            ),
            (DELETE, json!({"node-name": old})),
        ] {
            self.send(Purpose::Resize(disk, step), step, arguments);
        }
    }

    /// A step has ended. A step that fails makes those behind it fail.
    pub(super) fn resize_step_ended(
        &mut self,
        disk: usize,
        step: &'static str,
        error: Option<String>,
    ) {
        if let Some(error) = error {
            let words = format!("{step}: {error}");
            self.sizes.error.get_or_insert(words);
        }
        if step == DELETE {
            let result = self.sizes.error.take().map_or(Ok(()), Err);
            if result.is_err() {
                // It is not known what QEMU has now.
                self.sizes.told[disk] = 0;
            }
            self.events.push_back(VmEvent::DiskResized { disk, result });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qemu::power::Life;

    #[test]
    fn a_state_says_how_large_its_disks_are() {
        let mut state = vec![7; 5];
        for size in [4096_u64, 1 << 40] {
            state.extend(size.to_le_bytes());
        }
        state.extend(2_u32.to_le_bytes());
        state.extend(MARK);
        let whole = state.clone();
        Life::default().append_to(&mut state);
        assert_eq!(QemuVm::sizes_in(&state), [4096, 1 << 40]);
        let mut devices = whole;
        assert_eq!(take_sizes(&mut devices), [4096, 1 << 40]);
        assert_eq!(devices, [7; 5], "the devices' state is left");
    }

    #[test]
    fn a_state_without_sizes_is_left_as_it_is() {
        let mut lying = vec![1; 3];
        lying.extend(u32::MAX.to_le_bytes());
        lying.extend(MARK);
        for state in [vec![], vec![7; 5], MARK.to_vec(), lying] {
            let mut taken = state.clone();
            assert_eq!(take_sizes(&mut taken), Vec::<u64>::new());
            assert_eq!(taken, state);
        }
    }
}
