//! The network between the rings: it loses, doubles, delays and reorders records, links are cut
//! in one direction or both, and a ring whose owner does not read has no room in the end.
//!
//! The fabric promises better (order within a link, no doubles); consensus must not need it.

use plover_sim::rng::Rng;
use plover_types::Micros;

/// How hostile the network is, in thousandths.
#[derive(Clone, Copy, Debug, Default)]
pub struct Weather {
    /// Records that vanish.
    pub lost: u64,
    /// Records that come twice.
    pub doubled: u64,
    /// Records that come up to half a second late.
    pub late: u64,
}

/// What the network does to a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It arrives, so much later.
    Arrives(Micros),
    /// It arrives twice.
    Doubled(Micros, Micros),
    /// It is lost on the way.
    Lost,
    /// The way is cut.
    Cut,
    /// The ring has no room for it.
    RingFull,
}

/// One direction between two hosts.
#[derive(Clone, Copy, Debug, Default)]
struct Way {
    cut: bool,
    /// Records take so much longer.
    slowness: u64,
    /// Written and not read yet, bytes.
    in_ring: usize,
}

/// All ways.
#[derive(Debug)]
pub struct Net {
    size: usize,
    ways: Vec<Way>,
    weather: Weather,
    ring_bytes: usize,
    chance: Rng,
}

impl Net {
    /// A network between `size` hosts whose rings hold `ring_bytes` each.
    pub fn new(size: usize, weather: Weather, ring_bytes: usize, chance: Rng) -> Self {
        Self {
            size,
            ways: vec![Way::default(); size * size],
            weather,
            ring_bytes,
            chance,
        }
    }

    fn way(&mut self, from: usize, to: usize) -> &mut Way {
        &mut self.ways[from * self.size + to]
    }

    /// A record of `bytes` is written.
    pub fn send(&mut self, from: usize, to: usize, bytes: usize) -> Fate {
        let Weather {
            lost,
            doubled,
            late,
        } = self.weather;
        let ring_bytes = self.ring_bytes;
        let way = self.way(from, to);
        if way.cut {
            return Fate::Cut;
        }
        if way.in_ring + bytes > ring_bytes {
            return Fate::RingFull;
        }
        let slowness = way.slowness.max(1);
        if self.chance.often(lost) {
            return Fate::Lost;
        }
        let first = self.delay(late, slowness);
        let twice = self.chance.often(doubled);
        let way = self.way(from, to);
        way.in_ring += bytes;
        if !twice {
            return Fate::Arrives(first);
        }
        way.in_ring += bytes;
        Fate::Doubled(first, self.delay(late, slowness))
    }

    fn delay(&mut self, late: u64, slowness: u64) -> Micros {
        if self.chance.often(late) {
            return self.chance.micros((2000, 500_000));
        }
        Micros(self.chance.range(40, 1500) * slowness)
    }

    /// The owner has read a record of `bytes`.
    pub fn read(&mut self, from: usize, to: usize, bytes: usize) {
        let way = self.way(from, to);
        way.in_ring = way.in_ring.saturating_sub(bytes);
    }

    /// Nothing passes from `from` to `to` any more; what is under way still arrives.
    pub fn cut(&mut self, from: usize, to: usize) {
        self.way(from, to).cut = true;
    }

    /// Records pass from `from` to `to` again. Returns whether the way was cut.
    pub fn mend(&mut self, from: usize, to: usize) -> bool {
        std::mem::take(&mut self.way(from, to).cut)
    }

    /// Whether nothing passes.
    pub fn is_cut(&mut self, from: usize, to: usize) -> bool {
        self.way(from, to).cut
    }

    /// Makes records on this way take so much longer.
    pub fn slow(&mut self, from: usize, to: usize, slowness: u64) {
        self.way(from, to).slowness = slowness;
    }

    /// Fine weather from now on. Cuts stay.
    pub fn calm(&mut self) {
        self.weather = Weather::default();
        self.ring_bytes = usize::MAX;
        for way in &mut self.ways {
            way.slowness = 1;
        }
    }
}
