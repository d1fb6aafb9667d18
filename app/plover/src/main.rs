//! The plover command.
fn main() {}
