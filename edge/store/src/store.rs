//! The store's interface: queue, submit, take completions.

use crate::directory::Directory;
use crate::engine::{Counters, Engine};
use crate::error::StoreError;
use crate::lock::Lock;
use crate::open::{Options, Recovered, open_state, with_log, without_log};
use crate::outline::Outline;
use crate::queue::{Effect, Pending};
use crate::record::{Base, Kind};
use crate::writer::Writer;
use apus::{Configuration, Durability, DurableState, Entry};
use plover_types::{Index, Viewstamp};
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::path::Path;

/// A report of the store: requests that are durable now, or its failure.
#[derive(Debug)]
pub enum Completion {
    /// The state with this promise: [`apus::Event::StatePersisted`].
    StatePersisted(DurableState),
    /// Every entry up to here: [`apus::Event::EntriesPersisted`]. Never names an entry that has been
    /// cut since.
    EntriesPersisted(Viewstamp),
    /// The disk failed, or is full. Comes once, and nothing is acknowledged after it: the replica must
    /// stop, because it cannot keep its promises any more.
    Failed(StoreError),
}

/// A request, and its completion when its batch is durable.
#[derive(Debug)]
struct Outstanding {
    ticket: u64,
    done: Done,
}

#[derive(Clone, Copy, Debug)]
enum Done {
    Promise(DurableState),
    Entries(Viewstamp),
    /// The log was replaced meanwhile.
    Obsolete,
}

/// The stable storage of one replica. One owner drives it. Only [`Store::sync`] blocks, and
/// dropping it, which writes what is queued.
#[derive(Debug)]
pub struct Store {
    writer: Writer,
    durability: Durability,
    outline: Outline,
    ticket: u64,
    outstanding: VecDeque<Outstanding>,
    _lock: Lock,
}

impl Store {
    /// Opens or creates the store in `dir`, and returns what it held.
    ///
    /// # Errors
    /// [`StoreError::Locked`] while another process has it open; [`StoreError::OtherGroup`];
    /// [`StoreError::PromiseLost`]; [`StoreError::OtherRelease`]; [`StoreError::LongName`];
    /// [`StoreError::Io`]. Damage in the log is no error: it is part of what is recovered.
    pub fn open(dir: &Path, options: &Options) -> Result<(Self, Recovered), StoreError> {
        let directory = Directory::open(dir)?;
        let lock = Lock::take(&directory)?;
        let mut state = open_state(&directory, options)?;
        let (log, recovered) = match options.durability {
            Durability::Memory => (None, without_log(&directory, &mut state)?),
            Durability::Disk => {
                let (log, recovered) = with_log(&directory, &mut state, options)?;
                (Some(log), recovered)
            }
        };
        let mut outline = Outline::new(recovered.base);
        for entry in &recovered.log {
            outline.push(entry).expect("recovery has checked the order");
        }
        let store = Self {
            writer: Writer::start(&directory, Engine::new(state, log))?,
            durability: options.durability,
            outline,
            ticket: 0,
            outstanding: VecDeque::new(),
            _lock: lock,
        };
        Ok((store, recovered))
    }

    /// Queues the promise: [`apus::Command::PersistState`].
    pub fn persist_state(&mut self, promise: DurableState) {
        let done = Done::Promise(promise);
        self.request(done, |pending| pending.promise = Some(promise));
    }

