//! The simulated world: an agreed log, hosts with programs and disks, clients, and faults.

use crate::program::{Connection, Memory, Program, REPLY_BYTES, Reference};
use plover_program::{
    Action, Canary, Config, ConnectionId, Entry, Event, Held, LogState, Note, Own, Phase, Replica,
    Taint,
};
use plover_sim::invariants::Violation;
use plover_sim::rng::Rng;
use plover_sim::trace::Trace;
use plover_sim::{Coverage, TraceMode};
use plover_types::{Index, Micros, ReplicaId, ReplicaSet, View, Viewstamp};

/// Steps with faults, and at most so many without them, in which all must be well again.
const STEPS: u64 = 3000;
const STEPS_TO_HEAL: u64 = 40_000;

/// Moments that the seeds must reach, or they prove little.
pub const REACHED: [&str; 12] = [
    "client: a reply",
    "client: cut off",
    "leader: serves",
    "program: restored after its death",
    "program: restored after it diverged",
    "program: too far behind",
    "program: starts from a checkpoint",
    "program: stands still on the leader",
    "checkpoint: fetched",
    "checkpoint: failed",
    "log: trimmed",
    "log: entries lost with their leader",
];

/// The options of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// A known bug to put back.
    pub canary: Canary,
    /// How the trace is used.
    pub trace: TraceMode,
}

macro_rules! trace {
    ($world:expr, $($what:tt)*) => {
        if $world.trace.is_on() {
            let now = $world.now;
            $world.trace.line(now, format_args!($($what)*));
        }
    };
}

#[derive(Debug, Default)]
struct Host {
    /// The process, if it runs.
    brain: Option<Replica>,
    program: Option<Program>,
    starts: Option<(Option<Viewstamp>, Micros)>,
    takes: Option<(Viewstamp, Micros)>,
    fetches: Option<(Held, Micros)>,
    /// The program reads nothing until then.
    still_until: Micros,
    /// The checkpoint on its disk.
    disk: Option<(Own, Memory)>,
    commit: Index,
    base: Index,
    /// It has heard from a leader since it started.
    knows: bool,
}

#[derive(Debug, Default)]
struct Client {
    /// The leader that it is connected to, and the connection's name.
    to: Option<(usize, ConnectionId)>,
    request: Option<u64>,
    unsent: Vec<u8>,
    got: Vec<u8>,
}

/// A world.
#[derive(Debug)]
pub struct World {
    options: Options,
    rng: Rng,
    hosts: Vec<Host>,
    clients: Vec<Client>,
    log: Vec<(Viewstamp, Option<Vec<u8>>)>,
    committed: usize,
    leader: Option<(usize, View)>,
    round: u64,
    reference: Reference,
    requests: u64,
    faults: bool,
    pub(crate) now: Micros,
    pub(crate) steps: u64,
    pub(crate) coverage: Coverage,
    pub(crate) trace: Trace,
    pub(crate) violation: Option<Violation>,
}

impl World {
    /// The world of a seed.
    pub fn new(seed: u64, options: Options) -> Self {
        let mut rng = Rng::new(seed);
        let replicas = rng.pick(&[3, 3, 3, 5]);
        let mut world = Self {
            hosts: (0..replicas).map(|_| Host::default()).collect(),
            clients: (0..3).map(|_| Client::default()).collect(),
            log: Vec::new(),
            committed: 0,
            leader: None,
            round: 0,
            reference: Reference::default(),
            requests: 0,
            faults: true,
            now: Micros(1),
            steps: 0,
            coverage: Coverage::default(),
            trace: Trace::new(options.trace),
            violation: None,
            rng,
            options,
        };
        (0..replicas).for_each(|host| world.begin(host));
        world
    }

    /// Runs to the end, or to the first violation.
    pub fn run(&mut self) {
        while self.violation.is_none() {
            self.steps += 1;
            self.now = self.now + self.rng.micros((10, 3000));
            if self.steps == STEPS {
                self.heal();
            }
            if !self.faults && self.steps % 100 == 0 && self.is_well() {
                return self.check_the_end();
            }
            if self.steps == STEPS + STEPS_TO_HEAL {
                return self.fail("heals", "APUS §3", self.describe());
            }
            self.step();
        }
    }

