//! The keys of replicas: each has a private key of its own, and trusts the public keys of its peers. The clients
//! of a log have keys, too.
//!
//! There is no certificate authority. A file names the public keys of each replica ([`Keys::load`]):
//!
//! ```text
//!   0 ed25519:1f8e…
//!   1 ed25519:77a0…      two lines with one id: both keys are trusted, so that
//!   1 ed25519:c4d2…      a replica can change its key without losing its links
//! ```
//!
//! Keys of clients of a log have `client` or `admin` in the place of the id ([`Holder`]).
//!
//! The file is read again when it has changed. So a key that is added counts at the next handshake, and
//! one that is removed counts no more: over TCP, links that rest on it end.

pub(crate) mod file;
mod holder;

use file::{content, failed, parse, read};
pub use file::{make_all, trust};
pub use holder::Holder;
use plover_types::ReplicaId;
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};
use tracing::warn;

/// Bytes of an Ed25519 public key, and of the seed of a private one.
const KEY_BYTES: usize = 32;
/// Bytes of a signature.
pub const SIGNATURE_BYTES: usize = 64;

const PUBLIC: &str = "ed25519:";
const PRIVATE: &str = "private-ed25519:";
/// The forms of X.509 (RFC 8410) around a public key and around a private one.
const PUBLIC_FORM: [u8; 12] = *b"\x30\x2a\x30\x05\x06\x03\x2b\x65\x70\x03\x21\x00";
const PRIVATE_FORM: [u8; 16] = *b"\x30\x2e\x02\x01\x00\x30\x05\x06\x03\x2b\x65\x70\x04\x22\x04\x20";

/// Why keys cannot be used. Each message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file cannot be read or written.
    #[error("cannot {what} {}: {source}{advice}", path.display())]
    File {
        /// The action.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
        /// The remedy.
        advice: &'static str,
    },
    /// Other users of the host can read the private key.
    #[error("others than its owner and its group may read the private key {0}: chmod 640 {0}")]
    Open(String),
    /// The file does not have the form of a key file or a trust file.
    #[error("{}: {why}", path.display())]
    Form {
        /// The file.
        path: PathBuf,
        /// The line, and what is wrong with it.
        why: String,
    },
    /// A peer has no key in the trust file.
    #[error(
        "{} has no key of replica {}: run `plover key trust {} {} KEY` with the key that `plover key show` \
         prints on its host", path.display(), peer.0, path.display(), peer.0
    )]
    Missing {
        /// The trust file.
        path: PathBuf,
        /// The peer.
        peer: ReplicaId,
    },
    /// The private key does not belong to this replica.
    #[error(
        "{} names other keys for replica {} than {own}, the one of this host's private key: copy each host's \
         own key file to it, or trust the new key on all hosts", path.display(), me.0
    )]
    Another {
        /// The trust file.
        path: PathBuf,
        /// This replica.
        me: ReplicaId,
        /// Its public key.
        own: PublicKey,
    },
}

/// A public key. Its text is one word: `ed25519:` and 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PublicKey([u8; KEY_BYTES]);

impl PublicKey {
    /// The key in the form in which TLS carries it.
    pub(crate) fn to_spki(self) -> Vec<u8> {
        [&PUBLIC_FORM[..], &self.0].concat()
    }

    pub(crate) fn from_spki(bytes: &[u8]) -> Option<Self> {
        bytes.strip_prefix(&PUBLIC_FORM)?.try_into().ok().map(Self)
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PUBLIC}{}", hex(&self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for PublicKey {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bytes = text.strip_prefix(PUBLIC).and_then(unhex).map(Self);
        bytes.ok_or_else(|| {
            let why = if text.starts_with(PRIVATE) {
                "this is a private key, which must not leave its host"
            } else {
                "this is no public key"
            };
            format!(
                "{why}: a public key is `{PUBLIC}` and 64 hexadecimal digits, as `plover key show` prints it"
            )
        })
    }
}

/// A private key.
pub struct PrivateKey {
    seed: [u8; KEY_BYTES],
    pair: Ed25519KeyPair,
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrivateKey of {}", self.public())
    }
}

impl PrivateKey {
    /// A key that never was before.
    ///
    /// # Errors
    /// The kernel gives no random bytes.
    pub fn generate() -> io::Result<Self> {
        let mut seed = [0; KEY_BYTES];
        let drawn = rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty())?;
        if drawn != KEY_BYTES {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(Self::of(seed))
    }