    /// Queues entries: [`apus::Command::PersistEntries`]. Entries of the log after `after` are cut.
    /// With `anew` the log begins there, and everything that it held is gone.
    ///
    /// # Panics
    /// If the log does not hold `after` and does not begin anew, or the entries do not follow `after`;
    /// with [`Durability::Memory`]. The consensus core never does any of this.
    pub fn persist_entries(
        &mut self,
        after: Viewstamp,
        anew: Option<Configuration>,
        entries: &[Entry],
    ) {
        assert!(
            self.durability == Durability::Disk,
            "a log in memory is not persisted"
        );
        let first = anew.map(|configuration| self.begin_anew(after, configuration));
        let cut = after != self.outline.last();
        if cut {
            self.outline.cut(after).expect("the log holds `after`");
            self.withdraw(after);
        }
        for entry in entries {
            self.outline.push(entry).expect("entries follow each other");
        }
        self.request(Done::Entries(self.outline.last()), |pending| {
            if let Some(base) = first {
                pending.trim = None;
                pending.push(Kind::Anew, &base, Effect::Anew(base));
            }
            if cut {
                pending.push(Kind::Cut, &after, Effect::Cut(after));
            }
            for entry in entries {
                pending.push(Kind::Entry, entry, Effect::Entry(entry.viewstamp));
            }
        });
    }

    fn begin_anew(&mut self, viewstamp: Viewstamp, configuration: Configuration) -> Base {
        let base = Base {
            viewstamp,
            configuration,
        };
        self.outline = Outline::new(base);
        for outstanding in &mut self.outstanding {
            if matches!(outstanding.done, Done::Entries(_)) {
                outstanding.done = Done::Obsolete;
            }
        }
        base
    }

    /// Gives back the space of entries up to `base`, which are committed and not needed again. Whole
    /// segments go, with the next batch.
    pub fn trim(&mut self, base: Index) {
        if self.durability == Durability::Disk && base > self.outline.base().viewstamp.index {
            let base = self.outline.trim(base);
            self.writer.queue(|pending| pending.trim = Some(base));
        }
    }

    /// Hands everything queued to the writer's thread: one write, one sync. At the end of a turn.
    pub fn submit(&mut self) {
        self.writer.submit();
    }

    /// Writes and syncs everything queued in the caller's thread, which saves two wake-ups when the
    /// caller has nothing else to do. Waits for a batch that the store's thread is writing.
    pub fn sync(&mut self) {
        self.writer.write_here();
    }

    /// Readable when [`Store::completions`] has something to return after a [`Store::submit`]. An
    /// eventfd; not to be read by the caller.
    pub fn wait_fd(&self) -> BorrowedFd<'_> {
        self.writer.wait_fd()
    }

    /// Appends what has become durable to `out`, oldest first, of entries only the newest.
    pub fn completions(&mut self, out: &mut Vec<Completion>) {
        let (durable, failure) = self.writer.take_done();
        let mut entries = None;
        while self
            .outstanding
            .front()
            .is_some_and(|o| o.ticket <= durable)
        {
            match self.outstanding.pop_front().map(|o| o.done) {
                Some(Done::Promise(state)) => out.push(Completion::StatePersisted(state)),
                Some(Done::Entries(viewstamp)) => entries = Some(viewstamp),
                Some(Done::Obsolete) | None => {}
            }
        }
        out.extend(entries.map(Completion::EntriesPersisted));
        out.extend(failure.map(Completion::Failed));
    }

    /// Whether the log holds this entry, or begins right after it.
    pub fn holds(&self, viewstamp: Viewstamp) -> bool {
        self.outline.holds(viewstamp)
    }

    /// The newest entry queued or stored, or the base.
    pub fn last(&self) -> Viewstamp {
        self.outline.last()
    }

    /// Counts of what has been written since the store was opened.
    pub fn counters(&self) -> Counters {
        self.writer.counters()
    }

    fn request(&mut self, done: Done, queue: impl FnOnce(&mut Pending)) {
        self.ticket += 1;
        let ticket = self.ticket;
        self.outstanding.push_back(Outstanding { ticket, done });
        self.writer.queue(|pending| {
            queue(pending);
            pending.ticket = ticket;
        });
    }

    /// Entries after `after` were cut. Their pending completions name `after` instead, which the same
    /// batches make durable.
    fn withdraw(&mut self, after: Viewstamp) {
        for outstanding in &mut self.outstanding {
            if let Done::Entries(viewstamp) = &mut outstanding.done {
                if viewstamp.index > after.index {
                    *viewstamp = after;
                }
            }
        }
    }
}
