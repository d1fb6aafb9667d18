//! From the ring to the log.

use super::connections::reset;
use super::memory::{Memory, is_input};
use super::{Deserted, Direct, Outstanding};
use crate::clients::ends_by_reset;
use plover_log::Error;
use plover_preload::{Kind, Record};
use plover_program::{ConnectionId, Entry};
use plover_types::Viewstamp;
use std::sync::atomic::Ordering::SeqCst;

/// Characters of a note that an operator is shown.
const NOTE_CHARS: usize = 300;

/// A record of the ring.
#[derive(Debug)]
pub(crate) enum Happened {
    /// The program has read input, which was proposed.
    Proposed(Viewstamp),
    /// Its time has gone on, which was proposed.
    ProposedTime(Viewstamp),
    /// It has read input that cannot be proposed.
    Unproposed,
    /// It has sent this.
    Output(ConnectionId, Vec<u8>),
    /// It has ended the connection by itself.
    Ended(ConnectionId),
    /// It has noticed the end of a connection that the log has ended.
    Noticed(ConnectionId),
    /// It reads nothing any more, and all that it has read is proposed.
    Quiet,
    /// Words for the operator.
    Note(String),
    /// It has written what it must not, and cannot go on.
    Broken(&'static str),
}

/// Proposes an entry.
type Propose<'a> = &'a mut dyn FnMut(&Entry<'_>) -> Result<Viewstamp, Error>;

impl Direct {
    /// The next thing that has happened. Input is proposed.
    pub fn pump(&mut self, propose: Propose<'_>) -> Option<Happened> {
        loop {
            if let Some(first) = self.happened.pop_front() {
                return Some(first);
            }
            let mut memory = self.memory.take()?;
            if let Some(first) = self.next_deserted(&memory) {
                let is_done = self.close_deserted(&memory, first, propose);
                self.memory = Some(memory);
                if !is_done {
                    return self.happened.pop_front();
                }
                self.deserted.pop_front();
                continue;
            }
            let lock = memory.lock_owner();
            let next = match memory.next() {
                Err(_) => Err("it has written rubbish into the memory that it shares with plover"),
                Ok(None) => {
                    if let Some(owner) = self.dead_owner.take_if(|it| Some(*it) == lock) {
                        let read = memory.unlock_for(owner, self.number);
                        let of = read.and_then(|slot| self.connections.get(slot));
                        if let Some(stream) = of.and_then(|it| it.stream.as_ref()) {
                            reset(stream);
                        }
                    }
                    // A thread that has seen the epoch before this one is still reading as long as it has the lock.
                    if self.quiesces && lock.is_none() {
                        self.quiesces = false;
                        self.epoch_min = self.epoch;
                        self.happened.push_back(Happened::Quiet);
                    }
                    Ok(None)
                }
                Ok(Some((record, bytes))) => {
                    let bytes = bytes.to_vec();
                    self.take(&memory, &record, &bytes, propose)
                        .map(|taken| taken.then_some(record))
                }
            };
            if let Ok(Some(record)) = &next {
                memory.took(record);
                self.number = record.number;
                self.filled += u64::from(record.kind != Kind::Clock);
                if memory.shared().waiters.load(SeqCst) > 0 {
                    self.rings = true;
                }
            }
            self.memory = Some(memory);
            match next {
                Ok(Some(_)) => {}
                Ok(None) => return self.happened.pop_front(),
                Err(why) => return Some(Happened::Broken(why)),
            }
        }
    }

    /// Closes a connection that no process has open any more. False if the log has no room for its end.
    fn close_deserted(
        &mut self,
        memory: &Memory,
        deserted: Deserted,
        propose: Propose<'_>,
    ) -> bool {
        let slot = deserted.slot;
        let is_same = self.connections.generation(slot) == deserted.generation;
        // The library is about to tell it.
        let is_told = memory.slot(slot).refs.load(SeqCst) == 0;
        if !is_same || is_told || self.connections.get(slot).is_none() {
            return true;
        }
        let record = memory.close_of(slot, self.number);
        self.take(memory, &record, &[], propose).unwrap_or(true)
    }

    /// Deals with a record. False if the log has no room for it.
    fn take(
        &mut self,
        memory: &Memory,
        record: &Record,
        bytes: &[u8],
        propose: Propose<'_>,
    ) -> Result<bool, &'static str> {
        if record.kind == Kind::Note {
            let words = String::from_utf8_lossy(bytes);
            let words = words.chars().take(NOTE_CHARS).collect();
            self.happened.push_back(Happened::Note(words));
            return Ok(true);
        }
        if record.kind == Kind::Clock {
            return Ok(self.take_clock(record, bytes, propose));
        }
        let rubbish = "it has written a record of no connection into the shared memory";
        let connection = self.connections.get(record.slot).ok_or(rubbish)?;
        if connection.stream.is_none() {
            if record.kind != Kind::Close {
                return Err(rubbish);
            }
            self.connections.free(memory, record.slot);
            return Ok(true);
        }
        let (id, client) = (connection.id, connection.client);
        let entry = match (record.kind, id) {
            (Kind::Accept, None) => Some(Entry::Accept(client)),
            (Kind::Accept, Some(_)) => return Err(rubbish),
            (Kind::Bytes, Some(id)) => Some(Entry::Bytes(id, record.sent, bytes)),
            (Kind::End, Some(id)) => Some(Entry::End(id, record.sent)),
            // A connection of an older epoch ends with a cut.
            (Kind::Close, Some(id)) if record.epoch == self.epoch => {
                Some(Entry::Close(id, record.sent))
            }
            (Kind::Output, Some(id)) => {
                self.happened
                    .push_back(Happened::Output(id, bytes.to_vec()));
                return Ok(true);
            }
            _ => None,
        };
        let is_late = record.epoch < self.epoch_min;
        let proposed = match entry.filter(|_| !is_late) {
            Some(entry) => match propose(&entry) {
                Err(Error::Full) => {
                    self.is_full = true;
                    return Ok(false);
                }
                proposed => proposed.ok(),
            },
            None => None,
        };
        if let (Kind::Close, Some(id), Some(_), false) = (record.kind, id, proposed, record.flag) {
            self.happened.push_back(Happened::Ended(id));
        }
        match proposed {
            Some(at) => {
                self.outstanding.push_back(Outstanding {
                    at,
                    number: record.number,
                    of: Some((record.slot, self.connections.generation(record.slot))),
                });
                if record.kind == Kind::Accept {
                    self.connections.name(record.slot, ConnectionId(at));
                }
                self.happened.push_back(Happened::Proposed(at));
            }
            None if is_input(record) => self.lose(memory, record),
            None => {}
        }
        if record.kind == Kind::Close {
            if let Some(stream) = self.connections.take_stream(record.slot) {
                // Until that is committed. The program may have changed how it ends.
                ends_by_reset(&stream);
                let in_order = proposed.filter(|_| !record.flag);
                self.closing.extend(in_order.map(|at| (at, stream)));
            }
            let noticed = self.connections.free(memory, record.slot);
            self.happened.extend(noticed.map(Happened::Noticed));
        }
        Ok(true)
    }

    /// The program's time has gone on. False if the log has no room for it.
    fn take_clock(&mut self, record: &Record, bytes: &[u8], propose: Propose<'_>) -> bool {
        let us = u64::from_ne_bytes(bytes.try_into().expect("its length was checked"));
        let is_late = record.epoch < self.epoch_min;
        let proposed = (!is_late).then(|| propose(&Entry::Clock(us)));
        let happened = match proposed {
            Some(Err(Error::Full)) => {
                self.is_full = true;
                return false;
            }
            Some(Ok(at)) => {
                self.outstanding.push_back(Outstanding {
                    at,
                    number: record.number,
                    of: None,
                });
                Happened::ProposedTime(at)
            }
            Some(Err(_)) | None => Happened::Unproposed,
        };
        self.happened.push_back(happened);
        true
    }

    /// Input was read that is not in the log.
    fn lose(&mut self, memory: &Memory, record: &Record) {
        let word = &memory.slot(record.slot).lost_from;
        memory.set(word, word.load(SeqCst).min(record.number));
        self.rings = true;
        self.happened.push_back(Happened::Unproposed);
    }
}
