//! The floor of TCP: a bare leader and its backups on blocking loopback sockets, a thread each,
//! Nagle's algorithm off. With a folder, every replica also writes and syncs each payload to a file
//! before it counts; the leader writes its own file while the backups write theirs.

use super::Round;
use super::disk::File;
use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, poll};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::thread::{self, JoinHandle};

const ACKNOWLEDGEMENT_BYTES: usize = 8;

/// The leader's side.
pub(super) struct Leader {
    backups: Vec<Backup>,
    /// Acknowledgements that make a majority with the leader's own.
    needed: usize,
    payload: Vec<u8>,
    file: Option<File>,
    /// How many pieces were sent.
    sent: u64,
}

struct Backup {
    /// Taken when it ends.
    stream: Option<TcpStream>,
    acknowledged: u64,
    /// Bytes of an acknowledgement that has come in part.
    part: usize,
    thread: Option<JoinHandle<()>>,
}

impl Leader {
    /// Starts `backups` threads that wait for payloads of `bytes` bytes.
    pub fn start(backups: usize, bytes: usize, folder: Option<&Path>) -> Result<Self> {
        let file = |name: &str| {
            let path = folder.map(|folder| folder.join(name));
            path.map(|path| File::create(&path, bytes)).transpose()
        };
        let listener = TcpListener::bind("127.0.0.1:0").context("loopback has no free port")?;
        let mut started = Vec::new();
        for number in 0..backups {
            let stream = TcpStream::connect(listener.local_addr()?)?;
            let (there, _) = listener.accept()?;
            stream.set_nodelay(true)?;
            there.set_nodelay(true)?;
            let file = file(&format!("backup{number}"))?;
            started.push(Backup {
                stream: Some(stream),
                acknowledged: 0,
                part: 0,
                thread: Some(thread::spawn(move || back_up(there, bytes, file))),
            });
        }
        Ok(Self {
            needed: backups.div_ceil(2),
            backups: started,
            payload: vec![7; bytes],
            file: file("leader")?,
            sent: 0,
        })
    }

    fn acknowledged_by(&self) -> usize {
        let all = self.backups.iter();
        all.filter(|backup| backup.acknowledged >= self.sent)
            .count()
    }

    /// Waits for acknowledgements, and takes in those that have come.
    fn take_acknowledgements(&mut self) -> Result<()> {
        let streams: Vec<_> = self
            .backups
            .iter()
            .flat_map(|backup| &backup.stream)
            .collect();
        let mut fds: Vec<_> = streams
            .iter()
            .map(|stream| PollFd::new(*stream, PollFlags::IN))
            .collect();
        poll(&mut fds, None)?;
        let ready: Vec<_> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        for (backup, ready) in self.backups.iter_mut().zip(ready) {
            if let Some(stream) = backup.stream.as_mut().filter(|_| ready) {
                // A backup may be some pieces behind: their acknowledgements come together.
                let mut buffer = [0; 64 * ACKNOWLEDGEMENT_BYTES];
                let count = stream.read(&mut buffer)?;
                anyhow::ensure!(count > 0, "a backup has ended");
                backup.part += count;
                backup.acknowledged += (backup.part / ACKNOWLEDGEMENT_BYTES) as u64;
                backup.part %= ACKNOWLEDGEMENT_BYTES;
            }
        }
        Ok(())
    }
}

impl Round for Leader {
    fn round(&mut self) -> Result<()> {
        self.sent += 1;
        for stream in self
            .backups
            .iter_mut()
            .flat_map(|backup| &mut backup.stream)
        {
            stream.write_all(&self.payload)?;
        }
        if let Some(file) = &mut self.file {
            file.append(&self.payload)?;
        }
        while self.acknowledged_by() < self.needed {
            self.take_acknowledgements()?;
        }
        Ok(())
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        for backup in &mut self.backups {
            // The end of the connection ends the thread.
            drop(backup.stream.take());
            if let Some(thread) = backup.thread.take() {
                let _ = thread.join();
            }
        }
    }
}

fn back_up(mut stream: TcpStream, bytes: usize, mut file: Option<File>) {
    let mut piece = vec![0; bytes];
    while stream.read_exact(&mut piece).is_ok() {
        let synced = file.as_mut().map_or(Ok(()), |file| file.append(&piece));
        // Without an acknowledgement the leader sees a backup that has ended.
        if synced.is_err() || stream.write_all(&[1; ACKNOWLEDGEMENT_BYTES]).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_majority_acknowledges_every_piece() {
        let folder = tempfile::tempdir().unwrap();
        for (backups, needed) in [(1, 1), (2, 1), (4, 2), (8, 4)] {
            for folder in [None, Some(folder.path())] {
                let mut leader = Leader::start(backups, 100, folder).unwrap();
                assert_eq!(leader.needed, needed);
                for _ in 0..20 {
                    leader.round().unwrap();
                    assert!(leader.acknowledged_by() >= needed);
                }
            }
        }
    }
}
