//! The interface of all systems that are measured.

use super::load::Spans;
use super::measured::Measured;
use super::plan::Load;
use anyhow::Result;

/// A running system that can be put under load. Dropping it ends all its processes.
pub(crate) trait Subject {
    /// Puts it under one load.
    fn measure(&mut self, load: Load, spans: Spans) -> Result<Measured>;

    /// Whether it is kept for the next round instead of being started anew.
    fn outlives_the_round(&self) -> bool {
        false
    }
}
