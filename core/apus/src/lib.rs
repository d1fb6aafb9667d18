//! Viewstamped Multi-Paxos as a pure state machine: event in, commands out.

mod api;

pub use api::{
    Canary, Command, Config, DurableState, Durability, Entry, EntryKind, Event, Phase, ProposeError, Start,
    Status,
};
use plover_types::{Index, Micros, Viewstamp};

/// One replica's consensus core.
#[derive(Debug)]
pub struct Apus {
    config: Config,
}

#[allow(unused_variables, clippy::unimplemented)]
impl Apus {
    /// A core that starts at `now` with what `start` says it remembers.
    pub fn new(config: Config, start: Start, now: Micros) -> Self {
        Self { config }
    }

    /// Applies one event and appends what is to be done to `out`.
    pub fn apply(&mut self, now: Micros, event: Event<'_>, out: &mut Vec<Command>) {
        unimplemented!()
    }

    /// Appends an entry to the leader's log and sends it. The entry's viewstamp comes back at
    /// once; [`Command::Deliver`] says when it is committed.
    pub fn propose(
        &mut self,
        now: Micros,
        kind: EntryKind,
        payload: Vec<u8>,
        out: &mut Vec<Command>,
    ) -> Result<Viewstamp, ProposeError> {
        unimplemented!()
    }

    /// Says whether this replica holds the guest's state and so may stand for election when
    /// the in-sync set names it. False after a start.
    pub fn set_holds_state(&mut self, holds: bool) {
        unimplemented!()
    }

    /// The leader's word that no replica needs entries up to `index` any more.
    pub fn trim(&mut self, index: Index) {
        unimplemented!()
    }

    /// Begins the life of a group that [`Command::GroupEmpty`] reported. Only the configured
    /// first leader acts on it.
    pub fn bootstrap(&mut self, now: Micros, out: &mut Vec<Command>) {
        unimplemented!()
    }

    /// Until when no other replica can have been elected, by acknowledged heartbeats: the
    /// send time of the newest heartbeat that a quorum has acknowledged, plus the timeout less
    /// an eighth for clock drift. Zero unless leading; never for a group of one.
    pub fn lease_until(&self) -> Micros {
        unimplemented!()
    }

    /// When the next [`Event::Tick`] is due at the latest.
    pub fn deadline(&self) -> Micros {
        unimplemented!()
    }

    /// Where it stands.
    pub fn status(&self) -> Status {
        unimplemented!()
    }
}
