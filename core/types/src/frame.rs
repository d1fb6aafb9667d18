//! Ethernet frames and addresses.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// One frame as it crosses a TAP device or the guest's NIC: an Ethernet frame without its checksum, and
/// before it what is left to do for it, if anything is ([`Offload`]), and which NIC it is of, unless that is the first. At most
/// 64 KiB and the headers.
///
/// ```text
///  most frames                         destination  source  type  …
///  with an offload, or of another NIC  MARK  offload (10 bytes)  destination  source  type  …
/// ```
///
/// So nearly all frames are plain Ethernet, in messages and in the log as well. The two forms cannot be
/// mistaken for each other: a frame whose destination *is* the mark always gets an offload. The number of the NIC is in the
/// two upper bits of the offload's flags, which virtio does not use.
///
/// ```
/// use plover_types::{Frame, Offload};
///
/// let plain = Frame(vec![7; 60]);
/// assert_eq!(plain.offload(), Offload::NONE);
/// assert_eq!(plain.ethernet(), [7; 60]);
///
/// // The checksum is to be made of all bytes from 34 on, and written at 34 + 16.
/// let partial = Offload([1, 0, 0, 0, 0, 0, 34, 0, 16, 0]);
/// let frame = Frame::new(partial, &[7; 60]);
/// assert_eq!((frame.offload(), frame.ethernet()), (partial, &[7; 60][..]));
///
/// let of_the_third = plain.clone().on_nic(2);
/// assert_eq!((of_the_third.nic(), plain.nic()), (2, 0));
/// assert_eq!(of_the_third.ethernet(), plain.ethernet());
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Frame(#[serde(with = "serde_bytes")] pub Vec<u8>);

/// What the sender of a frame has left to its receiver: the checksum, cutting a segment into packets, or both. It is
/// virtio-net's header (VIRTIO 1.2 §5.1.6) without the number of buffers, in the byte order of the x86.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Offload(pub [u8; Offload::BYTES]);

/// The flag of a frame whose checksum is not complete.
const NEEDS_CHECKSUM: u8 = 1;

/// The flags are below the number of the NIC.
const NIC_SHIFT: u32 = 6;
const FLAGS: u8 = (1 << NIC_SHIFT) - 1;

impl Offload {
    /// Bytes of the header.
    pub const BYTES: usize = 10;

    /// Nothing is left to do.
    pub const NONE: Self = Self([0; Self::BYTES]);

    /// Where the bytes begin that the checksum is to be made of, if it is not complete: the TCP or UDP header. Until then
    /// its field has the sum of the addresses and the length only, so changes of the header do not concern it.
    pub fn checksum_from(self) -> Option<usize> {
        let from = u16::from_le_bytes([self.0[6], self.0[7]]);
        (self.0[0] & NEEDS_CHECKSUM != 0).then_some(from.into())
    }
}

impl Frame {
    /// The address that marks a frame with an offload. It is "locally administered", and nobody's.
    const MARK: [u8; 6] = *b"\x02plovr";

    /// Bytes before the Ethernet frame, where there is an offload.
    pub const PREFIX_BYTES: usize = Self::MARK.len() + Offload::BYTES;

    /// NICs that a guest can have.
    pub const NICS_MAX: usize = 4;

    /// A frame of the first NIC from its parts.
    pub fn new(offload: Offload, ethernet: &[u8]) -> Self {
        Self::received(&mut [&Self::MARK, &offload.0[..], ethernet].concat(), 0)
    }

    /// A frame as it was received by the NIC of this number: `buffer` has [`Self::PREFIX_BYTES`], the last of them the offload, and
    /// the Ethernet frame.
    ///
    /// # Panics
    /// If it is shorter than that, or there is no such NIC.
    pub fn received(buffer: &mut [u8], nic: u8) -> Self {
        assert!(usize::from(nic) < Self::NICS_MAX, "NIC {nic}");
        let (prefix, ethernet) = buffer.split_at_mut(Self::PREFIX_BYTES);
        let (mark, offload) = prefix.split_at_mut(Self::MARK.len());
        offload[0] = (offload[0] & FLAGS) | (nic << NIC_SHIFT);
        // Without a flag and a kind of segmentation the other fields mean nothing.
        if offload[..2] == [0, 0] && !ethernet.starts_with(&Self::MARK) {
            return Self(ethernet.to_vec());
        }
        mark.copy_from_slice(&Self::MARK);
        Self(buffer.to_vec())
    }

    /// This frame on the NIC of this number, from 0.
    ///
    /// # Panics
    /// If there is no such NIC.
    #[must_use]
    pub fn on_nic(self, nic: u8) -> Self {
        let prefix = [&Self::MARK, &self.offload().0[..]].concat();
        Self::received(&mut [&prefix, self.ethernet()].concat(), nic)
    }

    /// The number of the NIC that it is of, from 0.
    pub fn nic(&self) -> u8 {
        self.prefix().map_or(0, |offload| offload[0] >> NIC_SHIFT)
    }

    /// The offload, [`Offload::NONE`] for most frames.
    pub fn offload(&self) -> Offload {
        let mut offload = self.prefix().map_or(Offload::NONE, Offload);
        offload.0[0] &= FLAGS;
        offload
    }

    fn prefix(&self) -> Option<[u8; Offload::BYTES]> {
        let prefix = self.0.first_chunk::<{ Self::PREFIX_BYTES }>()?;
        prefix.strip_prefix(&Self::MARK)?.try_into().ok()
    }

    /// The Ethernet frame.
    pub fn ethernet(&self) -> &[u8] {
        &self.0[self.ethernet_at()..]
    }

    /// The Ethernet frame, to be changed.
    pub fn ethernet_mut(&mut self) -> &mut [u8] {
        let at = self.ethernet_at();
        &mut self.0[at..]
    }

    fn ethernet_at(&self) -> usize {
        let is_marked = self.0.len() >= Self::PREFIX_BYTES && self.0.starts_with(&Self::MARK);
        if is_marked { Self::PREFIX_BYTES } else { 0 }
    }
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Frame({} bytes)", self.ethernet().len())
    }
}

