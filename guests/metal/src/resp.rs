//! Requests of Redis's protocol: arrays of bulk strings, and lines of words.

use core::ops::Range;

/// Words of a request, at most: `MGET` with 256 keys.
pub const WORDS_MAX: usize = 257;
/// Bytes of an upload, at most.
const UPLOAD_BYTES_MAX: usize = 1 << 30;
/// Digits of a number.
const DIGITS_MAX: usize = 10;

/// The beginning of a connection's input.
#[derive(Debug, PartialEq, Eq)]
pub enum Parsed {
    /// More bytes are needed.
    Incomplete,
    /// No request; the connection is of no more use.
    Bad(&'static str),
    /// A request of so many bytes; its words are in [`Words`].
    Request(usize),
    /// `UPLOAD`, after its so many first bytes: so many bytes and a line's end follow.
    Upload(usize, usize),
}

/// The places of a request's words.
pub struct Words {
    places: [Range<usize>; WORDS_MAX],
    count: usize,
}

impl Words {
    /// None.
    pub const fn new() -> Self {
        Self {
            places: [const { 0..0 }; WORDS_MAX],
            count: 0,
        }
    }

    /// The words of the request that was parsed last.
    pub fn of<'a>(&'a self, request: &'a [u8]) -> impl ExactSizeIterator<Item = &'a [u8]> {
        self.places[..self.count]
            .iter()
            .map(|place| &request[place.clone()])
    }

    fn push(&mut self, place: Range<usize>) -> bool {
        let is_room = self.count < WORDS_MAX;
        if is_room {
            self.places[self.count] = place;
            self.count += 1;
        }
        is_room
    }

    /// Looks for a request at the beginning of `input`.
    pub fn parse(&mut self, input: &[u8]) -> Parsed {
        self.count = 0;
        if input.first() == Some(&b'*') {
            self.array(input).unwrap_or_else(|parsed| parsed)
        } else {
            self.line(input)
        }
    }

    fn line(&mut self, input: &[u8]) -> Parsed {
        let Some(end) = input.iter().position(|byte| *byte == b'\n') else {
            return Parsed::Incomplete;
        };
        let mut from = 0;
        for (at, byte) in input[..=end].iter().enumerate() {
            if byte.is_ascii_whitespace() {
                if at > from && !self.push(from..at) {
                    return Parsed::Bad("too many words");
                }
                from = at + 1;
            }
        }
        Parsed::Request(end + 1)
    }

    fn array(&mut self, input: &[u8]) -> Result<Parsed, Parsed> {
        let (count, mut at) = number(input, 0, b'*')?;
        if count > WORDS_MAX {
            return Err(Parsed::Bad("too many words"));
        }
        for _ in 0..count {
            let (bytes, from) = number(input, at, b'$')?;
            let is_upload = self.count == 1
                && count == 2
                && input[self.places[0].clone()].eq_ignore_ascii_case(b"UPLOAD");
            if is_upload && bytes <= UPLOAD_BYTES_MAX {
                return Ok(Parsed::Upload(from, bytes));
            }
            let to = from + bytes;
            match input.get(to..to + 2) {
                Some(b"\r\n") => {}
                Some(_) => return Err(Parsed::Bad("a word without its end")),
                None => return Err(Parsed::Incomplete),
            }
            if !self.push(from..to) {
                return Err(Parsed::Bad("too many words"));
            }
            at = to + 2;
        }
        Ok(Parsed::Request(at))
    }
}

/// Reads `kind`, a number and a line's end at `at`. Returns the number, and the place after it.
fn number(input: &[u8], at: usize, kind: u8) -> Result<(usize, usize), Parsed> {
    match input.get(at) {
        None => return Err(Parsed::Incomplete),
        Some(byte) if *byte != kind => return Err(Parsed::Bad("another type was due")),
        Some(_) => {}
    }
    let mut value = 0;
    for digits in 0..=DIGITS_MAX {
        match input.get(at + 1 + digits) {
            None => return Err(Parsed::Incomplete),
            Some(byte @ b'0'..=b'9') => value = value * 10 + usize::from(byte - b'0'),
            Some(b'\r') if digits > 0 => {
                return match input.get(at + 2 + digits) {
                    None => Err(Parsed::Incomplete),
                    Some(b'\n') => Ok((value, at + 3 + digits)),
                    Some(_) => Err(Parsed::Bad("a number without its end")),
                };
            }
            Some(_) => break,
        }
    }
    Err(Parsed::Bad("a number was due"))
}

/// `proof/lab/tests/metal.rs` runs these: this crate has no test harness to link.
#[cfg(test)]
mod tests {
    use super::*;

    fn parse(input: &[u8]) -> (Parsed, Vec<&[u8]>) {
        let mut words = Words::new();
        let parsed = words.parse(input);
        let words = words
            .of(input)
            .map(<[u8]>::as_ptr_range)
            .collect::<Vec<_>>();
        let at = |word: &Range<*const u8>| word.start as usize - input.as_ptr() as usize;
        let bytes = |word: &Range<*const u8>| word.end as usize - word.start as usize;
        let words = words
            .iter()
            .map(|word| &input[at(word)..at(word) + bytes(word)]);
        (parsed, words.collect())
    }

    #[test]
    fn a_request_is_incomplete_up_to_its_last_byte() {
        for request in [
            &b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$2\r\n\r\n\r\n"[..],
            b"SET  k v\r\n",
        ] {
            for end in 0..request.len() {
                assert_eq!(parse(&request[..end]).0, Parsed::Incomplete, "{end}");
            }
            let more = [request, b"*1"].concat();
            let (parsed, words) = parse(&more);
            assert_eq!(parsed, Parsed::Request(request.len()));
            assert_eq!(words[..2], [&b"SET"[..], b"k"]);
        }
        assert_eq!(parse(b"\r\n"), (Parsed::Request(2), vec![]));
    }

    #[test]
    fn an_upload_is_known_by_its_length() {
        let head = b"*2\r\n$6\r\nupload\r\n$1000000\r\n";
        assert_eq!(parse(head).0, Parsed::Upload(head.len(), 1_000_000));
        // More than it may have is a request that never ends.
        assert_eq!(
            parse(b"*2\r\n$6\r\nUPLOAD\r\n$9999999999\r\n").0,
            Parsed::Incomplete
        );
    }

    #[test]
    fn noise_is_bad() {
        let many = [&b"x ".repeat(WORDS_MAX + 1)[..], b"\n"].concat();
        for noise in [
            &b"*1\r\n$-1\r\n"[..],
            b"*1\r\n+OK\r\n",
            b"*\r\n",
            b"*99999999999\r\n",
            b"*258\r\n",
            b"*1\r\n$1\r\nabc",
            b"*1\rx",
            &many,
        ] {
            assert!(matches!(parse(noise).0, Parsed::Bad(_)), "{noise:?}");
        }
    }
}
