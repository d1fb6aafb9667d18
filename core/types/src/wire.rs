//! The wire form of every message: one version byte, then [`postcard`].
//!
//! The byte is the oldest version that has the message's form. A replica reads the versions from
//! [`OLDEST_VERSION`] to [`WIRE_VERSION`], those of its own release and of the one before. It sends a form that is
//! newer than [`OLDEST_VERSION`] only once the group has that version (see `plover-apus`, `version`).
//!
//! Decoding returns an error for anything that is not exactly one message of these versions. It never
//! panics, and allocates no more than the length of the bytes justifies.

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::fmt;

/// The newest version of the wire forms that this release speaks; see [`forms`](crate::forms) for when it is raised.
///
/// Version 3 adds the entry after which a secondary's guest rests, version 4 the input to the guest's agent and the
/// connections of whose bytes programs in the guest speak.
pub const WIRE_VERSION: u8 = 4;
/// The oldest one, which the release before speaks too.
pub const OLDEST_VERSION: u8 = 2;

/// The versions that a replica tells at a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    /// The oldest that it speaks.
    pub oldest: u8,
    /// The newest that it speaks.
    pub newest: u8,
    /// The version of its group, as far as it knows; 0 if it knows none.
    pub group: u8,
}

impl Versions {
    /// All that this release speaks, in a group whose version is not known.
    pub const OURS: Self = Self::up_to(WIRE_VERSION);

    /// Those of a replica of this release that speaks none newer than `newest`.
    pub const fn up_to(newest: u8) -> Self {
        Self {
            oldest: OLDEST_VERSION,
            newest,
            group: 0,
        }
    }

    /// Whether a replica that speaks these can be in a group of `version`; 0 is a version that is not known.
    pub fn fits(self, version: u8) -> bool {
        version == 0 || (self.oldest..=self.newest).contains(&version)
    }

    /// Whether two replicas understand each other, and each speaks the version of the other's group.
    pub fn agree(self, other: Self) -> bool {
        let overlap = self.oldest <= other.newest && other.oldest <= self.newest;
        overlap && self.fits(other.group) && other.fits(self.group)
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.oldest == self.newest {
            true => write!(f, "wire version {}", self.newest),
            false => write!(f, "wire versions {} to {}", self.oldest, self.newest),
        }
    }
}

/// Why bytes are not a message. The receiver drops them and counts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// Replicas of a group agree on a version, so this is no message of one; or a file of a release too old or too new.
    #[error("wire version {0}, this replica speaks {OLDEST_VERSION} to {WIRE_VERSION}")]
    Version(u8),
    /// The bytes do not decode: a bug of the peer, or damage on the way.
    #[error("malformed message: {0}")]
    Malformed(String),
    /// Bytes are left after the message.
    #[error("{0} bytes after the end of the message")]
    Trailing(usize),
}

/// The bytes of `message`, whose form is as old as [`OLDEST_VERSION`].
pub fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    encode_into(message, Vec::new())
}

/// The bytes of `message`, whose form came with `version`.
pub fn encode_since<T: Serialize>(version: u8, message: &T) -> Vec<u8> {
    encode_part(message, vec![version])
}

/// As [`encode`], in the place of what `buffer` held.
pub fn encode_into<T: Serialize>(message: &T, mut buffer: Vec<u8>) -> Vec<u8> {
    buffer.clear();
    buffer.push(OLDEST_VERSION);
    encode_part(message, buffer)
}

/// Appends the bytes of `part` to `buffer`, without a version of their own.
pub fn encode_part<T: Serialize>(part: &T, buffer: Vec<u8>) -> Vec<u8> {
    postcard::to_extend(part, buffer).expect("messages are plain data and a Vec grows")
}

/// The message in `bytes`, all of them.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, WireError> {
    match decode_front(bytes)? {
        (message, []) => Ok(message),
        (_, rest) => Err(WireError::Trailing(rest.len())),
    }
}

/// The message at the front of `bytes`, which may borrow from them, and what follows it.
pub fn decode_front<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<(T, &'a [u8]), WireError> {
    match bytes.split_first() {
        None => Err(WireError::Malformed("empty".into())),
        Some((OLDEST_VERSION..=WIRE_VERSION, body)) => decode_part(body),
        Some((version, _)) => Err(WireError::Version(*version)),
    }
}

/// The part of a message at the front of `bytes`, and what follows it.
pub fn decode_part<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<(T, &'a [u8]), WireError> {
    postcard::take_from_bytes(bytes).map_err(|error| WireError::Malformed(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Frame, Runs};

    #[test]
    fn bytes_that_are_no_message_are_rejected() {
        let good = encode(&vec![Frame(vec![1, 2, 3])]);
        assert_eq!(
            decode::<Vec<Frame>>(&good).unwrap(),
            vec![Frame(vec![1, 2, 3])]
        );
        assert!(matches!(
            decode::<Vec<Frame>>(&[]),
            Err(WireError::Malformed(_))
        ));
        assert!(matches!(
            decode::<Vec<Frame>>(&[9, 1, 1, 1]),
            Err(WireError::Version(9))
        ));
        let mut long = good.clone();
        long.push(0);
        assert_eq!(decode::<Vec<Frame>>(&long), Err(WireError::Trailing(1)));
        for cut in 0..good.len() {
            assert!(decode::<Vec<Frame>>(&good[..cut]).is_err());
        }
    }

    #[test]
    fn replicas_agree_if_each_speaks_the_version_of_the_group() {
        let of = |oldest, newest, group| Versions {
            oldest,
            newest,
            group,
        };
        let old = of(2, 2, 2);
        assert!(old.agree(of(2, 3, 0)) && old.agree(of(2, 3, 2)));
        assert!(!old.agree(of(2, 3, 3)), "the group has left it behind");
        assert!(!of(3, 4, 3).agree(old), "no version in common");
        assert!(!of(3, 4, 0).agree(of(2, 3, 2)), "the group is not so far");
        for (a, b) in [(old, of(2, 3, 3)), (of(3, 4, 0), of(2, 3, 2))] {
            assert_eq!(a.agree(b), b.agree(a));
        }
    }

    proptest::proptest! {
        #[test]
        fn decoding_noise_never_panics(bytes: Vec<u8>) {
            let _ = decode::<Vec<Frame>>(&bytes);
            let _ = decode::<Runs>(&bytes);
        }
    }
}
