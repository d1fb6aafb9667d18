//! The wire form of every message: one version byte, then [`postcard`].
//!
//! Decoding returns an error for anything that is not exactly one message of this version. It never
//! panics, and allocates no more than the length of the bytes justifies.

use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// The version of every wire form. Replicas of different versions refuse each other; see
/// [`forms`](crate::forms) for when it is raised.
pub const WIRE_VERSION: u8 = 2;

/// Why bytes are not a message. The receiver drops them and counts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The peer speaks another version: all replicas of a group must run the same release.
    #[error("wire version {0}, this replica speaks {WIRE_VERSION}")]
    Version(u8),
    /// The bytes do not decode: a bug of the peer, or damage on the way.
    #[error("malformed message: {0}")]
    Malformed(String),
    /// Bytes are left after the message.
    #[error("{0} bytes after the end of the message")]
    Trailing(usize),
}

/// The bytes of `message`.
pub fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    encode_into(message, Vec::new())
}

/// The bytes of `message`, in the place of what `buffer` held.
pub fn encode_into<T: Serialize>(message: &T, mut buffer: Vec<u8>) -> Vec<u8> {
    buffer.clear();
    buffer.push(WIRE_VERSION);
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
        Some((&WIRE_VERSION, body)) => decode_part(body),
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

    proptest::proptest! {
        #[test]
        fn decoding_noise_never_panics(bytes: Vec<u8>) {
            let _ = decode::<Vec<Frame>>(&bytes);
            let _ = decode::<Runs>(&bytes);
        }
    }
}
