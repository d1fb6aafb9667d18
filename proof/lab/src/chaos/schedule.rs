//! What is done to the lab, drawn from a seed.
//!
//! The same seed gives the same steps. A step names roles, not replicas: the replicas that have them are
//! looked up when the step begins. Real time differs from run to run, and so does what follows.
//!
//! A step never breaks more than the group is promised to survive ([`Step::is_survivable`]):
//!
//! * one fault, of any replica;
//! * two faults of one replica, which are one broken host;
//! * a fault of the witness and one of the leader *or* the secondary. That may be the loss of a majority:
//!   service stops, and comes back when one of them is healed, since a member of the in-sync set lives;
//! * a fault of the leader and one of the secondary, if neither can end a guest ([`Kind::may_end_guest`]);
//! * a reboot of the guest, alone or with one fault of one replica.

use plover_types::SplitMix64;
use std::fmt;

/// A role at the beginning of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It faces the clients.
    Leader,
    /// It runs the guest in step.
    Secondary,
    /// It votes.
    Witness,
}

/// All of them.
const ROLES: [Role; 3] = [Role::Leader, Role::Secondary, Role::Witness];

impl Role {
    /// The role's name in a status.
    pub fn name(self) -> &'static str {
        match self {
            Self::Leader => "leader",
            Self::Secondary => "secondary",
            Self::Witness => "witness",
        }
    }
}

/// Kinds of faults. `Role` is the other end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The host dies.
    Kill,
    /// Only the replica's process dies.
    Crash,
    /// The host stands still for the length of the step.
    Stop,
    /// Its QEMU alone stands still.
    HangQemu,
    /// Writes to its copy of the guest's disk hang.
    HangDisk,
    /// The file system of its state is full.
    FillState,
    /// It is cut off from both others.
    Cut,
    /// It is cut off from one of them.
    CutFrom(Role),
    /// One of them gets nothing from it, and it gets all from that one.
    OneWay(Role),
    /// None of them gets anything from it, and it gets all from them.
    Mute,
    /// It is cut off from both others and connected again, in turn, each for this long.
    Flap {
        /// In ms.
        each_ms: u64,
    },
    /// Its TAP is down.
    Unplug,
}

impl Kind {
    /// Whether the replica may lose its guest by it. A replica that is cut off or stands still as a whole keeps its
    /// guest.
    pub fn may_end_guest(self) -> bool {
        match self {
            Self::Kill | Self::Crash => true,
            Self::HangQemu | Self::HangDisk | Self::FillState => true,
            Self::Stop | Self::Unplug => false,
            Self::Cut | Self::CutFrom(_) | Self::OneWay(_) | Self::Mute | Self::Flap { .. } => {
                false
            }
        }
    }

    /// Whether its daemon may end by it.
    pub fn may_end_daemon(self) -> bool {
        matches!(self, Self::Kill | Self::Crash | Self::FillState)
    }
}

/// One fault of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strike {
    /// What happens.
    pub kind: Kind,
    /// The replica that it happens to.
    pub role: Role,
    /// How long after the fault (or reboot) before it, in ms.
    pub after_ms: u64,
}

impl fmt::Display for Strike {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let role = self.role.name();
        match self.kind {
            Kind::Kill => write!(f, "kill {role}"),
            Kind::Crash => write!(f, "kill {role}'s process"),
            Kind::Stop => write!(f, "stop {role}"),
            Kind::HangQemu => write!(f, "hang {role}'s QEMU"),
            Kind::HangDisk => write!(f, "hang {role}'s disk"),
            Kind::FillState => write!(f, "fill {role}'s state"),
            Kind::Cut => write!(f, "cut off {role}"),
            Kind::CutFrom(peer) => write!(f, "cut {role} from {}", peer.name()),
            Kind::OneWay(peer) => write!(f, "lose {role}'s frames to {}", peer.name()),
            Kind::Mute => write!(f, "lose all frames of {role}"),
            Kind::Flap { .. } => write!(f, "flap {role}'s link"),
            Kind::Unplug => write!(f, "unplug {role}"),
        }
    }
}

/// Faults that are there at the same time, until all are healed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Counted from 1.
    pub number: u64,
    /// The guest is told to reboot before the first fault.
    pub reboot: bool,
    /// The faults, at most two.
    pub strikes: Vec<Strike>,
    /// How long after the last fault the healing begins, in ms.
    pub hold_ms: u64,
}

