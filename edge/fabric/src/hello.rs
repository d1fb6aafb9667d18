//! The handshake: one message of fixed size each way, on each lane's connection.
//!
//! ```text
//!   lower id (dials)                              higher id (listens)
//!     │ ── Hello { session, verdict: Ok, … } ──────────► │  checks group, ids, lane, rings
//!     │ ◄─────────── Hello { same session, verdict } ─── │
//!     │  checks the same                                 │
//!     ▼ the lane is greeted; both lanes greeted: link up ▼
//! ```
//!
//! The answer is sent even when it refuses, and says why, so that both operators read the
//! cause in their own log.
//!
//! Each side tells which wire versions it speaks, and which its group has. Replicas of neighbouring releases accept each
//! other. So the layout of this message is the same in all releases: what is added takes bytes that are zero now.

use crate::context::No;
use crate::processes::Process;
use crate::ring::Salt;
use crate::{FabricError, Lane};
use plover_types::ReplicaId;
use plover_types::wire::Versions;
use std::fmt;

/// First bytes of every connection. Not printable as a whole, so that no text protocol that
/// strays in can match.
const MAGIC: [u8; 8] = *b"PLOVERf\x02";

/// First bytes of a connection of TLS.
const TLS_HELLO: [u8; 2] = [22, 3];

/// Size of the message.
pub const HELLO_BYTES: usize = 128;

/// The group's name: replicas of different groups refuse each other.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct GroupName {
    bytes: [u8; Self::MAX],
    length: u8,
}

impl GroupName {
    /// Longest name, bytes.
    pub const MAX: usize = 64;

    pub fn new(name: &str) -> Result<Self, FabricError> {
        if name.is_empty() || name.len() > Self::MAX {
            return Err(FabricError::Group(name.to_owned()));
        }
        let mut bytes = [0; Self::MAX];
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        Ok(Self {
            bytes,
            length: name.len() as u8,
        })
    }
}

impl fmt::Display for GroupName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.bytes[..usize::from(self.length).min(Self::MAX)];
        write!(f, "'{}'", String::from_utf8_lossy(name).escape_debug())
    }
}

/// A session nonce, drawn by the dialling side for both lanes. It also salts the rings'
/// checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session(pub u64);

impl Session {
    /// A session that never was before.
    pub fn fresh() -> Self {
        let mut bytes = [0; 8];
        let drawn = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
        match drawn {
            Ok(8) => Self(u64::from_le_bytes(bytes)),
            // Reads of up to 256 bytes are never cut short once the kernel's pool is ready.
            other => panic!("the kernel gives no random bytes: {other:?}"),
        }
    }

    /// The salt of the ring that `writer` writes in this session.
    pub fn salt(self, writer: ReplicaId, lane: Lane) -> Salt {
        let ring = (u64::from(writer.0) << 8) | lane.index() as u64;
        Salt(self.0 ^ ring.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }
}

/// What one side says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    pub versions: Versions,
    pub lane: u8,
    pub from: ReplicaId,
    pub to: ReplicaId,
    pub verdict: u8,
    pub session: Session,
    pub ring_bytes: u64,
    pub group: GroupName,
    /// This process of its replica.
    pub process: Process,
    /// The process of the receiver's replica that it refuses.
    pub refuses: Process,
}

impl fmt::Debug for GroupName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The identity and settings that each side sends when a connection begins, on any fabric.
pub trait Greet: fmt::Debug + Sized {
    /// The replica that it claims to come from.
    fn sender(&self) -> ReplicaId;
    /// The versions that it speaks.
    fn versions(&self) -> Versions;
    /// The process of that replica.
    fn process(&self) -> Process;
    /// The reason against a link, `mine` being what this side says to that peer.
    fn refusal(&self, mine: &Self) -> Option<No>;
    /// Makes it an answer that refuses.
    fn refuse(&mut self, why: Refusal);
}

/// A greeting of `N` bytes.
pub trait Message<const N: usize>: Greet {
    /// The whole message.
    fn encode(&self) -> [u8; N];
    /// The message in these bytes.
    fn decode(bytes: &[u8; N]) -> Result<Self, NotHello>;
}

/// Why a handshake was refused. The number is what travels as the verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[repr(u8)]
pub enum Refusal {
    #[error(
        "the two speak no wire version in common: run the same release on both, or neighbouring ones"
    )]
    Version = 1,
    #[error("it belongs to another group: compare `group` in both configurations")]
    Group = 2,
    #[error("it is not the replica expected there: compare the ids and addresses of `peers`")]
    Identity = 3,
    #[error("its ring sizes differ: give all replicas the same")]
    RingBytes = 4,
    #[error("lane or session make no sense: run the same release on all replicas")]
    Lane = 5,
    #[error("it runs as another user: run all replicas of a host as the same")]
    User = 6,
    #[error("it offers no memory: run the same release on all replicas")]
    Memory = 7,
    #[error("it uses another provider of libfabric: set the same `provider` on all replicas")]
    Provider = 8,
    #[error(
        "it takes this replica's key for another one's: compare `group.me` here, and which key stands for which replica in \
         its trust file"
    )]
    Key = 9,
    #[error(
        "it is linked to another process of this replica, which lives: the host was cloned, or the replica was started twice; \
         stop this one. If this one is to stay, stop the other one, move this one's paths.state_dir away, and start it again"
    )]
    Twin = 10,
    #[error(
        "another process of this replica has been linked there since, and both have lived at the same time: the host was \
         cloned, or the replica was started twice; stop one of the two, and start the one that stays again"
    )]
    Replaced = 11,
    #[error("it refused this replica for a reason unknown to this release")]
    Unknown = 255,
}

