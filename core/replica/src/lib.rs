//! The brain of a replica: roles, in-sync set, failover; one `apply(event) -> actions`.
//!
//! ```text
//!                 recovered                 JoinStart                  first syncvm applied
//!  Recovering ───────────────▶ Witness ───────────────────▶ Joining ─────────────────────▶ Secondary
//!      │                        ▲   ▲                          │                             │  │
//!      │ first start            │   └── attempt failed ────────┘        out of the in-sync   │  │ won the
//!      │ of the group           │                                       set, or guest lost   │  │ election
//!      ▼                        ├────────────────────────────────────────────────────────────┘  │
//!    Leader ◀───────────────────┼───────────────────────────────────────────────────────────────┘
//!      │   ▲                    │
//!      ▼   │ won again          │ another leads
//!    Deposed ───────────────────┘         (or it stays in step, as that one's Secondary: `planned`)
//! ```
//!
//! * **Recovering**: the process has just started and has forgotten the log (viewstamped replication's
//!   recovery, in `apus`).
//! * **Witness**: votes and logs; runs no guest, so it may never lead. It may keep one that stands,
//!   with a warm copy of the secondary's pages (`secondary::warm`).
//! * **Joining**: receives a full copy while the leader's guest runs; counts for nothing yet.
//! * **Secondary**: runs the guest in step; or, under a policy whose secondary waits, has the last
//!   checkpoint in its memory. In the in-sync set, so it may stand for election.
//! * **Leader**: runs the guest and faces clients. *Solo* while the in-sync set is itself
//!   alone, *protected* once it has a secondary.
//! * **Deposed**: a leader that has lost its majority's trust and does not know yet who leads.
//!   Its guest runs on with outputs held, since it may win again; as soon as the log says that
//!   the in-sync set goes on without it, the guest is dropped and it becomes a witness.
//!
//! [`Replica`] is a `Context`, which every phase shares, and a `Phase` with the data that exists only in it.
//! A leader's handlers (`leader`) borrow the leader's data and the context, a secondary's (`secondary`) the
//! secondary's; only `failover`, `follow` and `copy::target` may change the phase. Work on pages is asked
//! for by an [`Action`] with a [`JobId`], which the answering [`Event`] carries. A [`Note`] is for people:
//! nothing rests on it.
//!
//! The rules that keep external consistency (PLOVER §4.6), each with the place that has it:
//!
//! 1. While there is a secondary, an output leaves only after the secondary has acknowledged
//!    the syncvm of its slot (`leader::sync`), or after its guest has itself sent the same since
//!    the last one (`leader::matching`); and only under a valid lease (`leader::outputs`).
//! 2. Solo, an output leaves only if its inputs are committed, where inputs are logged at all,
//!    and the lease is valid (`leader::outputs`, `leader::inputs`).
//! 3. The secondary stages a syncvm (or checkpoint) whole before it acknowledges, and once it holds all
//!    of it (the end mark), it applies it whatever happens (`follow`).
//! 4. Only a member of the in-sync set may lead, and a new leader commits an in-sync set of itself
//!    alone before it serves (`failover`); or of itself and a leader that has resigned in its favour, which is
//!    its secondary from then on (`planned`).
//! 5. Dirty bits that were cleared stay owed until both sides are known to be equal
//!    ([`plover_syncvm::Ledger`]).
//!
//! A group of one, the unreplicated baseline, boots its guest and serves:
//!
//! ```
//! use plover_replica::{Action, BootReason, Config, Event, Replica, Role};
//! use plover_types::{Micros, ReplicaId, ReplicaSet};
//!
//! let me = ReplicaId(0);
//! let config = Config::new(me, ReplicaSet::of([me]), 256);
//! let mut replica = Replica::new(config, apus::Start::Fresh, Micros(1));
//! let mut actions = Vec::new();
//! let mut now = Micros(1);
//! while !actions.iter().any(|a| matches!(a, Action::FaceClients(true))) {
//!     for action in std::mem::take(&mut actions) {
//!         let done = match action {
//!             Action::PersistState(state) => Event::StatePersisted(state),
//!             Action::StartGuest(BootReason::Boot) => Event::GuestStarted(Default::default()),
//!             _ => continue,
//!         };
//!         replica.apply(now, done, &mut actions);
//!     }
//!     let watch = replica.apply(now, Event::Tick, &mut actions);
//!     now = now.max(watch.deadline);
//! }
//! assert_eq!(replica.status().role, Role::Leader);
//! ```

#![forbid(unsafe_code)]

mod api;
mod areas;
mod bulk;
mod canary;
mod context;
mod copy;
mod failover;
mod follow;
#[doc(hidden)]
pub mod fuzz;
mod group;
mod guest;
mod hash_keys;
mod heir_streams;
mod hypervisor;
mod inputs;
mod jobs;
mod leader;
mod log_ops;
mod members;
pub mod newest;
mod outputs;
mod pace;
mod peers;
mod phase;
mod planned;
mod replica;
mod secondary;
mod status;
#[cfg(test)]
mod testing;
mod tuning;
mod uplink;

pub use api::{
    Action, BootReason, Config, ConsoleHold, Event, GuestRecord, NotTaken, Note, OperatorInput,
    OwnFault, Role, Ticket, Warm, Watch,
};
pub use areas::Area;
pub use canary::Canary;
pub use jobs::JobId;
pub use members::{Change, ChangeStep, GroupRecord, MemberOrder, MemberRefused, RecordPlace};
pub use planned::SwitchoverRefused;
pub use replica::Replica;
pub use status::{ReplicaStatus, RestStatus, WarmStatus};
pub use tuning::Tuning;
