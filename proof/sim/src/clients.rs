//! The guest's clients and the bridge that leads to it.
//!
//! A client sends a request, repeats it until it is answered, more and more rarely as TCP does, and counts each reply. The bridge
//! sends its frames to the replica from which the guest's last announcement or reply came. The
//! bridge may be slow to learn that.

use crate::listener::{self, Bare, Listener};
use crate::request::{Answered, Request};
use crate::rng::Rng;
use crate::scenario::ClientHabits;
use crate::schedule::{Happening, Schedule};
use crate::spoken::{CONNECTIONS_MAX, Spoken};
use plover_types::{Frame, Micros, ReplicaId};

/// How many times its habit a client waits at most before it repeats a request.
const PATIENCE_MAX: u64 = 8;

#[derive(Clone, Copy, Debug, Default)]
struct Client {
    request: u32,
    /// How many times its habit it waits for an answer now.
    patience: u64,
    asked_at: Micros,
    waiting: bool,
    connection: u8,
    /// What it has received on this connection, and the history that explains the newest part.
    heard: Option<(Answered, u64)>,
    /// Replies that it has received to requests that it first sent after all faults.
    fresh_replies: u64,
}

impl Client {
    /// Takes the segment if it continues the connection's stream, as TCP does.
    fn hear(&mut self, spoken: &Spoken) {
        if spoken.connection != self.connection {
            return;
        }
        let is_next = |(got, _): (Answered, u64)| {
            let (ahead, length) = (got.ack.wrapping_sub(spoken.seq), spoken.end());
            ahead < length.wrapping_sub(spoken.seq)
        };
        if self.heard.map_or(spoken.opens, is_next) {
            let got = Answered {
                ack: spoken.end(),
                clock: spoken.clock,
            };
            self.heard = Some((got, spoken.history));
        }
    }

    /// The guest does not know the connection: the question is asked again on a new one.
    fn refused(&mut self, spoken: &Spoken) {
        if spoken.connection == self.connection && self.connection < CONNECTIONS_MAX {
            self.connection += 1;
            self.heard = None;
        }
    }
}

/// All clients and their bridge.
#[derive(Debug)]
pub struct Clients {
    habits: ClientHabits,
    rng: Rng,
    clients: Vec<Client>,
    /// The one that only listens.
    pub listener: Listener,
    /// The replica behind whose port the bridge believes the guest to be.
    pub port: Option<ReplicaId>,
    /// The bridge is slow to learn.
    pub stale: bool,
    frames: u64,
    /// Replies that were received.
    pub replies: u64,
    /// Replies to requests that were first sent after this moment are fresh.
    fresh_after: Micros,
}

impl Clients {
    /// Clients that are about to ask.
    pub fn new(habits: ClientHabits, mut rng: Rng, plan: &mut Schedule) -> Self {
        for client in 0..habits.clients {
            plan.after(rng.micros((0, 200_000)), Happening::Ask(client));
        }
        Self {
            habits,
            rng,
            clients: vec![Client::default(); usize::from(habits.clients)],
            listener: Listener::default(),
            port: None,
            stale: false,
            frames: 0,
            replies: 0,
            fresh_after: Micros::NEVER,
        }
    }

    /// From now on replies to new requests count as fresh.
    pub fn count_fresh(&mut self, now: Micros) {
        self.fresh_after = now;
    }

    /// How many fresh replies each client has received.
    pub fn fresh_replies(&self) -> Vec<u64> {
        let clients = self.clients.iter();
        clients.map(|client| client.fresh_replies).collect()
    }

    /// Whether each client has received a fresh reply. After a very long run a client has no connection left, and cannot
    /// open one after a reset: it need not be answered, but at least one client must be.
    pub fn all_are_answered(&self) -> bool {
        let is_answered = |client: &Client| client.fresh_replies > 0;
        let is_stuck = |client: &Client| client.connection == CONNECTIONS_MAX;
        let mut clients = self.clients.iter();
        clients.all(|client| is_answered(client) || is_stuck(client))
            && self.clients.iter().any(is_answered)
    }

    /// A client asks its next question; returns its frames.
    pub fn ask(&mut self, client: u8, plan: &mut Schedule) -> Vec<Frame> {
        let state = &mut self.clients[usize::from(client)];
        state.request += 1;
        state.patience = 1;
        state.waiting = true;
        state.asked_at = plan.now();
        let request = state.request;
        if self.rng.chance(self.habits.reconnects) && state.connection < CONNECTIONS_MAX {
            state.connection += 1;
            state.heard = None;
        }
        let copies = if self.rng.chance(self.habits.burst) {
            self.rng.range(2, 12)
        } else {
            1
        };
        let patience = self.rng.micros(self.habits.patience);
        plan.after(patience, Happening::AskAgain(client, request));
        (0..copies).map(|_| self.frame(client, request)).collect()
    }

    /// A client's patience is over; returns the question again if it is still open.
    pub fn ask_again(&mut self, client: u8, request: u32, plan: &mut Schedule) -> Vec<Frame> {
        let state = &mut self.clients[usize::from(client)];
        if !state.waiting || state.request != request {
            return Vec::new();
        }
        state.patience = (state.patience * 2).min(PATIENCE_MAX);
        let times = state.patience;
        let patience = self.rng.micros(self.habits.patience);
        plan.after(
            Micros(patience.0 * times),
            Happening::AskAgain(client, request),
        );
        vec![self.frame(client, request)]
    }

    fn frame(&mut self, client: u8, request: u32) -> Frame {
        self.frames += 1;
        let state = self.clients[usize::from(client)];
        let request = Request {
            client,
            request,
            number: self.frames,
            connection: state.connection,
            heard: state.heard.map(|(_, history)| history),
        };
        request.to_frame(state.heard.map(|(got, _)| got))
    }

    /// How long a frame is under way between the clients and a TAP.
    pub fn latency(&mut self) -> Micros {
        self.rng.micros((40, 400))
    }

    /// How long the bridge takes to learn a port.
    pub fn learning(&mut self) -> Micros {
        if self.stale {
            self.rng.micros((1000, 400_000))
        } else {
            self.rng.micros((20, 400))
        }
    }

    /// Frames of the guest arrive. Returns what the client that listens answers.
    pub fn receive(&mut self, frames: &[Frame], plan: &mut Schedule) -> Vec<Frame> {
        let mut answers = Vec::new();
        for frame in frames {
            if let Some(bare) = Bare::of(frame) {
                answers.extend(self.listener.hear_bare(&bare));
                continue;
            }
            let Some(spoken) = Spoken::decode(frame) else {
                continue;
            };
            if spoken.client == listener::CLIENT {
                answers.extend(self.listener.hear(&spoken));
                continue;
            }
            let Some(state) = self.clients.get_mut(usize::from(spoken.client)) else {
                continue;
            };
            if spoken.resets {
                state.refused(&spoken);
                continue;
            }
            state.hear(&spoken);
            let Spoken { client, words, .. } = spoken;
            // The first word of an answer names the request; the second is as good as noise.
            if !state.waiting || !words.contains(&state.request) {
                continue;
            }
            state.waiting = false;
            state.fresh_replies += u64::from(state.asked_at >= self.fresh_after);
            self.replies += 1;
            plan.after(self.rng.micros(self.habits.think), Happening::Ask(client));
        }
        answers
    }
}
