//! How a group without a guest gets a new one.
//!
//! When nobody holds the guest, the operator (or, if the group never ran, nobody) may let it
//! boot afresh: [`Apus::bootstrap`]. The view in which that happens is higher than any promise, and
//! it names a new *generation*: its log begins at the viewstamp `(generation, 0)`, so every viewstamp in it is
//! higher than any of the generation before. A replica that hears of a generation newer than its committed log
//! drops that log: what it describes died with the last guest.
//!
//! One of a pair that goes on without the other begins a new generation, too, with the log and the guest that
//! it has (`pair`): so what the other one does meanwhile is dropped when they meet.
//!
//! On disk the word of a new generation and its empty log are two writes. A replica that died between them
//! finds a log that begins in a lower view than the generation it knows of: that log is of no generation, and is
//! dropped when a leader names one (`durable`).

use crate::election::{Election, Stage};
use crate::log::Log;
use crate::{Apus, Role};
use crate::{BootstrapError, Command, Configuration, Durability, Members};
use plover_types::{Index, Micros, ReplicaSet, View, Viewstamp};
use std::collections::BTreeMap;

impl Apus {
    /// Begins the generation of a group that [`Command::GroupEmpty`] reported. Only the configured
    /// first leader acts on it, and only while that report still stands
    /// ([`Apus::check_bootstrap`]). It implies [`Apus::set_holds_state`]: the first leader boots the
    /// guest.
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
    /// Why not, and what the operator can do about it.
    pub fn check_bootstrap(&self) -> Result<(), BootstrapError> {
        if self.config.me != self.config.first_leader {
            return Err(BootstrapError::NotFirstLeader(self.config.first_leader));
        }
        match self.role {
            Role::Following(_) if self.recovery.group_is_empty() => Ok(()),
            Role::Following(_) => Err(BootstrapError::NotEmpty),
            _ => Err(BootstrapError::Standing),
        }
    }

    /// Storage has the promise of a new generation's first view: lead it. No votes are needed, for
    /// every other replica has said that it has nothing to lose.
    pub(crate) fn begin_generation(&mut self, now: Micros, out: &mut Vec<Command>) {
        self.adopt_generation(self.promised, out);
        self.recovery.need_none();
        self.persist_state(out);
        self.lead(now, &BTreeMap::new(), out);
    }

    /// Learns in which generation the group is. If our log is of an older one, or of none, it is
    /// replaced by the empty log of this generation.
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
            in_sync: ReplicaSet::of([generation.leader().unwrap_or(self.config.first_leader)]),
            members: Members::of(self.config.members),
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
            // Our guest, if any, lived the older generation.
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
