//! Generations: how a group without a guest gets a new one.
//!
//! When no replica holds the guest, the operator may let it boot anew ([`Apus::bootstrap`]); a group
//! that has never run needs no operator for that. The view in which this happens is higher than any
//! promise, and it names a new *generation* of the group. The log of a generation begins at the
//! viewstamp `(generation, 0)`, so each of its viewstamps is higher than all of the generation
//! before. A replica that hears of a generation newer than its committed log drops that log: the
//! log describes a guest that is gone.
//!
//! One of a pair that goes on without the other begins a new generation, too, with the log and the
//! guest that it has (`pair`). So when the two meet, the other one drops its log of that time.
//!
//! On disk a new generation and its empty log are two writes. A replica that died between them finds
//! a log that begins in a lower view than the generation that it knows of. That log belongs to no
//! generation, and is dropped when a leader names one (`start`).

use crate::election::{Election, Stage};
use crate::log::Log;
use crate::{Apus, Role};
use crate::{BootstrapError, Command, Configuration, Durability};
use plover_types::{Index, Micros, ReplicaSet, View, Viewstamp};
use std::collections::BTreeMap;

impl Apus {
    /// Begins a new generation after [`Command::GroupEmpty`]. Only the configured first leader acts
    /// on this, and only while that report still holds ([`Apus::check_bootstrap`]). It implies
    /// [`Apus::set_holds_state`]: the first leader boots the guest.
    pub fn bootstrap(&mut self, _now: Micros, out: &mut Vec<Command>) {
        if self.check_bootstrap().is_err() {
            return;
        }
        self.holds_state = true;
        self.transition(Role::Electing(Election::new(Stage::Beginning)));
        self.promise(View::new(self.round_max + 1, self.config.me), out);
        self.tell(None, out);
    }

    /// Whether [`Apus::bootstrap`] would begin a new generation now.
    ///
    /// # Errors
    /// The reason why not, and what the operator can do.
    pub fn check_bootstrap(&self) -> Result<(), BootstrapError> {
        if self.config.me != self.first_leader() {
            return Err(BootstrapError::NotFirstLeader(self.first_leader()));
        }
        match self.role {
            Role::Following(_) if self.recovery.group_is_empty() => Ok(()),
            Role::Following(_) => Err(BootstrapError::NotEmpty),
            _ => Err(BootstrapError::Standing),
        }
    }

    /// Storage has the promise of a new generation's first view: leads it. No votes are needed, for
    /// every other replica has answered that it has nothing to lose.
    pub(crate) fn begin_generation(&mut self, now: Micros, out: &mut Vec<Command>) {
        self.adopt_generation(self.promised, out);
        self.recovery.need_none();
        self.begin_milestones();
        self.persist_state(out);
        self.lead(now, &BTreeMap::new(), out);
    }

    /// Learns in which generation the group is. A log of an older one, or of none, is replaced by
    /// the empty log of this generation.
    pub(crate) fn adopt_generation(&mut self, generation: View, out: &mut Vec<Command>) {
        if self.generation < generation {
            self.generation = generation;
            if self.config.durability == Durability::Disk {
                self.persist_state(out);
            }
        }
        if self.log.committed().view >= generation {
            return;
        }
        let replaces =
            self.log.last().index > Index(0) || self.config.durability == Durability::Disk;
        let base = Viewstamp {
            view: generation,
            index: Index(0),
        };
        let configuration = Configuration {
            in_sync: ReplicaSet::of([generation.leader().unwrap_or(self.first_leader())]),
            members: self.settled_members(),
            version: self.version(),
        };
        self.log = Log::new(base, configuration);
        if replaces {
            out.push(Command::InstallSnapshot {
                base,
                configuration,
            });
        }
        self.persist_after(base, Some(configuration), out);
        match &mut self.role {
            // This replica's guest, if any, is of the older generation.
            Role::Following(follower) => {
                follower.matched = base.index;
                self.set_holds_state(false);
            }
            role => assert!(
                matches!(role, Role::Electing(_)),
                "a generation begins while {role:?}"
            ),
        }
    }
}
