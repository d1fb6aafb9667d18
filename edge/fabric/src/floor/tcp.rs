//! The floor of TCP: blocking sockets, a thread each.

use super::{ACKNOWLEDGEMENT_BYTES, needed};
use crate::Spin;
use crate::spin::Spinner;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread::{self, JoinHandle};

#[derive(Debug)]
pub(super) struct Leader {
    backups: Vec<Backup>,
    payload: Vec<u8>,
    rounds: u64,
    spinner: Spinner,
}

#[derive(Debug)]
struct Backup {
    stream: TcpStream,
    /// Bytes of acknowledgements that have come.
    answered_bytes: u64,
    thread: Option<JoinHandle<()>>,
}

impl Leader {
    pub fn start(payload_bytes: usize, backups: usize, spin: Spin) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let start = || {
            let stream = TcpStream::connect(listener.local_addr()?)?;
            let (there, _) = listener.accept()?;
            stream.set_nodelay(true)?;
            there.set_nodelay(true)?;
            let thread = thread::spawn(move || back_up(there, payload_bytes, spin));
            Ok(Backup {
                stream,
                answered_bytes: 0,
                thread: Some(thread),
            })
        };
        Ok(Self {
            backups: (0..backups).map(|_| start()).collect::<io::Result<_>>()?,
            payload: vec![7; payload_bytes],
            rounds: 0,
            spinner: Spinner::new(spin),
        })
    }

    pub fn round(&mut self) -> io::Result<()> {
        self.rounds += 1;
        for backup in &mut self.backups {
            backup.stream.write_all(&self.payload)?;
        }
        while self.answers() < needed(self.backups.len()) {
            self.hear()?;
        }
        Ok(())
    }

    /// How many backups have answered this round.
    fn answers(&self) -> usize {
        let all = self.rounds * ACKNOWLEDGEMENT_BYTES as u64;
        let backups = self.backups.iter();
        backups
            .filter(|backup| backup.answered_bytes >= all)
            .count()
    }

    /// Waits for some acknowledgement and takes in what there is.
    fn hear(&mut self) -> io::Result<()> {
        let streams = self.backups.iter().map(|backup| &backup.stream);
        let mut fds: Vec<_> = streams
            .map(|stream| PollFd::new(stream, PollFlags::IN))
            .collect();
        wait(&mut fds, &mut self.spinner)?;
        let ready: Vec<_> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        for (backup, _) in self.backups.iter_mut().zip(ready).filter(|(_, r)| *r) {
            // A backup may be some rounds behind: their acknowledgements come together.
            let mut buffer = [0; 64 * ACKNOWLEDGEMENT_BYTES];
            match backup.stream.read(&mut buffer)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => backup.answered_bytes += count as u64,
            }
        }
        Ok(())
    }
}

/// Waits until one of them is readable.
fn wait(fds: &mut [PollFd<'_>], spinner: &mut Spinner) -> io::Result<()> {
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // An error shows again at the next look or read.
    let mut ready = || poll(fds, Some(&now)) != Ok(0);
    while !spinner.spin(&mut ready) {
        if spinner.may_sleep() {
            poll(fds, None)?;
            break;
        }
    }
    Ok(())
}

fn back_up(mut stream: TcpStream, payload_bytes: usize, spin: Spin) {
    let mut payload = vec![0; payload_bytes];
    let mut spinner = Spinner::new(spin);
    loop {
        if spin != Spin::Never
            && wait(&mut [PollFd::new(&stream, PollFlags::IN)], &mut spinner).is_err()
        {
            return;
        }
        let heard = stream.read_exact(&mut payload);
        if heard.is_err() || stream.write_all(&[1; ACKNOWLEDGEMENT_BYTES]).is_err() {
            return;
        }
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        for backup in &mut self.backups {
            // It may have ended already.
            let _ = backup.stream.shutdown(Shutdown::Both);
            if let Some(thread) = backup.thread.take() {
                let _ = thread.join();
            }
        }
    }
}
