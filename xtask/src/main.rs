//! One entry point for every task of the repository.
fn main() {}
