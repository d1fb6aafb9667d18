//! `plover metrics`: a replica's status as OpenMetrics over HTTP.
//!
//! ```text
//!   Prometheus ── GET /metrics ──▶ plover metrics ── {"op": "status"} ──▶ control.sock: plover replica
//!              ◀── the text ─────                 ◀── one JSON object ───
//! ```
//!
//! This is a process of its own beside the replica, so that the replica's loop has nothing to do with HTTP
//! and its clients. It keeps no figures: each request asks the replica anew. A replica that hangs, or does
//! not run, is `plover_up 0` within a second.

mod answer;
mod encode;
mod read;
mod table;
#[cfg(test)]
mod tests;

use crate::output;
use answer::Target;
use anyhow::{Result, anyhow};
use encode::Form;
use plover_node::ReplicaConfig;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use tiny_http::{Header, Method, Request, Response, Server};

/// The beginning of all metrics' names.
const PREFIX: &str = "plover";

/// How many requests are answered at the same time. One that waits for a replica that hangs, or for a client
/// that does not read, delays the others only if all threads have one.
const THREADS: usize = 4;

const WELCOME: &str = "The metrics of this host's Plover replicas are at /metrics.\n";

/// Answers requests until the process is ended.
pub fn run(configs: &[PathBuf], listen: SocketAddr) -> Result<ExitCode> {
    let targets = configs
        .iter()
        .map(|path| Ok(Target::of(&ReplicaConfig::load(path)?)))
        .collect::<Result<Vec<_>>>()?;
    let targets = Arc::new(targets);
    let server = Server::http(listen).map_err(|error| {
        anyhow!("cannot listen on {listen}: {error}; choose another address with --listen")
    })?;
    output::line(format_args!(
        "metrics are at http://{}/metrics",
        server.server_addr()
    ))?;
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for request in server.incoming_requests() {
                    answer(request, &targets);
                }
            });
        }
    });
    Ok(ExitCode::SUCCESS)
}

/// Prints the rows of the guide's table.
pub fn list() -> Result<ExitCode> {
    for metric in table::METRICS {
        output::line(metric.row())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn answer(request: Request, targets: &Arc<Vec<Target>>) {
    let path = request.url().split('?').next().unwrap_or_default();
    let response = match (request.method(), path) {
        (Method::Get | Method::Head, "/metrics") => {
            let accept = request.headers().iter().find(|it| it.field.equiv("Accept"));
            let form = Form::wanted(accept.map(|header| header.value.as_str()));
            match encode::encode(targets, answer::ask_all(targets), form) {
                Ok(text) => text_response(text, form.content_type(), 200),
                Err(error) => text_response(format!("{error}\n"), "text/plain", 500),
            }
        }
        (Method::Get | Method::Head, "/") => text_response(WELCOME.into(), "text/plain", 200),
        (Method::Get | Method::Head, _) => text_response(WELCOME.into(), "text/plain", 404),
        _ => text_response("only GET\n".into(), "text/plain", 405),
    };
    // Fails only when the client is gone.
    let _ = request.respond(response);
}

fn text_response(
    text: String,
    content_type: &str,
    code: u16,
) -> Response<std::io::Cursor<Vec<u8>>> {
    let mut response = Response::from_data(text).with_status_code(code);
    if let Ok(header) = Header::from_bytes("Content-Type", content_type) {
        response.add_header(header);
    }
    response
}