    fn step(&mut self) {
        let host = self.rng.range(0, self.hosts.len() as u64 - 1) as usize;
        match self.rng.range(0, 99) {
            0..=9 => self.consensus(),
            10..=39 => self.turn(host),
            40..=69 => self.program_reads(host),
            70..=84 => self.finish(host),
            85..=96 => self.client(),
            _ if self.faults => self.fault(host),
            _ => {}
        }
    }

    fn fail(&mut self, invariant: &'static str, section: &'static str, message: String) {
        let violation = Violation {
            invariant,
            section,
            message,
        };
        trace!(self, "VIOLATION {violation}");
        self.violation.get_or_insert(violation);
    }

    // ---- consensus, by its promises

    fn quorum(&self) -> usize {
        self.hosts.len() / 2 + 1
    }

    fn up(&self) -> usize {
        self.hosts.iter().filter(|it| it.brain.is_some()).count()
    }

    fn consensus(&mut self) {
        if self.up() < self.quorum() {
            return;
        }
        if self.leader.is_none() {
            self.elect();
        }
        let Some((leader, _)) = self.leader else {
            return;
        };
        let more = self.rng.range(0, 12) as usize;
        while self.committed < self.log.len().min(self.committed + more) {
            let (at, bytes) = &self.log[self.committed];
            self.reference.execute(*at, bytes.as_deref());
            self.committed += 1;
            if self.rng.chance(0.3) {
                break;
            }
        }
        let base = self.hosts[leader].base;
        for place in 0..self.hosts.len() {
            if place == leader || self.rng.chance(0.7) {
                let host = &mut self.hosts[place];
                host.commit = Index(self.committed as u64);
                host.base = host.base.max(base);
                host.knows = true;
            }
        }
    }

    fn elect(&mut self) {
        let may = |host: &Host| host.brain.as_ref().is_some_and(Replica::may_lead);
        let able: Vec<usize> = (0..self.hosts.len())
            .filter(|it| may(&self.hosts[*it]))
            .collect();
        if able.is_empty() {
            return;
        }
        let next = self.rng.pick(&able);
        self.round += 1;
        let view = View::new(self.round, ReplicaId(next as u8));
        let kept = self.rng.range(self.committed as u64, self.log.len() as u64) as usize;
        if kept < self.log.len() {
            self.coverage.hit("log: entries lost with their leader");
            self.log.truncate(kept);
        }
        self.leader = Some((next, view));
        trace!(self, "r{next} leads {view}");
        self.append(None);
        let base = self
            .hosts
            .iter()
            .map(|it| it.base)
            .max()
            .unwrap_or_default();
        self.hosts[next].base = base;
        self.hosts[next].commit = Index(self.committed as u64);
    }

    fn append(&mut self, bytes: Option<Vec<u8>>) -> Option<Viewstamp> {
        let (_, view) = self.leader?;
        let index = Index(self.log.len() as u64 + 1);
        let at = Viewstamp { view, index };
        self.log.push((at, bytes));
        Some(at)
    }

    fn at(&self, index: Index) -> Option<Viewstamp> {
        let place = index.0.checked_sub(1)?;
        self.log.get(place as usize).map(|(at, _)| *at)
    }

    // ---- the replicas

    fn begin(&mut self, host: usize) {
        let config = Config {
            me: ReplicaId(host as u8),
            members: ReplicaSet::of((0..self.hosts.len()).map(|id| ReplicaId(id as u8))),
            address: format!("r{host}"),
            check: Some(32),
            checkpoints: true,
            checkpoint_bytes: 600,
            checkpoint_bytes_max: 1500,
            stall: Micros::from_ms(300),
            checkpoint_within: Micros::from_ms(800),
            canary: self.options.canary,
        };
        let own = self.hosts[host].disk.as_ref().map(|(own, _)| own.clone());
        trace!(
            self,
            "r{host} starts, with {:?}",
            own.as_ref().map(|it| it.at)
        );
        let disk = self.hosts[host].disk.take();
        self.hosts[host] = Host {
            brain: Some(Replica::new(config, own)),
            disk,
            ..Host::default()
        };
    }

