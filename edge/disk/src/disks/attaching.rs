//! Opening the disks, and giving them to a guest. A thread does it, because each step may wait for a disk that is slow or hangs:
//!
//! ```text
//!   files that failed are opened anew ─▶ the last guest's requests end ─▶ a syncvm in the journal is completed
//!     ─▶ for a copy: the journal says that the images are useless ─▶ the disks are served
//! ```

use super::inner::Inner;
use super::{Attachment, DiskSpec, Disks, Open, server};
use crate::calls::HANGS_AFTER;
use crate::error::{DiskError, io_error};
use crate::health::{Health, lock};
use crate::worker::{AbortOnPanic, DiskEvent};
use rustix::event::{PollFd, PollFlags, poll};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// How long to wait for the threads of the last guest before the next one gets the disks. They have been told to end; a thread
/// that does not end waits for a disk that hangs.
const THREADS_END_WITHIN: Duration = Duration::from_millis(200);
/// How often that is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// How often files are opened anew that could not be opened.
const AGAIN_EVERY: Duration = Duration::from_secs(5);

/// The use that a guest makes of its disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// It boots from them as they are.
    Boot,
    /// It is overwritten with another replica's pages: until the next [`Disks::stage`] is durable the images are useless.
    Copy,
}

/// Disks that are being attached.
pub(super) struct Attaching {
    purpose: Purpose,
    begun: Instant,
    done: Receiver<Done>,
    /// Nobody wants the outcome any more. The thread is told, and then waits for no request.
    given_up: Arc<AtomicBool>,
    /// The use that they are to be attached for instead, and the file beside them.
    next: Option<(Purpose, PathBuf)>,
    /// They could not be opened before. If they can now, all is well; if not, that is no news.
    again: bool,
}

struct Done {
    /// The files, if they could be opened.
    open: Option<Open>,
    /// The files of before, if they are still in use.
    closing: Option<Arc<Inner>>,
    attached: Result<Attachment, DiskError>,
}

impl Disks {
    /// Has the disks attached to a guest that is about to start: a connection to each. Open requests of the last guest are
    /// dropped, and files that failed are opened anew. [`DiskEvent::Attached`] follows, and then
    /// [`Disks::take_attachment`]; on a disk that hangs, not before it answers. It is looked as well whether there is a file
    /// `beside` them ([`Attachment::found`]).
    ///
    /// # Errors
    /// They failed a short while ago.
    pub fn begin_attach(&mut self, purpose: Purpose, beside: &Path) -> Result<(), DiskError> {
        if purpose == Purpose::Copy {
            self.health.may_try()?;
        }
        match &mut self.attaching {
            Some(attaching) => {
                attaching.give_up();
                attaching.next = Some((purpose, beside.into()));
                Ok(())
            }
            None => self.start_attaching(purpose, beside.into()),
        }
    }

    /// The outcome, if there is one that was not given up: the disks, or the reason that they cannot be opened, are an
    /// incomplete copy, or that a syncvm in the journal cannot be completed.
    pub fn take_attachment(&mut self) -> Option<Result<Attachment, DiskError>> {
        let done = self.attaching.as_ref()?.done.try_recv().ok()?;
        let mut attaching = self.attaching.take()?;
        self.open = done.open;
        self.closing = done.closing;
        let blocks = self.open.as_ref().map(|open| open.inner.blocks);
        if let Some(found) = blocks.filter(|found| *found != self.blocks) {
            // They were opened late, and the pages are numbered by now.
            self.open = None;
            let wanted = self.blocks;
            self.health
                .fail(&DiskError::Resized { found, wanted }.to_string());
        }
        if attaching.given_up.load(Ordering::Acquire) {
            match &done.attached {
                _ if attaching.again && self.open.is_some() => self.health.mend(),
                _ if attaching.again => {}
                Ok(_) | Err(DiskError::Busy | DiskError::Incomplete) => {}
                Err(error) => self.health.fail(&error.to_string()),
            }
            // The next ones begin when these are no guest's any more.
            drop(done.attached);
            let (purpose, beside) = attaching.next.take()?;
            let again = self.start_attaching(purpose, beside);
            return again.err().map(Err);
        }
        match &done.attached {
            Ok(_) if attaching.purpose == Purpose::Boot => self.health.mend(),
            Ok(_) | Err(DiskError::Busy | DiskError::Incomplete) => {}
            Err(error) => self.health.fail(&error.to_string()),
        }
        Some(done.attached)
    }

    /// [`Disks::begin_attach`] for [`Purpose::Boot`], by a caller that can wait.
    ///
    /// # Errors
    /// They cannot be used, or are an incomplete copy.
    pub fn attach_to_boot(&mut self) -> Result<Attachment, DiskError> {
        self.attach(Purpose::Boot)
    }

