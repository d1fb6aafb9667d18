//! The body of a replica: waits, turns what happened into events, applies, acts.