impl Refusal {
    /// The reason behind a verdict; none for 0.
    pub fn from_verdict(verdict: u8) -> Option<Self> {
        const KNOWN: [Refusal; 11] = [
            Refusal::Version,
            Refusal::Group,
            Refusal::Identity,
            Refusal::RingBytes,
            Refusal::Lane,
            Refusal::User,
            Refusal::Memory,
            Refusal::Provider,
            Refusal::Key,
            Refusal::Twin,
            Refusal::Replaced,
        ];
        let known = KNOWN.into_iter().find(|it| *it as u8 == verdict);
        (verdict != 0).then(|| known.unwrap_or(Self::Unknown))
    }
}

/// Not a handshake at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotHello {
    #[error("something other than a replica is talking")]
    Magic,
    #[error("the handshake arrived damaged")]
    Damaged,
    #[error(
        "it speaks TLS, and this replica has no keys: give all replicas keys, or all of them `plaintext = true`"
    )]
    Tls,
}

impl Message<HELLO_BYTES> for Hello {
    fn encode(&self) -> [u8; HELLO_BYTES] {
        let mut out = [0; HELLO_BYTES];
        out[..8].copy_from_slice(&MAGIC);
        out[8] = self.versions.newest;
        out[9] = self.lane;
        out[10] = self.from.0;
        out[11] = self.to.0;
        out[12] = self.verdict;
        out[13] = self.group.length;
        out[14] = self.versions.oldest;
        out[15] = self.versions.group;
        out[16..24].copy_from_slice(&self.session.0.to_le_bytes());
        out[24..32].copy_from_slice(&self.ring_bytes.to_le_bytes());
        out[32..96].copy_from_slice(&self.group.bytes);
        out[96..104].copy_from_slice(&self.process.0.to_le_bytes());
        out[104..112].copy_from_slice(&self.refuses.0.to_le_bytes());
        let crc = crc32c::crc32c(&out[..HELLO_BYTES - 4]);
        out[HELLO_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    fn decode(bytes: &[u8; HELLO_BYTES]) -> Result<Self, NotHello> {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        if bytes[..2] == TLS_HELLO {
            return Err(NotHello::Tls);
        }
        if bytes[..8] != MAGIC {
            return Err(NotHello::Magic);
        }
        let crc = u32::from_le_bytes(std::array::from_fn(|i| bytes[HELLO_BYTES - 4 + i]));
        if crc != crc32c::crc32c(&bytes[..HELLO_BYTES - 4]) {
            return Err(NotHello::Damaged);
        }
        let length = bytes[13].min(GroupName::MAX as u8);
        Ok(Self {
            versions: Versions {
                oldest: bytes[14],
                newest: bytes[8],
                group: bytes[15],
            },
            lane: bytes[9],
            from: ReplicaId(bytes[10]),
            to: ReplicaId(bytes[11]),
            verdict: bytes[12],
            session: Session(word(16)),
            ring_bytes: word(24),
            group: GroupName {
                bytes: std::array::from_fn(|i| bytes[32 + i]),
                length,
            },
            process: Process(word(96)),
            refuses: Process(word(104)),
        })
    }
}

impl Hello {
    /// The difference that speaks against a link, `mine` being what this side says to that peer on
    /// that lane. The peer's own verdict counts only when nothing on this side speaks against it: our
    /// own comparison names the cause better.
    pub fn differs(&self, mine: &Hello) -> Option<Refusal> {
        if !self.versions.agree(mine.versions) {
            Some(Refusal::Version)
        } else if self.group != mine.group {
            Some(Refusal::Group)
        } else if self.from != mine.to || self.to != mine.from {
            Some(Refusal::Identity)
        } else if self.lane != mine.lane || self.session != mine.session {
            Some(Refusal::Lane)
        } else if self.ring_bytes != mine.ring_bytes {
            Some(Refusal::RingBytes)
        } else if self.refuses.is(mine.process) || mine.refuses.is(self.process) {
            Some(Refusal::Replaced)
        } else {
            Refusal::from_verdict(self.verdict)
        }
    }

    /// The same, with the words for the operator.
    pub fn no(&self, mine: &Hello) -> Option<No> {
        self.differs(mine).map(|why| match why {
            Refusal::Version => No::because(why, unlike(mine.versions, self.versions)),
            Refusal::Replaced if mine.refuses.is(self.process) => No::of_peer(why),
            why => No::from(why),
        })
    }
}

/// Why two replicas cannot be linked that speak these versions, and what to do.
pub fn unlike(mine: Versions, theirs: Versions) -> String {
    let both = format!("it speaks {theirs}, this replica {mine}");
    if !theirs.fits(mine.group) {
        let group = mine.group;
        let advice = match theirs.newest < group {
            true => "start the newer release there: a group's version is never lowered",
            false => "start the release between there first",
        };
        format!("{both}, and the group has version {group}: {advice}")
    } else if !mine.fits(theirs.group) {
        let group = theirs.group;
        let advice = match mine.newest < group {
            true => "start the newer release here: a group's version is never lowered",
            false => "start the release between here first",
        };
        format!("{both}, and the group has version {group}: {advice}")
    } else {
        format!("{both}: run the same release on both, or neighbouring ones")
    }
}

impl Greet for Hello {
    fn sender(&self) -> ReplicaId {
        self.from
    }

    fn versions(&self) -> Versions {
        self.versions
    }

    fn process(&self) -> Process {
        self.process
    }

    fn refusal(&self, mine: &Self) -> Option<No> {
        self.no(mine)
    }

    fn refuse(&mut self, why: Refusal) {
        self.verdict = why as u8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hello() -> Hello {
        Hello {
            versions: Versions::OURS,
            lane: 1,
            from: ReplicaId(0),
            to: ReplicaId(2),
            verdict: 0,
            session: Session(77),
            ring_bytes: 4096,
            group: GroupName::new("a group").unwrap(),
            process: Process(1001),
            refuses: Process(1002),
        }
    }

    fn answer() -> Hello {
        Hello {
            from: ReplicaId(2),
            to: ReplicaId(0),
            process: Process(2001),
            refuses: Process(2002),
            ..hello()
        }
    }

    #[test]
    fn round_trips() {
        assert_eq!(Hello::decode(&hello().encode()), Ok(hello()));
        assert_eq!(hello().differs(&answer()), None);
    }

    #[test]
    fn every_difference_has_its_refusal() {
        type Change = fn(&mut Hello);
        let changes: [(Change, Refusal); 12] = [
            (|it| it.versions.newest = 0, Refusal::Version),
            (
                |it| it.group = GroupName::new("another").unwrap(),
                Refusal::Group,
            ),
            (|it| it.from = ReplicaId(1), Refusal::Identity),
            (|it| it.to = ReplicaId(0), Refusal::Identity),
            (|it| it.lane = 0, Refusal::Lane),
            (|it| it.session = Session(78), Refusal::Lane),
            (|it| it.ring_bytes = 8192, Refusal::RingBytes),
            (|it| it.refuses = Process(2001), Refusal::Replaced),
            (|it| it.process = Process(2002), Refusal::Replaced),
            (|it| it.verdict = 10, Refusal::Twin),
            (|it| it.verdict = 2, Refusal::Group),
            (|it| it.verdict = 99, Refusal::Unknown),
        ];
        for (change, why) in changes {
            let mut theirs = hello();
            change(&mut theirs);
            assert_eq!(theirs.differs(&answer()), Some(why));
        }
    }

    #[test]
    fn its_form_is_that_of_its_version() {
        let hello = Hello {
            // Where the versions stand, and not which they are.
            versions: Versions {
                oldest: 101,
                newest: 102,
                group: 103,
            },
            verdict: 3,
            ..hello()
        };
        plover_types::forms::assert_form("handshake", &[hello.encode().to_vec()]);
    }

    #[test]
    fn a_refusal_names_both_and_what_to_do() {
        let of = |newest, group| Versions {
            group,
            ..Versions::up_to(newest)
        };
        let (old, new) = (of(2, 2), of(3, 3));
        let said = unlike(new, old);
        assert!(said.contains("it speaks wire version 2, this replica wire versions 2 to 3"));
        assert!(said.contains("the newer release there"), "{said}");
        assert!(unlike(old, new).contains("the newer release here"));
        let later = Versions {
            oldest: 3,
            newest: 4,
            group: 0,
        };
        assert!(unlike(of(3, 2), later).contains("the release between there"));
        assert!(unlike(later, of(3, 2)).contains("the release between here"));
        assert!(unlike(later, of(2, 0)).contains("neighbouring"));
    }

    proptest! {
        #[test]
        fn noise_never_panics(mut bytes in prop::array::uniform32(any::<u8>()), magic: bool, version: u8) {
            if magic {
                bytes[..8].copy_from_slice(&MAGIC);
                bytes[8] = version;
            }
            let mut whole = [0; HELLO_BYTES];
            for part in whole.chunks_mut(32) {
                part.copy_from_slice(&bytes);
            }
            if let Ok(hello) = Hello::decode(&whole) {
                let _ = (hello.differs(&answer()), hello.group.to_string());
            }
        }

        #[test]
        fn a_flipped_bit_is_never_accepted(bit in 0..HELLO_BYTES * 8) {
            let mut bytes = hello().encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let accepted = Hello::decode(&bytes).is_ok_and(|h| h.differs(&answer()).is_none());
            prop_assert!(!accepted);
        }
    }
}
