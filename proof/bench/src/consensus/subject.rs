//! What all that is measured has in common.

use super::load::Spans;
use super::measured::Measured;
use super::plan::Load;
use anyhow::Result;

/// A system that runs and can be put under load. Dropping it ends all that belongs to it.
pub(crate) trait Subject {
    /// Puts it under one load.
    fn measure(&mut self, load: Load, spans: Spans) -> Result<Measured>;

    /// Whether it is kept for the next round instead of being started anew.
    fn outlives_the_round(&self) -> bool {
        false
    }
}
