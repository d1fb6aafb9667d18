//! Deterministic simulation of whole groups, one invariant a file.
