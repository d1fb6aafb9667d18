//! The simulated world: it owns everything and lets one thing happen after the other.

use crate::alone;
use crate::areas::Areas;
use crate::clean;
use crate::clients::Clients;
use crate::clock::Clock;
use crate::coverage::Coverage;
use crate::death;
use crate::fencing;
use crate::history::Histories;
use crate::invariants::{Check, Invariants, Violation};
use crate::life::Life;
use crate::net::Net;
use crate::orders::Orders;
use crate::pair;
use crate::planned::Planned;
use crate::process::{Process, State};
use crate::replace::Replacing;
use crate::rng::Rng;
use crate::scenario::{Scenario, has_short_lives, preset_of, warm_of};
use crate::schedule::{Happening, Schedule};
use crate::streams::Stream;
use crate::trace::{Trace, TraceMode, trace};
use crate::typist::Typist;
use crate::upgrade::Upgrading;
use plover_policy::Preset;
use plover_replica::{Canary, Event, Replica};
use plover_types::{Index, Micros, ReplicaId, View};

/// The most happenings of a run. A run that reaches this is stuck in a loop.
const HAPPENINGS_MAX: u64 = 20_000_000;

/// How to run a seed.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Replicas in the group.
    pub replicas: u8,
    /// In a group of two, whether links fail as well. Then two replicas may lead at once, and the
    /// invariants that a split brain breaks are not checked any more.
    pub cuts: bool,
    /// In a group of two, whether links fail, and neither goes on alone before the other one is known to be off.
    pub fencing: bool,
    /// How the guest is protected, if not as the seed says.
    pub policy: Option<&'static Preset>,
    /// How long faults come, if not for as long as the seed says.
    pub faults_for: Option<Micros>,
    /// A known bug to put back.
    pub canary: Canary,
    /// How the trace is used.
    pub trace: TraceMode,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            replicas: 3,
            cuts: false,
            fencing: false,
            policy: None,
            faults_for: None,
            canary: Canary::None,
            trace: TraceMode::Off,
        }
    }
}

/// The world of one seed.
#[derive(Debug)]
pub struct World {
    pub(crate) scenario: Scenario,
    pub(crate) plan: Schedule,
    pub(crate) processes: Vec<Process>,
    pub(crate) net: Net,
    pub(crate) clients: Clients,
    pub(crate) typist: Typist,
    pub(crate) histories: Histories,
    pub(crate) invariants: Invariants,
    pub(crate) coverage: Coverage,
    pub(crate) trace: Trace,
    pub(crate) violation: Option<Violation>,
    /// The generation of the guest that the group is in.
    pub(crate) generation: View,
    /// The links of this group have failed, so that two of its replicas may lead at once.
    pub(crate) links_failed: bool,
    /// Since then, one of the two has taken over alone.
    pub(crate) is_split: bool,
    /// When a process was last stopped or went on.
    pub(crate) stopped_at: Micros,
    /// When the operator last let the group begin another generation.
    pub(crate) operator_spoke_at: Option<Micros>,
    pub(crate) healed_at: Option<Micros>,
    pub(crate) finished: bool,
    /// Faults that have struck and not ended.
    pub(crate) active_faults: u32,
    /// The kind of event of the replica whose turn it is.
    pub(crate) cause: &'static str,
    pub(crate) chance: Chance,
    pub(crate) areas: Areas,
    pub(crate) life: Life,
    pub(crate) planned: Planned,
    pub(crate) orders: Orders,
    pub(crate) replacing: Replacing,
    pub(crate) upgrading: Upgrading,
    /// When a fault struck or ended last.
    pub(crate) disturbed_at: Micros,
    /// The replies that were received when they were last counted.
    pub(crate) replies_before: u64,
}

/// The streams of random decisions, one for each part of the world.
#[derive(Debug)]
pub(crate) struct Chance {
    pub processes: Rng,
    pub hypervisors: Rng,
    pub disks: Rng,
    pub faults: Rng,
    pub ambushes: Rng,
    pub copies: Rng,
    pub lives: Rng,
    pub deaths: Rng,
    pub fencing: Rng,
    pub clocks: Rng,
    pub work: Rng,
}

