//! HTTP for `plover metrics` and `plover dash`: a page or two, to be read only.

use crate::output;
use anyhow::{Result, anyhow};
use std::net::SocketAddr;
use tiny_http::{Header, Method, Request, Response, Server};

/// How many requests are answered at the same time. One that waits for a replica that hangs, or for a client
/// that does not read, delays the others only if all threads have one.
const THREADS: usize = 4;

/// An answer.
#[derive(Debug)]
pub struct Page {
    pub code: u16,
    pub content_type: &'static str,
    pub headers: &'static [(&'static str, &'static str)],
    pub body: String,
}

impl Page {
    pub fn ok(content_type: &'static str, body: String) -> Self {
        Self {
            code: 200,
            content_type,
            headers: &[],
            body,
        }
    }

    pub fn text(code: u16, body: impl Into<String>) -> Self {
        Self {
            code,
            content_type: "text/plain; charset=utf-8",
            headers: &[],
            body: body.into(),
        }
    }
}

/// Answers requests until the process is ended. `name`, such as "metrics are", and `path` say where what is.
pub fn serve(
    listen: SocketAddr,
    name: &str,
    path: &str,
    page: impl Fn(&Request) -> Page + Sync,
) -> Result<()> {
    let server = Server::http(listen).map_err(|error| {
        anyhow!("cannot listen on {listen}: {error}; choose another address with --listen")
    })?;
    output::line(format_args!(
        "{name} at http://{}{path}",
        server.server_addr()
    ))?;
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for request in server.incoming_requests() {
                    let page = match request.method() {
                        Method::Get | Method::Head => page(&request),
                        _ => Page::text(405, "only GET\n"),
                    };
                    // Fails only when the client is gone.
                    let _ = request.respond(response(page));
                }
            });
        }
    });
    Ok(())
}

/// The target of a request: the path, and what follows the question mark.
pub fn path_and_query(request: &Request) -> (&str, &str) {
    request.url().split_once('?').unwrap_or((request.url(), ""))
}

/// The value of a header of the request.
pub fn header<'a>(request: &'a Request, name: &'static str) -> Option<&'a str> {
    let header = request.headers().iter().find(|it| it.field.equiv(name))?;
    Some(header.value.as_str())
}

fn response(page: Page) -> Response<std::io::Cursor<Vec<u8>>> {
    let mut response = Response::from_data(page.body).with_status_code(page.code);
    let content_type = ("Content-Type", page.content_type);
    for (name, value) in page.headers.iter().chain([&content_type]) {
        if let Ok(header) = Header::from_bytes(*name, *value) {
            response.add_header(header);
        }
    }
    response
}
