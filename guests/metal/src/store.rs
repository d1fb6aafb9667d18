//! Keys and values of bounded length, in a table of fixed size.

/// Bytes of a key, and of a value, at most.
pub const KEY_BYTES: usize = 46;
pub const VALUE_BYTES: usize = 80;
/// Places; a power of two.
const PLACES: usize = 1 << 17;
/// Places that are used at most, so that a search stays short.
const USED_MAX: usize = PLACES / 8 * 7;

#[derive(Clone, Copy)]
#[repr(C)]
struct Place {
    /// 0: free.
    key_bytes: u8,
    value_bytes: u8,
    key: [u8; KEY_BYTES],
    value: [u8; VALUE_BYTES],
}

const FREE: Place = Place {
    key_bytes: 0,
    value_bytes: 0,
    key: [0; KEY_BYTES],
    value: [0; VALUE_BYTES],
};

/// The table.
pub struct Store {
    places: [Place; PLACES],
    used: usize,
}

/// Why a value was not stored.
#[derive(Debug, PartialEq, Eq)]
pub enum Refused {
    /// The key is empty or longer than [`KEY_BYTES`].
    Key,
    /// The value is longer than [`VALUE_BYTES`].
    Value,
    /// The table is full.
    Full,
}

impl Store {
    /// An empty one.
    pub const fn new() -> Self {
        Self {
            places: [FREE; PLACES],
            used: 0,
        }
    }

    /// Keys that are stored.
    pub fn len(&self) -> usize {
        self.used
    }

    /// The value of a key.
    pub fn get(&self, key: &[u8]) -> Option<&[u8]> {
        let place = &self.places[self.place(key)];
        (place.key_bytes > 0).then(|| &place.value[..place.value_bytes.into()])
    }

    /// Stores a value.
    pub fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), Refused> {
        if key.is_empty() || key.len() > KEY_BYTES {
            return Err(Refused::Key);
        }
        if value.len() > VALUE_BYTES {
            return Err(Refused::Value);
        }
        let at = self.place(key);
        let place = &mut self.places[at];
        if place.key_bytes == 0 {
            if self.used == USED_MAX {
                return Err(Refused::Full);
            }
            self.used += 1;
            place.key_bytes = key.len() as u8;
            place.key[..key.len()].copy_from_slice(key);
        }
        place.value_bytes = value.len() as u8;
        place.value[..value.len()].copy_from_slice(value);
        Ok(())
    }

    /// Where `key` is, or where it would be.
    fn place(&self, key: &[u8]) -> usize {
        // FNV-1a.
        let hash = key.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let mut at = (hash ^ (hash >> 32)) as usize % PLACES;
        loop {
            let place = &self.places[at];
            let used = usize::from(place.key_bytes);
            if used == 0 || &place.key[..used] == key {
                return at;
            }
            at = (at + 1) % PLACES;
        }
    }
}

/// `proof/lab/tests/metal.rs` runs these.
#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    /// Too large for a stack.
    static STORE: Mutex<Store> = Mutex::new(Store::new());

    #[test]
    fn a_full_table_refuses_new_keys_and_keeps_the_old_ones() {
        let mut store = STORE.lock().unwrap();
        for bad in [&b""[..], &[b'k'; KEY_BYTES + 1]] {
            assert_eq!(store.set(bad, b"v"), Err(Refused::Key));
        }
        assert_eq!(store.set(b"k", &[0; VALUE_BYTES + 1]), Err(Refused::Value));
        let key = |n: usize| n.to_string().into_bytes();
        for n in 0..USED_MAX {
            store.set(&key(n), &key(n * 7)).unwrap();
        }
        assert_eq!(store.set(b"one more", b"v"), Err(Refused::Full));
        assert_eq!(store.get(b"one more"), None);
        store.set(&key(5), b"").unwrap();
        assert_eq!(store.get(&key(5)), Some(&b""[..]));
        assert!((6..USED_MAX).all(|n| store.get(&key(n)) == Some(&key(n * 7))));
        assert_eq!(store.len(), USED_MAX);
    }
}
