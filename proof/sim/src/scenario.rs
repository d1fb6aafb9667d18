//! The world of a seed: sizes, speeds, habits and the plan of faults.

use crate::faults::FaultPlan;
use crate::guest::{Ends, GuestHabits};
use crate::hypervisor::HypervisorHabits;
use crate::net::NetHabits;
use crate::rng::Rng;
use crate::streams::Stream;
use apus::Durability;
use plover_policy::{
    Input, MatchConfig, PRESETS, Policy, Preset, ReleaseWhen, Secondary, SlotConfig,
    UnprotectedOutput, VSMR,
};
use plover_replica::{Canary, Config, GroupRecord, Warm};
use plover_types::wire::WIRE_VERSION;
use plover_types::{Micros, PageLayout, ReplicaId, ReplicaSet};

/// How the clients behave.
#[derive(Clone, Copy, Debug)]
pub struct ClientHabits {
    /// How many clients there are.
    pub clients: u8,
    /// The time between a reply and the next request.
    pub think: (u64, u64),
    /// How long a client waits before it repeats a request.
    pub patience: (u64, u64),
    /// How often a request is a burst of frames.
    pub burst: f64,
    /// How often a request is asked on a new connection.
    pub reconnects: f64,
}

/// A seed's world.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The members of the group.
    pub members: Vec<ReplicaId>,
    /// Every replica's hypervisor.
    pub hypervisor: HypervisorHabits,
    /// The network.
    pub net: NetHabits,
    /// The clients.
    pub clients: ClientHabits,
    /// How long a write to stable storage takes.
    pub store: (u64, u64),
    /// How far clocks drift, in millionths.
    pub drift_ppm_max: u64,
    /// The plan of faults.
    pub faults: FaultPlan,
    /// All hosts die at once again and again, so each generation of the guest is short; see
    /// [`has_short_lives`].
    pub short_lives: bool,
    /// Faults come one by one, each for longer than the group may take to serve again ([`crate::alone`]).
    pub faults_alone: bool,
    config: Config,
}

impl Scenario {
    /// The world of a seed; `replicas` in the group, faults for about `span` if given.
    pub fn draw(
        rng: &mut Rng,
        replicas: u8,
        preset: &Preset,
        span: Option<Micros>,
        canary: Canary,
    ) -> Self {
        let members: Vec<_> = (0..replicas).map(ReplicaId).collect();
        let pages = rng.range(48, 160) as u32;
        let needs_reset = rng.chance(0.5);
        let quick = rng.chance(0.7);
        // Half of the guests have disks, where the policy allows them.
        let allowed = preset.policy.secondary != Secondary::Waits;
        let disk_blocks = if allowed && pages % 2 == 0 { 4 } else { 0 };
        let guest = GuestHabits {
            pages,
            disk_blocks,
            noise: rng.pick(&[0.02, 0.2, 1.0]),
            divergence: rng.pick(&[0.0, 0.02, 1.0]),
            work: if quick { (50, 2_000) } else { (500, 12_000) },
            tick: (5_000, 60_000),
            queues: rng.pick(&[0.0, 0.01, 0.05]),
            ends: Ends::default(),
            datagrams: 0.0,
            clean_stream: 0.0,
        };
        let hypervisor = HypervisorHabits {
            guest,
            start: (20_000, rng.pick(&[60_000, 400_000])),
            order: (100, rng.pick(&[800, 4_000])),
            needs_reset,
            reboot_ends: canary == Canary::RebootEndsGuest,
        };
        let net = NetHabits {
            delay: rng.pick(&[(20, 80), (50, 400), (100, 3_000)]),
            bytes_per_us: rng.pick(&[100, 1000]),
            harsh: rng.pick(&[0.0, 0.0, 0.01, 0.05]),
        };
        let clients = ClientHabits {
            clients: rng.range(1, 4) as u8,
            think: rng.pick(&[(2_000, 20_000), (10_000, 80_000)]),
            patience: rng.pick(&[(60_000, 120_000), (200_000, 400_000)]),
            burst: rng.pick(&[0.0, 0.1]),
            // Where connections may overtake each other, `inputs_in_order` follows only one
            // connection a client, so clients do not reconnect.
            reconnects: match preset.policy.input {
                Input::PerConnection => 0.0,
                _ if pages % 3 == 0 => 0.1,
                _ => 0.01,
            },
        };
        let store = rng.pick(&[(50, 300), (100, 8_000)]);
        let drift_ppm_max = rng.pick(&[0, 200, 9_000]);
        let span = span.unwrap_or_else(|| Micros(rng.range(4_000_000, 12_000_000)));
        let mut config = draw_config(rng, &members, &guest, needs_reset, canary);
        config.policy = preset.policy;
        config.matching.always = MatchConfig::of(&preset.policy).always;
        let faults = FaultPlan::draw(rng, span);
        Self {
            members,
            hypervisor,
            net,
            clients,
            store,
            drift_ppm_max,
            faults,
            short_lives: false,
            faults_alone: false,
            config,
        }
    }

