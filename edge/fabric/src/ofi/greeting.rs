//! The handshake, over a TCP connection beside the fabric.
//!
//! ```text
//!   lower id (dials)                                     higher id (listens)
//!     │ opens its two ports                                │
//!     │ ── Greeting { session, addresses and keys } ─────► │ checks; opens its two ports
//!     │ ◄── Greeting { same session, its own } ─────────── │
//!     │ ═══ first doorbell on each lane, over the fabric ═►│
//!     │ ◄══ first doorbell back ══════════════════════════ │ up
//!     ▼ up                                                 ▼
//! ```
//!
//! libfabric has no way to tell the peer which memory key to write with, and reliable
//! unconnected endpoints do not show when the other end dies. The connection does both: it
//! carries this message once each way, then a byte now and then, and its end is the link's end. Under TLS, the message also
//! carries each side's part of the keys that seal the records (`seal.rs`).

use super::native::{Address, NAME_BYTES, provider_name};
use super::seal::{SECRET_BYTES, Secret};
use crate::Lane;
use crate::context::No;
use crate::hello::{Greet, HELLO_BYTES, Hello, Message, NotHello, Refusal};
use crate::processes::Process;
use plover_types::ReplicaId;
use plover_types::wire::Versions;

/// First bytes of every connection; unlike those of the other fabrics.
const MAGIC: [u8; 8] = *b"PLOVERo\x01";
/// Size of the message. It fits any socket's buffer whole.
pub const GREETING_BYTES: usize = 1024;
const PROVIDER_AT: usize = MAGIC.len() + 2 * HELLO_BYTES;
const PROVIDER_BYTES: usize = 64;
const ADDRESSES_AT: usize = PROVIDER_AT + PROVIDER_BYTES;
const ADDRESS_BYTES: usize = 24 + NAME_BYTES;
const SECRET_AT: usize = ADDRESSES_AT + 2 * ADDRESS_BYTES;
const CRC_AT: usize = GREETING_BYTES - 4;

/// What one side says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// The greeting of every fabric, once for each lane.
    pub lanes: [Hello; 2],
    /// The provider that it uses. Two providers cannot talk to each other.
    pub provider: [u8; PROVIDER_BYTES],
    /// Where the other side is to write, a lane each.
    pub addresses: [Address; 2],
    /// Its part of the keys of the link's rings; [`Secret::NONE`] unless the connection is under TLS.
    pub secret: Secret,
}

impl Greeting {
    /// The session that it opens.
    pub fn session(&self) -> crate::hello::Session {
        self.lanes[Lane::Log.index()].session
    }
}

impl Message<GREETING_BYTES> for Greeting {
    fn encode(&self) -> [u8; GREETING_BYTES] {
        let mut out = [0; GREETING_BYTES];
        out[..MAGIC.len()].copy_from_slice(&MAGIC);
        for (n, hello) in self.lanes.iter().enumerate() {
            let at = MAGIC.len() + n * HELLO_BYTES;
            out[at..at + HELLO_BYTES].copy_from_slice(&hello.encode());
        }
        out[PROVIDER_AT..ADDRESSES_AT].copy_from_slice(&self.provider);
        for (n, address) in self.addresses.iter().enumerate() {
            let at = ADDRESSES_AT + n * ADDRESS_BYTES;
            let words = [address.key, address.base, address.name_bytes];
            for (i, word) in words.iter().enumerate() {
                out[at + 8 * i..at + 8 * (i + 1)].copy_from_slice(&word.to_le_bytes());
            }
            out[at + 24..at + ADDRESS_BYTES].copy_from_slice(&address.name);
        }
        out[SECRET_AT..SECRET_AT + SECRET_BYTES].copy_from_slice(&self.secret.0);
        let crc = crc32c::crc32c(&out[..CRC_AT]);
        out[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    fn decode(bytes: &[u8; GREETING_BYTES]) -> Result<Self, NotHello> {
        if bytes[..MAGIC.len()] != MAGIC {
            return Err(NotHello::Magic);
        }
        let lane = |n: usize| {
            let at = MAGIC.len() + n * HELLO_BYTES;
            Hello::decode(&std::array::from_fn(|i| bytes[at + i]))
        };
        let lanes = [lane(0)?, lane(1)?];
        let crc = u32::from_le_bytes(std::array::from_fn(|i| bytes[CRC_AT + i]));
        if crc != crc32c::crc32c(&bytes[..CRC_AT]) {
            return Err(NotHello::Damaged);
        }
        let address = |n: usize| {
            let at = ADDRESSES_AT + n * ADDRESS_BYTES;
            let word =
                |i: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + 8 * i + byte]));
            let mut name: [u8; NAME_BYTES] = std::array::from_fn(|i| bytes[at + 24 + i]);
            // Some providers' addresses are strings; they end inside, whatever was sent.
            name[NAME_BYTES - 1] = 0;
            Address {
                name,
                name_bytes: word(2).min(NAME_BYTES as u64),
                key: word(0),
                base: word(1),
            }
        };
        Ok(Self {
            lanes,
            provider: std::array::from_fn(|i| bytes[PROVIDER_AT + i]),
            addresses: [address(0), address(1)],
            secret: Secret(std::array::from_fn(|i| bytes[SECRET_AT + i])),
        })
    }
}

