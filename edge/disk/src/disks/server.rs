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

impl Backing for Server {
    fn image(&self) -> &Image {
        &self.inner.images[self.image]
    }

    fn change(&self, change: &mut dyn FnMut() -> io::Result<()>) -> io::Result<()> {
        let inner = &self.inner;
        inner.wait_for(self.life, |gate| gate.unsettled == 0 && gate.unwritten == 0);
        let _changing = inner
            .changing
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        if !inner.is_alive(self.life) {
            return Err(io::ErrorKind::NotConnected.into());
        }
        change()
    }

    fn before_read(&self) {
        self.inner.wait_until_written(self.life);
    }

    fn changed(&self) {
        if self.inner.written() >= MANY_BLOCKS && !self.inner.many_told.swap(true, Ordering::AcqRel)
        {
            self.inner.tell(DiskEvent::ManyWritten);
        }
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