    fn log_state(&self, host: usize) -> LogState {
        let Host {
            commit,
            base,
            brain,
            knows,
            ..
        } = &self.hosts[host];
        let leads = self.leader.filter(|(leader, _)| *leader == host);
        let last = match leads {
            Some(_) => self.log.last().map(|it| it.0),
            None => self.at(*commit),
        };
        let own = brain
            .as_ref()
            .and_then(|it| it.own())
            .map(|own| own.at.index);
        let has = |index: &Index| *knows && index >= base && *index <= *commit;
        LogState {
            leads: leads.map(|it| it.1),
            base: *base,
            commit: *commit,
            last: last.unwrap_or_default(),
            bytes: 0,
            linked: ReplicaSet::of((0..self.hosts.len()).filter_map(|id| {
                self.hosts[id]
                    .brain
                    .is_some()
                    .then_some(ReplicaId(id as u8))
            })),
            at_own: own.filter(has).and_then(|index| self.at(index)),
        }
    }

    fn turn(&mut self, host: usize) {
        let state = self.log_state(host);
        self.apply(host, Event::Log(state));
        for _ in 0..self.rng.range(1, 8) {
            let Some(index) = self.hosts[host].brain.as_ref().and_then(Replica::wants) else {
                return;
            };
            let (at, bytes) = self.log[index.0 as usize - 1].clone();
            self.apply(host, Event::Entry(at, bytes.as_deref()));
        }
    }

    fn apply(&mut self, host: usize, event: Event<'_>) {
        let now = self.now;
        let mut out = Vec::new();
        let Some(brain) = self.hosts[host].brain.as_mut() else {
            return;
        };
        brain.apply(now, event, &mut out);
        for action in out {
            self.obey(host, action);
        }
        let may = self.hosts[host]
            .brain
            .as_ref()
            .is_some_and(Replica::may_lead);
        if !may && self.leader.is_some_and(|(leader, _)| leader == host) {
            trace!(self, "r{host} hands over");
            self.leader = None;
        }
    }

    fn obey(&mut self, host: usize, action: Action) {
        trace!(self, "r{host} {action:?}");
        let soon = self.now + self.rng.micros((100, 60_000));
        let state = &mut self.hosts[host];
        let connections = state.program.as_mut().map(|it| &mut it.connections);
        match action {
            Action::Propose(bytes) => {
                let may_pass = self.rng.chance(0.9);
                if may_pass {
                    self.append(Some(bytes));
                }
            }
            Action::Connect(id) => {
                let new = Connection {
                    is_news: true,
                    ..Connection::default()
                };
                connections.expect("it runs").insert(id, new);
            }
            Action::Feed(id, bytes) => {
                let connection = connections
                    .expect("it runs")
                    .get_mut(&id)
                    .expect("it is open");
                connection.unread.extend(bytes);
                connection.is_news = true;
            }
            Action::EndInput(_) | Action::Finish(_) => {}
            Action::Close(id) => {
                if let Some(connection) = connections.and_then(|it| it.get_mut(&id)) {
                    (connection.closes, connection.is_news) = (true, true);
                }
                self.cut_off(|to| to == (host, id));
            }
            Action::Reply(id, bytes) => self.reply((host, id), &bytes),
            Action::DropClients => self.cut_off(|(leader, _)| leader == host),
            Action::Start(from) => state.starts = Some((from, soon)),
            Action::Stop => {
                (state.program, state.starts, state.takes) = (None, None, None);
            }
            Action::TakeCheckpoint(at) => state.takes = Some((at, soon)),
            Action::Fetch(held) => state.fetches = Some((held, soon)),
            Action::Discard(at) => {
                state.disk.take_if(|(own, _)| own.at == at);
            }
            Action::Trim(to) => self.trim(host, to),
            Action::Note(note) => self.note(&note),
        }
    }

