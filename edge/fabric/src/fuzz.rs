//! Entry points for fuzzing (`proof/fuzz`): the decoders of bytes from outside that are private to this crate.

use crate::hello::{HELLO_BYTES, Hello, Message};
use crate::ring::{BufferPool, Capacity, Position, RingReader, Salt};

const RING_BYTES: usize = 1024;

/// A greeting, with a checksum that holds.
pub fn hello(bytes: &[u8]) {
    let mut greeting = [0; HELLO_BYTES];
    let length = bytes.len().min(HELLO_BYTES - 4);
    greeting[..length].copy_from_slice(&bytes[..length]);
    let sum = crc32c::crc32c(&greeting[..HELLO_BYTES - 4]);
    greeting[HELLO_BYTES - 4..].copy_from_slice(&sum.to_le_bytes());
    if let Ok(hello) = Hello::decode(&greeting) {
        let _ = (hello.differs(&hello), hello.group.to_string());
        assert!(Hello::decode(&hello.encode()).is_ok());
    }
}

/// A ring into which a peer has written anything.
pub fn ring(bytes: &[u8]) {
    let mut memory = [0; RING_BYTES];
    let length = bytes.len().min(RING_BYTES);
    memory[..length].copy_from_slice(&bytes[..length]);
    let capacity = Capacity::new(RING_BYTES).expect("a ring of this size");
    for arrived in [None, Some(Position(length as u64))] {
        let mut reader = RingReader::new(capacity, Salt(0));
        let mut pool = BufferPool::default();
        // Each record takes some of the ring.
        for _ in 0..RING_BYTES {
            let record = match arrived {
                None => reader.look(&memory[..], &mut pool),
                Some(arrived) => reader.take(&memory[..], arrived, &mut pool).ok().flatten(),
            };
            let Some(record) = record else { break };
            assert!(record.len() <= capacity.record_bytes_max());
            let _ = reader.credit();
        }
    }
}

/// A file of public keys.
pub fn keys(text: &str) {
    let _ = crate::keys::file::parse(std::path::Path::new("keys"), text);
}
