//! Does what rustls asks for, one state at a time, and keeps the bytes that it seals.

use crate::context::Loss;
use rustls::Error;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus};
use std::ops::Range;

/// Room for what TLS adds to what is sealed; if it does not fit, more is made.
const SEAL_EXTRA_BYTES: usize = 1 << 10;

/// How far rustls has come with the bytes there are.
#[derive(PartialEq, Eq)]
pub enum Step {
    Again,
    /// It needs more bytes, before the handshake is done.
    Shaking,
    /// It needs more bytes; the handshake is done.
    Idle,
    /// It has sealed what it was to seal.
    Sealed,
}

pub enum Failure {
    Tls(Error),
    Loss(Loss),
}

/// The place for sealed bytes.
pub struct Sealed<'a> {
    pub bytes: &'a mut Vec<u8>,
    pub unsent: &'a mut Range<usize>,
}

impl Sealed<'_> {
    /// Does what rustls asks for. Returns how many of the bytes that have come it is done with.
    pub fn step<D>(
        &mut self,
        status: UnbufferedStatus<'_, '_, D>,
        seal: Option<&[u8]>,
        take: &mut dyn FnMut(&[u8]) -> Result<(), Loss>,
    ) -> (usize, Result<Step, Failure>) {
        let mut discard = status.discard;
        let step = match status.state {
            Err(error) => Err(Failure::Tls(error)),
            Ok(ConnectionState::ReadTraffic(mut traffic)) => loop {
                match traffic.next_record() {
                    None => break Ok(Step::Again),
                    Some(Err(error)) => break Err(Failure::Tls(error)),
                    Some(Ok(record)) => {
                        discard += record.discard;
                        if let Err(loss) = take(record.payload) {
                            break Err(Failure::Loss(loss));
                        }
                    }
                }
            },
            Ok(ConnectionState::EncodeTlsData(mut data)) => {
                self.append(0, |room| data.encode(room));
                Ok(Step::Again)
            }
            Ok(ConnectionState::TransmitTlsData(data)) => {
                // It goes out with whatever is sealed next, in this order.
                data.done();
                Ok(Step::Again)
            }
            Ok(ConnectionState::WriteTraffic(mut traffic)) => match seal {
                None => Ok(Step::Idle),
                Some(plain) => {
                    let full = self.append(plain.len() + SEAL_EXTRA_BYTES, |room| {
                        traffic.encrypt(plain, room)
                    });
                    if full {
                        Ok(Step::Sealed)
                    } else {
                        Err(Failure::Loss(Loss::Closed))
                    }
                }
            },
            Ok(ConnectionState::BlockedHandshake) => Ok(Step::Shaking),
            // Closed, or a state of another version of TLS.
            Ok(_) => Err(Failure::Loss(Loss::Closed)),
        };
        (discard, step)
    }

    /// Appends one alert, if there is one.
    pub fn alert<D>(&mut self, status: UnbufferedStatus<'_, '_, D>) -> bool {
        match status.state {
            Ok(ConnectionState::EncodeTlsData(mut data)) => {
                self.append(0, |room| data.encode(room))
            }
            _ => false,
        }
    }

    /// Lets `put` write after what is sealed already; if it needs more than `room`, it is asked again. `false`
    /// if it has nothing to write any more.
    fn append<E: Shortage>(
        &mut self,
        mut room: usize,
        mut put: impl FnMut(&mut [u8]) -> Result<usize, E>,
    ) -> bool {
        let end = self.unsent.end;
        loop {
            if self.bytes.len() < end + room {
                self.bytes.resize(end + room, 0);
            }
            match put(&mut self.bytes[end..]).map_err(E::needed) {
                Ok(count) => {
                    self.unsent.end += count;
                    return true;
                }
                Err(Some(needed)) => room = needed,
                Err(None) => return false,
            }
        }
    }
}

/// An error of rustls that asks for more room.
trait Shortage {
    fn needed(self) -> Option<usize>;
}

impl Shortage for EncodeError {
    fn needed(self) -> Option<usize> {
        match self {
            Self::InsufficientSize(it) => Some(it.required_size),
            Self::AlreadyEncoded => None,
        }
    }
}

impl Shortage for EncryptError {
    fn needed(self) -> Option<usize> {
        match self {
            Self::InsufficientSize(it) => Some(it.required_size),
            Self::EncryptExhausted => None,
        }
    }
}
