//! `./x chaos`: random faults of a real lab under load, and a check of what its clients saw.
//!
//! ```text
//!   lab up ─▶ clients go on ─▶ faults of a step ─▶ heal ─▶ whole again ─▶ clients pause
//!                  ▲                                                         │
//!                  └──── a new piece of history ◀── the old one is checked ◀─┘
//! ```
//!
//! | question | module |
//! |---|---|
//! | what happens, and what may happen | [`schedule`] |
//! | how it is done to the hosts | [`hosts`] |
//! | who reads and writes, and where | [`clients`], [`registers`] |
//! | whether the guest's shell and disk answer | `shell` |
//! | what they saw, and whether it can be explained | `plover_register_proof`'s `history` and `check` |
//! | the table | [`report`] |
//!
//! It is a violation if
//!
//! * what clients saw is not linearizable ([`plover_register_proof::check`]), which includes a write that was acknowledged and is gone;
//! * a connection is reset or refused, or has no answer for [`clients::PATIENCE`], other than by a reboot of the guest;
//! * [`WHOLE_WITHIN`] after healing, the guest is not protected, a replica does not take part, or a client has no answer;
//! * then the guest does not carry out a line that is typed on its console, and that writes to its disk;
//! * a daemon ends that was not killed and whose state was not full;
//! * two replicas sent as the guest at a time ([`crate::senders`]).
//!
//! A reboot of the guest ends a piece of history: this guest keeps its data in memory.

pub mod clients;
pub mod hosts;
pub mod registers;
pub mod report;
pub mod schedule;
mod shell;

use crate::capture::Capture;
use crate::load::gap_of;
use crate::role;
use crate::senders::Senders;
use anyhow::{Context, Result, bail, ensure};
use clients::Clients;
use hosts::{Hosts, Struck, is_whole};
use plover_lab::Lab;
use plover_lab::options::{Options, PolicyName};
use plover_lab::progress::Progress;
use plover_lab::trace::{Tail, TraceEvent, now_us};
use plover_lab::up::is_interruption;
use plover_register_proof::check::{Checked, Judge, Violation};
use plover_register_proof::history::Operation;
use report::{Report, Row};
use schedule::{Schedule, Step};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long after healing the guest may take to be protected by all replicas, and to answer every client. A replica
/// that starts again gets a full copy, which takes seconds on an idle machine. A replica whose disk has hung often takes
/// copies more rarely.
pub const WHOLE_WITHIN: Duration = Duration::from_secs(60);

/// Every other seed has a machine whose devices are reset at each load (docs/decisions/0003), so that a replica joins with
/// two syncvms.
fn machine_of(seed: u64) -> Option<String> {
    (seed % 2 == 1).then(|| "q35".into())
}

/// How often a wait checks its condition.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Clients work for so long before a step's first fault, and after the guest is protected again.
const CALM: Duration = Duration::from_millis(500);

/// Typed in the guest: writes half a MiB to its disk, again and again.
const DISK_LOAD: &str = "while :; do dd if=/dev/urandom of=/dev/vda bs=64k count=8 oflag=direct \
                         2>/dev/null; usleep 500000; done &\n";

/// What to run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The lab's name.
    pub name: &'static str,
    /// The `plover` program.
    pub program: PathBuf,
    /// How the guest is protected. It has a disk, which some policies do not take.
    pub policy: PolicyName,
    /// No step begins after this time.
    pub minutes: u64,
    /// The seed of the schedule.
    pub seed: u64,
    /// If not empty: only these faults, in turn.
    pub only: Vec<String>,
    /// No more steps than this.
    pub steps: Option<u64>,
    /// More configuration for every replica.
    pub overlay: Option<PathBuf>,
}

impl Plan {
    /// The command that repeats it.
    fn command(&self) -> String {
        let mut command = format!("./x chaos --minutes {} --seed {}", self.minutes, self.seed);
        if self.policy != PolicyName::default() {
            command += &format!(" --policy {}", self.policy);
        }
        for fault in &self.only {
            command += &format!(" --only \"{fault}\"");
        }
        if let Some(steps) = self.steps {
            command += &format!(" --steps {steps}");
        }
        if let Some(overlay) = &self.overlay {
            command += &format!(" --overlay {}", overlay.display());
        }
        command
    }
}

