//! The programs: they start, read what they like, and have checkpoints taken of them.

use super::{Host, World};
use crate::program::{Memory, Program};
use plover_program::{ConnectionId, Event, Own, Replica, Sessions, State};
use plover_types::{Micros, ReplicaId};

impl World {
    /// Finishes work that takes time, if it is due.
    pub(super) fn finish(&mut self, host: usize) {
        let now = self.now;
        let is_due = |at: &Micros| *at <= now;
        let state = &mut self.hosts[host];
        if let Some((from, _)) = state.starts.take_if(|(_, at)| is_due(at)) {
            let (memory, kept) = match (from, &state.disk) {
                (None, _) => (Memory::default(), State::default()),
                (Some(at), Some((own, memory, kept))) if own.at == at => {
                    (memory.clone(), kept.clone())
                }
                _ => {
                    self.apply(host, Event::CheckpointLost);
                    return self.apply(host, Event::StartFailed("it is gone".into()));
                }
            };
            if from.is_some() {
                self.coverage.hit("program: starts from a checkpoint");
            }
            if !kept.sessions.is_empty() {
                self.coverage.hit("program: starts with connections");
            }
            let is_wrong = !self.reference.has_been(&memory);
            if is_wrong && state.has_diverged {
                let message =
                    format!("r{host} starts from what a program has left that was found wrong");
                return self.fail("wrong_is_restored", "docs/programs.md", message);
            }
            if is_wrong {
                // Nobody knows, and nobody might find out: docs/programs.md, "Limits". The disk is lost instead.
                state.lose_disk();
                self.apply(host, Event::CheckpointLost);
                return self.apply(host, Event::StartFailed("it is gone".into()));
            }
            state.has_diverged = false;
            state.program = Some(Program {
                memory,
                time: kept.time,
                next_time: kept.time,
                wants_login: self.sessions == Sessions::Login,
                is_slow: self.slow,
                ..Program::default()
            });
            return self.apply(host, Event::Started(kept));
        }
        if let Some((at, kept, _)) = state.takes.take_if(|(.., at)| is_due(at)) {
            let program = state
                .program
                .as_mut()
                .expect("it is stopped with its checkpoint");
            // A client whose connection the log has lost is cut off, and its program may notice late.
            let goes_on = |id| kept.sessions.iter().any(|it| it.connection == id);
            let mut left = program.connections.iter();
            assert!(
                left.all(|(id, it)| (it.is_own && it.is_cut) || goes_on(*id)),
                "a checkpoint has no other connections"
            );
            if !kept.sessions.is_empty() {
                self.coverage.hit("checkpoint: connections go on");
            }
            if self.restarts {
                program.connections.clear();
            }
            // Outputs on inherited connections are not compared, so a wrong program would not be found any more.
            let hides = program.is_wrong && (self.restarts || self.sessions != Sessions::Reconnect);
            if hides || self.faults && self.rng.chance(0.15) {
                self.apply(host, Event::CheckpointTaken(Err("a fault".into())));
                if self.restarts {
                    self.hosts[host].program = None;
                    self.apply(host, Event::Died("a fault".into()));
                }
                return;
            }
            let taken_by = ReplicaId(host as u8);
            let own = Own {
                at,
                taken_by,
                bytes: 0,
                sum: [0; 32],
            };
            state.disk = Some((own.clone(), program.memory.clone(), kept));
            return self.apply(host, Event::CheckpointTaken(Ok(own)));
        }
        if let Some((held, _)) = state.fetches.take_if(|(_, at)| is_due(at)) {
            let from = &self.hosts[usize::from(held.replica.0)];
            let there = from.disk.clone().filter(|(own, ..)| own.at == held.at);
            // Another replica that starts from a wrong program's checkpoint is wrong, too: docs/programs.md, "Limits". The
            // runs leave that out.
            let is_right = |(_, memory, _): &(Own, Memory, State)| self.reference.has_been(memory);
            let works = !self.faults || self.rng.chance(0.85);
            match there.filter(|disk| works && from.brain.is_some() && is_right(disk)) {
                Some((own, memory, kept)) => {
                    let disk = &mut self.hosts[host].disk;
                    if disk.as_ref().is_none_or(|(old, ..)| old.at < own.at) {
                        *disk = Some((own.clone(), memory, kept));
                    }
                    self.coverage.hit("checkpoint: fetched");
                    self.apply(host, Event::Fetched(Ok(own)));
                }
                None => self.apply(host, Event::Fetched(Err("a fault".into()))),
            }
        }
    }

    /// A program reads one of its connections, whichever it likes.
    pub(super) fn program_reads(&mut self, host: usize) {
        let now = self.now;
        let Host {
            program: Some(_),
            still_until,
            ..
        } = &self.hosts[host]
        else {
            return;
        };
        if *still_until > now {
            return;
        }
        if let Some(id) = self.hosts[host].noticed.pop() {
            return self.apply(host, Event::Consumed(id));
        }
        if std::mem::take(&mut self.hosts[host].is_quiet) {
            self.coverage.hit("leader: quiet");
            return self.apply(host, Event::Quiet);
        }
        let Some(program) = &mut self.hosts[host].program else {
            return;
        };
        let news = program.connections.iter().filter(|(_, it)| it.is_news);
        let news: Vec<ConnectionId> = news.map(|(id, _)| *id).collect();
        if news.is_empty() {
            return;
        }
        let id = self.rng.pick(&news);
        // A leader's program that reads by itself is ahead of the log. What it executes is checked by its replies, and
        // by what a follower executes next.
        let is_own = program.connections[&id].is_own;
        let replies = program.read(id);
        if !is_own {
            self.has_executed(host);
        }
        self.apply(host, Event::Consumed(id));
        self.sent(host, id, &replies);
    }

    /// Programs that execute later than they read do so now, perhaps. None takes as long as a cut waits.
    pub(super) fn programs_execute(&mut self) {
        for host in 0..self.hosts.len() {
            let is_busy = |it: &Host| it.program.as_ref().is_some_and(Program::is_busy);
            if !is_busy(&self.hosts[host]) || !self.rng.chance(0.15) {
                continue;
            }
            while is_busy(&self.hosts[host]) {
                let program = self.hosts[host].program.as_mut();
                let Some((id, reply)) = program.and_then(Program::execute_next) else {
                    continue;
                };
                self.has_executed(host);
                let brain = self.hosts[host].brain.as_ref();
                if brain.is_some_and(Replica::holds_end) {
                    self.coverage.hit("program: answers before an end");
                }
                self.sent(host, id, &reply);
            }
        }
    }

    fn has_executed(&mut self, host: usize) {
        let Some(program) = &self.hosts[host].program else {
            return;
        };
        if !program.is_wrong && !self.reference.has_been(&program.memory) {
            let count = program.memory.executed.len();
            let message = format!("r{host} has executed {count} requests that are not the log's");
            self.fail("programs_agree", "APUS §3", message);
        }
    }

    fn sent(&mut self, host: usize, id: ConnectionId, replies: &[u8]) {
        let middle = self.rng.range(0, replies.len() as u64) as usize;
        for part in [&replies[..middle], &replies[middle..]] {
            if !part.is_empty() {
                self.apply(host, Event::Output(id, part));
            }
        }
    }
}