    /// Lets guests send datagrams of which most are clean, this often, and words of a stream. A guard that holds three frames is the clients'
    /// alone: where a slow disk delays each sync, they would not be answered for lack of room.
    pub fn say_clean(&mut self, (datagrams, stream): (f64, f64)) {
        if self.config.guard_bytes_max < DATAGRAMS_GUARD_MIN {
            return;
        }
        self.hypervisor.guest.datagrams = datagrams;
        self.hypervisor.guest.clean_stream = stream;
        self.config.policy.clean_replies = datagrams > 0.0;
    }

    /// The part of the guest that witnesses keep.
    pub fn keep_warm(&mut self, warm: Warm) {
        self.config.warm = warm;
    }

    /// Lets no link fail: every record arrives, unless one of the two ends dies.
    pub fn hold_links(&mut self) {
        self.net.harsh = 0.0;
        self.faults.links_hold = true;
    }

    /// Neither of a pair goes on alone before the other one is known to be off.
    pub fn fence(&mut self) {
        self.config.fencing = true;
    }

    /// Whether that is so.
    pub fn is_fenced(&self) -> bool {
        self.config.fencing
    }

    /// Makes the guest's generations short, in a group whose logs are on disk. Only there can a crash
    /// leave a part of an old generation beside a part of a new one.
    pub fn shorten_lives(&mut self) {
        self.short_lives = true;
        self.faults.operator = true;
        self.config.durability = Durability::Disk;
    }

    /// Lets one fault strike at a time, with nothing else that could disturb the group.
    pub fn leave_faults_alone(&mut self, span: Micros) {
        self.faults_alone = true;
        self.net.harsh = 0.0;
        self.faults.one_at_a_time = true;
        self.faults.operator = false;
        self.faults.ambushes.clear();
        self.faults.heal = self.faults.begin + span;
    }

    /// The configuration of a process that starts.
    pub fn config(&self, me: ReplicaId, rng: &mut Rng) -> Config {
        let mut config = self.config.clone();
        config.me = me;
        config.seed = rng.word();
        for byte in &mut config.hash_key {
            *byte = rng.word() as u8;
        }
        config
    }

    /// No lease is longer: the longest is an eighth shorter than this, which leaves room for clocks that drift.
    pub fn lease_max(&self) -> Micros {
        self.config.timeout
    }

    /// After this long an answer of a hypervisor is late.
    pub fn hypervisor_timeout(&self) -> Micros {
        self.config.hypervisor_timeout
    }

    /// How the guest is protected.
    pub fn policy(&self) -> &Policy {
        &self.config.policy
    }

    /// Whether a secondary keeps a witness warm.
    pub fn keeps_warm(&self) -> bool {
        self.config.warm != Warm::Off
    }

    /// Whether a process finds its log again.
    pub fn keeps_log(&self) -> bool {
        self.config.durability == Durability::Disk
    }

    /// Whether outputs go out when both guests have sent them.
    pub fn releases_on_match(&self) -> bool {
        self.config.policy.release == ReleaseWhen::Matched
    }

    /// Whether replies that the guest calls clean leave before their slot's sync.
    pub fn has_clean_replies(&self) -> bool {
        self.config.policy.clean_replies
    }

    /// Whether the secondary's guest stands still, and has checkpoints.
    pub fn takes_checkpoints(&self) -> bool {
        self.config.policy.secondary == Secondary::Waits
    }

    /// Whether inputs wait for the secondary's guest, where outputs are compared.
    pub fn is_paced(&self) -> bool {
        self.config.matching.paced
    }

    /// The members with which the group begins.
    pub fn first_members(&self) -> ReplicaSet {
        self.config.members
    }

