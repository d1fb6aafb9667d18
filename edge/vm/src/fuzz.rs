//! Entry points for fuzzing (`proof/fuzz`): the decoders of bytes from outside that are private to this crate.

use crate::qemu::links::AgentLink;
use crate::{clean, device_state, qmp};
use plover_agent::Op;
use rustix::net::{SendFlags, send};

/// Bytes of QEMU on its monitor.
pub fn monitor(bytes: &[u8]) {
    let mut lines = qmp::Lines::default();
    for piece in bytes.chunks(7) {
        lines.push(piece);
        while let Ok(Some(_)) = lines.next_message() {}
    }
}

/// A packet of the agent inside QEMU.
pub fn agent(bytes: &[u8]) {
    let (mut link, end) = AgentLink::new().expect("a socket pair");
    link.ask(Op::Hello, 0, 0).expect("room for a request");
    send(&end, bytes, SendFlags::DONTWAIT).expect("room for an answer");
    for _ in 0..2 {
        if let Ok(Some(answer)) = link.receive() {
            let _ = answer.result();
        }
    }
}

/// The state of a guest's devices, which the other side's QEMU has saved.
pub fn device_state(bytes: &[u8]) {
    let state = device_state::with_zeros_of_cpus(bytes.to_vec());
    let (state, serial) = device_state::with_serial_queue(state);
    assert!(serial.start <= serial.end && serial.end as usize <= state.len());
}

/// A word of the guest about its own reply.
pub fn clean(bytes: &[u8]) {
    let mut record = [0; clean::RECORD_BYTES];
    let length = bytes.len().min(record.len());
    record[..length].copy_from_slice(&bytes[..length]);
    let _ = clean::decode(&record);
}
