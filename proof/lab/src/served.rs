//! A `plover` command that listens beside a lab: `plover metrics`, `plover dash` or `plover display`.

use crate::program;
use anyhow::{Context, Result, ensure};
use plover_lab::Lab;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// How long a command may take to say where it listens, and then for each answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// A command that runs for all replicas of a lab, until it is dropped. Control sockets are files, so it needs no namespace
/// of theirs.
#[derive(Debug)]
pub struct Served {
    child: Child,
    address: String,
}

impl Served {
    /// Starts `plover COMMAND`, and waits until it says where it listens.
    ///
    /// # Errors
    /// It does not start, or says something else.
    pub fn start(lab: &Lab, command: &str) -> Result<Self> {
        let configs = lab.ids().map(|id| lab.files(id).config());
        Self::run(
            [command.into(), "--config".into()]
                .into_iter()
                .chain(configs),
        )
    }

    /// Starts `plover display` for one replica, and waits until it says where it listens.
    ///
    /// # Errors
    /// It does not start, or says something else.
    pub fn display(lab: &Lab, id: u8) -> Result<Self> {
        let run_dir = lab.files(id).run_dir();
        Self::run(["display".into(), "--run-dir".into(), run_dir])
    }

    /// Starts `plover dash --fleet` without replicas, for a cluster whose `crm_mon` is in this folder, and waits until it
    /// says where it listens.
    ///
    /// # Errors
    /// It does not start, or says something else.
    pub fn fleet(folder: &Path) -> Result<Self> {
        let others = std::env::var("PATH").unwrap_or_default();
        let path = format!("{}:{others}", folder.display());
        let mut command = Command::new(program());
        command.args(["dash", "--fleet"]).env("PATH", path);
        Self::start_as(command)
    }

    fn run(words: impl IntoIterator<Item = PathBuf>) -> Result<Self> {
        let mut command = Command::new(program());
        command.args(words);
        Self::start_as(command)
    }

    fn start_as(mut command: Command) -> Result<Self> {
        let mut child = command
            .args(["--listen", "127.0.0.1:0"])
            .stdout(Stdio::piped())
            .spawn()?;
        let stdout = child.stdout.take();
        let mut served = Self {
            child,
            address: String::new(),
        };
        let stdout = stdout.context("its output is a pipe")?;
        let patience = Timespec {
            tv_sec: PATIENCE.as_secs() as i64,
            tv_nsec: 0,
        };
        let has_spoken = poll(&mut [PollFd::new(&stdout, PollFlags::IN)], Some(&patience))?;
        ensure!(
            has_spoken > 0,
            "{command:?} does not say within {} s where it listens",
            PATIENCE.as_secs()
        );
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        let words = line.split([' ', '/', '\n']);
        let address = words
            .into_iter()
            .find(|word| word.starts_with("127.0.0.1:"));
        served.address = address.with_context(|| format!("'{line}'"))?.to_owned();
        Ok(served)
    }

    /// The process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A connection to it.
    ///
    /// # Errors
    /// It has ended.
    pub fn connect(&self) -> Result<TcpStream> {
        Ok(TcpStream::connect(&self.address)?)
    }

    /// The address of its first page.
    pub fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    /// Gets a page, without its headers.
    ///
    /// # Errors
    /// It does not answer, or with another code than 200.
    pub fn get(&self, path: &str) -> Result<String> {
        let mut stream = self.connect()?;
        stream.set_read_timeout(Some(PATIENCE))?;
        write!(
            stream,
            "GET {path} HTTP/1.0\r\nHost: {}\r\n\r\n",
            self.address
        )?;
        let mut answer = String::new();
        let read = stream.read_to_string(&mut answer);
        read.with_context(|| format!("{path}: no answer, after {answer:?}"))?;
        ensure!(answer.contains(" 200 "), "{path}: {answer}");
        let body = answer.split_once("\r\n\r\n").map(|(_, body)| body);
        Ok(body.context("a body")?.to_owned())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