    fn of(seed: [u8; KEY_BYTES]) -> Self {
        let pair = Ed25519KeyPair::from_seed_unchecked(&seed).expect("every 32 bytes are a seed");
        Self { seed, pair }
    }

    /// Reads a key file.
    ///
    /// # Errors
    /// It cannot be read, others can read it, or it is no key file.
    pub fn read(path: &Path) -> Result<Self, KeyError> {
        let advice = "; `plover key new` makes one, and the user that runs the replica must be able to read it: for the \
                      service, chgrp plover and chmod 640";
        let text = read(path, advice)?;
        let it = fs::metadata(path).map_err(failed("read", path, advice))?;
        // A service's user may have it by its group, and root own it.
        if it.mode() & 0o037 != 0 {
            return Err(KeyError::Open(path.display().to_string()));
        }
        let mut lines = content(&text).map(|(_, line)| line);
        let seed = lines
            .next()
            .and_then(|line| unhex(line.strip_prefix(PRIVATE)?));
        match (seed, lines.next()) {
            (Some(seed), None) => Ok(Self::of(seed)),
            _ => Err(KeyError::Form {
                path: path.into(),
                why: "this is no private key of `plover key new`".into(),
            }),
        }
    }

    /// Writes the key to a new file, which its owner and its group may read: in /etc/plover the group is the service's.
    ///
    /// # Errors
    /// The file is there already, or cannot be written.
    pub fn write_new(&self, path: &Path) -> Result<(), KeyError> {
        let text = format!(
            "# The private key of a replica. It stays on its host. `plover key show` prints the public one.\n\
             {PRIVATE}{}\n",
            hex(&self.seed)
        );
        let advice = "; a key that is there is never overwritten";
        file::write_new(path, text.as_bytes(), 0o640, advice)
    }

    /// Its public key.
    pub fn public(&self) -> PublicKey {
        let bytes = self.pair.public_key().as_ref().try_into();
        PublicKey(bytes.expect("an Ed25519 key has 32 bytes"))
    }

    pub(crate) fn to_pkcs8(&self) -> Vec<u8> {
        [&PRIVATE_FORM[..], &self.seed].concat()
    }
}

/// The private key of a replica and the public keys that it trusts.
#[derive(Debug)]
pub struct Keys {
    pub(crate) own: PrivateKey,
    trusted: Mutex<Trusted>,
}

#[derive(Debug)]
struct Trusted {
    /// The file, and how it looked when it was read.
    file: Option<(PathBuf, Look)>,
    /// It could not be read then.
    is_unread: bool,
    keys: Vec<(Holder, PublicKey)>,
}

/// Tells one version of a file from another.
#[derive(Debug, Default, PartialEq, Eq)]
struct Look([i64; 6]);

impl Look {
    fn at(path: &Path) -> io::Result<Self> {
        let it = fs::metadata(path)?;
        Ok(Self([
            it.mtime(),
            it.mtime_nsec(),
            // The right to read it changes this time, and not that of the content.
            it.ctime(),
            it.ctime_nsec(),
            it.ino() as i64,
            it.size() as i64,
        ]))
    }
}

impl Keys {
    /// Keys that never change.
    pub fn new(own: PrivateKey, trusted: Vec<(impl Into<Holder>, PublicKey)>) -> Self {
        let keys = trusted
            .into_iter()
            .map(|(holder, key)| (holder.into(), key));
        let (file, keys) = (None, keys.collect());
        Self {
            own,
            trusted: Mutex::new(Trusted {
                file,
                is_unread: false,
                keys,
            }),
        }
    }

    /// Reads the key file and the trust file of replica `me`, whose peers are `peers`.
    ///
    /// # Errors
    /// A file cannot be used, a peer has no key, or the key file belongs to another replica.
    pub fn load(
        key: &Path,
        trust: &Path,
        me: ReplicaId,
        peers: impl IntoIterator<Item = ReplicaId>,
    ) -> Result<Self, KeyError> {
        let own = PrivateKey::read(key)?;
        let trusted = Trusted::read(trust)?;
        let path = trust.to_owned();
        let of = |id: ReplicaId| {
            let keys = trusted.keys.iter().filter(move |it| it.0 == id.into());
            keys.map(|it| it.1)
        };
        let mut peers = peers.into_iter();
        if let Some(peer) = peers.find(|peer| *peer != me && of(*peer).next().is_none()) {
            return Err(KeyError::Missing { path, peer });
        }
        let own_key = own.public();
        if of(me).next().is_some() && of(me).all(|key| key != own_key) {
            return Err(KeyError::Another {
                path,
                me,
                own: own_key,
            });
        }
        let trusted = Mutex::new(trusted);
        Ok(Self { own, trusted })
    }

