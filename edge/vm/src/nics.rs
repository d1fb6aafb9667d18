//! The guest's NICs. A frame says which of them it is of ([`Frame::nic`]).

use crate::VmError;
use crate::nic::Nic;
use plover_types::Frame;
use rustix::fd::BorrowedFd;

/// All NICs of a guest, by their numbers.
pub(crate) struct Nics(Vec<Nic>);

impl Nics {
    /// So many NICs, for which frames of `bytes_max` may wait in all, and as many before their sockets.
    pub(crate) fn new(count: usize, bytes_max: usize) -> Result<Self, VmError> {
        let nics = (0..count).map(|number| Nic::new(number as u8, bytes_max / count));
        Ok(Self(nics.collect::<Result<_, _>>()?))
    }

    pub(crate) fn iter(&self) -> std::slice::Iter<'_, Nic> {
        self.0.iter()
    }

    /// The descriptors that poll readable when the guest has sent something.
    pub(crate) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.0.iter().map(Nic::fd)
    }

    /// The offloads that the driver of the NIC of this number takes now (`TUN_F_…`).
    pub(crate) fn offloads(&self, number: usize) -> u32 {
        self.0.get(number).map_or(0, Nic::offloads)
    }

    /// Gives each NIC its frames, or keeps them until the guest runs. Returns how many of them; for the others there was
    /// no room, or no NIC.
    pub(crate) fn feed(&mut self, frames: &[Frame]) -> usize {
        let of_one_nic = frames.chunk_by(|one, other| one.nic() == other.nic());
        let fed = of_one_nic.map(|frames| {
            let nic = frames.first().map_or(0, Frame::nic);
            self.0
                .get_mut(usize::from(nic))
                .map_or(0, |it| it.feed(frames))
        });
        fed.sum()
    }

    /// Puts frames that waited for room into the sockets.
    pub(crate) fn refill(&mut self) {
        self.0.iter_mut().for_each(Nic::refill);
    }

    /// Whether frames wait for room in a socket.
    pub(crate) fn has_backlog(&self) -> bool {
        self.0.iter().any(Nic::has_backlog)
    }

    /// The guest is about to be paused.
    pub(crate) fn hold(&mut self) {
        self.0.iter_mut().for_each(Nic::hold);
    }

    /// The guest is about to run.
    pub(crate) fn release(&mut self) {
        self.0.iter_mut().for_each(Nic::release);
    }

    /// Whether QEMU has read every frame fed, but those of a NIC that has long read none.
    pub(crate) fn consumed_all(&self) -> bool {
        self.0.iter().all(Nic::consumed_all)
    }

    /// Takes the kept frames, one NIC's after another's.
    pub(crate) fn take_unconsumed(&mut self) -> Vec<Frame> {
        let mut frames = Vec::new();
        for nic in &mut self.0 {
            nic.take_unconsumed(&mut frames);
        }
        frames
    }

    /// Takes frames that the guest has sent, at most `max` of each NIC.
    pub(crate) fn take_outputs(&mut self, max: usize, frames: &mut Vec<Frame>) {
        for nic in &mut self.0 {
            nic.take_outputs(max, frames);
        }
    }
}
