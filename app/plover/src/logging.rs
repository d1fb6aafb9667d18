//! Where the log of a daemon goes: to its error output, as text or as JSON, or to the journal as entries with fields. A
//! replica's goes to memory too, for `plover logs`. docs/events.md has every event.

mod journal;

use clap::ValueEnum;
use plover_node::{Background, RecentLog, ReplicaConfig};
use rustix::fs::fstat;
use std::io::{self, IsTerminal, Stderr, Write, stderr};
use std::sync::{Arc, OnceLock};
use tracing_appender::non_blocking::NonBlocking;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::writer::EitherWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt};

/// The form of a replica's log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogForm {
    /// Entries with fields if the error output is systemd's journal, text otherwise.
    #[default]
    Auto,
    /// Lines to be read by people.
    Text,
    /// One JSON object a line.
    Json,
}

/// A place for lines: written to directly, until there is a thread for it.
#[derive(Clone, Debug)]
pub struct Output {
    thread: Arc<OnceLock<NonBlocking>>,
    to: To,
}

#[derive(Clone, Debug)]
pub enum To {
    ErrorOutput,
    Journal(journal::Journal),
}

impl Output {
    fn new(to: To) -> Self {
        let thread = Arc::default();
        Self { thread, to }
    }

    /// Writes from a thread of its own from now on, so that a journal that stands still does not stop the
    /// daemon's loop. A daemon that forks calls this after that. The log's last lines are written when the result is dropped.
    #[must_use]
    pub fn in_background(&self) -> Background {
        let background = Background::start("log", self.to.clone());
        let _ = self.thread.set(background.writer());
        background
    }
}

impl Write for To {
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        match self {
            Self::ErrorOutput => stderr().write(lines),
            Self::Journal(journal) => journal.write(lines),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Output {
    type Writer = EitherWriter<NonBlocking, To>;

    fn make_writer(&self) -> Self::Writer {
        match self.thread.get() {
            Some(writer) => EitherWriter::A(writer.clone()),
            None => EitherWriter::B(self.to.clone()),
        }
    }
}

type AnyLayer = Box<dyn Layer<Registry> + Send + Sync>;

fn text(output: &Output) -> AnyLayer {
    let layer = fmt::layer()
        .with_target(false)
        .with_writer(output.clone())
        .with_ansi(stderr().is_terminal());
    layer.boxed()
}

fn json(output: &Output) -> AnyLayer {
    let layer = fmt::layer().json().flatten_event(true);
    layer.with_writer(output.clone()).boxed()
}

/// Logs what `RUST_LOG` wants, or else all that an operator should know.
fn begin(layers: Vec<AnyLayer>) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::registry()
        .with(layers)
        .with(filter)
        .init();
}

/// Sends the log of this process to its error output, as text.
pub fn to_error_output() -> Output {
    let output = Output::new(To::ErrorOutput);
    begin(vec![text(&output)]);
    output
}

/// Sends the log of a replica's process to where it belongs. The first result keeps its last lines.
pub fn of_replica(form: LogForm, config: &ReplicaConfig) -> (RecentLog, Output) {
    let log = RecentLog::default();
    let recent = log.clone();
    let to_memory = fmt::layer()
        .with_target(false)
        .with_writer(move || recent.clone())
        .with_ansi(false)
        .boxed();
    let is_journal = form == LogForm::Auto && is_journal(&stderr());
    let journal = is_journal.then(|| {
        let me = config.group.me.to_string();
        journal::Journal::open(&[
            ("PLOVER_GUEST", &config.group.name),
            ("PLOVER_REPLICA", &me),
        ])
    });
    let (to, untold) = match journal {
        Some(Ok(journal)) => (To::Journal(journal), None),
        Some(Err(error)) => (To::ErrorOutput, Some(error)),
        None => (To::ErrorOutput, None),
    };
    let output = Output::new(to);
    let shown = match (&output.to, form) {
        (To::Journal(_), _) | (_, LogForm::Json) => json(&output),
        _ => text(&output),
    };
    begin(vec![shown, to_memory]);
    if let Some(error) = untold {
        tracing::warn!(
            event = "journal_untold",
            "systemd's journal takes no entries with fields: the log is text: {error}"
        );
    }
    (log, output)
}

/// Whether systemd has connected a file with its journal, as systemd.exec(5) says under `JOURNAL_STREAM`.
fn is_journal(file: &Stderr) -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else {
        return false;
    };
    // The variable is inherited, also by processes whose error output goes elsewhere.
    fstat(file).is_ok_and(|stat| stream == format!("{}:{}", stat.st_dev, stat.st_ino))
}
