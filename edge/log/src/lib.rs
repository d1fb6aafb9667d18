//! A replicated log: apus over a fabric, with clients.

mod act;
mod address;
mod client;
mod config;
mod door;
mod envelope;
mod error;
mod handover;
mod inline;
mod machine;
mod mail;
mod members;
mod pending;
pub mod remote;
mod replicated;
mod serve;
mod server;
mod stable;
pub mod wire;

pub use address::Address;
pub use apus::{
    Durability, Phase,
    outputs::{Divergence, Verdict},
};
pub use client::{Client, Completion, Ticket};
pub use config::Config;
pub use envelope::SessionRequest;
pub use error::{Error, ServerError};
pub use machine::{LogOnly, StateMachine};
pub use remote::{Remote, RemoteError};
pub use server::{Server, Stopper};
