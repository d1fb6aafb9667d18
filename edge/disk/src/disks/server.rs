//! One disk, served to one guest over NBD.

use super::MANY_BLOCKS;
use super::inner::{Inner, cannot};
use crate::health::lock;
use crate::image::Image;
use crate::nbd::Backing;
use crate::worker::DiskEvent;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

/// Serves one disk to one guest.
pub(super) struct Server {
    pub(super) inner: Arc<Inner>,
    pub(super) image: usize,
    pub(super) life: u64,
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
        self.image().sync()
    }

    fn busy(&self, busy: bool) {
        *lock(&self.image().asked) = busy.then(Instant::now);
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
