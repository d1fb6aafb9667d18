//! A client program that is fed by its standard input and answers in lines.

use anyhow::{Context, Result, bail};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// A running client program. Dropping it kills it.
pub struct Tool {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
    patience: Duration,
}

impl Tool {
    /// Starts it. Its standard output and its standard error are taken as answers.
    pub fn start(name: &str, arguments: &[&str], patience: Duration) -> Result<Self> {
        let mut child = Command::new(name)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot run {name}"))?;
        let input = child.stdin.take().context("no standard input")?;
        let (sender, lines) = channel();
        let answers = child.stdout.take().context("no standard output")?;
        let errors = child.stderr.take().context("no standard error")?;
        pass_on(answers, sender.clone());
        pass_on(errors, sender);
        Ok(Self {
            child,
            input,
            lines,
            patience,
        })
    }

    /// Sends a request, and returns the lines of the answer up to and with the one that is the `last`.
    pub fn ask(&mut self, text: &str, last: impl Fn(&str) -> bool) -> Result<Vec<String>> {
        self.input.write_all(text.as_bytes())?;
        self.input.flush()?;
        let until = Instant::now() + self.patience;
        let mut answer = Vec::new();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => {
                    let is_last = last(&line);
                    answer.push(line);
                    if is_last {
                        return Ok(answer);
                    }
                }
                Err(RecvTimeoutError::Timeout) => bail!("no answer: {answer:?}"),
                Err(RecvTimeoutError::Disconnected) => bail!("the client has ended: {answer:?}"),
            }
        }
    }
}

/// Sends the lines of `from`, until it ends.
fn pass_on(from: impl Read + Send + 'static, sender: Sender<String>) {
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
}

impl Drop for Tool {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a client program to its end, which must come within `patience`.
pub fn run(name: &str, arguments: &[&str], patience: Duration) -> Result<Output> {
    let mut command = Command::new("timeout");
    command.args(["-k", "1", &patience.as_secs_f64().to_string(), name]);
    command.args(arguments).stdin(Stdio::null());
    let output = command
        .output()
        .with_context(|| format!("cannot run {name}"))?;
    Ok(output)
}
