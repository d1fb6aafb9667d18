//! The faults, and how well the group is when they end.

use super::{Host, STEPS_TO_HEAL, World};
use crate::program::Memory;
use plover_program::{Event, Own, Phase, Replica, State};
use plover_types::{Index, Micros};

impl World {
    pub(super) fn fault(&mut self, host: usize) {
        match self.rng.range(0, 11) {
            0 | 1 if self.up() > self.quorum() && self.hosts[host].brain.is_some() => {
                trace!(self, "r{host} crashes");
                self.hosts[host].brain = None;
                // The new process does not know the old one's verdict.
                self.hosts[host].has_diverged = false;
                self.hosts[host].program = None;
                (self.hosts[host].takes, self.hosts[host].starts) = (None, None);
                self.hosts[host].waits.clear();
                if self.rng.chance(0.1) && self.is_held_elsewhere(host) {
                    self.hosts[host].lose_disk();
                }
                self.cut_off(|(leader, _)| leader == host);
                if self.leader.is_some_and(|(leader, _)| leader == host) {
                    self.leader = None;
                }
            }
            2..=5 if self.hosts[host].brain.is_none() => self.begin(host),
            6 if self.rng.chance(0.3) => {
                trace!(self, "the leader is deposed");
                self.leader = None;
            }
            7 | 8 if self.hosts[host].program.is_some() => {
                self.hosts[host].program = None;
                self.hosts[host].waits.clear();
                (self.hosts[host].takes, self.hosts[host].starts) = (None, None);
                self.apply(host, Event::Died("a fault".into()));
            }
            9 => {
                let leads = self.leader.is_some_and(|(leader, _)| leader == host);
                let span = self.rng.micros((1000, 900_000));
                self.hosts[host].still_until = self.now + span;
                if leads && span > Micros::from_ms(300) {
                    self.coverage.hit("program: stands still on the leader");
                }
            }
            10 => self.change_memory(host),
            _ => {}
        }
    }

    /// Whether another disk has a checkpoint from which the log goes on. A majority that lost its disks could not be healed.
    fn is_held_elsewhere(&self, host: usize) -> bool {
        let base = self.hosts.iter().map(|it| it.base).max();
        let others = self.hosts.iter().enumerate().filter(|(id, _)| *id != host);
        let mut disks = others.filter_map(|(_, it)| it.disk.as_ref());
        let is_of_use = |(own, memory, _): &(Own, Memory, State)| {
            Some(own.at.index) >= base && self.reference.has_been(memory)
        };
        base == Some(Index(0)) || disks.any(is_of_use)
    }

    /// Whether a program took a checkpoint that is wrong, and was not found out since (docs/programs.md, "Limits"): the log may begin there
    /// now, and what clients had been sent before is compared no more.
    pub(super) fn is_beyond_limits(&self) -> bool {
        let is_wrong = |(_, memory, _): &(Own, Memory, State)| !self.reference.has_been(memory);
        let mut disks = self.hosts.iter().filter_map(|it| it.disk.as_ref());
        disks.any(is_wrong)
    }

    /// A fault in one program's memory, while the others are right.
    pub(super) fn change_memory(&mut self, host: usize) {
        let wrong = |it: &Host| it.program.as_ref().is_some_and(|it| it.is_wrong);
        if self.hosts.iter().any(wrong) {
            return;
        }
        if let Some(program) = &mut self.hosts[host].program {
            trace!(self, "r{host}: the program's memory changes");
            // Two faults do not make the same majority.
            program.memory.sum ^= self.rng.word() | 1;
            program.is_wrong = true;
        }
    }

    pub(super) fn heal(&mut self) {
        trace!(self, "no more faults");
        self.faults = false;
        for host in 0..self.hosts.len() {
            self.hosts[host].still_until = Micros::ZERO;
            if self.hosts[host].brain.is_none() {
                self.begin(host);
            }
        }
    }

    /// Whether the group serves, and every program is right and up to date.
    pub(super) fn is_well(&self) -> bool {
        let takes = |it: &Replica| it.serves() && !it.is_full();
        let serves = |host: &Host| host.brain.as_ref().is_some_and(takes);
        let is_right = |host: &Host| {
            let runs = host.brain.as_ref().is_some_and(|it| it.phase().executes());
            let memory = host.program.as_ref().map(|it| &it.memory);
            let lag = memory.map(|it| {
                self.reference.executed().len()
                    - it.executed.len().min(self.reference.executed().len())
            });
            runs && memory.is_some_and(|it| self.reference.has_been(it))
                && lag.is_some_and(|it| it < 20)
        };
        self.leader
            .is_some_and(|(leader, _)| serves(&self.hosts[leader]))
            && self.hosts.iter().all(is_right)
    }

    pub(super) fn check_the_end(&mut self) {
        self.coverage.hit("end: all is well");
        // Everything that is committed is executed, and clients say nothing more.
        for _ in 0..20_000 {
            self.now = self.now + Micros(500);
            let host = self.rng.range(0, self.hosts.len() as u64 - 1) as usize;
            self.consensus();
            self.turn(host);
            self.program_reads(host);
            self.finish(host);
        }
        let live: Vec<_> = self
            .clients
            .iter()
            .filter_map(|it| Some(it.to?.1))
            .collect();
        for place in 0..self.hosts.len() {
            let host = &self.hosts[place];
            if !matches!(
                host.brain.as_ref().map(Replica::phase),
                Some(Phase::Following | Phase::Leading { .. })
            ) {
                continue;
            }
            let brain = host.brain.as_ref().expect("it runs");
            let left = brain.connections().find(|id| !live.contains(id));
            if let Some(left) = left {
                let message = format!("r{place} has {left} open, and no client has");
                return self.fail("connections_end", "APUS §4.3", message);
            }
        }
    }

    pub(super) fn describe(&self) -> String {
        let hosts = self.hosts.iter().enumerate().map(|(place, host)| {
            let right = host
                .program
                .as_ref()
                .map(|it| self.reference.has_been(&it.memory));
            let phase = host.brain.as_ref().map(|it| it.phase().name());
            format!("r{place} {phase:?}, right: {right:?}")
        });
        let hosts: Vec<_> = hosts.collect();
        format!(
            "after {STEPS_TO_HEAL} steps without faults: {}; leader {:?}",
            hosts.join(", "),
            self.leader
        )
    }
}
