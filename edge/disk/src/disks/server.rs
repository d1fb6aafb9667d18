//! One disk, served to one guest over NBD.

use super::MANY_BLOCKS;
use super::inner::{Inner, cannot};
use crate::image::Image;
use crate::nbd::{self, Backing};
use crate::worker::DiskEvent;
use rustix::fd::OwnedFd;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

/// Serves one disk to one guest.
pub(super) struct Server {
    pub(super) inner: Arc<Inner>,
    pub(super) image: usize,
    pub(super) life: u64,
}

/// Serves a disk on a thread of its own. Returns our end, to look at it and to end it, and QEMU's.
pub(super) fn start(
    inner: &Arc<Inner>,
    image: usize,
    life: u64,
) -> io::Result<(UnixStream, OwnedFd)> {
    let (ours, theirs) = UnixStream::pair()?;
    let mut stream = ours.try_clone()?;
    let server = Server {
        inner: Arc::clone(inner),
        image,
        life,
    };
    std::thread::Builder::new()
        .name(format!("disk {image}"))
        .spawn(move || {
            if let Err(error) = nbd::serve(&mut stream, &server) {
                tracing::debug!(image, %error, "a disk's connection ended");
            }
        })?;
    Ok((ours, theirs.into()))
}

impl Server {
    fn image(&self) -> &Image {
        &self.inner.images[self.image]
    }
}

impl Backing for Server {
    fn bytes(&self) -> u64 {
        self.image().bytes()
    }

    fn is_read_only(&self) -> bool {
        self.image().read_only
    }

    fn read(&self, offset: u64, to: &mut [u8]) -> io::Result<()> {
        self.inner.wait_until_written(self.life);
        self.image().read(offset, to)
    }

    /// Waits for unfinished work. Changes nothing if this guest is gone.
    fn change(
        &self,
        offset: u64,
        bytes: u64,
        change: &mut dyn FnMut(&Image) -> io::Result<()>,
    ) -> io::Result<()> {
        let inner = &self.inner;
        inner.wait_for(self.life, |gate| gate.unsettled == 0 && gate.unwritten == 0);
        let changing = inner
            .changing
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        let done = if inner.is_alive(self.life) {
            change(self.image())
        } else {
            Err(io::ErrorKind::NotConnected.into())
        };
        drop(changing);
        // Also after a failure: a part may have been written.
        self.image().note(offset, bytes);
        if inner.written() >= MANY_BLOCKS && !inner.many_told.swap(true, Ordering::AcqRel) {
            inner.tell(DiskEvent::ManyWritten);
        }
        done
    }

    fn flush(&self) -> io::Result<()> {
        let _call = self.image().calls.begin();
        self.image().sync()
    }

    fn busy(&self, busy: bool) {
        if busy {
            self.inner.busy.fetch_add(1, Ordering::AcqRel);
        } else {
            self.inner.busy.fetch_sub(1, Ordering::AcqRel);
        }
    }

    fn failed(&self, what: &str, error: &io::Error) {
        if self.inner.is_alive(self.life) {
            self.inner.note_failure(&cannot(what, self.image(), error));
        }
    }
}
