//! The keys under which two replicas hash pages to compare them.

/// A key, and with it the function. Two replicas that compare must use the same one.
///
/// Its `Debug` form does not show the key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum HashKey {
    /// XXH3 under a secret of one process, which it uses for all that it compares. A group of wire version 2 compares so.
    Xxh3([u8; 32]),
    /// A universal hash. For pages, the key is of one sync or one copy; for subpages, of some thousand syncs
    /// (docs/decisions/0055).
    Universal([u8; 32]),
}

impl HashKey {
    /// The key's bytes.
    pub fn bytes(&self) -> &[u8; 32] {
        match self {
            Self::Xxh3(bytes) | Self::Universal(bytes) => bytes,
        }
    }
}

impl std::fmt::Debug for HashKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Xxh3(_) => "Xxh3(..)",
            Self::Universal(_) => "Universal(..)",
        })
    }
}