impl World {
    /// The world that `seed` makes.
    pub fn new(seed: u64, options: &Options) -> Self {
        let mut rng = Rng::new(seed);
        let mut draw = rng.fork(1);
        let mut scenario = Scenario::draw(
            &mut draw,
            options.replicas,
            options
                .policy
                .unwrap_or_else(|| preset_of(seed, options.replicas == 2 && !options.fencing)),
            options.faults_for,
            options.canary,
        );
        let (short_lives, lives) = has_short_lives(seed);
        let alone = options.replicas > 2 && alone::is_of(seed);
        if alone {
            scenario.leave_faults_alone(alone::SPAN);
        } else if short_lives {
            scenario.shorten_lives();
        }
        let life = Life::draw(seed, alone);
        scenario.hypervisor.guest.ends = life.ends();
        scenario.say_clean(clean::chances_of(seed));
        scenario.keep_warm(warm_of(seed));
        if options.fencing {
            scenario.fence();
        } else if options.replicas == 2 && !options.cuts {
            scenario.hold_links();
        }
        let mut coverage = Coverage::default();
        if !scenario.is_paced() {
            coverage.hit("pace: a world without it");
        }
        let mut plan = Schedule::default();
        let net = Net::new(scenario.net, rng.fork(2), &scenario.members, &mut plan);
        let clients = Clients::new(scenario.clients, rng.fork(3), &mut plan);
        let mut chance = Chance {
            processes: rng.fork(4),
            hypervisors: rng.fork(5),
            disks: rng.fork(6),
            faults: rng.fork(7),
            ambushes: rng.fork(8),
            copies: rng.fork(10),
            lives,
            deaths: death::stream(seed),
            fencing: fencing::stream(seed),
            clocks: Stream::Clocks.of(seed),
            work: rng.fork(21),
        };
        for &who in &scenario.members {
            plan.after(
                chance.processes.micros((0, 300_000)),
                Happening::Restart(who),
            );
        }
        plan.at(scenario.faults.begin + Micros(1), Happening::Next);
        plan.at(scenario.faults.heal, Happening::Heal);
        plan.at(scenario.faults.begin, Happening::Type);
        if scenario.faults.operator {
            plan.at(scenario.faults.begin, Happening::Operator);
        }
        let planned = Planned::draw(seed, options.replicas > 2 && !alone);
        if planned.comes() {
            plan.at(scenario.faults.begin, Happening::Plan);
        }
        let orders = Orders::draw(seed, alone);
        if orders.come() {
            plan.at(scenario.faults.begin, Happening::Order);
        }
        let replacing = Replacing::draw(seed, options.replicas == 3 && !alone);
        if replacing.comes() {
            plan.at(scenario.faults.begin, Happening::Replace);
        }
        let has_witness = options.replicas > 2 && !alone;
        let upgrading = Upgrading::draw(seed, has_witness, scenario.policy().secondary);
        if upgrading.comes() {
            plan.at(scenario.faults.begin, Happening::Upgrade);
        }
        if options.fencing {
            plan.at(scenario.faults.begin, Happening::Fence);
        }
        if scenario.short_lives {
            plan.at(scenario.faults.begin, Happening::AllDie);
        }
        Self {
            processes: scenario.members.iter().map(|_| Process::new()).collect(),
            plan,
            net,
            clients,
            typist: Typist::new(rng.fork(9)),
            histories: Histories::default(),
            invariants: Invariants::new(scenario.policy()),
            coverage,
            trace: Trace::new(options.trace),
            violation: None,
            generation: View::NONE,
            links_failed: false,
            is_split: false,
            stopped_at: Micros::ZERO,
            operator_spoke_at: None,
            healed_at: None,
            finished: false,
            active_faults: 0,
            cause: "",
            chance,
            areas: Areas::draw(seed, alone),
            life,
            planned,
            orders,
            replacing,
            upgrading,
            disturbed_at: Micros::ZERO,
            replies_before: 0,
            scenario,
        }
    }

    /// Runs until the group has recovered from its last fault, or something is wrong.
    pub fn run(&mut self) {
        trace!(self, "{:?}", self.scenario);
        while !self.finished && self.violation.is_none() {
            assert!(
                self.plan.planned() < HAPPENINGS_MAX,
                "the simulation does not end"
            );
            let what = self
                .plan
                .pop()
                .expect("until it is finished something is planned");
            self.happen(what);
        }
        self.coverage.add("requests answered", self.clients.replies);
    }

