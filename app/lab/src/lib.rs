//! A lab of replicas in network namespaces on one machine.

pub mod config;
pub mod control;
pub mod image;
pub mod load;
pub mod netns;
pub mod options;
pub mod process;
pub mod progress;
pub mod redis;
pub mod state;
pub mod trace;
