//! The client whose word counts: it writes numbered values over connections that it never
//! renews, notes which writes were acknowledged, and at the end reads every one of them back.
//!
//! It is a process of its own, because it lives in another network namespace than the command
//! that drives it: [`serve`] is what runs there (`plover lab-client`), [`Client`] is the other
//! end. Between them go one JSON object a line, a question and an answer. The client ends when
//! its input does, so that it never outlives who started it.
//!
//! Connection *c* sets `plover:c:0` to 0, then `plover:c:1` to 1, and so on, each after the
//! acknowledgement of the one before; so the number of acknowledgements says exactly which
//! writes must be there, and a write whose fate is unknown is not among them.

mod writers;

use crate::net::Namespace;
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddrV4;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use writers::Load;

/// What is asked of the client.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
enum Question {
    /// How far it is → [`Counts`].
    Count,
    /// How long it heard nothing, from this moment on → [`Gap`].
    Gap { since_us: u64 },
    /// Stop writing, and read everything back → [`Audit`].
    Audit,
}

/// How far the client is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Writes that were acknowledged.
    pub acked: u64,
    /// The fewest acknowledged on any one connection.
    pub acked_min: u64,
    /// Connections that were lost, and what was seen.
    pub resets: Vec<String>,
}

/// The silence around a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    /// The longest time without any acknowledgement on any connection.
    pub silence_us: u64,
    /// The acknowledgement that ended it, on the clock of the traces.
    pub first_reply_us: u64,
    /// The longest time without one on the connection that waited longest.
    pub slowest_us: u64,
    /// Whether every connection has heard an acknowledgement since.
    pub all_replied: bool,
}

/// What reading everything back found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Audit {
    /// Writes that were acknowledged.
    pub acked: u64,
    /// Of those, not there or with another value.
    pub lost: u64,
    /// The first few of them.
    pub lost_keys: Vec<String>,
    /// Connections that were lost, and what was seen.
    pub resets: Vec<String>,
}

/// The client's own process: writes until asked for the audit, and answers questions on its
/// standard input and output until the input ends.
///
/// # Errors
/// When not all connections can be opened, or the standard output is closed.
pub fn serve(address: SocketAddrV4, connections: u32, writes_per_second: u32) -> Result<()> {
    let mut load = Load::start(address, connections, writes_per_second)?;
    let mut output = std::io::stdout();
    for line in std::io::stdin().lines() {
        let question = serde_json::from_str(&line?).context("not a question")?;
        let answer = match question {
            Question::Count => serde_json::to_value(load.counts())?,
            Question::Gap { since_us } => serde_json::to_value(load.gap(since_us))?,
            Question::Audit => match load.audit() {
                Ok(audit) => serde_json::to_value(audit)?,
                Err(error) => serde_json::json!({ "error": format!("{error:#}") }),
            },
        };
        writeln!(output, "{answer}")?;
    }
    Ok(())
}

/// The other end of [`serve`].
#[derive(Debug)]
pub struct Client {
    child: Child,
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
}

/// How hard a client writes.
#[derive(Clone, Copy, Debug)]
pub struct Pressure {
    /// Connections, all open from the beginning to the end.
    pub connections: u32,
    /// At most this many writes a second on each: enough to keep an emulated guest busy, and
    /// few enough that all values of a run fit into the guest's memory on a fast machine.
    pub writes_per_second: u32,
}

impl Default for Pressure {
    fn default() -> Self {
        Self {
            connections: 10,
            writes_per_second: 100,
        }
    }
}

impl Client {
    /// Starts `program lab-client` in a network namespace.
    pub fn start(
        program: &Path,
        namespace: &Namespace,
        address: SocketAddrV4,
        pressure: Pressure,
    ) -> Result<Self> {
        use std::os::unix::process::CommandExt;
        let mut command = Command::new(program);
        command
            .args(["lab-client", &address.to_string()])
            .args([
                pressure.connections.to_string(),
                pressure.writes_per_second.to_string(),
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C is for who started the client; the audit may still be wanted.
            .process_group(0);
        let mut child = namespace
            .exec_in(command)?
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let (questions, answers) = (child.stdin.take(), child.stdout.take());
        let questions = questions.context("the client has no standard input")?;
        let answers = BufReader::new(answers.context("the client has no standard output")?);
        Ok(Self {
            child,
            questions,
            answers,
        })
    }

    /// How far it is.
    pub fn counts(&mut self) -> Result<Counts> {
        self.ask(Question::Count)
    }

    /// How long it heard nothing, from `since_us` on.
    pub fn gap(&mut self, since_us: u64) -> Result<Gap> {
        self.ask(Question::Gap { since_us })
    }

    /// Stops the writers and reads everything back.
    pub fn audit(mut self) -> Result<Audit> {
        self.ask(Question::Audit)
    }

    fn ask<T: DeserializeOwned>(&mut self, question: Question) -> Result<T> {
        let mut line = String::new();
        writeln!(self.questions, "{}", serde_json::to_string(&question)?)
            .and_then(|()| self.answers.read_line(&mut line))
            .context("the client has ended")?;
        if line.is_empty() {
            bail!("the client has ended; its last words are above");
        }
        let answer: serde_json::Value = serde_json::from_str(&line)?;
        if let Some(error) = answer.get("error").and_then(|error| error.as_str()) {
            bail!("{error}");
        }
        Ok(serde_json::from_value(answer)?)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
