//! Every decoder that takes bytes from outside, as a fuzz target: from peers, from a QEMU that its guest has taken over, from the
//! guest itself, from clients, from operators, and from the disk.
//!
//! ```text
//!   ./x fuzz TARGET ──▶ libFuzzer, guided by coverage ──▶ a finding: mend it, and keep its bytes in a unit test
//!                              │ --keep
//!                              ▼
//!   corpus/TARGET.txt: an input a line, in hexadecimal ──▶ ./x test: each of them, and each with a fixed number of changes
//! ```
//!
//! A target panics if a decoder does, or if what was decoded breaks a rule of the decoder. Release builds check
//! overflows, and so do these.

use plover_matching::{LeaderSyn, Matcher, Outgoing, SequenceTranslator};
use plover_packets::{Packet, TcpHead, by_connection, payload_bytes};
use plover_syncvm::message::Body;
use plover_syncvm::{SyncMessage, chunk};
use plover_types::{Frame, Micros, OutputNo, PAGE_BYTES, PageNo, SyncNo, wire};
use std::path::{Path, PathBuf};

/// A decoder, or a few that take the same bytes.
#[derive(Clone, Copy)]
pub struct Target {
    /// Its name, which is also that of its corpus.
    pub name: &'static str,
    /// The source of the bytes.
    pub from: &'static str,
    run: fn(&Path, &[u8]),
}

/// All targets.
pub const TARGETS: [Target; 17] = [
    target("consensus", "a peer", |_, it| apus::fuzz::message(it)),
    target("log-op", "a peer", |_, it| plover_replica::fuzz::log_op(it)),
    target("bulk", "a peer", |_, it| bulk(it)),
    target("peer", "a peer", |_, it| plover_node::fuzz::peer(it)),
    target("packed", "a peer", |_, it| plover_node::fuzz::packed(it)),
    target("hello", "anybody who connects", |_, it| {
        plover_fabric::fuzz::hello(it)
    }),
    target("ring", "a peer", |_, it| plover_fabric::fuzz::ring(it)),
    target("packets", "the guest, and its clients", |_, it| packets(it)),
    target("nbd", "QEMU", plover_disk::fuzz::nbd),
    target("monitor", "QEMU", |_, it| plover_vm::fuzz::monitor(it)),
    target("agent", "QEMU, and programs in the guest", |_, it| {
        plover_vm::fuzz::agent(it);
        plover_vm::fuzz::clean(it);
        plover_node::fuzz::guest_agent(it);
    }),
    target("device-state", "a peer", |_, it| {
        plover_vm::fuzz::device_state(it)
    }),
    target(
        "log-clients",
        "a client, or a server, of the log",
        |_, it| {
            plover_log::fuzz::frame(it);
            plover_log::fuzz::mail(it);
            program(it);
        },
    ),
    target("control", "an operator", |_, it| {
        plover_node::fuzz::control(it)
    }),
    target("config", "an operator", |_, it| {
        if let Ok(text) = std::str::from_utf8(it) {
            plover_node::fuzz::config(text);
            plover_fabric::fuzz::keys(text);
        }
    }),
    target("journal", "the disk", plover_disk::fuzz::journal),
    target("store", "the disk", |_, it| {
        plover_store::fuzz::record(it);
        plover_store::fuzz::segment(it);
    }),
];

const fn target(name: &'static str, from: &'static str, run: fn(&Path, &[u8])) -> Target {
    Target { name, from, run }
}

impl Target {
    /// The target of this name.
    pub fn of(name: &str) -> Option<Self> {
        TARGETS.into_iter().find(|target| target.name == name)
    }

    /// Gives it an input. Files that it needs are in `folder`, which it may use again.
    ///
    /// # Panics
    /// The input shows an error.
    pub fn run(&self, folder: &Path, input: &[u8]) {
        (self.run)(folder, input);
    }

    /// The file of its kept inputs.
    pub fn corpus(&self) -> PathBuf {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
        corpus.join(self.name).with_extension("txt")
    }

