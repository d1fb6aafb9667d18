//! Work on pages: the brain lets them be scanned, hashed, read and written.
//!
//! Work on memory alone is mostly answered at once, and sometimes later, as where it is much. Work on a
//! disk takes as long as the disk takes. Answers
//! come in the order of the questions, so work on memory waits behind work on a disk; other events
//! may come before an answer. The pages are read when the work is asked for, so that the answer is as
//! old as it can be. But a copy's reads are sometimes put off, and read the pages as they are then; so is a
//! scan of a guest that runs, whose hypervisor has to be asked first: before a pause that is asked for later.

use crate::hypervisor::Hypervisor;
use crate::process::State;
use crate::schedule::Happening;
use crate::world::World;
use plover_replica::{Action, Event, JobId};
use plover_types::{Digest, Micros, PageNo, PageSet, ReplicaId, SUBPAGES_PER_PAGE};

impl World {
    pub(crate) fn work(&mut self, who: ReplicaId, action: Action) {
        let hypervisor = self.process(who).hypervisor.as_ref();
        let guest = hypervisor.map(|hypervisor| &hypervisor.guest);
        let ram = self.scenario.hypervisor.guest.ram_pages();
        let of_disks = |page: PageNo| page.0 >= ram;
        let (late, answer) = match action {
            Action::Scan(job) => return self.scan(who, job),
            Action::Hash { job, key, pages } => {
                let none = || vec![Digest::default(); pages.len()];
                let digests = guest.map_or_else(none, |guest| guest.hash(&key, &pages));
                let late = pages.into_iter().any(of_disks);
                (late, Event::Hashed(job, digests))
            }
            Action::HashSubpages { job, key, pages } => {
                let none = || vec![0; pages.len() * SUBPAGES_PER_PAGE];
                let hashes = guest.map_or_else(none, |guest| guest.hash_subpages(&key, &pages));
                let late = pages.into_iter().any(of_disks);
                (late, Event::SubpagesHashed(job, hashes))
            }
            Action::ReadSubpages { job, pages } => {
                let chunk = guest.map(|guest| guest.read_blocks(&pages));
                let late = pages.into_iter().any(|(page, _)| of_disks(page));
                (late, Event::PagesRead(job, chunk.unwrap_or_default()))
            }
            Action::ReadPages { job, pages } => {
                let chunk = guest.map(|guest| guest.read_pages(&pages));
                let late = pages.into_iter().any(of_disks);
                (late, Event::PagesRead(job, chunk.unwrap_or_default()))
            }
            Action::WriteChunks { job, chunks } => {
                let late = self.overwrite_disks(who, &chunks);
                if let Some(hypervisor) = &mut self.process_mut(who).hypervisor {
                    for chunk in &chunks {
                        let written = hypervisor.guest.write_chunk(chunk);
                        written.expect("chunks are checked before");
                    }
                }
                (late, Event::ChunksWritten(job))
            }
            other => unreachable!("no work on pages: {other:?}"),
        };
        let late = late || self.chance.work.chance(0.02);
        self.answer(who, late, answer);
    }

    pub(crate) fn copy_pages(&mut self, who: ReplicaId, job: JobId, pages: Vec<PageNo>) {
        let waits = !self.process(who).copy_reads.is_empty();
        if !waits && self.chance.work.chance(0.5) {
            return self.work(who, Action::ReadPages { job, pages });
        }
        let late = self.chance.work.micros((0, 5000));
        let process = self.process_mut(who);
        process.copy_reads.push_back((job, pages));
        let incarnation = process.incarnation;
        let happening = Happening::CopyRead(who, incarnation);
        self.plan.after(late, happening);
    }

    pub(crate) fn on_copy_read(&mut self, who: ReplicaId, incarnation: u64) {
        let process = self.process_mut(who);
        if process.incarnation != incarnation {
            return;
        }
        if process.state != State::Up {
            let happening = Happening::CopyRead(who, incarnation);
            return self.plan.after(Micros::from_ms(10), happening);
        }
        if let Some((job, pages)) = process.copy_reads.pop_front() {
            self.coverage.hit("work: a copy's read put off");
            self.work(who, Action::ReadPages { job, pages });
            if let Some(read) = self.process_mut(who).events.pop_front() {
                self.tell(who, read);
            }
        }
    }