/// Runs it. A violation, or a fault that cannot be caused, ends it and is in the report.
///
/// # Errors
/// The lab cannot be made, or Ctrl-C. Nothing is left in any case.
pub fn run(plan: &Plan, progress: &Progress) -> Result<Report> {
    let mut schedule = if plan.only.is_empty() {
        Schedule::new(plan.seed)
    } else {
        Schedule::only(plan.seed, &plan.only).map_err(anyhow::Error::msg)?
    };
    let mut chaos = Chaos::begin(plan, progress)?;
    let end = Instant::now() + Duration::from_secs(60 * plan.minutes);
    let mut report = Report::new(plan.seed);
    let mut result = Ok(());
    while result.is_ok() && Instant::now() < end {
        let Some(step) = schedule.next() else { break };
        if plan.steps.is_some_and(|steps| step.number > steps) {
            break;
        }
        progress.say(format!("seed {}, step {}: {step}", plan.seed, step.number));
        result = chaos.step(&step).map(|row| {
            progress.say(format!("seed {}, step {}: {row}", plan.seed, step.number));
            report.rows.push(row);
        });
    }
    result = result.and_then(|()| chaos.judge_senders());
    report.checked = chaos.checked;
    if let Err(error) = result {
        if is_interruption(&error) {
            return Err(error);
        }
        report.violation = Some(chaos.explain(plan, &error));
    }
    Ok(report)
}

/// A lab, its clients and its judges.
struct Chaos {
    // In the order in which they are dropped, after `Drop` below.
    clients: Clients,
    capture: Option<Capture>,
    lab: Option<Lab>,
    hosts: Hosts,
    judge: Judge,
    tail: Tail,
    events: Vec<TraceEvent>,
    progress: Progress,
    /// The present piece of history, once the clients pause.
    piece: Vec<Operation>,
    checked: Checked,
}

impl Chaos {
    fn begin(plan: &Plan, progress: &Progress) -> Result<Self> {
        let name = plan.name.parse().map_err(anyhow::Error::msg)?;
        let mut options = Options {
            name,
            program: Some(plan.program.clone()),
            policy: plan.policy,
            overlay: plan.overlay.clone(),
            machine: machine_of(plan.seed),
            ..Options::default()
        };
        let hosts = Hosts::prepare(&options.name, options.replicas())?;
        options.disks = vec![hosts.image().into()];
        let lab = Lab::up(&options, progress)?;
        let capture = Capture::start(lab.topology())?;
        let clients = Clients::start(Some(lab.topology().client()), lab.service(), plan.seed);
        let mut this = Self {
            clients,
            capture: Some(capture),
            tail: lab.traces(),
            lab: Some(lab),
            hosts,
            judge: Judge::default(),
            events: Vec::new(),
            progress: progress.clone(),
            piece: Vec::new(),
            checked: Checked::default(),
        };
        progress.say("each replica's state moves to a file system of its own");
        if let Some(lab) = &mut this.lab {
            this.hosts.move_states(lab, progress)?;
        }
        this.new_guest()?;
        Ok(this)
    }

    fn lab(&self) -> &Lab {
        self.lab.as_ref().expect("only `drop` takes it")
    }

    /// Gives a guest that has booted its load, and begins a history.
    fn new_guest(&mut self) -> Result<()> {
        self.type_at_leader(DISK_LOAD)?;
        self.clients.mark()?;
        let reads = self.clients.read_all()?;
        self.judge.begin(registers::values(&reads));
        // What came before is of another history.
        self.piece.clear();
        Ok(())
    }

    fn type_at_leader(&self, line: &str) -> Result<()> {
        let leader = self.lab().find(&role("leader"))?;
        Ok(self.lab().control(leader).type_text(line)?)
    }

    /// The guest reads its console and writes to its disk, and not only answers its clients.
    fn ask_guest(&mut self, number: u64) -> Result<()> {
        let leader = self.lab().find(&role("leader"))?;
        shell::ask(&self.lab().control(leader), number, WHOLE_WITHIN)
    }

