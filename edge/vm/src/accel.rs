//! Choosing what runs the guest's instructions.
//!
//! A `/dev/kvm` that opens may still be useless: KVM inside some virtual machines is itself emulated, and
//! a Linux guest hangs in its first milliseconds or crawls. So `auto` runs a probe: the configured QEMU,
//! with KVM, on a 64 KiB firmware that does what a kernel does first and then a fixed amount of work
//! (`probe/probe.S`). It must finish within a second. A processor needs about a tenth of that, QEMU's
//! own start included.

use crate::qemu::process::{Process, binary, files};
use crate::{Accel, QemuConfig, VmError};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::time::Timespec;
use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// The probe's firmware.
const PROBE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/probe.bin"));

/// How QEMU exits when the probe is done: isa-debug-exit makes `2 * value + 1` of its 0x2a.
const PROBE_EXIT: &str = "exit status: 85";

/// Seven times what the probe takes under QEMU's own translator on a slow machine.
const PROBE_DEADLINE: Duration = Duration::from_secs(1);

/// The accelerator and how it was chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccelChoice {
    /// Never [`Accel::Auto`].
    pub accel: Accel,
    /// One sentence for people.
    pub reason: String,
}

/// Resolves [`Accel::Auto`]. The choice for a QEMU binary and machine is remembered as long as the process
/// lives.
pub fn choose_accel(config: &QemuConfig) -> AccelChoice {
    static CHOSEN: Mutex<Option<(PathBuf, crate::Machine, AccelChoice)>> = Mutex::new(None);
    if config.accel != Accel::Auto {
        return AccelChoice {
            accel: config.accel,
            reason: "as configured".into(),
        };
    }
    let mut chosen = CHOSEN
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some((path, machine, choice)) = &*chosen {
        if *path == binary(config) && *machine == config.machine {
            return choice.clone();
        }
    }
    let (accel, reason) = match open_kvm().and_then(|()| run_probe(config, "kvm")) {
        Ok(took) => (
            Accel::Kvm,
            format!("KVM passed its probe in {} ms", took.as_millis()),
        ),
        Err(why) => (Accel::Tcg, format!("no usable KVM: {why}")),
    };
    tracing::info!(event = "accelerator_chosen", %accel, "the accelerator is {accel}: {reason}");
    let choice = AccelChoice { accel, reason };
    *chosen = Some((binary(config), config.machine, choice.clone()));
    choice
}

/// Checks that this user can open `/dev/kvm`.
pub(crate) fn open_kvm() -> Result<(), String> {
    File::options()
        .read(true)
        .write(true)
        .open("/dev/kvm")
        .map(drop)
        .map_err(|error| format!("/dev/kvm: {error}"))
}

/// A processor without the two features by which the host's kernel writes into the guest's memory when it
/// pleases. Stolen time differs on the two hosts, and a guest's scheduler reads it: the guests would diverge
/// in every slot. A page fault that KVM lets the guest wait for has no end on the host that takes over.
const QUIET: &str = "kvm-steal-time=off,kvm-asyncpf=off,kvm-asyncpf-int=off";

/// The value of `-cpu` under KVM for the host's processor, without steal time and asynchronous page faults.
pub fn host_cpu() -> String {
    kvm_cpu("host")
}

/// The same for the processor `model`. Newer kernels offer guests on AMD processors a
/// register that only Intel's have (IA32_ARCH_CAPABILITIES), and then refuse what QEMU writes into it,
/// which ends QEMU 7.2 at the start ("failed to set MSR 0x10a"). A guest there does not need it.
pub(crate) fn kvm_cpu(model: &str) -> String {
    let processors = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    cpu_of(model, &processors)
}

fn cpu_of(model: &str, processors: &str) -> String {
    let mut vendors = processors
        .lines()
        .filter(|line| line.starts_with("vendor_id"));
    let intel = vendors
        .next()
        .is_none_or(|line| line.ends_with("GenuineIntel"));
    if intel {
        format!("{model},{QUIET}")
    } else {
        format!("{model},{QUIET},arch-capabilities=off")
    }
}

