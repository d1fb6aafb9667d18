//! `plover check --guest`: one small guest, twice on this host, and the two made equal again and again while both write.
//!
//! A protected guest relies on four things of its host, and each is tried here: every page that the guest writes is seen,
//! its devices' state can be loaded by another QEMU, that one goes on when the first is gone, and its network card answers.

use super::{Report, Verdict, accelerator};
use crate::output;
use anyhow::{Result, ensure};
use plover_node::ReplicaConfig;
use plover_types::{Frame, Mac};
use plover_vm::trial::{self, TrialError, TrialGuest};
use plover_vm::{Accel, Boot, Machine, QemuConfig, VmCommand};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Where the package puts the guest's image (`[package.metadata.deb]` in Cargo.toml).
pub const IMAGE: &str = "/usr/share/plover/metal";

const MAC: Mac = Mac([0x52, 0x54, 0, 0, 0, 0x64]);
const ADDRESS: [u8; 4] = [10, 77, 0, 100];
const ASKER: [u8; 4] = [10, 77, 0, 1];
const ASKER_MAC: Mac = Mac([0x52, 0x54, 0, 0, 0, 1]);

/// guests/README.md: 10,000 pages a second of these 1,000, with words that differ on the two sides.
const CMDLINE: &str = "plover.ip=10.77.0.100/24 plover.writer=10000,1000,clock";
/// All of it is compared after each sync.
const MEM_MIB: u32 = 64;
/// How long the two run between syncs: some 200 pages.
const RUN: Duration = Duration::from_millis(20);
/// How often progress is told.
const TELL_EVERY: Duration = Duration::from_secs(5);

/// Tries the guest with the image `image`, with `syncs` syncs, by the QEMU, accelerator and processor of the configuration
/// `config`. Prints a table, and fails if this host is not fit.
///
/// # Errors
/// There is no such image, or the configuration cannot be read.
pub fn guest(image: &Path, config: Option<&Path>, syncs: u32) -> Result<ExitCode> {
    ensure!(
        image.is_file(),
        "there is no guest {}: install the package plover, or build it in the source tree ('./x guests metal') and name \
         it: plover check --guest .cache/guests/metal/kernel",
        image.display()
    );
    ensure!(syncs > 0, "--syncs 0 would try nothing: name at least 1");
    let qemu = configured(image, config)?;
    let mut report = Report::of(
        "two guests were kept equal here",
        "guests cannot be kept equal here",
    );
    match plover_vm::check_host(&qemu) {
        Ok(()) => {
            accelerator(&mut report, &qemu);
            if let Err(error) = try_guest(&qemu, syncs, &mut report) {
                report.add("guest", Verdict::Missing, error.to_string());
            }
        }
        Err(error) => report.add("kernel and QEMU", Verdict::Missing, error.to_string()),
    }
    output::print(&report)?;
    Ok(report.exit_code())
}

fn configured(image: &Path, config: Option<&Path>) -> Result<QemuConfig> {
    let boot = Boot::Kernel {
        kernel: image.to_owned(),
        initrd: None,
        cmdline: CMDLINE.into(),
    };
    let mut qemu = QemuConfig::new(boot, MAC);
    qemu.machine = Machine::Microvm;
    qemu.mem_mib = MEM_MIB;
    qemu.name = "check".into();
    if let Some(file) = config {
        let wanted = ReplicaConfig::load(file)?.qemu();
        qemu.qemu = wanted.qemu;
        qemu.accel = wanted.accel;
        qemu.identity.cpu = wanted.identity.cpu;
        qemu.identity.cpu_features = wanted.identity.cpu_features;
    }
    Ok(qemu)
}