    /// One step, until its piece of history is checked.
    fn step(&mut self, step: &Step) -> Result<Row> {
        self.listen();
        self.clients.resume();
        self.wait_until_whole(now_us(), &[])?;
        self.progress.sleep(CALM)?;
        let mut begun_us = now_us();
        if step.reboot {
            self.clients.be_lenient(true);
            self.type_at_leader("reboot -f\n")?;
        }
        let struck = self.hosts.strike(self.lab(), step, &self.progress)?;
        if let (Some(first), false) = (struck.first(), step.reboot) {
            begun_us = first.at_us;
        }
        let healed_us = now_us();
        self.heal(&struck)?;
        if step.reboot {
            self.wait_for_reboot()?;
        }
        self.wait_until_whole(healed_us.max(begun_us), &struck)?;
        let whole_us = now_us();
        self.ask_guest(step.number)?;
        let gap = gap_of(&self.clients.answers_us(), begun_us);
        self.progress.sleep(CALM)?;
        let answered = self.end_piece(step.reboot)?;
        Ok(Row {
            number: step.number,
            what: step.to_string(),
            replicas: struck.iter().map(|it| it.id).collect(),
            gap: if step.reboot { None } else { Some(gap) },
            protected_us: self.protected_since(begun_us),
            whole_us: whole_us - healed_us,
            answered,
        })
    }

    fn heal(&mut self, struck: &[Struck]) -> Result<()> {
        let lab = self.lab.as_mut().expect("only `drop` takes it");
        self.hosts
            .heal(lab, struck, &self.progress)
            .context("healing")
    }

    /// Ends a piece of history, checks it and begins another one. Returns its answered operations.
    fn end_piece(&mut self, rebooted: bool) -> Result<usize> {
        if rebooted {
            // Those to the old guest would wait for an answer until TCP tries again.
            self.clients.reconnect();
        }
        self.clients.pause(&self.progress)?;
        let (operations, broken) = self.clients.take();
        self.piece = operations.into_iter().flatten().collect();
        if let Some(first) = broken.first() {
            let more = broken.len() - 1;
            bail!("a connection was lost: {first} (and {more} more)");
        }
        if rebooted {
            self.judge.forgive(&self.piece);
            self.new_guest()?;
            self.clients.be_lenient(false);
            return Ok(0);
        }
        let reads = self.clients.read_all();
        let reads = reads.context("the registers cannot be read")?;
        let values = registers::values(&reads);
        self.piece.extend(reads);
        match self.judge.close(&self.piece, values) {
            Ok(checked) => {
                self.piece.clear();
                self.checked = self.checked.and(checked);
                Ok(checked.answered)
            }
            Err(violation) => Err(violation.into()),
        }
    }

    /// Reads what the replicas wrote since the last time.
    fn listen(&mut self) {
        self.events.extend(self.tail.take());
        self.events.sort_by_key(|event| event.mono_us);
    }

    /// How long after `since_us` the guest was protected again; `None` if it always was.
    fn protected_since(&mut self, since_us: u64) -> Option<u64> {
        self.listen();
        let mut later = self.events.iter().filter(|it| it.mono_us > since_us);
        let protected = later.rfind(|it| it.what == "protected")?;
        Some(protected.mono_us - since_us)
    }

    /// Waits until the lab is as before the step, and every client has had an answer since `since_us`. A replica whose
    /// fault may end its daemon is started again.
    fn wait_until_whole(&mut self, since_us: u64, struck: &[Struck]) -> Result<()> {
        let deadline = Instant::now() + WHOLE_WITHIN;
        loop {
            let status = self.lab().status();
            let answers = self.clients.answers_us();
            let all_answered = gap_of(&answers, since_us).all_replied;
            if is_whole(&status) && all_answered {
                return Ok(());
            }
            for dead in status.replicas.iter().filter(|it| it.role == "down") {
                let hit = |it: &Struck| it.id == dead.id && it.strike.kind.may_end_daemon();
                if !struck.iter().any(hit) {
                    bail!("the daemon of replica {} has ended by itself", dead.id);
                }
                self.heal(struck)?;
            }
            if let Some(broken) = self.clients.broken().first() {
                bail!("a connection was lost: {broken}");
            }
            if Instant::now() > deadline {
                let silent: Vec<String> = (0..answers.len())
                    .filter(|client| answers[*client].last().is_none_or(|at| *at <= since_us))
                    .map(|client| client.to_string())
                    .collect();
                let silent = match silent.len() {
                    0 => "every client is answered".to_owned(),
                    _ => format!("clients {} have no answer", silent.join(", ")),
                };
                let seconds = WHOLE_WITHIN.as_secs();
                bail!("not whole {seconds} s after healing; {silent}");
            }
            self.progress.sleep(LOOK_EVERY)?;
        }
    }

