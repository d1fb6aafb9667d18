//! HTTP for `plover metrics` and `plover dash`: a page or two, to be read only.
//!
//! ```text
//!   accepted ─▶ a place, a thread ─▶ head read ─▶ page made ─▶ answer written ─▶ rest drained ─▶ closed
//!                 │                     │                         │                 └─ 2 s or 64 KiB
//!                 │                     └─ 10 s, 32 KiB           └─ 10 s
//!                 └─ all 64 places are taken: see `places`
//! ```
//!
//! Anybody who reaches the port can connect. So every step has one deadline, which slow bytes do not move. A connection carries one
//! request, and its body is not read: pipelined requests and a false `Content-Length` change nothing.
//!
//! On a loopback address only requests by a name of that address are answered. A page of somebody else in a browser of this
//! host may lead a name of its own to 127.0.0.1, and would read the answer.

mod places;
mod request;
#[cfg(test)]
mod tests;

pub use request::Request;

use crate::{logging, output};
use anyhow::{Result, anyhow};
use places::Places;
use rustix::io::Errno;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The bounds on a connection, and on how many there are.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// How long the head of a request may take.
    head_within: Duration,
    /// How long the client may take to read the answer, as far as it does not fit into the kernel's buffers.
    answer_within: Duration,
    /// How long the server waits after the answer for the client's end of the connection.
    rest_within: Duration,
    /// How many connections are open at the same time, each with a thread.
    connections: usize,
    /// How long each connection is safe from being closed for another one, while its host has few of them.
    kept_for: Duration,
}

/// Prometheus waits 10 s for a scrape by default, and a browser's page 5 s for its data.
const LIMITS: Limits = Limits {
    head_within: Duration::from_secs(10),
    answer_within: Duration::from_secs(10),
    rest_within: Duration::from_secs(2),
    connections: 64,
    kept_for: Duration::from_secs(1),
};

/// How much is read after a request. Closing a socket with unread input would take the answer back.
const REST_BYTES_MAX: u64 = 64 << 10;

/// The pause after an error of accept(). Most errors last, as a lack of descriptors does, and the next call would fail at once,
/// too.
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(50);

/// The log names an error of accept() at most so often.
const WARN_EVERY: Duration = Duration::from_secs(60);

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

    /// The answer as it is sent. One to `HEAD` has no body.
    fn bytes(&self, with_body: bool) -> Vec<u8> {
        let mut text = format!(
            "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n",
            self.code,
            reason(self.code),
            self.content_type,
            self.body.len()
        );
        for (name, value) in self.headers {
            text += &format!("{name}: {value}\r\n");
        }
        text += "\r\n";
        if with_body {
            text += &self.body;
        }
        text.into_bytes()
    }
}

/// The name of a code (RFC 9110, section 15). Clients go by the code alone.
fn reason(code: u16) -> &'static str {
    match code {
        200 => "OK",
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        _ => "",
    }
}

/// Answers requests until the process is ended. `name`, such as "metrics are", and `path` say where what is. Returns only with
/// an error: the address cannot be listened on, or takes no more connections.
pub fn serve(
    listen: SocketAddr,
    name: &str,
    path: &str,
    page: impl Fn(&Request) -> Page + Send + Sync + 'static,
) -> Result<()> {
    let _log_thread = logging::to_error_output().in_background();
    let listener = TcpListener::bind(listen).map_err(|error| {
        anyhow!("cannot listen on {listen}: {error}; choose another address with --listen")
    })?;
    let address = listener.local_addr()?;
    let server = Server::new(listen.ip().is_loopback(), LIMITS, page);
    output::line(format_args!("{name} at http://{address}{path}"))?;
    let error = server.accept_all(|| listener.accept());
    Err(anyhow!(
        "{address} takes no more connections: {error}; start this command again"
    ))
}

/// Shared by the threads that answer.
struct Server<P> {
    page: P,
    /// Whether only the names of the loopback address are answered.
    only_local: bool,
    limits: Limits,
    places: Arc<Places>,
}

impl<P: Fn(&Request) -> Page + Send + Sync + 'static> Server<P> {
    fn new(only_local: bool, limits: Limits, page: P) -> Arc<Self> {
        Arc::new(Self {
            page,
            only_local,
            limits,
            places: Places::new(limits.connections, limits.kept_for),
        })
    }

    /// Answers all connections that `accept` returns. Returns the error after which it can return no more.
    fn accept_all(
        self: &Arc<Self>,
        mut accept: impl FnMut() -> io::Result<(TcpStream, SocketAddr)>,
    ) -> io::Error {
        let mut warned: Option<Instant> = None;
        loop {
            let taken = accept().and_then(|(stream, from)| self.take(stream, from.ip()));
            let Err(error) = taken else {
                continue;
            };
            if is_final(&error) {
                return error;
            }
            if warned.is_none_or(|at| at.elapsed() >= WARN_EVERY) {
                warned = Some(Instant::now());
                tracing::warn!(
                    event = "http_not_accepted",
                    "a connection cannot be accepted: {error}; this is tried again until it succeeds. If open files are short, \
                     raise their limit (LimitNOFILE= of the service)"
                );
            }
            std::thread::sleep(ACCEPT_AGAIN_AFTER);
        }
    }

    /// Answers a connection in a thread of its own.
    fn take(self: &Arc<Self>, stream: TcpStream, host: IpAddr) -> io::Result<()> {
        let place = self.places.enter(stream, host);
        let server = Arc::clone(self);
        let thread = std::thread::Builder::new().name("http".into());
        thread.spawn(move || {
            // Fails only when the client is gone, or is too slow.
            let _ = server.answer(place.stream());
        })?;
        Ok(())
    }

    fn answer(&self, stream: &TcpStream) -> io::Result<()> {
        let within = |limit: Duration| Until {
            stream,
            by: Instant::now() + limit,
        };
        let (page, with_body) = match Request::read(within(self.limits.head_within)) {
            Ok(request) => (self.page(&request), request.method != "HEAD"),
            Err(unfit) => match unfit.page() {
                Some(page) => (page, true),
                None => return Ok(()),
            },
        };
        let answer = page.bytes(with_body);
        within(self.limits.answer_within).write_all(&answer)?;
        stream.shutdown(Shutdown::Write)?;
        let mut rest = within(self.limits.rest_within).take(REST_BYTES_MAX);
        io::copy(&mut rest, &mut io::sink())?;
        Ok(())
    }

    fn page(&self, request: &Request) -> Page {
        let host = request.header("Host").unwrap_or_default();
        match request.method.as_str() {
            _ if self.only_local && !is_local(host) => foreign(host),
            "GET" | "HEAD" => (self.page)(request),
            _ => Page {
                headers: &[("Allow", "GET, HEAD")],
                ..Page::text(405, "only GET and HEAD\n")
            },
        }
    }
}

/// Whether accept() fails with this error for ever. All others pass: the kernel is short of something, or the connection has
/// failed before it was accepted (accept(2), "Error handling").
fn is_final(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::BADF | Errno::FAULT | Errno::INVAL | Errno::NOTSOCK)
    )
}

/// A connection whose reads and writes, all together, end by a moment.
#[derive(Debug)]
struct Until<'a> {
    stream: &'a TcpStream,
    by: Instant,
}

impl Until<'_> {
    fn left(&self) -> io::Result<Duration> {
        let left = self.by.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(left)
    }
}

impl Read for Until<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(self.left()?))?;
        self.stream.read(buffer)
    }
}

impl Write for Until<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(self.left()?))?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
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
