//! `plover metrics`: a replica's status as OpenMetrics over HTTP.
//!
//! ```text
//!   Prometheus ── GET /metrics ──▶ plover metrics ── {"op": "status"} ──▶ control.sock: plover replica
//!              ◀── the text ─────                 ◀── one JSON object ───
//! ```
//!
//! This is a process of its own beside the replica, so that the replica's loop has nothing to do with HTTP
//! and its clients. It keeps no figures: each request asks the replica anew, but for requests that come while it is being
//! asked already: those get the same answer. A replica that hangs, or does
//! not run, is `plover_up 0` within a second.

mod answer;
mod encode;
mod read;
mod table;
#[cfg(test)]
mod tests;

use crate::at::CONFIGURATIONS;
use crate::http::{self, Page, Request};
use crate::output;
use crate::target::Targets;
use answer::Answers;
use anyhow::Result;
use encode::Form;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The beginning of all metrics' names.
const PREFIX: &str = "plover";

const WELCOME: &str = "The metrics of this host's Plover replicas are at /metrics.\n";

/// Answers requests until the process is ended, or cannot listen any more.
pub fn run(configs: &[PathBuf], listen: SocketAddr) -> Result<ExitCode> {
    let targets = Targets::of(configs, Path::new(CONFIGURATIONS), answer::ANSWER_WITHIN)?;
    let answers = Answers::default();
    http::serve(listen, "metrics are", "/metrics", move |request| {
        page(request, &targets, &answers)
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the rows of the guide's table.
pub fn list() -> Result<ExitCode> {
    for metric in table::METRICS {
        output::line(metric.row())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn page(request: &Request, targets: &Targets, answers: &Answers) -> Page {
    match request.path_and_query().0 {
        "/metrics" => {
            let form = Form::wanted(request.header("Accept"));
            match encode::encode(answers.of(targets), form) {
                Ok(text) => Page::ok(form.content_type(), text),
                Err(error) => Page::text(500, format!("{error}\n")),
            }
        }
        "/" => Page::text(200, WELCOME),
        _ => Page::text(404, WELCOME),
    }
}
