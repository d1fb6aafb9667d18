//! Held outputs: released or discarded, never dropped.
