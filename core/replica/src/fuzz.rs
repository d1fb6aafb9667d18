//! Entry points for fuzzing (`proof/fuzz`): the decoders of bytes from outside that are private to this crate.

use crate::log_ops::LogOp;
use plover_types::wire;

/// The payload of an entry of the log.
pub fn log_op(bytes: &[u8]) {
    if let Ok(op) = wire::decode::<LogOp>(bytes) {
        assert_eq!(wire::decode(&wire::encode(&op)), Ok(op));
    }
}