impl Greet for Greeting {
    fn sender(&self) -> ReplicaId {
        self.lanes[0].from
    }

    fn versions(&self) -> Versions {
        self.lanes[0].versions
    }

    fn process(&self) -> Process {
        self.lanes[0].process
    }

    fn refusal(&self, mine: &Self) -> Option<No> {
        let lanes = self.lanes.iter().zip(&mine.lanes);
        let refusal = lanes.filter_map(|(theirs, mine)| theirs.no(mine)).next();
        match refusal.as_ref().map(|no| no.verdict) {
            // If the providers differ, that is why it refused: this names them.
            None | Some(Refusal::Provider) if self.provider != mine.provider => {
                let words = format!(
                    "it uses libfabric's provider '{}', this replica '{}': set the same `provider` on \
                     all replicas (and run the same libfabric, if the names were resolved \
                     differently)",
                    provider_name(&self.provider),
                    provider_name(&mine.provider)
                );
                Some(No::because(Refusal::Provider, words))
            }
            _ => refusal,
        }
    }

    fn refuse(&mut self, why: Refusal) {
        for lane in &mut self.lanes {
            lane.verdict = why as u8;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hello::{GroupName, Session};
    use proptest::prelude::*;

    fn named(name: &str) -> [u8; PROVIDER_BYTES] {
        let mut bytes = [0; PROVIDER_BYTES];
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        bytes
    }

    fn greeting(from: u8, to: u8) -> Greeting {
        let hello = |lane| Hello {
            versions: Versions::OURS,
            lane,
            from: ReplicaId(from),
            to: ReplicaId(to),
            verdict: 0,
            session: Session(77),
            ring_bytes: 4096,
            group: GroupName::new("a group").unwrap(),
            process: Process(u64::from(from) + 1),
            refuses: Process::default(),
        };
        let address = |key| Address {
            name: std::array::from_fn(|i| if i < 20 { i as u8 } else { 0 }),
            name_bytes: 20,
            key,
            base: 0x7f00_0000_1000,
        };
        Greeting {
            lanes: [hello(0), hello(1)],
            provider: named("tcp;ofi_rxm"),
            addresses: [address(1), address(u64::MAX)],
            secret: Secret([5; SECRET_BYTES]),
        }
    }

    #[test]
    fn round_trips_and_keeps_its_secret_to_itself() {
        let greeting = greeting(0, 2);
        assert_eq!(Greeting::decode(&greeting.encode()), Ok(greeting.clone()));
        assert!(format!("{greeting:?}").contains("secret: Secret }"));
    }

    #[test]
    fn another_provider_is_named_on_both_sides() {
        let (mut asking, mut answering) = (greeting(0, 2), greeting(2, 0));
        asking.provider = named("shm");
        let why = asking.refusal(&answering).expect("refused");
        assert!(why.to_string().contains("'shm'"), "{why}");
        answering.refuse(why.verdict);
        let why = answering.refusal(&asking).expect("refused");
        assert!(why.to_string().contains("'tcp;ofi_rxm'"), "{why}");
    }

    proptest! {
        #[test]
        fn a_flipped_bit_is_never_accepted(bit in 0..GREETING_BYTES * 8) {
            let mut bytes = greeting(0, 2).encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let accepted = Greeting::decode(&bytes).is_ok_and(|g| g.refusal(&greeting(2, 0)).is_none());
            prop_assert!(!accepted);
        }
    }
}
