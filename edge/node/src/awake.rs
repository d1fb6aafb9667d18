//! CPUs that do not fall asleep while their guest is at work.
//!
//! A CPU with nothing to do sleeps: in a virtual machine it is given back to the host, otherwise it
//! powers parts of itself down. Waking it takes 50 µs and more, and whoever ran there meanwhile has
//! filled its caches. A protected guest that serves clients stops several hundred times a second for
//! a millisecond or two, so that it meets both at every slot (docs/decisions/0026). A thread of the
//! idle class spins on each CPU instead: it runs only when nothing else wants to, any other thread
//! takes its place at once, and it sleeps itself once the guest has been left alone for a while.

use crate::clock;
use crate::host::keep_thread_on;
use plover_types::Micros;
use rustix::process::Pid;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

/// How often a spinner looks at the clock: some microseconds.
const SPINS_BETWEEN_LOOKS: u32 = 256;

/// [`Keeper::until`] of one that sleeps until it is woken.
const ASLEEP: u64 = 0;
/// Of one that is to end.
const ENDED: u64 = u64::MAX;

/// Keeps CPUs awake for some time after each [`Awake::touch`].
pub(crate) struct Awake {
    span: Micros,
    /// By CPU.
    keepers: BTreeMap<usize, Keeper>,
    /// Those that are to be kept awake at present.
    cpus: Vec<usize>,
}

struct Keeper {
    /// Until when it spins, on the node's clock; or a word of its own.
    until: Arc<AtomicU64>,
    thread: JoinHandle<()>,
    id: Pid,
}

impl Awake {
    /// Keeps nothing awake yet; `span` is how long a touch lasts, `cpus` are those that may be named later.
    ///
    /// # Errors
    /// No thread could be started, or not in the idle class.
    pub fn new(span: Micros, cpus: impl Iterator<Item = usize>) -> io::Result<Self> {
        let mut awake = Self {
            span,
            keepers: BTreeMap::new(),
            cpus: Vec::new(),
        };
        for cpu in cpus {
            if let Entry::Vacant(place) = awake.keepers.entry(cpu) {
                place.insert(Keeper::start(cpu)?);
            }
        }
        Ok(awake)
    }

    /// From now on these CPUs. Spinners that were moved with this process's other threads are put back in
    /// their places.
    pub fn keep(&mut self, cpus: impl Iterator<Item = usize>) {
        self.cpus = cpus.collect();
        self.cpus.sort_unstable();
        self.cpus.dedup();
        for (cpu, keeper) in &self.keepers {
            keep_thread_on(Some(keeper.id), &[*cpu]);
        }
    }

    /// The guest has been given something to do, or has sent something.
    pub fn touch(&self, now: Micros) {
        for keeper in self.cpus.iter().filter_map(|cpu| self.keepers.get(cpu)) {
            if keeper.until.swap((now + self.span).0, Ordering::Relaxed) == ASLEEP {
                keeper.thread.thread().unpark();
            }
        }
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        for keeper in std::mem::take(&mut self.keepers).into_values() {
            keeper.until.store(ENDED, Ordering::Relaxed);
            keeper.thread.thread().unpark();
            let _ = keeper.thread.join();
        }
    }
}

impl Keeper {
    fn start(cpu: usize) -> io::Result<Self> {
        let until = Arc::new(AtomicU64::new(ASLEEP));
        let (started, id) = std::sync::mpsc::sync_channel(1);
        let theirs = Arc::clone(&until);
        let thread = std::thread::Builder::new()
            .name(format!("{THREAD_NAME}-{cpu}"))
            .stack_size(64 << 10)
            .spawn(move || {
                let done = only_when_idle().map(|()| rustix::thread::gettid());
                let may_spin = done.is_ok();
                let _ = started.send(done);
                if may_spin {
                    spin(&theirs);
                }
            })?;
        let id = id.recv().map_err(io::Error::other)??;
        Ok(Self { until, thread, id })
    }
}

/// How the spinners' names begin: their time is nobody's work.
pub const THREAD_NAME: &str = "awake";

/// Spins until the time given, then sleeps until there is another.
fn spin(until: &AtomicU64) {
    loop {
        match until.load(Ordering::Relaxed) {
            ENDED => return,
            ASLEEP => std::thread::park(),
            time if clock::now().0 < time => {
                for _ in 0..SPINS_BETWEEN_LOOKS {
                    std::hint::spin_loop();
                }
            }
            // Who gives another time meanwhile sees that nobody sleeps yet, and this sees that time.
            passed => {
                let _ =
                    until.compare_exchange(passed, ASLEEP, Ordering::Relaxed, Ordering::Relaxed);
            }
        }
    }
}

/// Puts the calling thread, and those that it starts, into the idle class of the scheduler: beside other
/// threads of its control group (with the kernel's autogroups: of its session) it runs only on a CPU
/// that would otherwise sleep.
///
/// # Errors
/// What the kernel says against it.
pub fn only_when_idle() -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the parameters are read during the call, and 0 means the calling thread.
    let done = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters) };
    if done == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::usable_cpus;
    use std::time::{Duration, Instant};

    fn scheduler_of(id: Pid) -> i32 {
        // SAFETY: takes its argument by value.
        unsafe { libc::sched_getscheduler(id.as_raw_nonzero().get()) }
    }

    fn ran_ns(id: Pid) -> u64 {
        let path = format!("/proc/self/task/{}/schedstat", id.as_raw_nonzero());
        let text = std::fs::read_to_string(path).unwrap();
        text.split(' ').next().unwrap().parse().unwrap()
    }

    /// Waits until `done`, and gives up long after it must have come.
    fn await_that(what: &str, done: impl Fn() -> bool) {
        let began = Instant::now();
        while !done() {
            assert!(began.elapsed() < Duration::from_secs(20), "{what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_spinner_spins_in_the_idle_class_while_touched_and_then_sleeps() {
        let cpu = *usable_cpus().unwrap().last().unwrap();
        let mut awake = Awake::new(Micros(20_000), [cpu, cpu].into_iter()).unwrap();
        awake.keep([cpu, cpu].into_iter());
        assert_eq!(awake.keepers.len(), 1);
        let id = awake.keepers[&cpu].id;
        assert_eq!(scheduler_of(id), libc::SCHED_IDLE);
        let sleeps = || {
            let path = format!("/proc/self/task/{}/stat", id.as_raw_nonzero());
            let stat = std::fs::read_to_string(path).unwrap();
            stat.rsplit(") ").next().unwrap().starts_with('S')
        };
        await_that("asleep before the first touch", sleeps);
        for _ in 0..2 {
            let before = ran_ns(id);
            await_that("spins when touched", || {
                awake.touch(clock::now());
                ran_ns(id) > before + 1_000_000
            });
            await_that("sleeps when left alone", sleeps);
        }
    }

    #[test]
    fn a_cpu_that_is_no_longer_wanted_is_left_to_sleep() {
        let cpus = usable_cpus().unwrap();
        let mut awake = Awake::new(Micros(1 << 40), cpus.iter().copied()).unwrap();
        awake.keep(cpus.iter().copied());
        awake.keep(cpus[..1].iter().copied());
        awake.touch(clock::now());
        let spins = |cpu: &usize| awake.keepers[cpu].until.load(Ordering::Relaxed) != ASLEEP;
        assert_eq!(cpus.iter().filter(|cpu| spins(cpu)).count(), 1);
        assert!(spins(&cpus[0]));
    }
}
