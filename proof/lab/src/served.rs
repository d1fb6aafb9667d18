//! A `plover` command that serves HTTP beside a lab: `plover metrics` or `plover dash`.

use crate::program;
use anyhow::{Context, Result, ensure};
use plover_lab::Lab;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

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
        let mut child = Command::new(program())
            .args([command, "--listen", "127.0.0.1:0", "--config"])
            .args(configs)
            .stdout(Stdio::piped())
            .spawn()?;
        let stdout = child.stdout.take();
        let mut served = Self {
            child,
            address: String::new(),
        };
        let mut line = String::new();
        BufReader::new(stdout.context("its output is a pipe")?).read_line(&mut line)?;
        let url = line.trim().split_once(" at http://").map(|(_, url)| url);
        let address = url.and_then(|url| url.split('/').next());
        served.address = address.with_context(|| format!("'{line}'"))?.to_owned();
        Ok(served)
    }

    /// The process.
    pub fn pid(&self) -> u32 {
        self.child.id()
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
        let mut stream = TcpStream::connect(&self.address)?;
        write!(
            stream,
            "GET {path} HTTP/1.0\r\nHost: {}\r\n\r\n",
            self.address
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
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
