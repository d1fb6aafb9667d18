//! The machine of a measurement. A figure without it says nothing.

use serde::Serialize;
use std::process::Command;

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Machine {
    cpu: String,
    cores: usize,
    memory_gib: u64,
    kernel: String,
    qemu: String,
    accel: String,
}

impl Machine {
    /// This machine. `accel` is the accelerator that the lab reports.
    pub fn this(accel: &str) -> Self {
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let cpu = cpuinfo
            .lines()
            .find_map(|l| l.strip_prefix("model name")?.split(':').nth(1))
            .unwrap_or("unknown")
            .trim()
            .to_string();
        let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let kib: u64 = meminfo
            .lines()
            .find_map(|l| {
                l.strip_prefix("MemTotal:")?
                    .split_whitespace()
                    .next()?
                    .parse()
                    .ok()
            })
            .unwrap_or(0);
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let qemu = Command::new("qemu-system-x86_64")
            .arg("--version")
            .output()
            .map(|o| {
                String::from_utf8_lossy(&o.stdout)
                    .lines()
                    .next()
                    .unwrap_or("")
                    .to_string()
            })
            .unwrap_or_default();
        Self {
            cpu,
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            memory_gib: (kib + (1 << 19)) >> 20,
            kernel: release.trim().to_string(),
            qemu,
            accel: accel.to_string(),
        }
    }

    /// The description of the hardware, without the hypervisor.
    pub fn hardware(&self) -> String {
        format!(
            "{}, {} cores, {} GiB, Linux {}",
            self.cpu, self.cores, self.memory_gib, self.kernel
        )
    }
}

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, {}, {}", self.hardware(), self.qemu, self.accel)
    }
}
