//! The head of a request.

use super::Page;
use httparse::{EMPTY_HEADER, Error, Header, Status};
use std::io::{self, Read};

/// The longest head: the line of the request and its headers. That of a browser has about 1 KiB, and the cookies of all other ports
/// of the same host name.
const HEAD_BYTES_MAX: usize = 32 << 10;

/// The most headers of a request. A browser sends about 20.
const HEADERS_MAX: usize = 128;

/// A request, without its body.
#[derive(Debug)]
pub struct Request {
    pub method: String,
    target: String,
    headers: Vec<(String, String)>,
}

/// Why there is no request to answer.
#[derive(Debug)]
pub enum Unfit {
    /// The client has sent nothing and is gone, or is too slow.
    Gone,
    /// It is no HTTP/1.
    Malformed(String),
    /// The head is longer than [`HEAD_BYTES_MAX`], or has more than [`HEADERS_MAX`] headers.
    TooLong,
}

impl Unfit {
    /// The answer, if somebody waits for one.
    pub fn page(self) -> Option<Page> {
        match self {
            Self::Gone => None,
            Self::Malformed(why) => Some(Page::text(400, format!("this is no request: {why}\n"))),
            Self::TooLong => {
                let why = format!(
                    "the head of the request is too long: send at most {HEAD_BYTES_MAX} bytes and {HEADERS_MAX} headers\n"
                );
                Some(Page::text(431, why))
            }
        }
    }
}

impl Request {
    /// Reads until the head has ended, and perhaps something of what follows it.
    pub fn read(mut from: impl Read) -> Result<Self, Unfit> {
        let mut head = vec![0; HEAD_BYTES_MAX];
        let mut len = 0;
        while len < head.len() {
            let before = len;
            len += match from.read(&mut head[len..]) {
                Ok(0) if len > 0 => return Err(Unfit::Malformed("it ends in its head".into())),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
                Ok(0) | Err(_) => return Err(Unfit::Gone),
                Ok(count) => count,
            };
            // A head ends with a line. The first bytes tell what is no HTTP at all, such as TLS. So a client that sends one byte at a
            // time does not have the whole head parsed for each of them.
            if before == 0 || head[before..len].contains(&b'\n') {
                if let Some(request) = Self::parse(&head[..len])? {
                    return Ok(request);
                }
            }
        }
        Err(Unfit::TooLong)
    }

    /// The request that these bytes begin with, or `None` if its head has not ended.
    fn parse(bytes: &[u8]) -> Result<Option<Self>, Unfit> {
        let mut headers = [EMPTY_HEADER; HEADERS_MAX];
        let mut head = httparse::Request::new(&mut headers);
        match head.parse(bytes) {
            Ok(Status::Complete(_)) => {}
            Ok(Status::Partial) => return Ok(None),
            Err(Error::TooManyHeaders) => return Err(Unfit::TooLong),
            Err(error) => return Err(Unfit::Malformed(error.to_string())),
        }
        let is_host = |it: &&Header<'_>| it.name.eq_ignore_ascii_case("Host");
        if head.headers.iter().filter(is_host).count() > 1 {
            return Err(Unfit::Malformed("it has two Host headers".into()));
        }
        let owned = |it: &Header<'_>| {
            let value = String::from_utf8_lossy(it.value).into_owned();
            (it.name.to_owned(), value)
        };
        Ok(Some(Self {
            method: head.method.unwrap_or_default().to_owned(),
            target: head.path.unwrap_or_default().to_owned(),
            headers: head.headers.iter().map(owned).collect(),
        }))
    }

    /// The path, and what follows the question mark.
    pub fn path_and_query(&self) -> (&str, &str) {
        self.target.split_once('?').unwrap_or((&self.target, ""))
    }

    /// The value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers.iter();
        let (_, value) = headers.find(|(it, _)| it.eq_ignore_ascii_case(name))?;
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_read_however_its_bytes_come() {
        let text = "GET /data?group=1&after=2 HTTP/1.1\r\nhost: localhost:9778\r\nAccept: */*\r\n\r\nGET /next";
        /// Gives one byte at a time.
        struct Slow<'a>(&'a [u8]);
        impl Read for Slow<'_> {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                let len = buffer.len().min(1);
                self.0.read(&mut buffer[..len])
            }
        }
        let requests = [
            Request::read(text.as_bytes()).unwrap(),
            Request::read(Slow(text.as_bytes())).unwrap(),
        ];
        for request in requests {
            assert_eq!(request.method, "GET");
            assert_eq!(request.path_and_query(), ("/data", "group=1&after=2"));
            assert_eq!(request.header("Host"), Some("localhost:9778"));
            assert_eq!(request.header("accept"), Some("*/*"));
            assert_eq!(request.header("Cookie"), None);
        }
    }

    #[test]
    fn a_head_may_be_as_long_as_is_said() {
        let head = |len: usize| {
            let begin = "GET / HTTP/1.1\r\nX: ";
            begin.to_owned() + &"x".repeat(len - begin.len() - 4) + "\r\n\r\n"
        };
        assert!(Request::read(head(HEAD_BYTES_MAX).as_bytes()).is_ok());
        let longer = Request::read(head(HEAD_BYTES_MAX + 1).as_bytes());
        assert!(matches!(longer, Err(Unfit::TooLong)));
        let endless = Request::read(io::repeat(b'x'));
        assert!(matches!(endless, Err(Unfit::TooLong)));
    }
}