    /// The replica that boots the guest when the group has none.
    pub fn first_leader(&self) -> ReplicaId {
        self.config.first_leader
    }
}

/// The policy of a seed for which none is given: `vsmr` in about every other seed, and in the others
/// any policy that this version runs. In a pair, a policy that needs no third replica.
pub fn preset_of(seed: u64, is_pair: bool) -> &'static Preset {
    let mut rng = Stream::Policy.of(seed);
    if rng.chance(0.5) && !is_pair {
        return &VSMR;
    }
    let fits = |preset: &Preset| {
        let fits = !is_pair || preset.policy.check_pair().is_ok();
        preset.policy.check().is_ok() && fits
    };
    let rests = |preset: &Preset| preset.policy.secondary == Secondary::Semi;
    let of = |is_wanted: &dyn Fn(&Preset) -> bool| -> Vec<&'static Preset> {
        let all = PRESETS.iter();
        all.filter(|preset| is_wanted(preset) && fits(preset))
            .collect()
    };
    let other = rng.pick(&of(&|preset| *preset != VSMR && !rests(preset)));
    let mut rng = Stream::Rest.of(seed);
    match rng.chance(0.25) {
        true => rng.pick(&of(&rests)),
        false => other,
    }
}

/// Whether the generations of a seed's guest are short: a new one begins as soon as all hosts have
/// died, and a host may die just then. Random faults reach this once in some ten thousand seeds. Also
/// returns the stream of random decisions that says when.
pub fn has_short_lives(seed: u64) -> (bool, Rng) {
    let mut rng = Stream::Lives.of(seed);
    (rng.chance(0.05), rng)
}

/// The part of a seed's guest that witnesses keep: every part of guests with disks and of guests without.
pub fn warm_of(seed: u64) -> Warm {
    Stream::Warm
        .of(seed)
        .pick(&[Warm::Full, Warm::Full, Warm::Disk, Warm::Off])
}

/// The least guard of a guest that sends datagrams.
const DATAGRAMS_GUARD_MIN: usize = 2_000;

fn draw_config(
    rng: &mut Rng,
    members: &[ReplicaId],
    guest: &GuestHabits,
    needs_reset: bool,
    canary: Canary,
) -> Config {
    let durability = if rng.chance(0.3) {
        Durability::Disk
    } else {
        Durability::Memory
    };
    let unprotected_output = if rng.chance(0.15) {
        UnprotectedOutput::Hold
    } else {
        UnprotectedOutput::Release
    };
    Config {
        me: members[0],
        members: ReplicaSet::of(members.iter().copied()),
        pair: members.len() == 2,
        fencing: false,
        record: GroupRecord::default(),
        contacts: ReplicaSet::EMPTY,
        first_leader: rng.pick(members),
        heartbeat: Micros::from_ms(25),
        timeout: Micros::from_ms(100),
        timeout_min: Micros::from_ms(75),
        hypervisor_timeout: Micros::from_ms(400),
        durability,
        log_bytes_max: rng.pick(&[300, 20_000, 1 << 20]),
        message_bytes_max: rng.pick(&[1_024, 16_384]),
        policy: VSMR.policy,
        known_after: Micros::from_ms(300),
        newest_version: WIRE_VERSION,
        slot: SlotConfig {
            // Ten times the real one, because each sample is an event here.
            idle_threshold: Micros(1000),
            quiet_max: Micros::from_ms(rng.pick(&[100, 500])),
            ..SlotConfig::default()
        },
        matching: MatchConfig {
            unmatched_max: Micros::from_ms(rng.pick(&[20, 100])),
            slot_max: Micros::from_ms(rng.pick(&[60, 1000])),
            always: false,
            paced: guest.pages % 2 == 0,
        },
        unprotected_output,
        layout: PageLayout::new(guest.ram_pages(), guest.disk_blocks),
        needs_reset,
        // See [`Scenario::keep_warm`].
        warm: Warm::Full,
        warm_bytes_per_s: if guest.pages % 3 == 0 {
            1 << 20
        } else {
            64 << 20
        },
        subpages: rng.pick(&[true, true, false]),
        guard_bytes_max: rng.pick(&[200, 20_000]),
        input_bytes_max: rng.pick(&[2_000, 60_000]),
        hash_key: [0; 32],
        seed: 0,
        drained: false,
        canary,
    }
}