    /// [`Disks::begin_attach`] for [`Purpose::Copy`], by a caller that can wait.
    ///
    /// # Errors
    /// They cannot be used, or failed a short while ago.
    pub fn attach_for_copy(&mut self) -> Result<Attachment, DiskError> {
        self.attach(Purpose::Copy)
    }

    fn attach(&mut self, purpose: Purpose) -> Result<Attachment, DiskError> {
        self.begin_attach(purpose, Path::new(""))?;
        let mut others = Vec::new();
        let attached = loop {
            let mut wake = [PollFd::new(self.health.wake(), PollFlags::IN)];
            let _ = poll(&mut wake, None);
            self.take_events(&mut others);
            if let Some(at) = others.iter().position(|it| *it == DiskEvent::Attached) {
                others.remove(at);
                if let Some(attached) = self.take_attachment() {
                    break attached;
                }
            }
        };
        others.into_iter().for_each(|event| self.health.tell(event));
        attached
    }

    /// Nobody wants the disks that are being attached any more.
    pub fn give_up_attaching(&mut self) {
        if let Some(attaching) = &mut self.attaching {
            attaching.give_up();
            attaching.next = None;
        }
    }

    /// They take too long to be attached: nobody waits for them any more. Returns the reason, which is their failure from now
    /// on.
    pub fn fail_attaching(&mut self) -> String {
        let waits = self.attaching.as_ref().map(|it| it.begun.elapsed());
        let why = self.hangs(waits.unwrap_or_default());
        self.health.fail(&why);
        self.give_up_attaching();
        why
    }

    /// That it takes long to attach the disks, if it does.
    pub(super) fn attaches_slowly(&self) -> Option<String> {
        let waits = self.attaching.as_ref()?.begun.elapsed();
        (waits >= HANGS_AFTER).then(|| self.hangs(waits))
    }

    pub(super) fn hangs(&self, waits: Duration) -> String {
        let image = self.open.as_ref().and_then(|open| open.inner.hangs());
        image.unwrap_or_else(|| {
            format!(
                "the guest's disks, or their journal {}, have not answered for {} s; look at the storage below them",
                self.journal.display(),
                waits.as_secs()
            )
        })
    }

    /// Opens the files, and completes a syncvm in the journal; `None` if that takes longer than `limit`. It then goes on as an
    /// attachment that nobody wants, so whoever begins one waits for it.
    pub(super) fn open_on_a_thread(&mut self, limit: Duration) -> Result<Option<Open>, DiskError> {
        let opening = self.start_opening(false)?;
        let mut opened = opening.done.recv_timeout(limit).ok();
        if opened.is_none() {
            opening.give_up();
            opened = opening.done.try_recv().ok();
        }
        match opened {
            None => {
                self.attaching = Some(opening);
                Ok(None)
            }
            Some(Done {
                open: Some(open), ..
            }) => Ok(Some(open)),
            Some(done) => Err(done.attached.err().unwrap_or(DiskError::Busy)),
        }
    }

    /// Opens the files, if they could not be opened before, every [`AGAIN_EVERY`]: their file system may be mounted by now. To be
    /// called again and again.
    pub fn open_again(&mut self) {
        let is_idle = self.open.is_none() && self.closing.is_none() && self.attaching.is_none();
        if is_idle && self.opened_at.elapsed() >= AGAIN_EVERY {
            self.opened_at = Instant::now();
            // Without a thread it is tried again, too.
            self.attaching = self.start_opening(true).ok();
        }
    }

    /// Opens the files on a thread, and completes a syncvm in the journal.
    fn start_opening(&mut self, again: bool) -> Result<Attaching, DiskError> {
        let (specs, journal, health) = (
            self.specs.clone(),
            self.journal.clone(),
            Arc::clone(&self.health),
        );
        let (outcome, done) = channel();
        let opening = Attaching {
            purpose: Purpose::Boot,
            begun: Instant::now(),
            done,
            given_up: Arc::new(AtomicBool::new(again)),
            next: None,
            again,
        };
        let is_late = Arc::clone(&opening.given_up);
        let open = move || {
            let _abort = AbortOnPanic;
            let opened = Open::new(&specs, &journal, &health, Purpose::Boot);
            let opened = opened.and_then(|open| open.inner.recover().map(|()| open));
            let (open, why) = match opened {
                Ok(open) => (Some(open), DiskError::Busy),
                Err(error) => (None, error),
            };
            let done = Done {
                open,
                closing: None,
                attached: Err(why),
            };
            if outcome.send(done).is_ok() && is_late.load(Ordering::Acquire) {
                health.tell(DiskEvent::Attached);
            }
        };
        std::thread::Builder::new()
            .name("open".into())
            .spawn(open)
            .map_err(|error| DiskError::Failed(format!("starting a thread: {error}")))?;
        Ok(opening)
    }

