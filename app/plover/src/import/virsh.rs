//! Asking the libvirt of this host.

use anyhow::{Context, Result, bail};
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// libvirt answers at once; one that does not answer for so long hangs.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// How often we look whether it has answered.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Runs `virsh` with `input`, and returns what it prints.
pub fn virsh(arguments: &[&str], input: Option<&str>) -> Result<String> {
    let mut child = Command::new("virsh")
        .args(arguments)
        .stdin(if input.is_some() {
            Stdio::piped()
        } else {
            Stdio::null()
        })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context(
            "cannot run virsh: install libvirt-clients, or give the XML of the domain as a file",
        )?;
    // Threads, since each of the three pipes may be full.
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let input = input.map(str::to_owned);
    std::thread::spawn(move || {
        stdin
            .zip(input)
            .map(|(mut to, text)| to.write_all(text.as_bytes()))
    });
    let out = std::thread::spawn(move || all_of(stdout));
    let err = std::thread::spawn(move || all_of(stderr));
    let deadline = Instant::now() + ANSWER_WITHIN;
    let status = loop {
        match child.try_wait()? {
            Some(status) => break status,
            None if Instant::now() >= deadline => {
                let _ = child.kill();
                let _ = child.wait();
                bail!(
                    "virsh {} has not answered within {} s: look at libvirtd (`systemctl status libvirtd virtqemud`)",
                    arguments[0],
                    ANSWER_WITHIN.as_secs()
                );
            }
            None => std::thread::sleep(LOOK_EVERY),
        }
    };
    let text = |thread: std::thread::JoinHandle<String>| thread.join().unwrap_or_default();
    let (out, err) = (text(out), text(err));
    if !status.success() {
        let why = err.trim().replace('\n', "; ");
        bail!("virsh {} failed: {why}", arguments[0]);
    }
    Ok(out)
}

fn all_of(pipe: Option<impl Read>) -> String {
    let mut text = Vec::new();
    let _ = pipe.map(|mut pipe| pipe.read_to_end(&mut text));
    String::from_utf8_lossy(&text).into_owned()
}