    /// Reads the key file of a client of a log, and the trust file with the keys of the replicas.
    ///
    /// # Errors
    /// A file cannot be used.
    pub fn load_of_client(key: &Path, trust: &Path) -> Result<Self, KeyError> {
        let own = PrivateKey::read(key)?;
        let trusted = Mutex::new(Trusted::read(trust)?);
        Ok(Self { own, trusted })
    }

    /// This replica's public key.
    pub fn public(&self) -> PublicKey {
        self.own.public()
    }

    /// The holders of this key; a few at most.
    pub(crate) fn holders_of(&self, key: PublicKey) -> Vec<Holder> {
        // A thread that panicked while it held the lock has changed nothing by halves.
        let mut trusted = self.trusted.lock().unwrap_or_else(PoisonError::into_inner);
        trusted.refresh();
        let holders = trusted.keys.iter().filter(|it| it.1 == key);
        holders.map(|it| it.0).collect()
    }

    /// Whether a client of the log with this key may append and read.
    pub fn may_use(&self, key: PublicKey) -> bool {
        let holders = self.holders_of(key);
        holders.contains(&Holder::Client) || holders.contains(&Holder::Admin)
    }

    /// Whether a client of the log with this key may change the group.
    pub fn may_administer(&self, key: PublicKey) -> bool {
        self.holders_of(key).contains(&Holder::Admin)
    }

    /// Whether `key` is trusted as a key of `replica`.
    pub(crate) fn trusts(&self, replica: ReplicaId, key: PublicKey) -> bool {
        self.holders_of(key).contains(&replica.into())
    }

    /// This replica's signature under `message`. `purpose` keeps a signature from being used elsewhere.
    pub fn sign(&self, purpose: &str, message: &[u8]) -> [u8; SIGNATURE_BYTES] {
        let signature = self.own.pair.sign(&signed(purpose, message));
        let bytes = signature.as_ref().try_into();
        bytes.expect("an Ed25519 signature has 64 bytes")
    }

    /// Whether `signature` is one of `replica` under `message`.
    pub fn is_signed(
        &self,
        replica: ReplicaId,
        purpose: &str,
        message: &[u8],
        signature: &[u8],
    ) -> bool {
        let signed = signed(purpose, message);
        let mut trusted = self.trusted.lock().unwrap_or_else(PoisonError::into_inner);
        trusted.refresh();
        let mut keys = trusted.keys.iter().filter(|it| it.0 == replica.into());
        keys.any(|(_, key)| {
            UnparsedPublicKey::new(&ED25519, key.0)
                .verify(&signed, signature)
                .is_ok()
        })
    }
}

impl Trusted {
    fn read(path: &Path) -> Result<Self, KeyError> {
        let advice = "; `plover key trust` makes it";
        // Before the reading: if it changes in between, it is read again.
        let look = Look::at(path).map_err(failed("read", path, advice))?;
        let keys = parse(path, &read(path, advice)?)?;
        let file = Some((path.to_owned(), look));
        Ok(Self {
            file,
            is_unread: false,
            keys,
        })
    }

    /// Reads the file again if it has changed. Of one that cannot be read, the keys before it count.
    fn refresh(&mut self) {
        let Some((path, seen)) = &mut self.file else {
            return;
        };
        let look = Look::at(path).unwrap_or_default();
        let is_changed = look != *seen;
        if !is_changed && !self.is_unread {
            return;
        }
        *seen = look;
        let text = read(path, "");
        let for_now = |source: &io::Error| source.kind() != io::ErrorKind::InvalidData;
        self.is_unread = matches!(&text, Err(KeyError::File { source, .. }) if for_now(source));
        match text.and_then(|text| parse(path, &text)) {
            // An editor may be writing it just now.
            Ok(keys) if keys.is_empty() => warn!(
                event = "trust_empty",
                "{} names no key: the keys that were trusted before are trusted on",
                path.display()
            ),
            Ok(keys) => self.keys = keys,
            Err(error) if is_changed => warn!(
                event = "trust_unread",
                "{error}: the keys that were trusted before are trusted on"
            ),
            Err(_) => {}
        }
    }
}

fn signed(purpose: &str, message: &[u8]) -> Vec<u8> {
    [b"plover ", purpose.as_bytes(), b"\0", message].concat()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<[u8; KEY_BYTES]> {
    let digits = text.as_bytes();
    if digits.len() != 2 * KEY_BYTES || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    let mut bytes = [0; KEY_BYTES];
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests;
