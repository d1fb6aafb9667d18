//! The brain of a replica of an unmodified program: one `apply(event) -> actions` (APUS §§3-4).
//!
//! ```text
//!   clients ─► leader ─► log: Accept, Bytes, End, Close ─► committed ─┬─► the leader's program ─► replies to clients
//!                                                                     └─► the others' programs ─► hashes
//! ```
//!
//! Every program, the leader's included, is given an entry only when it is committed, over a connection on its
//! own host, and the next entry only when it has read the last one ([`feed`]). So a leader never executes
//! what the group may forget, and its replies need no lease: a reply is to something that no failure of a
//! minority can undo.
//!
//! That is [`Entrance::Fed`]. With the other two entrances a leader's program reads its clients itself, and what it
//! reads is proposed then ([`direct`]). A deposed leader may have executed what the group forgets.
//!
//! This crate does no I/O and reads no clock. `plover-run` carries out its actions on real programs, and the
//! simulator (`proof/programs`) on simulated ones.
//!
//! ```
//! use plover_program::{Action, Canary, Client, Config, Entrance, Entry, Event, LogState, Replica, Sessions, State};
//! use plover_types::{Index, Micros, ReplicaId, ReplicaSet, View, Viewstamp};
//!
//! let config = Config {
//!     me: ReplicaId(0),
//!     members: ReplicaSet::of([ReplicaId(0)]), // a group of one
//!     address: String::new(),
//!     check: None,
//!     checkpoints: false,
//!     checkpoint_bytes: u64::MAX,
//!     checkpoint_bytes_max: u64::MAX,
//!     room: u64::MAX,
//!     stall: Micros::from_ms(5000),
//!     checkpoint_within: Micros::from_ms(60_000),
//!     checkpoint_within_if_full: Micros::from_ms(60_000),
//!     entrance: Entrance::Fed,
//!     sessions: Sessions::Reconnect,
//!     restarts: false,
//!     canary: Canary::None,
//! };
//! let (now, mut out) = (Micros(1), Vec::new());
//! let mut replica = Replica::new(config, None);
//! let view = View::new(1, ReplicaId(0));
//! let at = |index| Viewstamp { view, index: Index(index) };
//! let log = |commit| LogState { leads: Some(view), commit: Index(commit), last: at(commit), ..LogState::default() };
//! replica.apply(now, Event::Log(log(0)), &mut out);
//! assert_eq!(out.pop(), Some(Action::Start(None)));
//! replica.apply(now, Event::Started(State::default()), &mut out);
//!
//! // It leads, cuts off clients of earlier leaders, and then accepts its own.
//! replica.apply(now, Event::Log(log(0)), &mut out);
//! assert!(out.contains(&Action::Propose(Entry::Cut(None).encode())));
//! replica.apply(now, Event::Log(log(3)), &mut out);
//! out.clear();
//! let client = Client { ip: [192, 0, 2, 7], port: 50_000 };
//! for (index, entry) in [(1, Entry::Cut(None)), (2, Entry::Accept(client))] {
//!     assert_eq!(replica.wants(), Some(Index(index)));
//!     replica.apply(now, Event::Entry(at(index), Some(&entry.encode())), &mut out);
//! }
//! let connection = plover_program::ConnectionId(at(2));
//! assert!(replica.accepts() && out.contains(&Action::Connect(connection, client)));
//! ```
//!
//! # The phases
//!
//! ```text
//!  start ─► LOOKING ─► FETCHING          a checkpoint of another replica
//!            ▲  ▲ │       │
//!            │  └─┼───────┘
//!            │    ▼
//!            │  RESTORING ── the program runs ──► FOLLOWING ◄──────► LEADING
//!            │    │                                 │    consensus      │
//!            │    ▼                                 ▼                   │
//!            └─ TAINTED ◄── it died, differs from a majority, or is ────┘
//!                           behind the log's beginning, or ahead of it
//! ```
//!
//! # The failures
//!
//! | what fails | what saves it |
//! |---|---|
//! | the leader | another replica is elected, which has executed the same entries; its first entry, a [`Entry::Cut`], closes the connections of the old one's clients at every program. They connect again |
//! | a client leaves, or its leader dies, while a request is under way | the program is told when it has answered ([`ends`]) |
//! | a program dies | its replica does not lead until it has started it again, from its checkpoint and the log behind it |
//! | a program stands still | its replica hands over, or does not stand for election |
//! | followers' programs fall behind the leader's | it waits for them ([`pace`]), so that clients of the next one need not |
//! | a program sends something else than the majority's | a leader steps down first; then it is restored |
//! | a leader is deposed whose program has executed what is not committed | it does not stand for election until the log shows its fate: committed, and it follows; lost, and it is restored |
//! | a program is too far behind, or its replica comes back | it starts from a checkpoint of another replica, if its own is older than the log ([`checkpoints`]) |

#![forbid(unsafe_code)]

mod api;
mod canary;
mod check;
pub(crate) mod checkpoints;
mod direct;
pub(crate) mod ends;
mod entry;
pub(crate) mod feed;
mod inputs;
mod lead;
pub(crate) mod pace;
mod phase;
mod progress;
mod replica;
pub(crate) mod session;
mod start;
mod status;

pub use api::{Action, Config, Difference, Entrance, Event, Excerpts, LogState, Note, Own, Taint};
pub use canary::Canary;
pub use entry::{Claim, Client, ConnectionId, Entry, Excerpt, Held, Progress};
pub use phase::Phase;
pub use replica::Replica;
pub use session::{Session, Sessions, State};
pub use status::Status;
