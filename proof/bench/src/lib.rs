//! Benchmarks on the lab.
