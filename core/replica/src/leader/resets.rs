//! Connections that a new leader resets: clients may have got bytes over them that its guest has not sent
//! ([`super::clean`], docs/decisions/0081).
//!
//! Nothing of such a connection passes between the guest and its client. A reset is believed only with the number that the
//! receiver expects (RFC 5961), so each end is asked for it first, as by a keep-alive:
//!
//! ```text
//!  client                       this leader                         its guest
//!  ◀── an old byte ──────────── tick ─────────── an old byte ─────▶
//!  ─── ACK of n ───────────────▶          ◀─────────────── ACK of m ───
//!  ◀── RST, number n ──────────                 RST, number m ────▶
//! ```
//!
//! An end that has closed answers the next question with a reset of its own. A connection is forgotten once its guest's end
//! has closed, and its client's has, too, or has not answered for minutes: from then on the guest itself refuses the client's segments.
//! If the guest opens a connection anew with the same addresses and ports, that one is another.

use super::Leader;
use crate::context::Context;
use plover_packets::{Packet, Route, Segment, macs_back, question, reset};
use plover_syncvm::message::KnownStream;
use plover_types::{Frame, Micros};
use std::collections::BTreeMap;

/// How long after the first announcement of the guest's new place the ends are asked: a switch has learnt it by then.
const FIRST: Micros = Micros::from_ms(20);

/// How long to wait for the first answer; then twice as long each time, up to [`PAUSE_MAX`].
const PAUSE: Micros = Micros::from_ms(250);
const PAUSE_MAX: Micros = Micros::from_ms(30_000);

/// A client that has not answered so many questions is not asked again, once the guest's end has closed.
const QUESTIONS: u32 = 12;

#[derive(Debug)]
struct Doomed {
    stream: KnownStream,
    asked: u32,
    ask_at: Micros,
    guest_has_closed: bool,
    client_has_closed: bool,
}

/// The connections that are being reset, each from the guest to its client.
#[derive(Debug, Default)]
pub(crate) struct Resets {
    doomed: BTreeMap<Route, Doomed>,
    /// This leader's own segments to clients, which wait for the lease.
    to_clients: Vec<Frame>,
}

/// Segments to clients that wait, at most. Others are lost, as on any network: ends are asked again.
const WAITING_MAX: usize = 4096;

impl Resets {
    /// These are to be reset from now on.
    pub fn begin(&mut self, streams: Vec<KnownStream>) {
        let doomed = streams.into_iter().map(|stream| {
            let doomed = Doomed {
                stream,
                asked: 0,
                ask_at: Micros::ZERO,
                guest_has_closed: false,
                client_has_closed: false,
            };
            (stream.route, doomed)
        });
        self.doomed.extend(doomed);
    }

    /// This leader faces clients. Returns how many connections are to be reset.
    pub fn serve(&mut self, now: Micros) -> usize {
        for doomed in self.doomed.values_mut() {
            doomed.ask_at = now + FIRST;
        }
        self.doomed.len()
    }

