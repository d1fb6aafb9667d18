//! One end of one lane: a port, the ring that the peer writes here, the one that we write there.

use super::doorbell::Doorbell;
use super::inbound::Inbound;
use super::native::{Address, Event, NativeError, Port, Posted, Provider, Run};
use super::outbound::Outbound;
use super::seal::{Opener, Sealer, Secrets, TAG_BYTES};
use crate::Lane;
use crate::context::{Context, Loss, Share};
use crate::hello::Session;
use plover_types::ReplicaId;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Instant;

/// Behind the ring, a place for writes that carry nothing but their immediate data. (Writes of
/// no bytes at all are not something every provider has been tested with.)
const CELL_BYTES: usize = 64;
/// Such a write carries one aligned word.
const WORD_BYTES: usize = 8;
/// Arrivals taken off the queue at once.
const EVENTS: usize = 64;
/// How often that is repeated in one call, so that no peer keeps the others waiting.
const EVENT_ROUNDS_MAX: usize = 4;

/// One end of one lane.
#[derive(Debug)]
pub struct End {
    peer: ReplicaId,
    lane: Lane,
    port: Port,
    inbound: Inbound,
    pub(super) outbound: Outbound,
    /// With keys: they seal and open the records.
    pub(super) seal: Option<(Sealer, Opener)>,
    token: Option<crate::poll::Token>,
    /// Whether an arrival would show on the descriptor.
    armed: bool,
    /// The last call stopped at its bound.
    left_over: bool,
    /// The provider took no more: it has to be driven and asked again.
    blocked: bool,
    /// Our first doorbell is posted.
    greeted: bool,
    /// The error that [`look`](Self::look) met; the queue reports it only once.
    failed: Option<NativeError>,
}

impl End {
    /// Opens a port for `lane` of the link to `peer` in `session`.
    pub fn open(
        context: &mut Context,
        provider: &Arc<Provider>,
        waits: bool,
        peer: ReplicaId,
        lane: Lane,
        session: Session,
    ) -> Result<(Self, Address), NativeError> {
        let capacity = context.capacity(lane);
        let bytes = capacity.bytes() + CELL_BYTES;
        let key = fresh_key(provider.traits.key_bytes);
        let (port, address) = Port::open(provider, waits, bytes, key)?;
        let token = match port.wait_fd() {
            Some(fd) => Some(watch(context, fd)?),
            None => None,
        };
        let end = Self {
            peer,
            lane,
            port,
            inbound: Inbound::new(capacity, session.salt(peer, lane)),
            outbound: Outbound::new(capacity, session.salt(context.me, lane), &provider.traits),
            seal: None,
            token,
            armed: false,
            left_over: false,
            blocked: false,
            greeted: false,
            failed: None,
        };
        Ok((end, address))
    }

    /// Names the peer's end.
    pub fn connect(&mut self, peer: &Address) -> Result<(), NativeError> {
        self.port.connect(peer)
    }

    /// The memory that the peer writes.
    #[cfg(test)]
    pub(super) fn inbound_memory(&self) -> &crate::mapping::Mapping {
        &self.port.inbound
    }

    /// Seals the records of this session from the first one on.
    pub fn seal(&mut self, me: ReplicaId, session: Session, secrets: &Secrets) {
        let (peer, lane) = (self.peer, self.lane);
        self.seal = Some((
            secrets.sealer(session, me, peer, lane),
            secrets.opener(session, peer, me, lane),
        ));
    }

    /// Whether the peer's first doorbell has come.
    pub fn is_heard(&self) -> bool {
        self.inbound.is_heard()
    }

    /// Whether ours has gone.
    pub fn is_greeted(&self) -> bool {
        self.greeted
    }

    /// Rings the first doorbell, which makes the provider connect.
    pub fn greet(&mut self) -> Result<(), NativeError> {
        if !self.greeted {
            self.greeted = self.post_word(Doorbell::written(crate::ring::Position(0)))?;
        }
        Ok(())
    }

    /// Queues one record; `false` if the peer's ring has no room for it.
    pub fn write(&mut self, record: &[u8]) -> Result<bool, NativeError> {
        // A record that is refused must not be sealed: the reader would count on without it.
        if !self.has_room(record.len() + self.seal.as_ref().map_or(0, |_| TAG_BYTES))? {
            return Ok(false);
        }
        let (memory, writer) = (&self.port.outbound, &mut self.outbound.writer);
        let copy = |offset, bytes: &[u8]| memory.copy_in(offset, bytes);
        Ok(match &mut self.seal {
            Some((sealer, _)) => writer.put(sealer.seal(record, writer.tail()), copy),
            None => writer.put(record, copy),
        })
    }

    /// Whether the peer's ring has room for so many bytes, once what it has read is released.
    fn has_room(&mut self, bytes: usize) -> Result<bool, NativeError> {
        if self.outbound.writer.fits(bytes) {
            return Ok(true);
        }
        // Reports are picked up late, since each look is a call: long after the peer has read what they are about. Its credit
        // may have come as well.
        self.drain()?;
        self.completions()?;
        self.outbound.release();
        Ok(self.outbound.writer.takes(bytes))
    }

