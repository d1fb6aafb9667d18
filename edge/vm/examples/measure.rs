//! What driving a guest costs, in one run: each phase of a sync, what a reset and a load write,
//! how a guest answers after a load, and hashing.
//!
//! ```text
//! cargo run --release -p plover-vm --example measure -- [microvm|q35|pc] [rounds]
//! ```

#[path = "../tests/common/mod.rs"]
mod common;

use common::{Guest, linux, ping, pong};
use plover_types::{PAGE_BYTES, PageNo, PageSet};
use plover_vm::{Machine, VmCommand};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Times by name.
#[derive(Default)]
struct Times(BTreeMap<&'static str, Vec<Duration>>);

impl Times {
    fn time<T>(&mut self, name: &'static str, work: impl FnOnce() -> T) -> T {
        let begin = Instant::now();
        let result = work();
        self.0.entry(name).or_default().push(begin.elapsed());
        result
    }

    fn print(&mut self) {
        println!("{:<28}{:>10}{:>10}{:>10}   (µs)", "", "p10", "p50", "p90");
        for (name, times) in &mut self.0 {
            times.sort();
            let at = |part: usize| times[(times.len() - 1) * part / 100].as_micros();
            println!("{name:<28}{:>10}{:>10}{:>10}", at(10), at(50), at(90));
        }
    }
}

fn main() {
    let mut words = std::env::args().skip(1);
    let machine = match words.next().as_deref() {
        None | Some("microvm") => Machine::Microvm,
        Some("q35") => Machine::Q35,
        Some("pc") => Machine::Pc,
        Some(other) => panic!("no machine '{other}'"),
    };
    let rounds: u16 = words
        .next()
        .map_or(100, |word| word.parse().expect("a number of rounds"));
    let mut guest = Guest::boot(linux(machine, 1));
    guest.wait_ping(1);
    println!(
        "{machine}, 1 vCPU, 256 MiB, {}; {rounds} rounds",
        guest.vm.accel()
    );

    let mut times = Times::default();
    let pages = guest.vm.layout().pages();
    let (mut by_reset, mut by_load, mut dirty) = (Vec::new(), Vec::new(), Vec::new());
    let mut state_bytes = 0;
    for round in 0..rounds {
        // Load on the network at the moment of the pause.
        guest.introduce();
        for n in 0..20 {
            guest.vm.feed(&ping(n, 1000));
        }
        guest.run_for(Duration::from_micros(u64::from(round % 20) * 500));
        times.time("1 pause", || guest.order(VmCommand::Pause));
        let state = times.time("2 save", || guest.save());
        state_bytes = state.len();
        let mut set = PageSet::new(pages);
        times.time("3 scan", || guest.vm.scan_dirty(&mut set).unwrap());
        dirty.push(set.len());
        times.time("4 reset", || guest.order(VmCommand::Reset));
        let mut set = PageSet::new(pages);
        guest.vm.scan_dirty(&mut set).unwrap();
        by_reset.push(set.iter().map(|p| p.0).collect::<Vec<_>>());
        times.time("5 load", || guest.order(VmCommand::LoadState(state)));
        let mut set = PageSet::new(pages);
        guest.vm.scan_dirty(&mut set).unwrap();
        by_load.push(set.len());
        times.time("6 resume", || guest.order(VmCommand::Resume));
    }
    times.print();
    dirty.sort_unstable();
    println!(
        "state {state_bytes} bytes; dirty pages p50 {}",
        dirty[dirty.len() / 2]
    );
    let resets = by_reset.iter().filter(|pages| !pages.is_empty()).count();
    by_reset.sort();
    by_reset.dedup();
    println!("resets that wrote guest RAM: {resets} of {rounds}; which pages: {by_reset:?}");
    println!(
        "loads that wrote guest RAM: {}",
        by_load.iter().filter(|n| **n > 0).count()
    );

    // The guest may be far behind: let it work off what it was fed.
    guest.wait_ping(60_000);
    answers(&mut guest, rounds);
    hashing(&guest);
}

/// How soon pings are answered after a resume, without and with a load before it.
fn answers(guest: &mut Guest, rounds: u16) {
    let mut times = Times::default();
    const NAMES: [[&str; 5]; 2] = [
        [
            "resume, ping 1",
            "resume, ping 2",
            "resume, ping 3",
            "resume, ping 10",
            "resume, ping 30",
        ],
        [
            "load+resume, ping 1",
            "load+resume, ping 2",
            "load+resume, ping 3",
            "load+resume, ping 10",
            "load+resume, ping 30",
        ],
    ];
    let mut cpu = [Duration::ZERO; 2];
    for round in 0..rounds * 2 {
        let load = usize::from(round % 2);
        guest.introduce();
        guest.run_for(Duration::from_millis(10));
        guest.order(VmCommand::Pause);
        if load == 1 {
            let state = guest.save();
            guest.order(VmCommand::Reset);
            guest.order(VmCommand::LoadState(state));
        }
        times.time(
            ["resume after a pause", "resume after a load"][load],
            || guest.order(VmCommand::Resume),
        );
        let before = guest.vm.cpu_time();
        for n in 1..=30u16 {
            guest.sent.clear();
            let begin = Instant::now();
            assert!(guest.vm.feed(&ping(n, 56)));
            while !guest.sent.iter().any(|frame| pong(frame) == Some(n)) {
                assert!(begin.elapsed() < Duration::from_secs(10), "a ping was lost");
                guest.collect(Duration::from_secs(1));
            }
            if let Some(at) = [1, 2, 3, 10, 30].iter().position(|which| *which == n) {
                times
                    .0
                    .entry(NAMES[load][at])
                    .or_default()
                    .push(begin.elapsed());
            }
        }
        cpu[load] += guest.vm.cpu_time() - before;
    }
    times.print();
    let [plain, loaded] = cpu.map(|time| (time / u32::from(rounds)).as_micros());
    println!("vCPU time of 30 pings: {plain} µs after a resume, {loaded} µs after a load");
}

fn hashing(guest: &Guest) {
    let all: Vec<PageNo> = (0..guest.vm.layout().pages()).map(PageNo).collect();
    let mut page = [0; PAGE_BYTES];
    all.iter().for_each(|at| guest.vm.read_page(*at, &mut page));
    for count in [1, 64, 65, 200, 1000, 8000, all.len()] {
        let mut best = Duration::MAX;
        for _ in 0..20 {
            let mut digests = Vec::with_capacity(count);
            let begin = Instant::now();
            guest.vm.hash_pages(&[7; 32], &all[..count], &mut digests);
            best = best.min(begin.elapsed());
        }
        let each = best.as_secs_f64() * 1e6 / count as f64;
        println!(
            "hashing {count:>6} pages: {:>9.1} µs, {each:.3} µs a page",
            best.as_secs_f64() * 1e6
        );
    }
}
