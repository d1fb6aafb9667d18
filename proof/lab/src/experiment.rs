//! A lab under load and observed from outside, for the demo and the fault tests.
//!
//! An [`Experiment`] is a lab, a client whose connections are never renewed ([`Client`]), and a capture
//! at the switch. A script injects faults, waits and restarts replicas. [`Experiment::finish`] stops the
//! client, reads every acknowledged write back, and gives the [`Verdict`]. Dropping an experiment at any
//! point takes its lab down.

use crate::capture::Capture;
use crate::crash::{self, Moment};
use crate::load::{Audit, Client, Counts, Gap, Pressure};
use crate::senders::Senders;
use anyhow::{Context, Result, bail};
use plover_lab::control::SyncStatus;
use plover_lab::options::Options;
use plover_lab::progress::Progress;
use plover_lab::trace::{Tail, TraceEvent, now_us};
use plover_lab::{Fault, Lab, Target};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How often a wait checks its condition.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Writes that every connection must have had acknowledged before the first fault: enough to
/// have gone through several slots.
const WARM_WRITES: u64 = 20;

/// How long a wait may take before the experiment fails. A full copy takes seconds, on a busy machine
/// tens of seconds.
const PATIENCE: Duration = Duration::from_secs(90);

/// A lab under load and observed from outside.
#[derive(Debug)]
pub struct Experiment {
    lab: Option<Lab>,
    client: Option<Client>,
    capture: Option<Capture>,
    tail: Tail,
    events: Vec<TraceEvent>,
    progress: Progress,
    pressure: Pressure,
    sync: SyncStatus,
}

/// The result.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// The acknowledged writes, read back.
    pub audit: Audit,
    /// The replicas that sent as the guest.
    pub senders: Senders,
    /// The medians of the leader that led most syncs.
    pub sync: SyncStatus,
}

impl Verdict {
    /// Whether nothing was lost, no connection was reset, and there was one sender at a time.
    pub fn is_good(&self) -> bool {
        self.audit.acked > 0
            && self.audit.lost == 0
            && self.audit.resets.is_empty()
            && self.senders.is_proof()
    }
}

impl Experiment {
    /// Makes a lab and puts it under load.
    pub fn begin(options: &Options, pressure: Pressure, progress: &Progress) -> Result<Self> {
        let lab = Lab::up(options, progress)?;
        let mut experiment = Self {
            tail: lab.traces(),
            lab: Some(lab),
            client: None,
            capture: None,
            events: Vec::new(),
            progress: progress.clone(),
            pressure,
            sync: SyncStatus::default(),
        };
        experiment.listen();
        experiment.load()?;
        Ok(experiment)
    }

    /// Starts the capture before the client, because it must see the client's first answer.
    fn load(&mut self) -> Result<()> {
        let (network, service) = (self.lab().topology(), self.lab().service());
        let capture = Capture::start(network)?;
        let client = Client::start(Some(network.client()), service, self.pressure)?;
        self.capture = Some(capture);
        self.client = Some(client);
        self.progress.say(format!(
            "clients write over {} connections, which are never renewed",
            self.pressure.connections
        ));
        self.wait("all clients write", |this| {
            Ok(this.counts()?.acked_min >= WARM_WRITES)
        })
    }

    /// The lab.
    pub fn lab(&self) -> &Lab {
        self.lab
            .as_ref()
            .expect("only `finish` and `drop` take it, and they take self")
    }

    /// The progress lines.
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// All events of all traces so far, in the order of time.
    pub fn events(&mut self) -> &[TraceEvent] {
        self.listen();
        &self.events
    }

    /// Reads what the replicas wrote since the last time.
    fn listen(&mut self) {
        let new = self.tail.take();
        // The experiment begins with a lab that is up. The lines about its start have been printed.
        if self.client.is_some() {
            for words in new.iter().filter_map(TraceEvent::in_words) {
                self.progress.say(words);
            }
        }
        self.events.extend(new);
        self.events.sort_by_key(|event| event.mono_us);
    }

    fn client(&self) -> Result<&Client> {
        self.client.as_ref().context("there is no client yet")
    }

    /// How far the client is.
    pub fn counts(&self) -> Result<Counts> {
        Ok(self.client()?.counts())
    }

    /// The longest time without an answer to the client since a moment.
    pub fn gap(&self, since_us: u64) -> Result<Gap> {
        Ok(self.client()?.gap(since_us))
    }

    /// Injects a fault into a replica. Returns the replica and the moment.
    ///
    /// The promise is to survive one fault at a time, so a fault waits until the guest is protected: on
    /// a machine that is short of processors, a replica may have been silent for too long by itself.
    pub fn strike(&mut self, fault: Fault, target: &Target) -> Result<(u8, u64)> {
        if !matches!(fault, Fault::Continue | Fault::Heal) {
            self.wait_until_protected()?;
        }
        self.note_syncs();
        let id = self.lab().find(target)?;
        let at_us = self.lab().fault(fault, id)?;
        self.progress.say(format!("replica {id}: {fault}"));
        Ok((id, at_us))
    }

    /// Makes a replica crash at a [`Moment`]. Returns the replica, and a moment before its death.
    pub fn crash_at(&mut self, target: &Target, moment: &Moment) -> Result<(u8, u64)> {
        self.wait_until_protected()?;
        self.note_syncs();
        let id = self.lab().find(target)?;
        let before_us = now_us();
        crash::crash_at(self.lab(), id, moment, &self.progress)?;
        Ok((id, before_us))
    }