    /// Posts what was queued, as far as the provider takes it.
    pub fn flush(&mut self) -> Result<(), NativeError> {
        self.blocked = false;
        while let Some(step) = self.outbound.next() {
            self.armed = false;
            let posted = match step.inject {
                true => self.port.inject(step.run)?,
                false => self.port.write(step.run, step.sequence, true)?,
            };
            match posted {
                Posted::Taken => self.outbound.posted(step),
                Posted::NoCall if step.inject => self.outbound.forgo_inject(),
                Posted::NotNow | Posted::NoCall => {
                    self.blocked = true;
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Whether the caller should come again at once.
    pub fn wants_progress(&self) -> bool {
        self.left_over || self.outbound.next().is_some() && !self.blocked
    }

    /// Whether it has to be looked at again soon, though nothing may wake us for it.
    pub fn wants_another_look(&self) -> bool {
        let unreported = self.outbound.wants_completions();
        self.blocked || self.inbound.owes_credit() || self.inbound.is_behind() || unreported
    }

    /// Whether there may be something to take in.
    pub fn is_due(&self, context: &Context) -> bool {
        let woken = self.token.is_none_or(|token| context.poll.is_ready(token));
        !self.armed || woken || self.left_over || self.wants_another_look()
    }

    /// Takes doorbells off the queue; `true` if there were any.
    pub fn drain(&mut self) -> Result<bool, NativeError> {
        self.armed = false;
        let mut events = [Event::default(); EVENTS];
        let mut any = false;
        for _ in 0..EVENT_ROUNDS_MAX {
            let count = self.port.arrivals(&mut events)?;
            for event in events[..count].iter().filter(|event| event.arrived != 0) {
                match Doorbell::decode(event.immediate) {
                    Doorbell::Written(mark) => self.inbound.ring(mark),
                    Doorbell::Read(mark) => self.outbound.credit(mark),
                }
            }
            any |= count > 0;
            if count < EVENTS {
                return Ok(any);
            }
        }
        self.left_over = true;
        Ok(any)
    }

    /// Whether there is anything for [`serve`](Self::serve), be it an error.
    pub fn look(&mut self) -> bool {
        self.drain().unwrap_or_else(|error| {
            self.failed = Some(error);
            true
        })
    }

    /// Takes in and delivers what has come; `now` tells how long announced bytes are missing.
    pub fn serve(&mut self, context: &mut Context, now: Instant) -> Result<(), Loss> {
        if let Some(error) = self.failed.take() {
            return Err(error.into());
        }
        self.left_over = false;
        self.drain()?;
        // Bytes that the provider wrote before it rang are in memory before we look.
        std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
        let (inbound, memory) = (&mut self.inbound, &self.port.inbound);
        let (lane, seal) = (self.lane, &mut self.seal);
        let share = &mut Share::default();
        self.left_over |= context.deliver(self.peer, lane, share, |pool| {
            let at = inbound.head();
            match (inbound.look(memory, pool), &mut *seal) {
                (Some(record), Some((_, opener))) => Ok(Some(opener.open(record, at, lane)?)),
                (record, _) => Ok(record),
            }
        })?;
        if !self.left_over && self.inbound.is_stuck(now) {
            let what = "bytes that the peer announced never became a record";
            return Err(Loss::Damage(what.into()));
        }
        self.give_credit()?;
        self.collect(context)?;
        Ok(())
    }

    fn give_credit(&mut self) -> Result<(), NativeError> {
        if let Some(immediate) = self.inbound.credit() {
            if self.post_word(immediate)? {
                self.inbound.credited();
            }
        }
        Ok(())
    }

    /// Picks up reports if they are needed, releases space and says when there is room again.
    fn collect(&mut self, context: &mut Context) -> Result<(), NativeError> {
        if self.outbound.wants_completions() {
            self.completions()?;
        }
        self.outbound.release();
        context.report_room(self.peer, self.lane, &mut self.outbound.writer);
        Ok(())
    }

    /// Picks up reports of completed and failed writes.
    fn completions(&mut self) -> Result<(), NativeError> {
        let mut events = [Event::default(); EVENTS];
        loop {
            let count = self.port.completions(&mut events)?;
            for event in &events[..count] {
                self.outbound.completed(event.sequence);
            }
            if count < EVENTS {
                return Ok(());
            }
        }
    }

    /// Looks now and then for failed writes, and for anything that a provider should have woken us
    /// for and did not.
    pub fn check(&mut self) -> Result<(), NativeError> {
        self.armed = false;
        if self.outbound.is_under_way() {
            self.completions()?;
        }
        Ok(())
    }

    /// Makes the descriptor wake for whatever comes from now on; `false` if something already
    /// has come.
    pub fn arm(&mut self) -> Result<bool, NativeError> {
        if !self.armed && self.token.is_some() {
            self.armed = self.port.may_sleep()?;
            return Ok(self.armed);
        }
        Ok(true)
    }

    /// Posts a write of nothing but `immediate`; `false` if it has to be tried again.
    fn post_word(&mut self, immediate: u32) -> Result<bool, NativeError> {
        self.armed = false;
        let run = Run {
            offset: self.port.outbound.bytes() - CELL_BYTES,
            bytes: WORD_BYTES,
            immediate,
        };
        let posted = match self.port.inject(run)? {
            // Its bytes never change, so it needs no report; 0 is no write's number.
            Posted::NoCall => self.port.write(run, 0, false)?,
            posted => posted,
        };
        Ok(posted == Posted::Taken)
    }
}

fn watch(context: &mut Context, fd: RawFd) -> Result<crate::poll::Token, NativeError> {
    // SAFETY: the descriptor belongs to the port that was just opened, and stays open for the
    // call.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let watched = context.poll.watch(fd, crate::poll::Interest::Read);
    watched.map_err(|error| NativeError::of_system("epoll_ctl on the wait object", &error))
}

/// A key that no earlier session used, as wide as the provider takes it.
fn fresh_key(bytes: u64) -> u64 {
    let key = Session::fresh().0;
    match bytes {
        8.. => key,
        bytes => key & ((1 << (bytes * 8)) - 1),
    }
}