    fn note(&mut self, note: &Note) {
        let what = match note {
            Note::Serves(_) => "leader: serves",
            Note::Restores(Taint::Died(_)) => "program: restored after its death",
            Note::Restores(Taint::Diverged(_)) => "program: restored after it diverged",
            Note::Restores(Taint::Behind) => "program: too far behind",
            Note::CheckpointFailed(_) => "checkpoint: failed",
            Note::NoCheckpoint => "checkpoint: none to be had",
            Note::Excerpts(_) => "outputs: excerpts",
            _ => return,
        };
        self.coverage.hit(what);
    }

    fn trim(&mut self, host: usize, to: Index) {
        let held = |it: &&Host| it.disk.as_ref().is_some_and(|(own, _)| own.at.index >= to);
        let holders = self.hosts.iter().filter(held).count();
        // A disk that was lost held it once.
        let lost = self.hosts.iter().filter(|it| it.disk.is_none()).count();
        if holders + lost < self.quorum() || holders == 0 {
            let message = format!("r{host} trims up to {to}, which {holders} replicas hold");
            self.fail("trim_is_held", "APUS §3", message);
        }
        self.coverage.hit("log: trimmed");
        self.hosts[host].base = to.min(self.hosts[host].commit);
    }

    /// What takes time is finished, if it is time.
    fn finish(&mut self, host: usize) {
        let now = self.now;
        let is_due = |at: &Micros| *at <= now;
        let state = &mut self.hosts[host];
        if let Some((from, _)) = state.starts.take_if(|(_, at)| is_due(at)) {
            let memory = match (from, &state.disk) {
                (None, _) => Memory::default(),
                (Some(at), Some((own, memory))) if own.at == at => memory.clone(),
                _ => return self.apply(host, Event::StartFailed("it is gone".into())),
            };
            if from.is_some() {
                self.coverage.hit("program: starts from a checkpoint");
            }
            let is_wrong = !self.reference.has_been(&memory);
            state.program = Some(Program {
                memory,
                is_wrong,
                ..Program::default()
            });
            return self.apply(host, Event::Started);
        }
        if let Some((at, _)) = state.takes.take_if(|(_, at)| is_due(at)) {
            let program = state
                .program
                .as_ref()
                .expect("it is stopped with its checkpoint");
            assert!(
                program.connections.is_empty(),
                "a checkpoint has no connections"
            );
            // A wrong program's checkpoint is wrong until the difference is found, and a replica that
            // starts from it is, too: docs/programs.md, "Limits". The runs leave that out.
            if program.is_wrong || self.faults && self.rng.chance(0.15) {
                return self.apply(host, Event::CheckpointTaken(Err("a fault".into())));
            }
            let taken_by = ReplicaId(host as u8);
            let own = Own {
                at,
                taken_by,
                bytes: 0,
                sum: [0; 32],
            };
            state.disk = Some((own.clone(), program.memory.clone()));
            return self.apply(host, Event::CheckpointTaken(Ok(own)));
        }
        if let Some((held, _)) = state.fetches.take_if(|(_, at)| is_due(at)) {
            let from = &self.hosts[usize::from(held.replica.0)];
            let there = from.disk.clone().filter(|(own, _)| own.at == held.at);
            let works = !self.faults || self.rng.chance(0.85);
            match there.filter(|_| works && from.brain.is_some()) {
                Some((own, memory)) => {
                    let disk = &mut self.hosts[host].disk;
                    if disk.as_ref().is_none_or(|(old, _)| old.at < own.at) {
                        *disk = Some((own.clone(), memory));
                    }
                    self.coverage.hit("checkpoint: fetched");
                    self.apply(host, Event::Fetched(Ok(own)));
                }
                None => self.apply(host, Event::Fetched(Err("a fault".into()))),
            }
        }
    }

