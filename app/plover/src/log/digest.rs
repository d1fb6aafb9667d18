//! The state machine of `plover log`: a digest of all entries so far.
//!
//! The digest is the answer to each entry, so that the output check (APUS §3, `plover log check`) has
//! something to compare. Replicas with other entries, or another order, do not agree.

use plover_log::StateMachine;
use plover_types::Viewstamp;

/// FNV-1a over all entries, each ended by its length. It finds accidents, not forgeries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogDigest(u64);

impl Default for LogDigest {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl LogDigest {
    fn take_in(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

impl StateMachine for LogDigest {
    fn apply(&mut self, _at: Viewstamp, entry: &[u8], answer: &mut Vec<u8>) {
        self.take_in(entry);
        self.take_in(&(entry.len() as u64).to_le_bytes());
        answer.extend(self.0.to_le_bytes());
    }

    fn snapshot(&self, out: &mut Vec<u8>) {
        out.extend(self.0.to_le_bytes());
    }

    fn restore(&mut self, snapshot: Option<&[u8]>) -> Result<(), String> {
        *self = match snapshot {
            None => Self::default(),
            Some(bytes) => {
                let bytes = bytes
                    .try_into()
                    .map_err(|_| format!("a digest has 8 bytes, not {}", bytes.len()))?;
                Self(u64::from_le_bytes(bytes))
            }
        };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest_of(entries: &[&[u8]]) -> LogDigest {
        let mut digest = LogDigest::default();
        for entry in entries {
            digest.apply(Viewstamp::default(), entry, &mut Vec::new());
        }
        digest
    }

    #[test]
    fn other_entries_or_another_order_give_another_digest() {
        let digest = digest_of(&[b"a", b"bc"]);
        let others: [&[&[u8]]; 4] = [&[b"bc", b"a"], &[b"ab", b"c"], &[b"a"], &[b"a", b"bc", b""]];
        for other in others {
            assert_ne!(digest_of(other), digest, "{other:?}");
        }
    }

    #[test]
    fn a_digest_goes_on_from_a_snapshot() {
        let digest = digest_of(&[b"a"]);
        let mut snapshot = Vec::new();
        digest.snapshot(&mut snapshot);
        let mut restored = LogDigest::default();
        restored.restore(Some(&snapshot)).unwrap();
        assert_eq!(restored, digest);
        restored.restore(None).unwrap();
        assert_eq!(restored, LogDigest::default());
        assert!(restored.restore(Some(b"short")).is_err());
    }
}
