//! Ethernet frames and addresses.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// One Ethernet frame without its checksum, exactly as it crosses a TAP device or the guest's
/// NIC. At most 64 KiB.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Frame(#[serde(with = "serde_bytes")] pub Vec<u8>);

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Frame({} bytes)", self.0.len())
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