    fn happen(&mut self, what: Happening) {
        match what {
            Happening::Tick(who, token) => self.on_tick(who, token),
            Happening::Sample(who, token) => self.on_sample(who, token),
            Happening::Arrival(record) => {
                if let Some(record) = self.net.arrive(record) {
                    self.receive(record);
                }
            }
            Happening::Mended(from, to) => {
                for record in self.net.take_stalled(from, to) {
                    if self.net.is_valid(&record) {
                        self.receive(record);
                    }
                }
            }
            Happening::LinkNotice {
                end,
                peer,
                session,
                up,
            } => {
                if self.process(end).state != State::Down
                    && self.net.on_notice(end, peer, session, up)
                {
                    let told = self.net.told(end, peer, session);
                    if let Some(versions) = told.filter(|_| up && self.upgrading.tells()) {
                        self.tell(end, Event::Speaks { peer, versions });
                    }
                    self.tell(end, Event::Link { peer, up });
                }
            }
            Happening::DeathReported(who, dead) => self.death_reported(who, dead),
            Happening::Fence => self.fence(),
            Happening::SaidOff {
                who,
                number,
                peer,
                seen_at,
            } => self.said_off(who, number, peer, seen_at),
            Happening::Connect(a, b) => {
                let ready = [(a, b), (b, a)].iter().all(|(who, peer)| {
                    self.process(*who).state == State::Up && self.knows(*who, *peer)
                });
                let told = if ready { self.greet(a, b) } else { None };
                self.net.connect(a, b, told, &mut self.plan);
            }
            Happening::BreakLink(a, b, session) => {
                self.net.on_break(a, b, session, &mut self.plan);
            }
            Happening::Hypervisor(who, number, due) => self.on_hypervisor(who, number, due),
            Happening::HypervisorDied(who, number) => self.on_hypervisor_died(who, number),
            Happening::Stored(who, incarnation) => self.on_stored(who, incarnation),
            Happening::Worked(who, incarnation) => self.on_worked(who, incarnation),
            Happening::CopyRead(who, incarnation) => self.on_copy_read(who, incarnation),
            Happening::Scan(who, number, job) => self.on_scan(who, number, job),
            Happening::Frames(who, frames) => {
                if self.process(who).facing && self.process(who).has_tap {
                    self.tell(who, Event::Frames(frames));
                }
            }
            Happening::Replies(frames) => {
                let answers = self.clients.receive(&frames, &mut self.plan);
                if self.clients.listener.take_reset() {
                    self.coverage.hit("clean: a takeover resets a connection");
                }
                self.send_to_guest(answers);
            }
            Happening::Learn(who) => self.clients.port = Some(who),
            Happening::Ask(client) => {
                let frames = self.clients.ask(client, &mut self.plan);
                self.send_to_guest(frames);
            }
            Happening::AskAgain(client, request) => {
                let frames = self.clients.ask_again(client, request, &mut self.plan);
                self.send_to_guest(frames);
            }
            Happening::Strike(fault, span) => self.strike(fault, span),
            Happening::Mend(fault) => self.mend(fault),
            Happening::Next => self.next_fault(),
            Happening::AllDie => self.all_die(),
            Happening::Restart(who) => self.restart(who),
            Happening::Operator => self.watch(),
            Happening::Type => self.type_some(),
            Happening::Plan => self.plan_work(),
            Happening::Order => self.order_power(),
            Happening::Replace => self.replace_one(),
            Happening::Upgrade => self.upgrade_one(),
            Happening::Undrain(who) => self.undrain(who),
            Happening::StartGuest => self.start_guest_again(),
            Happening::LookAfterAnEnd => self.look_after_an_end(),
            Happening::CountReplies(rest) => self.count_replies(rest),
            Happening::LookForHung { secondary, leader } => self.look_for_hung(secondary, leader),
            Happening::Heal => self.heal(),
            Happening::Look => self.look(),
        }
    }

    pub(crate) fn process(&self, who: ReplicaId) -> &Process {
        &self.processes[usize::from(who.0)]
    }

    pub(crate) fn process_mut(&mut self, who: ReplicaId) -> &mut Process {
        &mut self.processes[usize::from(who.0)]
    }

    /// The replicas whose processes exist.
    pub(crate) fn running(&self) -> impl Iterator<Item = (ReplicaId, &Replica)> + Clone {
        let members = self.scenario.members.iter().copied();
        members.filter_map(|who| Some((who, self.process(who).replica.as_deref()?)))
    }

    /// A check's outcome: the first violation ends the run.
    pub(crate) fn check(&mut self, check: Check) {
        if let Err(violation) = check {
            if self.is_split && pair::BROKEN_BY_A_SPLIT.contains(&violation.invariant) {
                return self.coverage.hit("pair: what a split brain breaks");
            }
            trace!(self, "VIOLATED {violation}");
            self.violation.get_or_insert(violation);
        }
    }

    fn send_to_guest(&mut self, frames: Vec<plover_types::Frame>) {
        if frames.is_empty() {
            return;
        }
        for frame in &frames {
            self.invariants.inputs_in_order.sent(frame);
        }
        let latency = self.clients.latency();
        match self.clients.port {
            Some(port) => self.plan.after(latency, Happening::Frames(port, frames)),
            None => {
                // A bridge that has not learnt an address sends to every port.
                for &who in &self.scenario.members {
                    self.plan
                        .after(latency, Happening::Frames(who, frames.clone()));
                }
            }
        }
    }

    /// A process starts, with what its disk remembers.
    pub(crate) fn restart(&mut self, who: ReplicaId) {
        if self.process(who).state != State::Down || !self.may_start(who) {
            return;
        }
        let now = self.plan.now();
        let mut config = self.scenario.config(who, &mut self.chance.processes);
        self.name_members(&mut config);
        config.newest_version = self.newest_of(who);
        let rng = &mut self.chance.processes;
        config.drained = self.planned.is_drained(who);
        let drift_max = self.scenario.drift_ppm_max;
        let drift = rng.range(0, 2 * drift_max) as i64 - drift_max as i64;
        let clock = Clock::new(now, rng.micros((1_000_000, 1_000_000_000)), drift);
        let keeps_log = self.scenario.keeps_log();
        let process = self.process_mut(who);
        let start = process.disk.start(keeps_log);
        process.number = config.seed;
        process.clock = clock;
        process.state = State::Up;
        process.disk_free_at = now;
        process.replica = Some(Box::new(Replica::new(config, start, clock.local(now))));
        process.read = (View::NONE, Index(0));
        if process.incarnation > 0 {
            self.coverage.hit("process: restarted");
        }
        trace!(self, "{who} starts");
        self.tell(who, Event::Tick);
    }
}