    fn answer(&mut self, who: ReplicaId, late: bool, answer: Event) {
        let now = self.plan.now();
        let slowness = if self.process(who).disk_slow { 40 } else { 1 };
        let waits = !self.process(who).answers.is_empty();
        if !late && !waits {
            return self.process_mut(who).events.push_back(answer);
        }
        // Now and then the disk is busy with something else.
        let busy = if self.chance.work.chance(0.02) { 40 } else { 1 };
        let span = match late {
            true => self.chance.work.micros(self.scenario.store).0 * slowness.max(busy),
            false => 0,
        };
        let process = self.process_mut(who);
        process.answers.push_back(answer);
        let at = process.answers_free_at.max(now) + Micros(span);
        process.answers_free_at = at;
        let incarnation = process.incarnation;
        self.plan.at(at, Happening::Worked(who, incarnation));
    }

    pub(crate) fn on_worked(&mut self, who: ReplicaId, incarnation: u64) {
        let process = self.process_mut(who);
        if process.incarnation != incarnation {
            return;
        }
        if let Some(answer) = process.answers.pop_front() {
            self.coverage.hit("work: answered late");
            self.tell(who, answer);
        }
    }

    /// Blocks of disks are about to be overwritten. Returns whether there are any.
    fn overwrite_disks(&mut self, who: ReplicaId, chunks: &[Vec<u8>]) -> bool {
        let process = self.process_mut(who);
        let Some(hypervisor) = &process.hypervisor else {
            return false;
        };
        let staged = hypervisor.guest.staged_blocks(chunks);
        let any = !staged.is_empty();
        for page in staged.into_keys() {
            let old = hypervisor.guest.memory()[page as usize];
            process.disk.copy.overwrite(page, old);
        }
        any
    }

    fn scan(&mut self, who: ReplicaId, job: JobId) {
        let process = self.process(who);
        let number = process.hypervisors;
        let runs = process.hypervisor.as_ref();
        let runs = runs.is_some_and(|hypervisor| hypervisor.is_running() && !hypervisor.is_dead());
        if runs && self.chance.work.chance(0.5) {
            let late = self.chance.work.micros((0, 5000));
            self.process_mut(who).scans.push_back((number, job));
            return self.plan.after(late, Happening::Scan(who, number, job));
        }
        self.scan_now(who, job);
    }

    pub(crate) fn on_scan(&mut self, who: ReplicaId, number: u64, job: JobId) {
        let process = self.process(who);
        if process.state != State::Up {
            let happening = Happening::Scan(who, number, job);
            return self.plan.after(Micros::from_ms(10), happening);
        }
        if process.scans.contains(&(number, job)) {
            self.make_scans(who);
            self.turn(who);
        }
    }

    /// Makes the scans that were put off. Those of a hypervisor that is gone mean nothing.
    pub(crate) fn make_scans(&mut self, who: ReplicaId) {
        let process = self.process_mut(who);
        let number = process.hypervisors;
        for (of, job) in std::mem::take(&mut process.scans) {
            if of == number && self.process(who).hypervisor.is_some() {
                self.coverage.hit("work: a scan put off");
                self.scan_now(who, job);
            }
        }
    }

    fn scan_now(&mut self, who: ReplicaId, job: JobId) {
        let pages = self.scenario.hypervisor.guest.pages;
        let process = self.process_mut(who);
        let dead = process.hypervisor.as_ref().is_some_and(Hypervisor::is_dead);
        let set = match &mut process.hypervisor {
            Some(hypervisor) if !dead => hypervisor.guest.scan(),
            _ => PageSet::new(pages),
        };
        process.events.push_back(Event::Scanned(job, set));
        if dead {
            process.hypervisor = None;
            process
                .events
                .push_back(Event::GuestDied("it cannot be scanned".to_string()));
        }
    }
}
