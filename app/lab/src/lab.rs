//! A lab that exists: its replicas and how to reach them.

use crate::control::Control;
use crate::net::{GUEST_IP, Namespace, Topology};
use crate::progress::Progress;
use crate::state::{LabDir, LabName, LabState, ReplicaDir};
use crate::status::LabStatus;
use crate::trace::Tail;
use anyhow::{Context, Result, bail};
use serde_json::json;
use std::net::SocketAddrV4;
use std::process::Command;
use std::time::{Duration, Instant};

/// How long a new guest may take to be protected: a copy takes seconds, on a busy machine tens
/// of seconds.
const BOOTSTRAPPED_WITHIN: Duration = Duration::from_secs(90);

/// A lab that is up, or was.
#[derive(Debug)]
pub struct Lab {
    pub(crate) dir: LabDir,
    pub(crate) state: LabState,
    pub(crate) topology: Topology,
}

impl Lab {
    /// The lab `name`.
    pub fn open(name: &LabName) -> Result<Self> {
        let dir = LabDir::of(name);
        let state = dir.load()?;
        let topology = Topology::open(name.as_str())?.with_context(|| {
            format!(
                "the lab '{name}' has lost its network; `plover lab down --name {name}` removes \
                 what is left of it"
            )
        })?;
        Ok(Self {
            dir,
            state,
            topology,
        })
    }

    /// Its name.
    pub fn name(&self) -> &LabName {
        self.dir.name()
    }

    /// The ids of its replicas.
    pub fn ids(&self) -> impl Iterator<Item = u8> + '_ {
        self.state.replicas.iter().map(|replica| replica.id)
    }

    /// Its network.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// The address of the guest's service, for a client in the client's namespace.
    pub fn service(&self) -> SocketAddrV4 {
        SocketAddrV4::new(GUEST_IP, self.state.probe().port)
    }

    /// The status of all replicas.
    pub fn status(&self) -> LabStatus {
        LabStatus::gather(&self.dir, &self.state)
    }

    /// The files of one replica.
    pub fn files(&self, id: u8) -> ReplicaDir {
        self.dir.replica(id)
    }

    /// A reader of all traces.
    pub fn traces(&self) -> Tail {
        Tail::new(self.ids().map(|id| self.files(id).trace()))
    }

    /// The control socket of one replica.
    pub fn control(&self, id: u8) -> Control {
        Control::at(self.files(id).control_socket())
    }

    pub(crate) fn host(&self, id: u8) -> Namespace {
        self.topology.replica(id.into())
    }

    /// Whether the guest's service answers a client.
    pub fn guest_answers(&self, patience: Duration) -> bool {
        let (probe, service) = (self.state.probe(), self.service());
        let ask = || Ok(probe.ask(service, patience)?);
        self.topology.client().run(ask).is_ok()
    }

    /// Waits until the guest is protected (under `none`: served), saying what happens.
    pub fn wait_until_settled(
        &self,
        traces: &mut Tail,
        progress: &Progress,
        patience: Duration,
    ) -> Result<LabStatus> {
        let deadline = Instant::now() + patience;
        loop {
            for words in traces
                .take()
                .iter()
                .filter_map(crate::trace::TraceEvent::in_words)
            {
                progress.say(words);
            }
            let status = self.status();
            if status.is_settled() {
                return Ok(status);
            }
            if Instant::now() > deadline {
                bail!("not protected after {} s:\n{status}", patience.as_secs());
            }
            progress.sleep(Duration::from_millis(100))?;
        }
    }

    /// Copies every replica's configuration, log and trace to a directory.
    pub fn copy_evidence(&self, to: &std::path::Path) -> Result<()> {
        for id in self.ids() {
            let (files, to) = (self.files(id), to.join(format!("replica-{id}")));
            std::fs::create_dir_all(&to)
                .with_context(|| format!("cannot create {}", to.display()))?;
            for file in [
                files.config(),
                files.log(),
                files.trace(),
                files.console_log(),
            ] {
                // A file that was never written is left out, which is evidence as well.
                if let (true, Some(name)) = (file.exists(), file.file_name()) {
                    std::fs::copy(&file, to.join(name))
                        .with_context(|| format!("cannot copy {}", file.display()))?;
                }
            }
        }
        Ok(())
    }

    /// Has a new guest booted after all replicas have lost the old one's state: from the newest disks,
    /// if it has some. Waits until it is protected. The operator calls for this.
    pub fn bootstrap(&mut self, progress: &Progress) -> Result<()> {
        let status = self.status();
        if let Some(holder) = status.replicas.iter().find(|replica| replica.holds_state()) {
            bail!(
                "replica {} holds the guest's state: nothing is lost",
                holder.id
            );
        }
        let mut traces = self.traces();
        traces.take();
        self.choose_disks(&status, progress)?;
        let deadline = Instant::now() + BOOTSTRAPPED_WITHIN;
        // The request has no effect until all replicas have heard from each other that none of them
        // holds the guest.
        while self.status().leader().is_none() && Instant::now() < deadline {
            for member in status.members() {
                self.control(member.id)
                    .request(&json!({"op": "bootstrap"}))
                    .context("all members must be up to say that none holds the guest's state")?;
            }
            progress.sleep(Duration::from_millis(200))?;
        }
        self.wait_until_settled(&mut traces, progress, BOOTSTRAPPED_WITHIN)?;
        Ok(())
    }

    /// Boots the guest again from its newest disks, if that is safe without an operator
    /// (docs/decisions/0012). It is safe if no replica holds the guest and all are back and have said
    /// what they remember: then the newest in-sync set among them is the last there was, and a member of
    /// it must have a whole copy. To the guest this is a loss of power. Returns `false` if the guest is
    /// not lost, or no such copy exists.
    pub fn boot_after_a_loss(&mut self, progress: &Progress) -> Result<bool> {
        let status = self.status();
        if !status.guest_is_lost() {
            return Ok(false);
        }
        let Some(holder) = status.newest_disks() else {
            return Ok(false);
        };
        progress.say(format!(
            "all replicas are back, none holds the guest's state, and replica {holder} has its newest \
             disks: the guest boots from them"
        ));
        self.bootstrap(progress)?;
        Ok(true)
    }

    /// Replaces this process by a program in the client's namespace. Returns only on failure.
    pub fn exec(&self, command: Command) -> anyhow::Error {
        use std::os::unix::process::CommandExt;
        let program = command.get_program().to_string_lossy().into_owned();
        match self.topology.client().exec_in(command) {
            Ok(mut command) => anyhow::Error::new(command.exec())
                .context(format!("cannot run '{program}' in the client's namespace")),
            Err(error) => error,
        }
    }
}
