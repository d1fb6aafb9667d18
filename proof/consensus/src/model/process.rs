//! One process of the model: a core, its clock, and the state that its host keeps when it dies.

use super::print::print;
use apus::{Apus, Canary, Command, Config, Durability, DurableState, Entry, Event, Phase, Start};
use plover_types::wire::WIRE_VERSION;
use plover_types::{Index, Micros, ReplicaId, ReplicaSet, Viewstamp};

const HEARTBEAT: Micros = Micros::from_ms(20);
const TIMEOUT: Micros = Micros::from_ms(100);

/// How many replicas the model has.
pub const REPLICAS: usize = 3;

/// The effects of a process's turn on the rest of the model.
#[derive(Debug, Default)]
pub struct Effects {
    /// Records written: to whom, and what.
    pub records: Vec<(usize, Vec<u8>)>,
    /// Entries delivered.
    pub deliveries: Vec<Entry>,
    /// It began to lead.
    pub leads: bool,
}

/// A process on its host.
#[derive(Clone, Debug)]
pub struct Process {
    /// The core.
    pub core: Apus,
    clock: Micros,
    /// How many processes have run here.
    pub started: u64,
    /// The last entry delivered.
    pub cursor: Index,
    stored: DurableState,
    me: usize,
    canary: Canary,
    guest: bool,
    /// The print of this state, which tells it from others.
    pub print: u64,
}

impl Process {
    /// A process on a host that has never run one.
    pub fn fresh(me: usize, canary: Canary, guest: bool) -> Self {
        let clock = Micros::from_ms(1000);
        let mut process = Self {
            core: Apus::new(config(me, 0, canary, guest), Start::Fresh, clock),
            clock,
            started: 0,
            cursor: Index(0),
            stored: DurableState::default(),
            me,
            canary,
            guest,
            print: 0,
        };
        process.take_print();
        process
    }

    /// The process dies and another starts: all but the promise is forgotten.
    pub fn forget(&mut self) {
        self.started += 1;
        let start = Start::Restarted {
            durable: self.stored,
            log: Vec::new(),
            base: Viewstamp::default(),
            configuration_at_base: apus::Configuration::default(),
            forgotten: false,
        };
        let config = config(self.me, self.started, self.canary, self.guest);
        self.core = Apus::new(config, start, self.clock);
        self.cursor = Index(0);
        self.take_print();
    }

    /// A record is read.
    pub fn receive(&mut self, from: usize, bytes: &[u8]) -> Effects {
        let from = ReplicaId(from as u8);
        self.turn(|core, now, out| core.apply(now, Event::Received { from, bytes }, out))
    }

    /// Nothing has happened until the next deadline. One that the process has slept over may only put off what is due
    /// (`apus`, `silence`): then nothing has happened until the next one either.
    pub fn time_out(&mut self) -> Effects {
        let has_slept = self.clock > self.core.deadline();
        let effects = self.tick_at_deadline();
        if has_slept && effects.records.is_empty() && !effects.leads {
            return self.tick_at_deadline();
        }
        effects
    }

    fn tick_at_deadline(&mut self) -> Effects {
        self.clock = self.clock.max(self.core.deadline());
        self.turn(|core, now, out| core.apply(now, Event::Tick, out))
    }

    /// It holds the guest from now on.
    pub fn take_guest(&mut self) -> Effects {
        self.turn(|core, _, _| core.set_holds_state(true))
    }

    /// Time passes without an event.
    pub fn sleep(&mut self) {
        self.clock = self.clock + TIMEOUT + TIMEOUT;
        self.take_print();
    }

    /// Whether it leads.
    pub fn leads(&self) -> bool {
        self.core.status().phase == Phase::Leading
    }

    /// One turn of the core. Storage takes no time here: slow storage would only delay messages,
    /// and messages are delayed anyway.
    pub fn turn(&mut self, act: impl FnOnce(&mut Apus, Micros, &mut Vec<Command>)) -> Effects {
        let mut out = Vec::new();
        act(&mut self.core, self.clock, &mut out);
        let mut effects = Effects::default();
        let mut done = 0;
        while done < out.len() {
            match std::mem::replace(&mut out[done], Command::GroupEmpty { fresh: false }) {
                Command::Write { to, bytes } => effects.records.push((usize::from(to.0), bytes)),
                Command::PersistState(state) => {
                    self.stored = state;
                    let event = Event::StatePersisted(state);
                    self.core.apply(self.clock, event, &mut out);
                }
                Command::Deliver(entry) => {
                    self.cursor = entry.viewstamp.index;
                    effects.deliveries.push(entry);
                }
                Command::InstallSnapshot { base, .. } => {
                    self.cursor = base.index;
                }
                Command::Lead { .. } => effects.leads = true,
                // As a broken assertion: all replicas are correct.
                Command::Refuse { peer, why } => panic!("{peer} is refused: {why}"),
                _ => {}
            }
            done += 1;
        }
        self.take_print();
        effects
    }

    fn take_print(&mut self) {
        let what = (&self.core, self.stored, self.cursor, self.started);
        self.print = print(&what, self.clock, HEARTBEAT, TIMEOUT);
    }
}

fn config(me: usize, started: u64, canary: Canary, guest: bool) -> Config {
    Config {
        me: ReplicaId(me as u8),
        members: ReplicaSet::of((0..REPLICAS as u8).map(ReplicaId)),
        first_leader: ReplicaId(0),
        any_voter_stands: !guest,
        pair: false,
        fencing: false,
        quorum_selection: false,
        newest_version: WIRE_VERSION,
        heartbeat: HEARTBEAT,
        timeout: TIMEOUT,
        timeout_min: TIMEOUT,
        durability: Durability::Memory,
        log_bytes_max: 1 << 20,
        message_bytes_max: 1 << 16,
        seed: ((me as u64 + 1) << 32) | started,
        canary,
        known_after: Micros::NEVER,
    }
}