    /// Stops the leader's host right before it sends a frame to clients. Returns the leader and a moment before.
    pub fn stop_in_release(&mut self) -> Result<(u8, u64)> {
        self.wait_until_protected()?;
        self.note_syncs();
        let id = self.lab().find(&Target::Role("leader".into()))?;
        let before_us = crash::stop_in_release(self.lab(), id, &self.progress)?;
        Ok((id, before_us))
    }

    /// Starts a replica again, and waits until it takes part.
    pub fn restart(&mut self, id: u8) -> Result<()> {
        self.start(id)?;
        self.wait_for_part(id)
    }

    /// Starts the replica of a host on which none runs. One of a spare host waits to be added.
    pub fn start(&mut self, id: u8) -> Result<()> {
        let progress = self.progress.clone();
        if let Some(lab) = &mut self.lab {
            lab.restart(id, &progress)?;
        }
        self.progress.say(format!("replica {id}: started"));
        Ok(())
    }

    /// Waits until a replica that was away takes part again.
    pub fn wait_for_part(&mut self, id: u8) -> Result<()> {
        self.wait(&format!("replica {id} takes part"), |this| {
            let status = this.lab().status();
            let role = status.replica(id).map(|replica| replica.role.as_str());
            Ok(matches!(
                role,
                Some("witness" | "joining" | "secondary" | "leader")
            ))
        })
    }

    /// Waits until another replica than `old` serves since a moment, and every connection has had an
    /// answer since. Returns the new leader.
    pub fn wait_for_failover(&mut self, old: u8, since_us: u64) -> Result<u8> {
        let mut new = None;
        self.wait("another replica serves", |this| {
            this.listen();
            new = this
                .find_event("serving", since_us)
                .map(|event| event.replica);
            Ok(new.is_some_and(|new| new != old))
        })?;
        self.wait_for_answers(since_us)?;
        new.map_or_else(|| bail!("nobody serves"), Ok)
    }

    /// Waits until every connection has had an answer since a moment.
    pub fn wait_for_answers(&mut self, since_us: u64) -> Result<()> {
        self.wait("every connection is answered", |this| {
            if let Some(reset) = this.counts()?.resets.first() {
                bail!("a connection was lost: {reset}");
            }
            Ok(this.gap(since_us)?.all_replied)
        })
    }

    /// Waits until a new secondary protects the guest since a moment.
    pub fn wait_until_protected_again(&mut self, since_us: u64) -> Result<()> {
        self.wait("protected again", |this| {
            this.listen();
            Ok(this.find_event("protected", since_us).is_some() && this.lab().status().protected)
        })?;
        self.note_syncs();
        Ok(())
    }

    /// Waits until the guest is protected, by any two replicas.
    pub fn wait_until_protected(&mut self) -> Result<()> {
        self.wait("protected", |this| Ok(this.lab().status().protected))
    }

    /// The first event of a kind since a moment.
    pub fn find_event(&self, what: &str, since_us: u64) -> Option<&TraceEvent> {
        self.events
            .iter()
            .find(|event| event.mono_us > since_us && event.what == what)
    }

    /// Waits until something holds.
    pub fn wait(
        &mut self,
        what: &str,
        mut holds: impl FnMut(&mut Self) -> Result<bool>,
    ) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.listen();
            if holds(self)? {
                return Ok(());
            }
            if Instant::now() > deadline {
                let status = self.lab().status();
                bail!("after {} s still not: {what}\n{status}", PATIENCE.as_secs());
            }
            self.progress.sleep(LOOK_EVERY)?;
        }
    }

    /// Keeps the medians of the leader that led most syncs: a replica forgets its own when it dies.
    fn note_syncs(&mut self) {
        for replica in self.lab().status().group.replicas {
            if replica.sync.count > self.sync.count {
                self.sync = replica.sync;
            }
        }
    }

    /// Stops the client, reads everything back, and takes the lab down.
    pub fn finish(mut self) -> Result<Verdict> {
        self.note_syncs();
        let Some(client) = self.client.take() else {
            bail!("there is no client")
        };
        let Some(capture) = self.capture.take() else {
            bail!("there is no capture")
        };
        self.progress
            .say("the clients stop; every acknowledged write is read back");
        let audit = client.audit()?;
        let captured = capture.stop()?;
        self.listen();
        let senders = Senders::judge(&captured, &self.events);
        let verdict = Verdict {
            audit,
            senders,
            sync: std::mem::take(&mut self.sync),
        };
        if !verdict.is_good() {
            self.keep_evidence();
        }
        match self.lab.take() {
            Some(lab) => lab.down().map(|()| verdict),
            None => Ok(verdict),
        }
    }

    /// Copies logs and traces out of a lab that is about to be taken down.
    pub fn keep_evidence(&self) -> Option<PathBuf> {
        let lab = self.lab.as_ref()?;
        let to = std::env::temp_dir().join(format!(
            "plover-{}-evidence-{}",
            lab.name(),
            std::process::id()
        ));
        match lab.copy_evidence(&to) {
            Ok(()) => {
                self.progress
                    .say(format!("logs and traces are kept in {}", to.display()));
                Some(to)
            }
            Err(error) => {
                self.progress
                    .say(format!("logs and traces could not be kept: {error:#}"));
                None
            }
        }
    }
}

impl Drop for Experiment {
    fn drop(&mut self) {
        // The client goes first: the end of its host must not look like a reset.
        self.client = None;
        self.capture = None;
        if let Some(lab) = self.lab.take() {
            if let Err(error) = lab.down() {
                self.progress
                    .say(format!("the lab could not be taken down: {error:#}"));
            }
        }
    }
}
