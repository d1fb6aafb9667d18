//! How the program's process starts, ends, and is restored.

use super::{Body, CHILD, Starting};
use crate::jobs::{Done, NotPrepared};
use crate::program::Program;
use plover_program::{Event, Own};
use plover_types::Viewstamp;
use rustix::event::epoll::{self, EventData, EventFlags};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long after a program listens the preloaded library must have seen it.
const SEEN_WITHIN: Duration = Duration::from_secs(1);

impl Body {
    pub(super) fn start(&mut self, from: Option<Viewstamp>) {
        self.program = None;
        self.forget_connections();
        if self.call_off_archive() {
            self.starting = Some(Starting::Queued(from));
            return;
        }
        self.starting = Some(Starting::Preparing);
        self.jobs.prepare(from);
    }

    /// The program has ended, and its directory may not be whole: nobody wants the checkpoint that is being archived, if one is.
    pub(super) fn call_off_archive(&self) -> bool {
        let archiving = self.archiving.as_ref();
        archiving
            .inspect(|it| it.store(true, Ordering::Relaxed))
            .is_some()
    }

    /// A job is done.
    pub(super) fn finish(&mut self, done: Done) {
        match done {
            Done::Prepared(result) => {
                if matches!(self.starting, Some(Starting::Preparing)) {
                    let spawned = match result {
                        Ok(state) => {
                            self.restored = state;
                            self.spawn(None)
                        }
                        Err(NotPrepared::Lost(why)) => {
                            self.apply(Event::CheckpointLost);
                            Err(why)
                        }
                        Err(NotPrepared::Failed(why)) => Err(why),
                    };
                    if let Err(why) = spawned {
                        self.starting = None;
                        self.apply(Event::StartFailed(why));
                    }
                }
            }
            Done::Ready(start, result) => self.readied(start, result),
            Done::Archived(result) => self.archived(result),
            Done::Fetched(result) => {
                self.apply(Event::Fetched(result));
                // Otherwise the older one stays until the program has started from the newer.
                if self.brain.phase().executes() {
                    let _ = self.files.newest();
                }
            }
        }
    }

    pub(super) fn archived(&mut self, result: Result<Own, String>) {
        let archiving = self.archiving.take();
        if archiving.is_none_or(|it| it.load(Ordering::Relaxed)) {
            if let Ok(own) = result {
                self.files.remove(&own);
            }
            self.apply(Event::CheckpointTaken(
                Err("the program was stopped".into()),
            ));
            if let Some(Starting::Queued(from)) = self.starting {
                self.start(from);
            }
            return;
        }
        if !self.config.program.snapshot_by_stop {
            self.apply(Event::CheckpointTaken(result));
            // Older ones go.
            let _ = self.files.newest();
            return;
        }
        match result {
            Ok(own) => {
                self.forget_connections();
                if let Err(why) = self.spawn(Some(own.clone())) {
                    self.starting = None;
                    self.dies_after(Some(own), why);
                }
            }
            Err(why) => {
                self.apply(Event::CheckpointTaken(Err(why.clone())));
                self.apply(Event::Died(why));
            }
        }
    }

    /// Starts the process.
    pub(super) fn spawn(&mut self, after: Option<Own>) -> Result<(), String> {
        let port = self.config.program.port;
        if self
            .sockets
            .is_served()
            .map_err(|e| format!("cannot ask the kernel about port {port}: {e}"))?
        {
            return Err(format!(
                "another process listens on port {port} (program.port): end it, or give the program another port"
            ));
        }
        let name = self
            .words
            .first()
            .map(|it| it.to_string_lossy().into_owned());
        let name = name.unwrap_or_default();
        let time = self.restored.time;
        let launch = self.direct.as_mut().map(|direct| direct.launch(time));
        let launch = launch.transpose();
        let launch = launch.map_err(|e| format!("cannot make the program's shared memory: {e}"))?;
        let program = Program::start(&self.words, &self.files.data, launch.as_ref());
        let program = program.map_err(|e| format!("cannot start the program '{name}': {e}"))?;
        epoll::add(
            &*self.epoll,
            &program,
            EventData::new_u64(CHILD),
            EventFlags::IN,
        )
        .map_err(|e| format!("cannot watch the program: {e}"))?;
        let within = Duration::from_secs(self.config.program.start_s);
        self.program = Some(program);
        self.starting = Some(Starting::Listening(Instant::now() + within, after));
        Ok(())
    }

