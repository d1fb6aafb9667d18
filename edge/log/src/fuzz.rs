//! Entry points for fuzzing (`proof/fuzz`): the decoders of bytes from outside that are private to this crate.

use crate::envelope::Envelope;
use crate::mail::Mail;
use crate::wire::{self, Reply, Request};
use plover_types::wire as message;

/// A frame of a client, or of a server, whose checksum holds.
pub fn frame(bytes: &[u8]) {
    let _ = wire::whole_frame(bytes);
    let mut frame = (bytes.len() as u32).to_le_bytes().to_vec();
    frame.extend(crc32c::crc32c(bytes).to_le_bytes());
    frame.extend(bytes);
    assert_eq!(wire::whole_frame(&frame), Ok(Some(frame.len())));
    if let Ok(request) = wire::take::<Request<'_>>(&frame) {
        let mut again = Vec::new();
        wire::put(&request, &mut again);
        assert_eq!(wire::take(&again), Ok(request));
    }
    let _ = wire::take::<Reply<'_>>(&frame);
}

/// What a peer sends beside consensus, and the payload of an entry.
pub fn mail(bytes: &[u8]) {
    if let Ok(mail) = message::decode::<Mail>(bytes) {
        assert_eq!(message::decode(&message::encode(&mail)), Ok(mail));
    }
    let _ = Envelope::take(bytes);
}