    fn start_attaching(&mut self, purpose: Purpose, beside: PathBuf) -> Result<(), DiskError> {
        self.staged = false;
        if self.health.has_failed() {
            // The files may be others by now, and the old descriptors cannot tell what a failed flush has lost.
            if let Some(open) = self.open.take() {
                self.closing = Some(open.inner);
            }
        }
        let closing = self.closing.take();
        let given_up = Arc::new(AtomicBool::new(false));
        let task = Task {
            specs: self.specs.clone(),
            journal: self.journal.clone(),
            beside,
            blocks: self.blocks,
            health: Arc::clone(&self.health),
            open: self.open.clone(),
            closing: closing.clone(),
            given_up: Arc::clone(&given_up),
        };
        let (outcome, done) = channel();
        let runs = std::thread::Builder::new()
            .name("attach".into())
            .spawn(move || task.run(purpose, &outcome));
        if let Err(error) = runs {
            self.closing = closing;
            return Err(DiskError::Failed(format!("starting a thread: {error}")));
        }
        self.attaching = Some(Attaching {
            purpose,
            begun: Instant::now(),
            done,
            given_up,
            next: None,
            again: false,
        });
        Ok(())
    }
}

impl Attaching {
    fn give_up(&self) {
        self.given_up.store(true, Ordering::Release);
    }
}

impl Drop for Attaching {
    fn drop(&mut self) {
        self.give_up();
    }
}

/// For the thread.
struct Task {
    specs: Vec<DiskSpec>,
    journal: PathBuf,
    beside: PathBuf,
    blocks: u32,
    health: Arc<Health>,
    open: Option<Open>,
    closing: Option<Arc<Inner>>,
    given_up: Arc<AtomicBool>,
}

impl Task {
    fn run(mut self, purpose: Purpose, outcome: &Sender<Done>) {
        let _abort = AbortOnPanic;
        // The loop that starts this thread comes before others; this one, and those that serve the disks, do not.
        let _ = rustix::process::setpriority_process(None, 0);
        let attached = self.attach(purpose);
        let health = Arc::clone(&self.health);
        let done = Done {
            open: self.open,
            closing: self.closing,
            attached,
        };
        if outcome.send(done).is_ok() {
            health.tell(DiskEvent::Attached);
        }
    }

    fn attach(&mut self, purpose: Purpose) -> Result<Attachment, DiskError> {
        if let Some(old) = &self.closing {
            self.wait_until(|| Arc::strong_count(old) == 1)?;
        }
        self.closing = None;
        if self.open.is_none() {
            let open = Open::new(&self.specs, &self.journal, &self.health, purpose)?;
            if open.inner.blocks != self.blocks {
                return Err(DiskError::Resized {
                    found: open.inner.blocks,
                    wanted: self.blocks,
                });
            }
            self.open = Some(open);
        }
        let open = self.open.as_ref().expect("they are open");
        let inner = &open.inner;
        let life = inner.end_guest();
        self.wait_until(|| inner.is_at_rest())?;
        inner.forget_failure();
        inner.recover()?;
        if self.given_up.load(Ordering::Acquire) {
            return Err(DiskError::Busy);
        }
        match purpose {
            Purpose::Boot if !inner.whole.load(Ordering::Acquire) => {
                return Err(DiskError::Incomplete);
            }
            Purpose::Boot => {}
            Purpose::Copy => {
                inner.whole.store(false, Ordering::Release);
                lock(&inner.journal).begin_copy()?;
            }
        }
        let failed = |error: io::Error| DiskError::Failed(format!("serving a disk: {error}"));
        let mut attachment = Attachment {
            inner: Arc::clone(inner),
            blocks: open.blocks(life),
            works: open.works.clone(),
            ours: Vec::new(),
            theirs: Vec::new(),
            found: self
                .beside
                .try_exists()
                .map_err(io_error("cannot look for", &self.beside))?,
        };
        for image in 0..inner.images.len() {
            let (ours, theirs) = server::start(inner, image, life).map_err(failed)?;
            attachment.ours.push(ours);
            attachment.theirs.push(theirs);
        }
        Ok(attachment)
    }

    /// Waits for the threads of the last guest.
    fn wait_until(&self, done: impl Fn() -> bool) -> Result<(), DiskError> {
        let begun = Instant::now();
        while !done() {
            if self.given_up.load(Ordering::Acquire) || begun.elapsed() >= THREADS_END_WITHIN {
                return Err(DiskError::Busy);
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }
}