    /// A program reads one of its connections, whichever it likes.
    fn program_reads(&mut self, host: usize) {
        let now = self.now;
        let Host {
            program: Some(program),
            still_until,
            ..
        } = &mut self.hosts[host]
        else {
            return;
        };
        if *still_until > now {
            return;
        }
        let news = program.connections.iter().filter(|(_, it)| it.is_news);
        let news: Vec<ConnectionId> = news.map(|(id, _)| *id).collect();
        if news.is_empty() {
            return;
        }
        let id = self.rng.pick(&news);
        let replies = program.read(id);
        if !program.is_wrong && !self.reference.has_been(&program.memory) {
            let count = program.memory.executed.len();
            let message = format!("r{host} has executed {count} requests that are not the log's");
            self.fail("programs_agree", "APUS §3", message);
        }
        self.apply(host, Event::Consumed(id));
        let middle = self.rng.range(0, replies.len() as u64) as usize;
        for part in [&replies[..middle], &replies[middle..]] {
            if !part.is_empty() {
                self.apply(host, Event::Output(id, part));
            }
        }
    }

    // ---- clients

    fn cut_off(&mut self, which: impl Fn((usize, ConnectionId)) -> bool) {
        for client in &mut self.clients {
            if client.to.is_some_and(&which) {
                *client = Client::default();
                self.coverage.hit("client: cut off");
            }
        }
    }

    fn reply(&mut self, to: (usize, ConnectionId), bytes: &[u8]) {
        let Some(client) = self.clients.iter_mut().find(|it| it.to == Some(to)) else {
            return;
        };
        client.got.extend(bytes);
        if client.got.len() < REPLY_BYTES {
            return;
        }
        let number = client.request.take();
        let got = std::mem::take(&mut client.got);
        let is_wrong = self.hosts[to.0]
            .program
            .as_ref()
            .is_some_and(|it| it.is_wrong);
        let due = number.and_then(|number| self.reference.reply_to(number));
        if due.as_ref() != Some(&got) && !is_wrong {
            let message = format!(
                "r{} replies {got:?} to request {number:?}, not {due:?}",
                to.0
            );
            self.fail("replies_are_committed", "APUS §4.1", message);
        }
        self.coverage.hit("client: a reply");
    }

    fn client(&mut self) {
        let place = self.rng.range(0, self.clients.len() as u64 - 1) as usize;
        let Some((leader, _)) = self.leader else {
            return;
        };
        let accepts = self.hosts[leader]
            .brain
            .as_ref()
            .is_some_and(Replica::accepts);
        let Some((host, id)) = self.clients[place].to else {
            if accepts {
                let at = self
                    .append(Some(Entry::Accept.encode()))
                    .expect("there is a leader");
                self.clients[place].to = Some((leader, ConnectionId(at)));
            }
            return;
        };
        if host != leader || !accepts {
            return;
        }
        if self.faults && self.rng.chance(0.02) {
            self.clients[place] = Client::default();
            self.append(Some(Entry::Close(id).encode()));
            return;
        }
        let client = &mut self.clients[place];
        if client.request.is_none() {
            self.requests += 1;
            client.request = Some(self.requests);
            client.unsent = self.requests.to_le_bytes().to_vec();
        }
        if !client.unsent.is_empty() {
            let count = self.rng.range(1, client.unsent.len() as u64) as usize;
            let rest = client.unsent.split_off(count);
            let bytes = std::mem::replace(&mut client.unsent, rest);
            self.append(Some(Entry::Bytes(id, &bytes).encode()));
        }
    }

    // ---- faults, and their end

