//! The keys under which this replica has pages compared (docs/decisions/0055).
//!
//! ```text
//!   secret of the process ──▶ key of this sync's pages      drawn when the guest stands and its pages are known
//!      (PRF of a counter) ──▶ key of one copy's pages       drawn when the copy is opened
//!                         └─▶ key of subpages               for one view, and SUBPAGES_SYNCS syncs at most
//! ```
//!
//! Subpages keep their key for longer, because a hash that has been sent is not sent again while it stays the same
//! ([`plover_syncvm::HashHistory`]). With another key, both sides forget all hashes.

use crate::context::Context;
use plover_types::{HashKey, View};

/// The wire version from which on pages are compared by universal hashes.
pub(crate) const UNIVERSAL_VERSION: u8 = 3;

/// Syncs that compare subpages under one key, at most. The first of them sends all hashes of its divergent pages, so
/// the hashes that are sent anew are a four-thousandth.
const SUBPAGES_SYNCS: u32 = 4096;

/// The keys of one sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SyncKeys {
    pub pages: HashKey,
    pub subpages: HashKey,
}

impl SyncKeys {
    /// Those of a leader whose group has a wire version before [`UNIVERSAL_VERSION`].
    pub fn xxh3(key: [u8; 32]) -> Self {
        Self {
            pages: HashKey::Xxh3(key),
            subpages: HashKey::Xxh3(key),
        }
    }

    /// Those of a newer one.
    pub fn universal(pages: [u8; 32], subpages: [u8; 32]) -> Self {
        Self {
            pages: HashKey::Universal(pages),
            subpages: HashKey::Universal(subpages),
        }
    }
}

/// The process's secret, and what has been drawn from it.
#[derive(Clone)]
pub(crate) struct HashKeys {
    secret: [u8; 32],
    /// Keys drawn.
    drawn: u64,
    /// The subpages' key, its view, and the syncs that it is still good for.
    subpages: Option<([u8; 32], View, u32)>,
}

// Does not print the secret.
impl std::fmt::Debug for HashKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HashKeys").finish_non_exhaustive()
    }
}

impl HashKeys {
    pub fn new(secret: [u8; 32]) -> Self {
        Self {
            secret,
            drawn: 0,
            subpages: None,
        }
    }

    /// A key that has never been drawn before. Only somebody who knows the secret can tell it from a random one.
    fn draw(&mut self) -> [u8; 32] {
        self.drawn += 1;
        *blake3::keyed_hash(&self.secret, &self.drawn.to_le_bytes()).as_bytes()
    }

    fn of_sync(&mut self, view: View) -> SyncKeys {
        let (subpages, left) = match self.subpages {
            Some((key, of, left)) if of == view && left > 0 => (key, left),
            _ => (self.draw(), SUBPAGES_SYNCS),
        };
        self.subpages = Some((subpages, view, left - 1));
        SyncKeys::universal(self.draw(), subpages)
    }
}

impl Context {
    /// The keys of a sync. To be drawn once the guest stands: what it has written is then chosen without them.
    pub fn keys_of_sync(&mut self) -> SyncKeys {
        match self.compares_by_universal_hashes() {
            true => self.memory.hash_keys.of_sync(self.group.view),
            false => SyncKeys::xxh3(self.config.hash_key),
        }
    }

    /// The key of one opening of a copy.
    pub fn key_of_copy(&mut self) -> HashKey {
        match self.compares_by_universal_hashes() {
            true => HashKey::Universal(self.memory.hash_keys.draw()),
            false => HashKey::Xxh3(self.config.hash_key),
        }
    }

    fn compares_by_universal_hashes(&self) -> bool {
        self.group.core.version() >= UNIVERSAL_VERSION
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn bytes(key: HashKey) -> [u8; 32] {
        *key.bytes()
    }

    #[test]
    fn every_sync_has_pages_under_a_key_of_its_own() {
        let mut keys = HashKeys::new([1; 32]);
        let mut drawn = BTreeSet::new();
        for sync in 0..1000 {
            let view = View(sync / 100);
            assert!(drawn.insert(bytes(keys.of_sync(view).pages)), "sync {sync}");
            assert!(drawn.insert(keys.draw()), "copy {sync}");
        }
    }

    #[test]
    fn subpages_keep_their_key_for_a_view_and_a_number_of_syncs() {
        let mut keys = HashKeys::new([1; 32]);
        let first = keys.of_sync(View(1)).subpages;
        for sync in 1..SUBPAGES_SYNCS {
            assert_eq!(keys.of_sync(View(1)).subpages, first, "sync {sync}");
        }
        let second = keys.of_sync(View(1)).subpages;
        assert_ne!(second, first, "too many syncs");
        assert_eq!(keys.of_sync(View(1)).subpages, second);
        assert_ne!(keys.of_sync(View(2)).subpages, second, "another view");
    }

    #[test]
    fn another_process_draws_other_keys() {
        let of = |secret: u8| bytes(HashKeys::new([secret; 32]).of_sync(View(1)).pages);
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
    }
}
