//! A lab of replicas in network namespaces on one machine.

pub mod config;
pub mod console;
pub mod control;
pub mod demo;
pub mod down;
pub mod experiment;
pub mod image;
mod lab;
pub mod load;
pub mod logs;
pub mod net;
pub mod options;
pub mod prerequisites;
pub mod process;
pub mod progress;
pub mod redis;
pub mod senders;
pub mod state;
pub mod status;
pub mod trace;
pub mod up;

pub use lab::{Fault, Lab, Target};
