//! Entry points for fuzzing (`proof/fuzz`): the decoders of bytes from outside that are private to this crate.

use crate::Entry;
use crate::message::decode;
use plover_types::ReplicaId;
use plover_types::wire::Versions;

/// A message from a peer, whose id is the first byte. One that is accepted is accepted again in the form that a replica
/// gives it.
pub fn message(bytes: &[u8]) {
    let Some((from, bytes)) = bytes.split_first() else {
        return;
    };
    let from = ReplicaId(*from);
    if let Some((message, batch)) = decode(bytes, from, Versions::OURS) {
        let entries = batch.iter().map(|entry| Entry {
            viewstamp: entry.viewstamp,
            kind: entry.kind,
            payload: entry.payload.to_vec(),
        });
        let entries: Vec<_> = entries.collect();
        assert_eq!(entries.len() as u64, batch.len());
        let again = message.encode(entries.iter(), Vec::new());
        assert!(
            decode(&again, from, Versions::OURS).is_some(),
            "{message:?}"
        );
    }
}
