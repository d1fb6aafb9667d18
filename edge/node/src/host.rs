//! On which CPUs of the host a replica's threads run, and at which priority.

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::Deserialize;
use std::path::Path;

/// `[host]`: the CPUs for the guest and for the replica, by role. Without it the kernel decides, which it does
/// well where there are CPUs for all. It is for hosts that run guests in both roles on few CPUs: two guests on
/// one CPU make a slot as long as both of them need, while another CPU idles.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostConfig {
    /// While this replica leads.
    pub leader: CpuConfig,
    /// While this replica does not lead.
    pub follower: CpuConfig,
}

/// `[host.leader]` and `[host.follower]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CpuConfig {
    /// The CPUs for all threads of the guest's QEMU, by the kernel's numbers.
    pub guest: Vec<usize>,
    /// The CPUs for the replica itself.
    pub replica: Vec<usize>,
}

impl HostConfig {
    /// Checks that each list names a CPU. [`Self::check_here`] checks that the CPUs exist.
    pub(crate) fn check(&self) -> Result<(), String> {
        match self.lists().find(|(_, cpus)| cpus.is_empty()) {
            Some((key, _)) => Err(format!("{key} = [] leaves nothing to run on")),
            None => Ok(()),
        }
    }

    /// Checks that this process may use every CPU that is named.
    pub(crate) fn check_here(&self) -> Result<(), String> {
        let allowed = usable_cpus().map_err(|e| format!("cannot tell the CPUs: {e}"))?;
        for (key, cpus) in self.lists() {
            if let Some(cpu) = cpus.iter().find(|cpu| !allowed.contains(cpu)) {
                return Err(format!(
                    "{key} names CPU {cpu}; this process may use {allowed:?}"
                ));
            }
        }
        Ok(())
    }

    fn lists(&self) -> impl Iterator<Item = (&'static str, &[usize])> {
        [
            ("host.leader.guest", &self.leader.guest[..]),
            ("host.leader.replica", &self.leader.replica),
            ("host.follower.guest", &self.follower.guest),
            ("host.follower.replica", &self.follower.replica),
        ]
        .into_iter()
    }

    /// The CPUs of the role.
    pub(crate) fn of(&self, leads: bool) -> &CpuConfig {
        if leads { &self.leader } else { &self.follower }
    }
}

/// The CPUs that this process may use, as the kernel numbers them.
pub fn usable_cpus() -> std::io::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU)
        .filter(|cpu| set.is_set(*cpu))
        .collect())
}

/// Lets all threads of process `pid` run on `cpus` only. A thread that starts meanwhile inherits the CPUs
/// of the thread that starts it.
pub(crate) fn keep_on(pid: Pid, cpus: &[usize]) {
    for (thread, _) in threads(pid) {
        keep_thread_on(Some(thread), cpus);
    }
}

/// Lets a thread, or this one, run on `cpus` only.
pub(crate) fn keep_thread_on(thread: Option<Pid>, cpus: &[usize]) {
    let mut set = CpuSet::new();
    for cpu in cpus.iter().filter(|cpu| **cpu < CpuSet::MAX_CPU) {
        set.set(*cpu);
    }
    // A refusal costs only speed: that the CPUs exist was checked.
    let _ = sched_setaffinity(thread, &set);
}

/// Makes the main thread of the QEMU with process id `pid` wait for a vCPU that has its CPU, instead of
/// preempting it with each frame that the guest sends. Where the two share a CPU, preempting costs four
/// switches a frame and handles each frame by itself (docs/decisions/0029).
pub(crate) fn gather_work(pid: Pid) {
    // A refusal costs only speed.
    set_class(pid.as_raw_nonzero().get(), libc::SCHED_BATCH, 0);
}

/// The nice value of a replica's own threads: before the guests' vCPUs.
pub(crate) const NICE: i32 = -10;

/// Puts this thread into the real-time class `SCHED_RR`, at its lowest priority: it runs as soon as it is ready, whatever
/// else the host has to do. So it must never run for long without sleeping. The threads and processes that it starts get
/// the usual class. Returns false if the kernel refuses.
pub(crate) fn come_first() -> bool {
    set_class(0, libc::SCHED_RR | libc::SCHED_RESET_ON_FORK, 1)
}

