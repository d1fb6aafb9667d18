//! One load's figures, and how they are taken.
//!
//! The CPU time of an entry is that of *all* processes which had a part in it, clients included, divided
//! by the entries committed meanwhile. A system that is quick because it keeps two cores busy must not
//! look cheap.

use serde::{Deserialize, Serialize};
use std::io;
use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

/// The figures of one load in one round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measured {
    /// Entries whose latency counted: they were given and committed within the time.
    pub entries: u64,
    /// Entries a second: all that were committed within the time.
    pub entries_per_s: f64,
    /// Half of them took at most this long.
    pub p50_us: f64,
    /// 99 of 100 took at most this long.
    pub p99_us: f64,
    /// CPU time of all processes per entry. `None` if it could not be counted.
    pub cpu_us: Option<f64>,
    /// Requests of all replicas to the allocator per entry. `None` if they were not counted.
    pub allocations: Option<f64>,
    /// Entries that one sync of the leader's disk carried. `None` in memory.
    pub entries_per_sync: Option<f64>,
}

/// Latencies of one load as they come: first those of the warm-up, which do not count.
#[derive(Debug)]
pub(crate) struct Recorder {
    counts_from: Instant,
    until: Instant,
    /// All entries, also the warm-up's. The CPU time is divided by it.
    pub entries_in_all: u64,
    /// Those that were committed in the time that counts.
    committed: u64,
    nanos: Vec<u64>,
}

/// Room for this many latencies is made beforehand, so that recording never moves them.
const LATENCIES: usize = 1 << 21;

impl Recorder {
    pub fn new(warm_up: Duration, span: Duration) -> Self {
        // Not zeros: the kernel gives the pages of zeros only when they are written.
        let mut nanos = vec![u64::MAX; LATENCIES];
        nanos.clear();
        let counts_from = Instant::now() + warm_up;
        Self {
            counts_from,
            until: counts_from + span,
            entries_in_all: 0,
            committed: 0,
            nanos,
        }
    }

    /// Whether the load is over at `now`.
    pub fn is_over(&self, now: Instant) -> bool {
        now >= self.until
    }

    /// An entry that was given at `start` is committed at `now`. The rate counts all that are committed within the time:
    /// for each last one that is too late, one of the warm-up is not. Latencies count of those that began in it, too.
    pub fn record(&mut self, start: Instant, now: Instant) {
        self.entries_in_all += 1;
        self.committed += u64::from(now >= self.counts_from && now <= self.until);
        if start >= self.counts_from && now <= self.until {
            self.nanos.push((now - start).as_nanos() as u64);
        }
    }

    /// The figures, without CPU time.
    pub fn finish(self) -> Measured {
        let span = self.until - self.counts_from;
        Measured {
            entries_per_s: self.committed as f64 / span.as_secs_f64(),
            ..of_latencies(self.nanos)
        }
    }
}

/// The figures of latencies in nanoseconds.
fn of_latencies(mut nanos: Vec<u64>) -> Measured {
    nanos.sort_unstable();
    let at = |per_mille: usize| {
        // The first that so many of them, rounded up, do not exceed.
        let count = (nanos.len() * per_mille).div_ceil(1000);
        nanos
            .get(count.saturating_sub(1))
            .map_or(f64::NAN, |&nanos| nanos as f64 / 1e3)
    };
    Measured {
        entries: nanos.len() as u64,
        entries_per_s: 0.0,
        p50_us: at(500),
        p99_us: at(990),
        cpu_us: None,
        allocations: None,
        entries_per_sync: None,
    }
}

/// The CPU time that this process and some others use from here on.
#[derive(Debug)]
pub(crate) struct CpuMeter {
    others: Vec<u32>,
    before: Duration,
}

impl CpuMeter {
    /// Starts to count; `others` are the process ids beside our own.
    pub fn start(others: Vec<u32>) -> io::Result<Self> {
        let before = used(&others)?;
        Ok(Self { others, before })
    }

    /// Microseconds per entry since the start.
    pub fn per_entry(&self, entries: u64) -> io::Result<f64> {
        let used = used(&self.others)?.saturating_sub(self.before);
        Ok(used.as_secs_f64() * 1e6 / entries as f64)
    }
}

fn used(others: &[u32]) -> io::Result<Duration> {
    let mut sum = cpu_time(libc::CLOCK_PROCESS_CPUTIME_ID)?;
    for &pid in others {
        let mut clock = 0;
        // SAFETY: `clock` is a valid place for the clock's id.
        let error = unsafe { libc::clock_getcpuclockid(pid as libc::pid_t, &mut clock) };
        if error != 0 {
            return Err(io::Error::from_raw_os_error(error));
        }
        sum += cpu_time(clock)?;
    }
    Ok(sum)
}

/// The CPU time of all threads of a process, also of those that have ended. Exact to the nanosecond,
/// while `/proc/PID/stat` counts ticks of 10 ms.
fn cpu_time(clock: libc::clockid_t) -> io::Result<Duration> {
    let mut time = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: `time` is a valid place for one timespec.
    if unsafe { libc::clock_gettime(clock, time.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so it has filled the structure.
    let time = unsafe { time.assume_init() };
    Ok(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_of_known_latencies() {
        let of = |count: u64| of_latencies((1..=count).map(|n| n * 1000).collect());
        for (count, p50_us, p99_us) in [
            (1, 1.0, 1.0),
            (2, 1.0, 2.0),
            (10, 5.0, 10.0),
            (100, 50.0, 99.0),
            (1001, 501.0, 991.0),
        ] {
            let measured = of(count);
            assert_eq!((measured.p50_us, measured.p99_us), (p50_us, p99_us));
            assert_eq!(measured.entries, count);
        }
        assert!(of(0).p50_us.is_nan());
    }

    #[test]
    fn the_warm_up_does_not_count() {
        let mut recorder = Recorder::new(Duration::from_secs(1), Duration::from_secs(1));
        let start = recorder.counts_from;
        let before = start - Duration::from_millis(1);
        recorder.record(before, before);
        recorder.record(before, start);
        recorder.record(start, start + Duration::from_millis(1));
        recorder.record(start, start + Duration::from_secs(2));
        assert_eq!(recorder.entries_in_all, 4);
        let measured = recorder.finish();
        assert_eq!((measured.entries, measured.p50_us), (1, 1000.0));
        // The one of the warm-up that ends in the time counts, and the one that ends after it does not.
        assert_eq!(measured.entries_per_s, 2.0);
    }

    #[test]
    fn another_process_is_counted() {
        let mut busy = std::process::Command::new("sh")
            .args(["-c", "while :; do :; done"])
            .spawn()
            .unwrap();
        let meter = CpuMeter::start(vec![busy.id()]).unwrap();
        let alone = CpuMeter::start(Vec::new()).unwrap();
        while meter.per_entry(1).unwrap() < 10_000.0 {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(alone.per_entry(1).unwrap() < meter.per_entry(1).unwrap());
        busy.kill().unwrap();
        busy.wait().unwrap();
    }
}