    fn fault(&mut self, host: usize) {
        match self.rng.range(0, 11) {
            0 | 1 if self.up() > self.quorum() && self.hosts[host].brain.is_some() => {
                trace!(self, "r{host} crashes");
                self.hosts[host].brain = None;
                self.hosts[host].program = None;
                if self.rng.chance(0.1) {
                    self.hosts[host].disk = None;
                }
                self.cut_off(|(leader, _)| leader == host);
                if self.leader.is_some_and(|(leader, _)| leader == host) {
                    self.leader = None;
                }
            }
            2..=5 if self.hosts[host].brain.is_none() => self.begin(host),
            6 if self.rng.chance(0.3) => {
                trace!(self, "the leader is deposed");
                self.leader = None;
            }
            7 | 8 => {
                if self.hosts[host].program.take().is_some() {
                    (self.hosts[host].takes, self.hosts[host].starts) = (None, None);
                    self.apply(host, Event::Died("a fault".into()));
                }
            }
            9 => {
                let leads = self.leader.is_some_and(|(leader, _)| leader == host);
                let span = self.rng.micros((1000, 900_000));
                self.hosts[host].still_until = self.now + span;
                if leads && span > Micros::from_ms(300) {
                    self.coverage.hit("program: stands still on the leader");
                }
            }
            10 => self.change_memory(host),
            _ => {}
        }
    }

    /// A fault in one program's memory, while the others are right.
    fn change_memory(&mut self, host: usize) {
        let wrong = |it: &Host| it.program.as_ref().is_some_and(|it| it.is_wrong);
        if self.hosts.iter().any(wrong) {
            return;
        }
        if let Some(program) = &mut self.hosts[host].program {
            trace!(self, "r{host}: the program's memory changes");
            program.memory.sum ^= 1;
            program.is_wrong = true;
        }
    }

    fn heal(&mut self) {
        trace!(self, "no more faults");
        self.faults = false;
        for host in 0..self.hosts.len() {
            self.hosts[host].still_until = Micros::ZERO;
            if self.hosts[host].brain.is_none() {
                self.begin(host);
            }
        }
    }

    /// Whether the group serves, and every program is right and up to date.
    fn is_well(&self) -> bool {
        let serves = |host: &Host| host.brain.as_ref().is_some_and(Replica::serves);
        let is_right = |host: &Host| {
            let runs = host.brain.as_ref().is_some_and(|it| it.phase().executes());
            let memory = host.program.as_ref().map(|it| &it.memory);
            let lag = memory.map(|it| {
                self.reference.executed().len()
                    - it.executed.len().min(self.reference.executed().len())
            });
            runs && memory.is_some_and(|it| self.reference.has_been(it))
                && lag.is_some_and(|it| it < 20)
        };
        self.leader
            .is_some_and(|(leader, _)| serves(&self.hosts[leader]))
            && self.hosts.iter().all(is_right)
    }

    fn check_the_end(&mut self) {
        self.coverage.hit("end: all is well");
        // Everything that is committed is executed, and clients say nothing more.
        for _ in 0..20_000 {
            self.now = self.now + Micros(500);
            let host = self.rng.range(0, self.hosts.len() as u64 - 1) as usize;
            self.consensus();
            self.turn(host);
            self.program_reads(host);
            self.finish(host);
        }
        let live: Vec<_> = self
            .clients
            .iter()
            .filter_map(|it| Some(it.to?.1))
            .collect();
        for place in 0..self.hosts.len() {
            let host = &self.hosts[place];
            if !matches!(
                host.brain.as_ref().map(Replica::phase),
                Some(Phase::Following | Phase::Leading { .. })
            ) {
                continue;
            }
            let brain = host.brain.as_ref().expect("it runs");
            let left = brain.connections().find(|id| !live.contains(id));
            if let Some(left) = left {
                let message = format!("r{place} has {left} open, and no client has");
                return self.fail("connections_end", "APUS §4.3", message);
            }
        }
    }

    fn describe(&self) -> String {
        let hosts = self.hosts.iter().enumerate().map(|(place, host)| {
            let right = host
                .program
                .as_ref()
                .map(|it| self.reference.has_been(&it.memory));
            let phase = host.brain.as_ref().map(|it| it.phase().name());
            format!("r{place} {phase:?}, right: {right:?}")
        });
        let hosts: Vec<_> = hosts.collect();
        format!(
            "after {STEPS_TO_HEAL} steps without faults: {}; leader {:?}",
            hosts.join(", "),
            self.leader
        )
    }
}
