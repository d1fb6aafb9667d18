//! Where a replica's log goes: to its error output, as text or as JSON, or to the journal as entries with fields; and always
//! to memory, for `plover logs`. docs/events.md has every event.

use clap::ValueEnum;
use plover_node::{RecentLog, ReplicaConfig};
use rustix::fs::fstat;
use std::io::{IsTerminal, Stderr, stderr};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, fmt};

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

/// Sends the log of this process to where it belongs. What is returned keeps its last lines.
pub fn start(form: LogForm, config: &ReplicaConfig) -> RecentLog {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let log = RecentLog::default();
    let recent = log.clone();
    let is_journal = form == LogForm::Auto && is_journal(&stderr());
    let (journal, untold) = match is_journal.then(|| journal(config)) {
        Some(Ok(journal)) => (Some(journal), None),
        Some(Err(error)) => (None, Some(error)),
        None => (None, None),
    };
    let text = (form != LogForm::Json && journal.is_none()).then(|| {
        fmt::layer()
            .with_target(false)
            .with_writer(stderr)
            .with_ansi(stderr().is_terminal())
    });
    let json = (form == LogForm::Json)
        .then(|| fmt::layer().json().flatten_event(true).with_writer(stderr));
    let to_memory = fmt::layer()
        .with_target(false)
        .with_writer(move || recent.clone())
        .with_ansi(false);
    tracing_subscriber::registry()
        .with(filter)
        .with(text)
        .with(json)
        .with(journal)
        .with(to_memory)
        .init();
    if let Some(error) = untold {
        tracing::warn!(
            event = "journal_untold",
            "systemd's journal takes no entries with fields: the log is text: {error}"
        );
    }
    log
}

/// Entries of the journal: `EVENT`, and every other field by its name. They name the guest and the replica too.
fn journal(config: &ReplicaConfig) -> std::io::Result<tracing_journald::Layer> {
    let me = config.group.me.to_string();
    let fields = [
        ("PLOVER_GUEST", config.group.name.as_str()),
        ("PLOVER_REPLICA", me.as_str()),
    ];
    let layer = tracing_journald::layer()?.with_field_prefix(None);
    Ok(layer.with_custom_fields(fields))
}

/// Whether systemd has connected a file with its journal, as systemd.exec(5) says under `JOURNAL_STREAM`.
fn is_journal(file: &Stderr) -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else {
        return false;
    };
    // The variable is inherited, also by processes whose error output goes elsewhere.
    fstat(file).is_ok_and(|stat| stream == format!("{}:{}", stat.st_dev, stat.st_ino))
}