fn try_guest(qemu: &QemuConfig, syncs: u32, report: &mut Report) -> Result<(), TrialError> {
    let begun = Instant::now();
    let mut first = TrialGuest::start(qemu.clone(), None)?;
    first.order(VmCommand::Resume)?;
    first.wait_console("plover-guest: ready")?;
    let found = format!(
        "ready {} ms after QEMU was started",
        millis(begun.elapsed())
    );
    report.add("start", Verdict::Good, found);

    let mut second = TrialGuest::start(qemu.clone(), None)?;
    second.order(VmCommand::Resume)?;
    let mut figures = Figures::default();
    let mut told = Instant::now();
    // The first has all that was written since the start, and counts for nothing.
    for number in 0..=syncs {
        first.run_for(RUN)?;
        second.collect(Duration::ZERO)?;
        let paused = Instant::now();
        let synced = trial::sync(&mut first, &mut second, number == 0)?;
        if number > 0 {
            figures.stops.push(paused.elapsed());
            figures.written += u64::from(synced.dirty_a);
            figures.copied += u64::from(synced.divergent);
        }
        let differing = trial::differing(&first, &second);
        if !differing.is_empty() {
            let remedy = match first.vm.accel() {
                Accel::Kvm => "set guest.accel = \"tcg\" on this host's guests",
                _ => "do not run replicas here",
            };
            let found = format!(
                "after sync {number} of {syncs} these pages differ, or were written by the load of the devices' state: {:?}; \
                 {remedy}, and report it with the versions of kernel and QEMU",
                differing.to_runs()
            );
            report.add("equal memory", Verdict::Missing, found);
            return Ok(());
        }
        first.order(VmCommand::Resume)?;
        second.order(VmCommand::Resume)?;
        if told.elapsed() >= TELL_EVERY {
            told = Instant::now();
            tell!("plover: {number} of {syncs} syncs, all memory equal after each");
        }
    }
    figures.report(report);

    first.vm.kill();
    let killed = Instant::now();
    second.sent.clear();
    second.vm.feed(&[question()]);
    while !second.sent.iter().any(is_answer) {
        if killed.elapsed() > trial::PATIENCE {
            let found = "the second guest's network card sends no answer once the first is gone";
            report.add("takeover", Verdict::Missing, found);
            return Ok(());
        }
        second.collect(Duration::from_millis(100))?;
    }
    let found = format!(
        "the second guest answered {} ms after the first was gone",
        millis(killed.elapsed())
    );
    report.add("takeover", Verdict::Good, found);
    Ok(())
}

/// All syncs together.
#[derive(Default)]
struct Figures {
    /// How long each took, from the order to stop until both could go on.
    stops: Vec<Duration>,
    /// Pages that the first guest was seen to write.
    written: u64,
    /// Pages that were copied.
    copied: u64,
}

impl Figures {
    fn report(mut self, report: &mut Report) {
        let count = self.stops.len() as u64;
        let (written, copied) = (self.written / count, self.copied / count);
        if written == 0 {
            let found = "the guest writes all the time, and no page was seen to be written";
            return report.add("equal memory", Verdict::Missing, found);
        }
        let found = format!("after each of {count} syncs");
        report.add("equal memory", Verdict::Good, found);
        self.stops.sort_unstable();
        let at = |percent: usize| millis(self.stops[(self.stops.len() - 1) * percent / 100]);
        let found = format!(
            "{} ms at p50, {} ms at p99, with {written} pages written and {copied} copied at the mean, both guests on this host",
            at(50),
            at(99)
        );
        report.add("sync", Verdict::Good, found);
    }
}

fn millis(time: Duration) -> String {
    format!("{:.1}", time.as_secs_f64() * 1000.0)
}

const ARP: [u8; 2] = [8, 6];
const REQUEST: u8 = 1;
const REPLY: u8 = 2;

/// Asks who has the guest's address (ARP).
fn question() -> Frame {
    let mut frame = vec![0xff; 6];
    frame.extend(ASKER_MAC.0);
    frame.extend(ARP);
    frame.extend([0, 1, 8, 0, 6, 4, 0, REQUEST]);
    frame.extend(ASKER_MAC.0);
    frame.extend(ASKER);
    frame.extend([0; 6]);
    frame.extend(ADDRESS);
    frame.resize(60, 0);
    Frame(frame)
}

fn is_answer(frame: &Frame) -> bool {
    frame.0.get(12..14) == Some(&ARP) && frame.0.get(21) == Some(&REPLY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_of_all_syncs() {
        let mut report = Report::default();
        let figures = Figures {
            stops: (1..=200).rev().map(Duration::from_millis).collect(),
            written: 40_000,
            copied: 20_100,
        };
        figures.report(&mut report);
        let text = report.to_string();
        assert!(
            text.contains(
                "100.0 ms at p50, 198.0 ms at p99, with 200 pages written and 100 copied"
            ),
            "{text}"
        );
    }

    #[test]
    fn a_load_that_nobody_sees_is_a_failure() {
        let mut report = Report::default();
        let stops = vec![Duration::from_millis(1)];
        Figures {
            stops,
            ..Figures::default()
        }
        .report(&mut report);
        assert_eq!(report.count(Verdict::Missing), 1);
    }

    #[test]
    fn an_answer_is_told_from_a_question() {
        assert!(!is_answer(&question()));
        let mut answer = question();
        answer.0[21] = REPLY;
        assert!(is_answer(&answer));
    }
}