    /// Its kept inputs.
    ///
    /// # Errors
    /// The file cannot be read, or a line is not hexadecimal; the text names it.
    pub fn kept(&self) -> Result<Vec<Vec<u8>>, String> {
        let file = self.corpus();
        let text = std::fs::read_to_string(&file)
            .map_err(|error| format!("cannot read {}: {error}", file.display()))?;
        let lines = text.lines().enumerate();
        let bytes = lines.map(|(at, line)| {
            let wrong = || format!("{}:{}: not hexadecimal", file.display(), at + 1);
            from_hex(line).ok_or_else(wrong)
        });
        bytes.collect()
    }
}

/// A folder in memory: an NBD client may ask for thousands of flushes, which a disk would carry out.
///
/// # Errors
/// The machine has no memory file system.
pub fn folder() -> std::io::Result<tempfile::TempDir> {
    tempfile::tempdir_in("/dev/shm")
}

/// The bytes in the text of [`to_hex`].
pub fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = text
        .chars()
        .map(|digit| Some(digit.to_digit(16)? as u8))
        .collect();
    let pairs = digits?;
    let pairs = pairs
        .chunks(2)
        .map(|pair| Some((pair[0] << 4) | pair.get(1)?));
    pairs.collect()
}

/// Bytes as a line of a corpus.
pub fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A message of the bulk lane, and the pages in it.
fn bulk(bytes: &[u8]) {
    const PAGES: u32 = 64;
    let read = |bytes: &[u8]| {
        let mut page = [0; PAGE_BYTES];
        for (number, content) in chunk::read(bytes, PAGES).map_while(Result::ok) {
            assert!(number < PageNo(PAGES));
            content.apply(&mut page);
        }
    };
    read(bytes);
    if let Ok(message) = wire::decode::<SyncMessage>(bytes) {
        let again = wire::encode(&message);
        assert_eq!(wire::decode(&again), Ok(message.clone()));
        match &message.body {
            Body::Pages { chunk, .. } | Body::Copy { chunk, .. } => read(chunk),
            _ => {}
        }
    }
}

/// Frames, each with its length before it: parsed, translated and matched. The first bit of the length says which guest has
/// sent it.
fn packets(bytes: &[u8]) {
    let mut frames = Vec::new();
    let mut rest = bytes;
    while let Some((length, after)) = rest.split_first() {
        let (frame, after) = after.split_at(after.len().min(usize::from(*length)));
        frames.push((length % 2 == 0, Frame(frame.to_vec())));
        rest = after;
    }
    let (now, sync) = (Micros(1), SyncNo(1));
    let mut matcher = Matcher::new(1 << 16);
    let mut translator = SequenceTranslator::default();
    translator.begin(sync, true, &[]);
    matcher.begin(false);
    for (no, (ours, frame)) in frames.iter().enumerate() {
        let _ = (Packet::of(frame).key(), payload_bytes(frame));
        if let Some(head) = TcpHead::of(frame) {
            let mut moved = frame.clone();
            head.move_sent(&mut moved, 77, 5);
            head.move_acknowledged(&mut moved, 77, 5);
            assert_eq!(moved.0.len(), frame.0.len());
        }
        if *ours {
            matcher.ours(OutputNo(no as u64), frame);
            let syns: Vec<LeaderSyn> = matcher.take_syns();
            for syn in syns {
                let _ = translator.on_leader_syn(sync, syn);
            }
        } else if let Outgoing::Passes(frame) = translator.outgoing(now, frame.clone()) {
            matcher.theirs(&frame);
        }
        let _ = translator.incoming(now, frame.clone());
        let _ = (matcher.take_covered(), matcher.describe_waiting());
    }
    let _ = (translator.translations(now), translator.stop());
    let mut all: Vec<Frame> = frames.into_iter().map(|(_, frame)| frame).collect();
    let count = all.len();
    by_connection(&mut all);
    assert_eq!(all.len(), count);
}

/// An entry of a replicated program.
fn program(bytes: &[u8]) {
    if let Some(entry) = plover_program::Entry::decode(bytes) {
        assert_eq!(plover_program::Entry::decode(&entry.encode()), Some(entry));
    }
}