impl Step {
    /// Whether the group is promised to survive it. See the module.
    pub fn is_survivable(&self) -> bool {
        match self.strikes[..] {
            [] => self.reboot,
            [_] => true,
            [one, other] if !self.reboot => {
                let ends = |it: Strike| it.kind.may_end_guest();
                one.role == other.role
                    || [one, other].iter().any(|it| it.role == Role::Witness)
                    || !ends(one) && !ends(other)
            }
            _ => false,
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reboot = self.reboot.then(|| "reboot guest".to_owned());
        let strikes = self.strikes.iter().map(Strike::to_string);
        let words: Vec<String> = reboot.into_iter().chain(strikes).collect();
        f.write_str(&words.join(" + "))
    }
}

/// The endless sequence of steps of a seed.
#[derive(Clone, Debug)]
pub struct Schedule {
    random: SplitMix64,
    /// Steps that are left of this round. Each round has every single fault once.
    deck: Vec<Step>,
    number: u64,
    /// If not empty, rounds consist of these single faults and the plain reboot, by their words.
    only: Vec<String>,
}

/// A plain reboot of the guest, in the words of a step.
const REBOOT: &str = "reboot guest";

/// Pairs and reboots in each round, beside the 37 single faults.
const PAIRS: usize = 17;
const REBOOTS: usize = 5;

/// How long a fault lasts: from less than the failure detector's timeout to several times QEMU's.
const HOLD_MS: (u64, u64) = (100, 4000);
/// From "at the same time" to "while the group recovers from the first".
const AFTER_MS: (u64, u64) = (0, 1500);
/// A console's input is in the log, and the guest down, before a fault can be too early for it.
const AFTER_REBOOT_MS: (u64, u64) = (500, 3000);
const FLAP_MS: (u64, u64) = (20, 800);

impl Schedule {
    /// The steps of `seed`.
    pub fn new(seed: u64) -> Self {
        Self {
            random: SplitMix64::new(seed),
            deck: Vec::new(),
            number: 0,
            only: Vec::new(),
        }
    }

    /// The steps of `seed` that are one of these single faults, or the plain reboot. Each round has all of them once.
    ///
    /// # Errors
    /// There is no such fault.
    pub fn only(seed: u64, faults: &[String]) -> Result<Self, String> {
        let mut this = Self::new(seed);
        let singles = this.singles();
        let mut known: Vec<String> = singles.iter().map(Strike::to_string).collect();
        known.push(REBOOT.into());
        if let Some(unknown) = faults.iter().find(|it| !known.contains(it)) {
            let known = known.join("\n  ");
            return Err(format!(
                "there is no fault \"{unknown}\"; there are\n  {known}"
            ));
        }
        this.only = faults.to_vec();
        Ok(this)
    }

    /// A new round, shuffled.
    fn shuffle(&mut self) {
        let step = |reboot, strikes| Step {
            number: 0,
            reboot,
            strikes,
            hold_ms: 0,
        };
        let singles = self.singles();
        let mut deck: Vec<Step> = singles.iter().map(|it| step(false, vec![*it])).collect();
        if !self.only.is_empty() {
            deck.push(step(true, Vec::new()));
            deck.retain(|step| self.only.contains(&step.to_string()));
            self.deck = deck;
            return;
        }
        while deck.len() < singles.len() + PAIRS {
            let pair = [(); 2].map(|()| singles[self.below(singles.len())]);
            let pair = step(false, pair.to_vec());
            if pair.is_survivable() && makes_sense(&pair.strikes) {
                deck.push(pair);
            }
        }
        for _ in 0..REBOOTS {
            let with = self.below(2) == 1;
            let strike = singles[self.below(singles.len())];
            deck.push(step(true, with.then_some(strike).into_iter().collect()));
        }
        for last in (1..deck.len()).rev() {
            let other = self.below(last + 1);
            deck.swap(last, other);
        }
        self.deck = deck;
    }

    /// Every fault that one replica can have.
    fn singles(&mut self) -> Vec<Strike> {
        let mut all = Vec::new();
        for role in ROLES {
            let peers = ROLES.into_iter().filter(|peer| *peer != role);
            let each_ms = self.random.range(FLAP_MS.0, FLAP_MS.1);
            let mut kinds = vec![
                Kind::Kill,
                Kind::Crash,
                Kind::Stop,
                Kind::HangDisk,
                Kind::FillState,
                Kind::Cut,
                Kind::Mute,
                Kind::Flap { each_ms },
            ];
            if role != Role::Witness {
                // Its guest, if it has one, neither runs nor has clients.
                kinds.extend([Kind::HangQemu, Kind::Unplug]);
            }
            for peer in peers {
                kinds.push(Kind::OneWay(peer));
                if (role as u8) < peer as u8 {
                    kinds.push(Kind::CutFrom(peer));
                }
            }
            all.extend(kinds.into_iter().map(|kind| Strike {
                kind,
                role,
                after_ms: 0,
            }));
        }
        all
    }