    /// Those that the next leader would have to reset as well.
    pub fn list(&self) -> impl ExactSizeIterator<Item = KnownStream> + '_ {
        self.doomed.values().map(|doomed| doomed.stream)
    }

    /// Whether it is being reset.
    pub fn has(&self, route: &Route) -> bool {
        self.doomed.contains_key(route)
    }

    /// The guest's frames, but for those that it has sent over these connections before they were to be reset.
    pub fn without_doomed(&self, mut frames: Vec<Frame>) -> Vec<Frame> {
        if !self.doomed.is_empty() {
            frames.retain(|frame| match Packet::of(frame) {
                Packet::Segment(route, _) => !self.has(&route),
                Packet::Datagram(..) => true,
            });
        }
        frames
    }

    /// This leader's own segments, which may leave now.
    pub fn take_to_clients(&mut self) -> Vec<Frame> {
        std::mem::take(&mut self.to_clients)
    }

    fn tell_clients(&mut self, frames: Vec<Frame>) {
        let room = WAITING_MAX.saturating_sub(self.to_clients.len());
        self.to_clients.extend(frames.into_iter().take(room));
    }

    fn forget_closed(&mut self) {
        self.doomed.retain(|_, it| {
            let is_over = it.client_has_closed || it.asked >= QUESTIONS;
            !(it.guest_has_closed && is_over)
        });
    }

    /// Takes out of clients' frames those of these connections. Returns the answers to the clients.
    fn take_inputs(&mut self, frames: &mut Vec<Frame>) -> Vec<Frame> {
        let mut answers = Vec::new();
        frames.retain(|frame| {
            let Packet::Segment(route, segment) = Packet::of(frame) else {
                return true;
            };
            let Some(doomed) = self.doomed.get_mut(&route.back()) else {
                return true;
            };
            match segment {
                // A client that begins anew. An old end of the guest's answers with an acknowledgement.
                Segment { syn: Some(_), .. } => return true,
                // It has the number of the question that it answers. One with another number may be anybody's.
                Segment { rst: true, seq, .. } => {
                    doomed.client_has_closed |= seq == doomed.stream.heard;
                }
                Segment { ack: Some(ack), .. } => {
                    let KnownStream { route, macs, .. } = doomed.stream;
                    answers.extend(reset(route, macs, ack));
                }
                _ => {}
            }
            false
        });
        answers
    }

    /// Our guest has sent this. Returns whether it may leave; adds the answer to the guest to `answers`.
    pub fn passes(&mut self, frame: &Frame, answers: &mut Vec<Frame>) -> bool {
        if self.doomed.is_empty() {
            return true;
        }
        let Packet::Segment(route, segment) = Packet::of(frame) else {
            return true;
        };
        let Some(doomed) = self.doomed.get_mut(&route) else {
            return true;
        };
        if segment.syn.is_some() {
            self.doomed.remove(&route);
            return true;
        }
        match segment {
            Segment { rst: true, .. } => doomed.guest_has_closed = true,
            Segment { ack: Some(ack), .. } => {
                let macs = macs_back(doomed.stream.macs);
                answers.extend(reset(route.back(), macs, ack));
            }
            _ => {}
        }
        false
    }

    /// The questions that are due: to clients, and to the guest.
    fn due(&mut self, now: Micros) -> (Vec<Frame>, Vec<Frame>) {
        let (mut clients, mut guest) = (Vec::new(), Vec::new());
        for doomed in self.doomed.values_mut().filter(|it| it.ask_at <= now) {
            let KnownStream {
                route,
                macs,
                acked,
                heard,
                ..
            } = doomed.stream;
            if !doomed.client_has_closed {
                clients.extend(question(route, macs, acked, heard));
            }
            if !doomed.guest_has_closed {
                let back = (route.back(), macs_back(macs));
                guest.extend(question(back.0, back.1, heard, acked));
            }
            let pause = PAUSE.0 << doomed.asked.min(16);
            doomed.ask_at = now + Micros(pause).min(PAUSE_MAX);
            doomed.asked += 1;
        }
        (clients, guest)
    }

    fn deadline(&self) -> Micros {
        let next = self.doomed.values().map(|doomed| doomed.ask_at).min();
        next.unwrap_or(Micros::NEVER)
    }
}

impl Leader {
    /// Takes out of clients' frames those that belong to a connection that is being reset.
    pub(super) fn refuse_doomed(&mut self, frames: &mut Vec<Frame>) {
        if self.resets.doomed.is_empty() {
            return;
        }
        let answers = self.resets.take_inputs(frames);
        self.resets.tell_clients(answers);
        self.resets.forget_closed();
    }

    /// Segments in a client's name. A leader that is about to hand over keeps none of them for the next one.
    pub(crate) fn tell_guest(&mut self, cx: &mut Context, frames: Vec<Frame>) {
        if self.kept_frames.is_none() {
            self.take_frames(cx, frames);
        }
    }

    /// Asks both ends of the connections that are being reset.
    pub(crate) fn tick_resets(&mut self, cx: &mut Context) {
        if !self.serving || self.resets.deadline() > cx.now {
            return;
        }
        let (clients, guest) = self.resets.due(cx.now);
        self.resets.tell_clients(clients);
        self.tell_guest(cx, guest);
        self.resets.forget_closed();
    }

    pub(super) fn resets_deadline(&self) -> Micros {
        match self.serving {
            true => self.resets.deadline(),
            false => Micros::NEVER,
        }
    }
}

#[cfg(test)]
mod tests;
