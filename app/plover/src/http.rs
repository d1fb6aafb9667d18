//! HTTP for `plover metrics` and `plover dash`: a page or two, to be read only.
//!
//! On a loopback address only requests by a name of that address are answered. A page of somebody else in a browser of this
//! host may lead a name of its own to 127.0.0.1, and would read the answer.

use crate::output;
use anyhow::{Result, anyhow};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::time::Duration;
use tiny_http::{Header, Method, Request, Response, Server};

/// How many requests are answered at the same time. One that waits for a replica that hangs, or for a client
/// that does not read, delays the others only if all threads have one.
const THREADS: usize = 4;

/// How long a client may take no more of an answer. Its connection ends after some times as long.
const READS_WITHIN: Duration = Duration::from_secs(5);

/// How long a connection may be silent. Scrapers and pages ask more often.
const ASKS_WITHIN: Duration = Duration::from_secs(120);

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
    let server = listen_on(listen, READS_WITHIN).map_err(|error| {
        anyhow!("cannot listen on {listen}: {error}; choose another address with --listen")
    })?;
    output::line(format_args!(
        "{name} at http://{}{path}",
        server.server_addr()
    ))?;
    answer_all(&server, listen.ip().is_loopback(), page);
    Ok(())
}

/// A server whose connections end when their clients hang.
fn listen_on(
    listen: SocketAddr,
    reads_within: Duration,
) -> Result<Server, Box<dyn std::error::Error + Send + Sync>> {
    let listener = TcpListener::bind(listen)?;
    // Linux gives a connection the limits of the socket that accepts it.
    set_socket_timeout(&listener, Timeout::Send, Some(reads_within))?;
    set_socket_timeout(&listener, Timeout::Recv, Some(ASKS_WITHIN))?;
    Server::from_listener(listener, None)
}

fn answer_all(server: &Server, only_local: bool, page: impl Fn(&Request) -> Page + Sync) {
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
    use std::io::{Read, Write};
    use std::net::TcpStream;

    fn ask(address: SocketAddr) -> TcpStream {
        let mut client = TcpStream::connect(address).unwrap();
        let request = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        client.write_all(request).unwrap();
        client
    }

    #[test]
    fn clients_that_do_not_read_keep_no_thread() {
        const LARGE: usize = 32 << 20;
        let soon = Duration::from_millis(50);
        let server = listen_on(([127, 0, 0, 1], 0).into(), soon).unwrap();
        let address = server.server_addr().to_ip().unwrap();
        std::thread::spawn(move || {
            answer_all(&server, true, |_| Page::ok("text/plain", "x".repeat(LARGE)));
        });
        let _hung: Vec<_> = (0..THREADS).map(|_| ask(address)).collect();
        let mut answer = Vec::new();
        ask(address).read_to_end(&mut answer).unwrap();
        assert!(answer.len() > LARGE);
    }

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
