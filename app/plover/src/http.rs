//! HTTP for `plover metrics` and `plover dash`: a page or two, to be read only.
//!
//! On a loopback address only requests by a name of that address are answered. A page of somebody else in a browser of this
//! host may lead a name of its own to 127.0.0.1, and would read the answer.

use crate::output;
use anyhow::{Result, anyhow};
use std::net::{IpAddr, SocketAddr};
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
    let only_local = listen.ip().is_loopback();
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for request in server.incoming_requests() {
                    let host = header(&request, "Host").unwrap_or_default();
                    let page = match request.method() {
                        _ if only_local && !is_local(host) => foreign(host),
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

fn foreign(host: &str) -> Page {
    Page::text(
        403,
        format!(
            "'{host}' is no name of this host's loopback address: ask for 127.0.0.1 or localhost\n"
        ),
    )
}

/// Whether a `Host` header names a loopback address.
fn is_local(host: &str) -> bool {
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    let name = match host.rsplit_once(':') {
        Some((name, port)) if is_port(port) && !name.ends_with(':') => name,
        _ => host,
    };
    let bare = name
        .strip_prefix('[')
        .and_then(|name| name.strip_suffix(']'));
    let address = bare.unwrap_or(name).parse::<IpAddr>();
    name == "localhost" || address.is_ok_and(|address| address.is_loopback())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_names_of_the_loopback_address_are_told_apart() {
        for host in [
            "127.0.0.1",
            "127.0.0.1:9778",
            "localhost",
            "localhost:9778",
            "[::1]",
            "[::1]:9778",
        ] {
            assert!(is_local(host), "{host}");
        }
        for host in [
            "",
            "example.org",
            "example.org:9778",
            "localhost.example.org",
            "192.0.2.1:9778",
            "[::1].example.org",
        ] {
            assert!(!is_local(host), "{host}");
        }
    }
}