    /// Waits until the guest has forgotten its data and answers.
    fn wait_for_reboot(&mut self) -> Result<()> {
        let deadline = Instant::now() + WHOLE_WITHIN;
        while !self.clients.mark_is_gone() {
            if Instant::now() > deadline {
                let seconds = WHOLE_WITHIN.as_secs();
                bail!("the guest has not rebooted and answered in {seconds} s");
            }
            self.progress.sleep(LOOK_EVERY)?;
        }
        // A new connection does not wait for TCP to try again.
        self.clients.reconnect();
        Ok(())
    }

    /// Whether there was one sender at a time.
    fn judge_senders(&mut self) -> Result<()> {
        let Some(capture) = self.capture.take() else {
            bail!("there is no capture")
        };
        let captured = capture.stop()?;
        self.listen();
        let senders = Senders::judge(&captured, &self.events);
        if senders.out_of_turn > 0 {
            bail!(
                "{} of {} frames were sent as the guest by a replica that did not serve",
                senders.out_of_turn,
                senders.frames
            );
        }
        ensure!(senders.is_proof(), "the capture missed frames: {senders:?}");
        Ok(())
    }

    /// A violation with all that is known: statuses, the files that are kept, the command that repeats it.
    fn explain(&mut self, plan: &Plan, error: &anyhow::Error) -> String {
        let status = self.lab().status();
        // What clients have done since is in the files as well. Their last requests end without an answer.
        self.clients.end();
        self.piece
            .extend(self.clients.take().0.into_iter().flatten());
        let to = std::env::temp_dir().join(format!(
            "plover-{}-seed-{}-{}",
            plan.name,
            plan.seed,
            std::process::id()
        ));
        let kept = self.lab().copy_evidence(&to).and_then(|()| self.save(&to));
        let kept = match kept {
            Ok(()) => format!("history, logs and traces are in {}", to.display()),
            Err(error) => format!("history, logs and traces could not be kept: {error:#}"),
        };
        // The history may tell more than the first sign of trouble did.
        let values = self.judge.values().clone();
        let judged = if error.is::<Violation>() {
            String::new()
        } else if let Err(violation) = self.judge.close(&self.piece, values) {
            violation.to_string()
        } else {
            "what clients saw since the last check is linearizable".to_owned()
        };
        let command = plan.command();
        format!("{error}\n{judged}\n\n{status}\n{kept}\nto repeat the schedule: {command}")
    }

    /// Writes the present piece of history: the values before it, then one operation a line.
    fn save(&self, to: &Path) -> Result<()> {
        let path = to.join("history.jsonl");
        let mut lines = serde_json::to_string(self.judge.values())? + "\n";
        for operation in self.judge.open().iter().chain(&self.piece) {
            lines += &(serde_json::to_string(operation)? + "\n");
        }
        std::fs::write(&path, lines).with_context(|| format!("cannot write {}", path.display()))
    }
}

/// The clients first: the end of the guest must not look like a reset. Then the lab, before the file systems under it.
impl Drop for Chaos {
    fn drop(&mut self) {
        self.clients.end();
        self.capture = None;
        // A process that waits for a frozen disk cannot be killed.
        self.hosts.release();
        if let Some(lab) = self.lab.take() {
            if let Err(error) = lab.down() {
                self.progress
                    .say(format!("the lab could not be taken down: {error:#}"));
            }
        }
    }
}
