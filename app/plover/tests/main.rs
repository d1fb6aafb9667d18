//! The command as its users meet it, in one program: each file of its own would be linked on its own.

mod cli;
mod log;
mod metrics;
mod tap;
