//! The messages of the state machine, test by test, in one program: each file of its own would be linked on its own.

mod group;

mod crafted;
mod death;
mod elections;
mod members;
mod normal;
mod pair;
mod quorum_selection;
mod recovery;
mod resign;
mod silence;
mod version;
