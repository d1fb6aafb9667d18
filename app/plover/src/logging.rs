//! The log of a daemon, on its error output.

use plover_node::Background;
use std::io::{IsTerminal, Stderr, stderr};
use std::sync::{Arc, OnceLock};
use tracing_appender::non_blocking::NonBlocking;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::writer::EitherWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry};

/// The error output: written to directly, until there is a thread for it.
#[derive(Clone, Default)]
pub struct ErrorOutput(Arc<OnceLock<NonBlocking>>);

impl ErrorOutput {
    /// Writes from a thread of its own from now on, so that a journal that stands still does not stop the
    /// daemon's loop. A daemon that forks calls this after that. The log's last lines are written when the result is dropped.
    #[must_use]
    pub fn in_background(&self) -> Background {
        let background = Background::start("log", stderr());
        let _ = self.0.set(background.writer());
        background
    }
}

impl MakeWriter<'_> for ErrorOutput {
    type Writer = EitherWriter<NonBlocking, Stderr>;

    fn make_writer(&self) -> Self::Writer {
        match self.0.get() {
            Some(writer) => EitherWriter::A(writer.clone()),
            None => EitherWriter::B(stderr()),
        }
    }
}

/// Begins to log what `RUST_LOG` wants, or else all that an operator should know, to the error output, and to
/// `also`.
pub fn begin(also: Option<Box<dyn Layer<Registry> + Send + Sync>>) -> ErrorOutput {
    let output = ErrorOutput::default();
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let to_stderr = tracing_subscriber::fmt::layer()
        .with_writer(output.clone())
        .with_ansi(stderr().is_terminal());
    tracing_subscriber::registry()
        .with(also)
        .with(to_stderr)
        .with(filter)
        .init();
    output
}