    fn below(&mut self, end: usize) -> usize {
        self.random.range(0, end as u64 - 1) as usize
    }
}

/// A dead host has no other faults, and a fault does not come twice.
fn makes_sense(strikes: &[Strike]) -> bool {
    let [one, other] = strikes else { return true };
    let dead = |it: &Strike| matches!(it.kind, Kind::Kill | Kind::Crash);
    one.role != other.role || (!dead(one) && !dead(other) && one.kind != other.kind)
}

impl Iterator for Schedule {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        if self.deck.is_empty() {
            self.shuffle();
        }
        self.number += 1;
        let mut step = self.deck.pop()?;
        step.number = self.number;
        step.hold_ms = self.random.range(HOLD_MS.0, HOLD_MS.1);
        for (place, strike) in step.strikes.iter_mut().enumerate() {
            strike.after_ms = match (place, step.reboot) {
                (0, true) => self.random.range(AFTER_REBOOT_MS.0, AFTER_REBOOT_MS.1),
                (0, false) => 0,
                _ => self.random.range(AFTER_MS.0, AFTER_MS.1),
            };
        }
        Some(step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(seed: u64) -> Vec<Step> {
        Schedule::new(seed).take(200).collect()
    }

    #[test]
    fn a_seed_is_a_schedule() {
        assert_eq!(steps(7), steps(7));
        assert_ne!(steps(7), steps(8));
    }

    /// The rule again, in other words: of the leader and the secondary, one keeps its guest, and if the other
    /// one may lose its, it is not touched at all.
    #[test]
    fn no_step_asks_for_more_than_is_promised() {
        for step in (0..100).flat_map(steps) {
            assert!(step.is_survivable(), "{step}");
            assert!(step.strikes.len() + usize::from(step.reboot) <= 2, "{step}");
            let touched = |role| step.strikes.iter().any(|it| it.role == role);
            let ended = |role| {
                let mut of_role = step.strikes.iter().filter(|it| it.role == role);
                of_role.any(|it| it.kind.may_end_guest())
            };
            let (leader, secondary) = (Role::Leader, Role::Secondary);
            assert!(!(ended(leader) && touched(secondary)), "{step}");
            assert!(!(ended(secondary) && touched(leader)), "{step}");
        }
    }

    #[test]
    fn what_is_not_promised_is_refused() {
        let pair = |one, other| Step {
            number: 1,
            reboot: false,
            strikes: [(one, Role::Leader), (other, Role::Secondary)]
                .map(|(kind, role)| Strike {
                    kind,
                    role,
                    after_ms: 0,
                })
                .to_vec(),
            hold_ms: 100,
        };
        assert!(!pair(Kind::Kill, Kind::Kill).is_survivable());
        // The secondary leads alone, and dies.
        assert!(!pair(Kind::Stop, Kind::Kill).is_survivable());
        assert!(!pair(Kind::HangDisk, Kind::Cut).is_survivable());
        assert!(pair(Kind::Stop, Kind::Cut).is_survivable());
        let mut with_reboot = pair(Kind::Stop, Kind::Cut);
        with_reboot.reboot = true;
        assert!(!with_reboot.is_survivable());
        with_reboot.strikes.clear();
        assert!(with_reboot.is_survivable());
        with_reboot.reboot = false;
        assert!(!with_reboot.is_survivable(), "nothing happens");
    }

    #[test]
    fn only_some_faults_come_in_turn() {
        let names = ["reboot guest", "hang leader's QEMU"].map(String::from);
        let steps: Vec<String> = Schedule::only(1, &names)
            .unwrap()
            .take(4)
            .map(|step| step.to_string())
            .collect();
        assert_eq!(steps[0], "reboot guest");
        assert_eq!(steps[1], "hang leader's QEMU");
        assert_eq!(steps[2..], steps[..2]);
        let refused = Schedule::only(1, &["hang leader".into()]).unwrap_err();
        assert!(refused.contains("\n  hang leader's QEMU\n"), "{refused}");
    }

    /// A round has every single fault, and pairs and reboots.
    #[test]
    fn every_fault_comes() {
        let round = 37 + PAIRS + REBOOTS;
        let steps: Vec<Step> = Schedule::new(1).take(round).collect();
        let count = |wanted: &dyn Fn(&Step) -> bool| steps.iter().filter(|it| wanted(it)).count();
        assert_eq!(count(&|it| it.reboot), REBOOTS);
        assert_eq!(count(&|it| it.strikes.len() == 2), PAIRS);
        let mut singles: Vec<String> = steps
            .iter()
            .filter(|it| !it.reboot && it.strikes.len() == 1)
            .map(Step::to_string)
            .collect();
        singles.sort();
        singles.dedup();
        assert_eq!(singles.len(), 37, "{singles:?}");
    }
}
