//! A thread that starts something which may hang, so that the loop does not wait for it.
//!
//! QEMU's program, its firmware and what is preloaded into it are files of the host's system disk. It lives as long as this process,
//! since QEMU is killed with the thread that started it.

use plover_disk::AbortOnPanic;
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

/// Starts a `T` at a time, by what an `O` says.
#[derive(Debug)]
pub(crate) struct Starter<O, T> {
    orders: Sender<(O, Wanted)>,
    made: Receiver<(T, Wanted)>,
    /// Polls readable when an outcome may be there.
    wake: Arc<OwnedFd>,
    /// Whether the order that was given last still is.
    wanted: Wanted,
}

type Wanted = Arc<AtomicBool>;

/// The outcome of an order.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome<T> {
    Wanted(T),
    /// It was given up meanwhile.
    Late(T),
}

impl<O: Send + 'static, T: Send + 'static> Starter<O, T> {
    /// Starts the thread, which has the priority of this one.
    pub fn new(mut start: impl FnMut(O) -> T + Send + 'static) -> io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let wake = Arc::new(wake);
        let (orders, asked) = channel::<(O, Wanted)>();
        let (tell, made) = channel();
        let wakes = Arc::clone(&wake);
        std::thread::Builder::new()
            .name("starter".into())
            .spawn(move || {
                // Nothing would be started any more.
                let _aborts = AbortOnPanic;
                for (order, wanted) in asked {
                    // One that was given up while another one hung.
                    if !wanted.load(Ordering::Acquire) {
                        continue;
                    }
                    if tell.send((start(order), wanted)).is_err() {
                        return;
                    }
                    let _ = rustix::io::write(&*wakes, &1u64.to_ne_bytes());
                }
            })?;
        Ok(Self {
            orders,
            made,
            wake,
            wanted: Wanted::default(),
        })
    }

    /// Has it started. The order before this one is given up.
    pub fn start(&mut self, order: O) {
        self.give_up();
        self.wanted = Arc::new(AtomicBool::new(true));
        // The thread ends with this, and not before.
        let _ = self.orders.send((order, Arc::clone(&self.wanted)));
    }

    /// Waits no longer for the last order's outcome.
    pub fn give_up(&mut self) {
        self.wanted.store(false, Ordering::Release);
    }

    /// The next outcome, if there is one.
    pub fn take(&mut self) -> Option<Outcome<T>> {
        let _ = rustix::io::read(&*self.wake, &mut [0; 8]);
        let (made, wanted) = self.made.try_recv().ok()?;
        Some(match wanted.load(Ordering::Acquire) {
            true => Outcome::Wanted(made),
            false => Outcome::Late(made),
        })
    }
}

impl<O, T> AsFd for Starter<O, T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, poll};

    fn next(starter: &mut Starter<u8, u8>) -> Outcome<u8> {
        loop {
            if let Some(outcome) = starter.take() {
                return outcome;
            }
            let wake = starter.wake.clone();
            poll(&mut [PollFd::new(&wake, PollFlags::IN)], None).unwrap();
        }
    }

    #[test]
    fn one_that_hangs_comes_late_and_one_that_waited_for_it_in_vain_not_at_all() {
        let (goes_on, hangs) = channel::<()>();
        let (begins, begun) = channel();
        let mut starter = Starter::new(move |number| {
            begins.send(number).unwrap();
            if number == 1 {
                hangs.recv().unwrap();
            }
            number
        })
        .unwrap();
        starter.start(1);
        assert_eq!(begun.recv(), Ok(1));
        assert_eq!(starter.take(), None, "nobody waits for it");
        starter.start(2);
        starter.start(3);
        goes_on.send(()).unwrap();
        assert_eq!(next(&mut starter), Outcome::Late(1));
        assert_eq!(next(&mut starter), Outcome::Wanted(3));
        assert_eq!(begun.try_iter().collect::<Vec<_>>(), [3]);
    }
}