/// Runs the probe. Returns how long it took, or what went wrong.
fn run_probe(config: &QemuConfig, accel: &str) -> Result<Duration, String> {
    let begin = Instant::now();
    let mut process = start_probe(config, accel).map_err(|error| error.to_string())?;
    loop {
        if let Some(how) = process.ended() {
            return if how.starts_with(PROBE_EXIT) {
                Ok(begin.elapsed())
            } else {
                Err(how)
            };
        }
        // QEMU prints an "internal error" and does not exit.
        process.read_stderr();
        let words = process.last_words();
        if let Some(at) = words.find("internal error") {
            return Err(format!(
                "KVM {}",
                words[at..].lines().next().unwrap_or_default()
            ));
        }
        let left = PROBE_DEADLINE.saturating_sub(begin.elapsed());
        if left.is_zero() {
            return Err(format!(
                "a guest kernel's first steps did not end within {} ms (is KVM emulated here?)",
                PROBE_DEADLINE.as_millis()
            ));
        }
        let mut fds = [
            PollFd::from_borrowed_fd(process.pidfd(), PollFlags::IN),
            PollFd::from_borrowed_fd(process.stderr(), PollFlags::IN),
        ];
        let timeout = Timespec {
            tv_sec: 0,
            tv_nsec: i64::from(left.subsec_nanos().max(1_000_000)),
        };
        // If the wait fails, the next round looks again.
        let _ = poll(&mut fds, Some(&timeout));
    }
}

fn start_probe(config: &QemuConfig, accel: &str) -> Result<Process, VmError> {
    let fd = memfd_create("plover-probe", MemfdFlags::CLOEXEC)
        .map_err(VmError::io("creating memory for the KVM probe (memfd)"))?;
    let mut firmware = File::from(fd);
    firmware.write_all(PROBE).map_err(|source| VmError::Io {
        what: "writing the KVM probe".into(),
        source,
    })?;
    let bios = format!("/proc/self/fd/{}", firmware.as_raw_fd());
    let cpu = if accel == "kvm" {
        host_cpu()
    } else {
        "max".into()
    };
    let arguments = [
        "-nodefaults",
        "-no-user-config",
        "-display",
        "none",
        "-m",
        "16",
        "-M",
        config.machine.name(),
        "-accel",
        accel,
        "-cpu",
        &cpu,
        "-bios",
        &bios,
        "-device",
        "isa-debug-exit,iobase=0xf4,iosize=1",
    ];
    let arguments = arguments.map(OsString::from).to_vec();
    Process::start(
        Path::new(&binary(config)),
        arguments,
        &[firmware.as_fd()],
        None,
        &files(config),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Boot, Machine};

    fn config(machine: Machine) -> QemuConfig {
        QemuConfig {
            machine,
            ..QemuConfig::new(Boot::Firmware, "52:54:00:00:00:01".parse().unwrap())
        }
    }

    #[test]
    fn a_register_of_intel_is_not_offered_on_other_processors() {
        let vendor = |name| format!("processor\t: 0\nvendor_id\t: {name}\nmodel\t: 1\n");
        let intel = format!("host,{QUIET}");
        assert_eq!(cpu_of("host", &vendor("GenuineIntel")), intel);
        assert_eq!(
            cpu_of("EPYC", &vendor("AuthenticAMD")),
            format!("EPYC,{QUIET},arch-capabilities=off")
        );
        assert_eq!(cpu_of("host", ""), intel);
    }

    /// QEMU's translator is a complete processor and runs the probe to its end. So if the probe fails
    /// under KVM, KVM is the reason.
    #[test]
    fn the_probe_passes_where_the_processor_is_complete() {
        for machine in [Machine::Microvm, Machine::Q35, Machine::Pc] {
            let mut process = start_probe(&config(machine), "tcg").unwrap();
            let end = loop {
                let mut fds = [PollFd::from_borrowed_fd(process.pidfd(), PollFlags::IN)];
                poll(&mut fds, None).unwrap();
                if let Some(end) = process.ended() {
                    break end;
                }
            };
            assert_eq!(end, PROBE_EXIT, "{machine}");
        }
    }

    #[test]
    fn a_configured_accelerator_is_not_probed() {
        let mut config = config(Machine::Q35);
        config.qemu = Some("/nonexistent".into());
        config.accel = Accel::Tcg;
        assert_eq!(choose_accel(&config).accel, Accel::Tcg);
        config.accel = Accel::Auto;
        let choice = choose_accel(&config);
        assert_eq!(choice.accel, Accel::Tcg);
        assert!(choice.reason.starts_with("no usable KVM"), "{choice:?}");
    }
}
