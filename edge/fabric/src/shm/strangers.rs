//! Who stands at the door: connections that have not said whose they are. Nothing but a greeting
//! is believed, and not for long is one waited for.

use super::ShmFabric;
use super::socket::{self, Heard, Offer};
use crate::hello::{Hello, Refusal};
use crate::poll::{Interest, Token};
use std::os::fd::OwnedFd;
use std::time::Instant;
use tracing::{debug, warn};

/// Connections that may stand at the door without having greeted.
const STRANGERS_MAX: usize = 32;

/// A connection that has not said yet whose it is.
#[derive(Debug)]
pub(super) struct Stranger {
    socket: OwnedFd,
    token: Token,
    pub since: Instant,
}

impl ShmFabric {
    /// Lets in whoever knocks.
    pub(super) fn accept(&mut self, now: Instant) {
        if !self.context.poll.is_ready(self.listener_token) {
            return;
        }
        for _ in 0..STRANGERS_MAX {
            match self.listener.accept() {
                Ok(Some(socket)) => {
                    if self.strangers.len() == STRANGERS_MAX {
                        // The oldest has had its chance; a peer dials again.
                        self.strangers.remove(0);
                        self.context.stats.rejected += 1;
                        debug!("turned away: too many at the door");
                    }
                    match self.context.poll.watch(&socket, Interest::Read) {
                        Ok(token) => self.strangers.push(Stranger {
                            socket,
                            token,
                            since: now,
                        }),
                        Err(error) => debug!(%error, "a connection failed at once"),
                    }
                }
                Ok(None) => return,
                // We are short of descriptors; epoll asks again.
                Err(error) => return debug!(%error, "accept failed"),
            }
        }
    }

    /// Hears who the strangers are.
    pub(super) fn greet(&mut self, now: Instant) {
        for stranger in std::mem::take(&mut self.strangers) {
            match socket::receive(&stranger.socket) {
                Ok(Heard::Greeting(bytes, offer)) => match Hello::decode(&bytes) {
                    Ok(theirs) => self.introduce(stranger, &theirs, offer, now),
                    Err(error) => self.turn_away(&error),
                },
                Ok(Heard::Noise) => self.turn_away(&"it sent something else than a greeting"),
                Ok(Heard::Nothing) if now < stranger.since + self.context.times.hello_within => {
                    self.strangers.push(stranger);
                }
                Ok(Heard::Nothing) => self.turn_away(&"it said nothing"),
                // It left by itself, as peers do that give up dialling.
                Ok(Heard::End) => debug!("a connection ended early"),
                Err(error) => debug!(%error, "a connection ended early"),
            }
        }
    }

    fn turn_away(&mut self, why: &dyn std::fmt::Display) {
        self.context.stats.rejected += 1;
        debug!("turned away: {why}");
    }

    /// A stranger has said who it is: answers, and hands it to its peer.
    fn introduce(
        &mut self,
        stranger: Stranger,
        theirs: &Hello,
        offer: Option<Offer>,
        now: Instant,
    ) {
        let context = &mut self.context;
        let Stranger { socket, token, .. } = stranger;
        let peer = self
            .peers
            .iter_mut()
            .find(|p| p.id == theirs.from && p.id < context.me);
        let mut mine = context.hello(theirs.from, theirs.session);
        let refusal = match socket::is_same_user(&socket) {
            Ok(true) => theirs.refusal(&mine),
            Ok(false) => Some(Refusal::User),
            Err(error) => return debug!(%error, "a connection ended early"),
        };
        let refusal = match (refusal, peer, offer) {
            (Some(refusal), ..) => refusal,
            (None, None, _) => Refusal::Identity,
            (None, Some(_), None) => Refusal::Memory,
            (None, Some(peer), Some(offer)) => {
                match peer.welcome(context, now, &mine, (socket, token), offer) {
                    Ok(()) => {}
                    Err(loss) => {
                        context.stats.rejected += 1;
                        warn!("refused {}: {loss}", theirs.from);
                    }
                }
                return;
            }
        };
        mine.verdict = refusal as u8;
        context.stats.rejected += 1;
        if context.refused.note(theirs.from, &refusal, now) {
            warn!("refused {}: {refusal}", theirs.from);
        }
        // It may have left already.
        let _ = socket::send(&socket, &mine, None);
    }
}