    /// Whether the program has ended, or listens at last.
    pub(super) fn look_at_program(&mut self) {
        if let Some(why) = self.died.take() {
            return self.apply(Event::Died(why));
        }
        if let Some(why) = self.program.as_mut().and_then(Program::ended) {
            self.program = None;
            self.forget_connections();
            return match self.starting.take() {
                Some(Starting::Listening(_, None)) => {
                    let port = self.config.program.port;
                    self.apply(Event::StartFailed(format!(
                        "{why} before it listened on port {port}"
                    )));
                }
                Some(Starting::Readying(_, None)) => {
                    self.apply(Event::StartFailed(format!("{why} before it was ready")));
                }
                Some(Starting::Listening(_, after) | Starting::Readying(_, after)) => {
                    self.dies_after(after, why);
                }
                _ => self.apply(Event::Died(why)),
            };
        }
        let Some(Starting::Listening(until, _)) = &self.starting else {
            return;
        };
        let until = *until;
        let listens = self.sockets.is_served().unwrap_or(false);
        if !listens && Instant::now() < until {
            return;
        }
        if let (true, Some(direct)) = (listens, &self.direct) {
            if !direct.listens() {
                // The library learns it a moment after the kernel.
                let since = self.listens_late.get_or_insert_with(Instant::now);
                if since.elapsed() > SEEN_WITHIN {
                    self.listens_late = None;
                    self.program = None;
                    self.forget_connections();
                    let port = self.config.program.port;
                    self.apply(Event::StartFailed(format!(
                        "it listens on port {port}, and the preloaded library does not see it, as with a static or a \
                         set-user-id program: use program.via = \"proxy\""
                    )));
                    self.starting = None;
                }
                return;
            }
            self.listens_late = None;
        }
        let Some(Starting::Listening(_, after)) = self.starting.take() else {
            return;
        };
        if !listens {
            return self.started(
                after,
                Err(format!(
                    "it does not listen at {} after {} s (program.address, program.port, program.start_s)",
                    self.config.program_address(),
                    self.config.program.start_s
                )),
            );
        }
        self.starts += 1;
        if self.jobs.await_ready(self.starts, until) {
            self.starting = Some(Starting::Readying(self.starts, after));
        } else {
            self.started(after, Ok(()));
        }
    }

    /// The command has said whether the program is ready.
    fn readied(&mut self, start: u64, result: Result<(), String>) {
        if !matches!(self.starting, Some(Starting::Readying(asked, _)) if asked == start) {
            // The program has ended meanwhile.
            return;
        }
        if let Some(Starting::Readying(_, after)) = self.starting.take() {
            let within = self.config.program.start_s;
            self.started(
                after,
                result.map_err(|why| {
                    format!("it is not ready after {within} s (program.ready_cmd, program.start_s): {why}")
                }),
            );
        }
    }

    /// The program can be given input, or its start has failed. With a checkpoint: it was ended for that.
    fn started(&mut self, after: Option<Own>, result: Result<(), String>) {
        match (result, after) {
            (Ok(()), None) => {
                let state = std::mem::take(&mut self.restored);
                self.apply(Event::Started(state));
                let _ = self.files.newest();
            }
            (Ok(()), Some(own)) => {
                self.apply(Event::CheckpointTaken(Ok(own)));
                let _ = self.files.newest();
            }
            (Err(why), None) => self.apply(Event::StartFailed(why)),
            (Err(why), after) => self.dies_after(after, why),
        }
    }

    /// The program was ended for a checkpoint, and has not started again. The core does not know the checkpoint.
    fn dies_after(&mut self, checkpoint: Option<Own>, why: String) {
        if let Some(own) = checkpoint {
            self.files.remove(&own);
        }
        self.apply(Event::Died(why));
    }
}