/// An Ethernet address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Mac(pub [u8; 6]);

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let m = self.0;
        write!(
            f,
            "{:02x}:{:02x}:{:02x}:{:02x}:{:02x}:{:02x}",
            m[0], m[1], m[2], m[3], m[4], m[5]
        )
    }
}

impl FromStr for Mac {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("'{text}' is not an Ethernet address like 52:54:00:12:34:56");
        let mut mac = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut mac {
            let part = parts.next().ok_or_else(bad)?;
            if part.len() != 2 {
                return Err(bad());
            }
            *byte = u8::from_str_radix(part, 16).map_err(|_| bad())?;
        }
        if parts.next().is_some() {
            return Err(bad());
        }
        Ok(Self(mac))
    }
}

impl TryFrom<String> for Mac {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Mac> for String {
    fn from(mac: Mac) -> Self {
        mac.to_string()
    }
}

/// Inputs that QEMU had been given and had not taken when its guest was paused. They stand before the
/// pause in the log, but are not part of the guest's state yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unconsumed {
    /// Frames, oldest first.
    pub frames: Vec<Frame>,
    /// Bytes typed on the console.
    #[serde(with = "serde_bytes")]
    pub typed: Vec<u8>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_frame_is_taken_for_one_with_an_offload() {
        let partial = Offload([1, 0, 0, 0, 0, 0, 34, 0, 16, 0]);
        let of_the_mark = [&Frame::MARK[..], &[1; 54]].concat();
        for ethernet in [&[7; 60][..], &of_the_mark, &Frame::MARK, &[]] {
            for offload in [Offload::NONE, partial] {
                let mut frame = Frame::new(offload, ethernet);
                assert_eq!(frame.offload(), offload);
                assert_eq!(frame.ethernet(), ethernet);
                assert_eq!(frame.ethernet_mut(), ethernet);
            }
        }
        assert_eq!(Frame::new(Offload::NONE, &[7; 60]), Frame(vec![7; 60]));
        for nic in 0..4 {
            let plain = Frame(vec![7; 60]).on_nic(nic);
            let frame = Frame::new(partial, &[7; 60]).on_nic(3).on_nic(nic);
            for (frame, offload) in [(plain, Offload::NONE), (frame, partial)] {
                assert_eq!((frame.nic(), frame.offload()), (nic, offload));
                assert_eq!(frame.ethernet(), [7; 60]);
            }
        }
        assert_eq!(Frame(vec![7; 60]).on_nic(1).on_nic(0), Frame(vec![7; 60]));
        // A peer may send anything.
        let cut_short = Frame(Frame::MARK.to_vec());
        assert_eq!(cut_short.ethernet(), Frame::MARK);
        assert_eq!(partial.checksum_from(), Some(34));
        assert_eq!(Offload::NONE.checksum_from(), None);
    }

    #[test]
    fn mac_round_trips_and_rejects() {
        let mac: Mac = "52:54:00:12:34:56".parse().unwrap();
        assert_eq!(mac.to_string(), "52:54:00:12:34:56");
        for bad in [
            "",
            "52:54:00:12:34",
            "52:54:00:12:34:56:78",
            "5z:54:00:12:34:56",
            "5:4:0:1:3:5",
        ] {
            assert!(bad.parse::<Mac>().is_err(), "{bad}");
        }
    }
}
