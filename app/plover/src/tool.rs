//! Programs of others, which may hang.

use std::io::{self, Read, Write};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// How often we look whether it has ended.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A program that has ended leaves its pipes closed, or to a process that it has started.
const PIPES_WITHIN: Duration = Duration::from_secs(1);

/// How a program ended, and what it printed.
#[derive(Debug)]
pub struct Ended {
    pub status: ExitStatus,
    pub out: String,
    pub err: String,
}

/// Runs a program with `input`. One that has not ended within this time is killed, and `None` is returned; so it is if
/// a process that it has started still holds its output.
///
/// # Errors
/// It cannot be started.
pub fn run(
    command: &mut Command,
    input: Option<&str>,
    within: Duration,
) -> io::Result<Option<Ended>> {
    let mut child = command
        .stdin(if input.is_some() {
            Stdio::piped()
        } else {
            Stdio::null()
        })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    // Threads, since each of the three pipes may be full.
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let input = input.map(str::to_owned);
    std::thread::spawn(move || {
        stdin
            .zip(input)
            .map(|(mut to, text)| to.write_all(text.as_bytes()))
    });
    let (out, err) = (all_of(stdout), all_of(stderr));
    let deadline = Instant::now() + within;
    let status = loop {
        match child.try_wait()? {
            Some(status) => break status,
            None if Instant::now() >= deadline => {
                let _ = child.kill();
                let _ = child.wait();
                return Ok(None);
            }
            None => std::thread::sleep(LOOK_EVERY),
        }
    };
    let text = |of: Receiver<String>| of.recv_timeout(PIPES_WITHIN).ok();
    let (Some(out), Some(err)) = (text(out), text(err)) else {
        return Ok(None);
    };
    Ok(Some(Ended { status, out, err }))
}

/// Reads a pipe to its end.
fn all_of(pipe: Option<impl Read + Send + 'static>) -> Receiver<String> {
    let (told, of) = channel();
    std::thread::spawn(move || {
        let mut text = Vec::new();
        let _ = pipe.map(|mut pipe| pipe.read_to_end(&mut text));
        let _ = told.send(String::from_utf8_lossy(&text).into_owned());
    });
    of
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_read_and_a_hung_one_is_given_up() {
        let shell = |script: &str, within| {
            run(Command::new("sh").args(["-c", script]), Some("in"), within).unwrap()
        };
        let ended = shell("cat; echo no >&2; exit 3", Duration::from_secs(60)).unwrap();
        assert_eq!((ended.out.as_str(), ended.err.as_str()), ("in", "no\n"));
        assert_eq!(ended.status.code(), Some(3));
        assert!(shell("exec sleep 1000", Duration::from_millis(50)).is_none());
        let left_behind = "sleep 5 &";
        assert!(shell(left_behind, Duration::from_millis(50)).is_none());
    }
}