/// Ends [`come_first`]: this thread has the usual class and its nice value again. The threads and processes that it starts
/// get nice value 0 from then on.
pub(crate) fn come_in_turn() {
    set_class(0, libc::SCHED_OTHER | libc::SCHED_RESET_ON_FORK, 0);
}

/// Gives a thread, by its id, or this one (0), a scheduling class. Returns false if the kernel refuses.
fn set_class(thread: i32, class: i32, sched_priority: i32) -> bool {
    let priority = libc::sched_param { sched_priority };
    // SAFETY: the call gets two numbers and a pointer to a structure that lives as long as the call.
    unsafe { libc::sched_setscheduler(thread, class, &priority) == 0 }
}

/// Whether this process may raise a nice value to 0 again after it was lowered: as root, or by the limit of its unit.
pub(crate) fn may_raise_priority() -> bool {
    // The kernel counts from nice value 19, which is 1, upwards.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nice);
    rustix::process::geteuid().is_root() || limit.current.is_none_or(|most| most >= 20)
}

/// Gives the vCPUs of the QEMU with process id `pid` a nice value.
pub(crate) fn renice_vcpus(pid: Pid, nice: i32) {
    for (thread, name) in threads(pid) {
        if name.starts_with("CPU ") {
            let _ = rustix::process::setpriority_process(Some(thread), nice);
        }
    }
}

/// The threads of a process, with their names.
fn threads(pid: Pid) -> impl Iterator<Item = (Pid, String)> {
    let tasks = format!("/proc/{}/task", pid.as_raw_nonzero());
    let entries = std::fs::read_dir(Path::new(&tasks));
    entries.into_iter().flatten().flatten().filter_map(|task| {
        let name = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        let id = task.file_name().to_str()?.parse().ok()?;
        Some((Pid::from_raw(id)?, name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Read};
    use std::process::{Command, Stdio};

    fn config(text: &str) -> HostConfig {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn a_list_without_a_cpu_and_a_cpu_that_is_not_there_are_refused_by_name() {
        let text =
            "leader = { guest = [0], replica = [] }\nfollower = { guest = [0], replica = [0] }";
        let error = config(text).check().unwrap_err();
        assert!(error.contains("host.leader.replica"), "{error}");
        let text = text
            .replace("[]", "[0]")
            .replace("follower = { guest = [0]", "follower = { guest = [1023]");
        let error = config(&text).check_here().unwrap_err();
        assert!(
            error.contains("host.follower.guest names CPU 1023"),
            "{error}"
        );
    }

    #[test]
    fn what_a_thread_that_comes_first_starts_does_not_come_first() {
        // SAFETY: the call takes a number.
        let class = || unsafe { libc::sched_getscheduler(0) } & !libc::SCHED_RESET_ON_FORK;
        // In a thread of its own, which ends with the test. Without root or a limit it is refused.
        let tried = std::thread::spawn(move || {
            let may = come_first();
            let (mine, heirs) = (class(), std::thread::spawn(class).join().unwrap());
            come_in_turn();
            (may, mine, heirs, class())
        });
        let (may, mine, heirs, after) = tried.join().unwrap();
        let first = if may {
            libc::SCHED_RR
        } else {
            libc::SCHED_OTHER
        };
        assert_eq!((mine, heirs), (first, libc::SCHED_OTHER));
        assert_eq!(after, libc::SCHED_OTHER);
        assert!(may || !rustix::process::geteuid().is_root());
    }

    #[test]
    fn all_threads_of_a_process_are_kept_on_its_cpus() {
        let last = *usable_cpus().unwrap().last().unwrap();
        // Runs the test below in a process of its own, which has a main thread and one for the test.
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "--nocapture", "--test-threads=2"])
            .arg("host::tests::a_process_with_threads")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let mut lines = stdout.lines().map(Result::unwrap);
        assert!(lines.any(|line| line.contains("it runs")));
        let pid = Pid::from_child(&child);
        keep_on(pid, &[last]);
        let sets: Vec<CpuSet> = threads(pid)
            .map(|(thread, _)| sched_getaffinity(Some(thread)).unwrap())
            .collect();
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success());
        assert!(sets.len() > 1, "{} threads", sets.len());
        for set in sets {
            assert_eq!((set.count(), set.is_set(last)), (1, true));
        }
    }

    #[test]
    #[ignore = "run by all_threads_of_a_process_are_kept_on_its_cpus"]
    fn a_process_with_threads() {
        println!("it runs");
        std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    }
}
