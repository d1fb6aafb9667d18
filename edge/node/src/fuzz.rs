//! Entry points for fuzzing (`proof/fuzz`): the decoders of bytes from outside that are private to this crate.

use crate::config::ReplicaConfig;
use crate::control::Op;
use crate::death::Report;
use crate::guest_agent;
use crate::pack::Packer;
use crate::relay::Relayed;
use plover_types::{Lane, ReplicaId, wire};

/// A line on the control socket.
pub fn control(bytes: &[u8]) {
    if let Ok(op) = serde_json::from_slice::<Op>(bytes) {
        let again = serde_json::to_string(&op).expect("plain data");
        assert_eq!(serde_json::from_str::<Op>(&again).ok(), Some(op));
    }
}

/// A record of a peer that is not of the log, and a datagram about a death.
pub fn peer(bytes: &[u8]) {
    let _ = Relayed::of_record(bytes);
    if let Ok(report) = wire::decode::<Report>(bytes) {
        assert_eq!(wire::decode(&wire::encode(&report)), Ok(report));
    }
}

/// Compressed records of a peer, each with its length before it.
pub fn packed(bytes: &[u8]) {
    const RECORD_BYTES_MAX: usize = 1 << 16;
    let mut packer = Packer::new(true, [RECORD_BYTES_MAX; 2]);
    let mut rest = bytes;
    while let Some(([low, high], after)) = rest.split_first_chunk() {
        let length = usize::from(u16::from_le_bytes([*low, *high])).min(after.len());
        let (record, after) = after.split_at(length);
        let unpacked = packer.unpack(ReplicaId(1), Lane::Bulk, record.to_vec());
        assert!(unpacked.is_ok_and(|it| it.len() <= RECORD_BYTES_MAX) || length > 0);
        rest = after;
    }
}

/// What the agent in the guest says.
pub fn guest_agent(bytes: &[u8]) {
    let _ = guest_agent::answer(1, bytes);
}

/// A configuration.
pub fn config(text: &str) {
    if let Ok(config) = toml::from_str::<ReplicaConfig>(text) {
        if config.check().is_ok() {
            let _ = (
                config.qemu().validate(),
                config.members(),
                config.can_split(),
            );
        }
    }
}
