//! Short descriptions for the trace.

use apus::Start;

/// The kinds of messages in the order of their tags on the wire. Only traces depend on it.
const KINDS: [&str; 12] = [
    "Append",
    "Ack",
    "Gap",
    "Refuse",
    "PreVote",
    "Grant",
    "Prepare",
    "Promise",
    "Fetch",
    "Suffix",
    "Recovery",
    "RecoveryResponse",
];

/// A record: its kind, its length, and a sum that tells it from others.
pub fn record(bytes: &[u8]) -> String {
    let kind = bytes.get(1).and_then(|tag| KINDS.get(usize::from(*tag)));
    let sum = bytes.iter().fold(0u32, |sum, byte| {
        sum.wrapping_mul(31).wrapping_add(u32::from(*byte))
    });
    format!("{} {} B {sum:08x}", kind.unwrap_or(&"noise"), bytes.len())
}

/// The state that a process finds when it starts.
pub fn start(start: &Start) -> String {
    match start {
        Start::Fresh => "it has never run".to_string(),
        Start::PromiseLost { least } => format!("its promise, of {least} or later, is lost"),
        Start::Restarted {
            durable,
            log,
            base,
            forgotten,
            ..
        } => format!(
            "{durable:?}, {} entries after {base}, forgotten: {forgotten}",
            log.len()
        ),
    }
}
