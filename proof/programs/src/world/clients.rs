//! The clients.

use super::{Client, World};
use crate::program::{LOGIN, REPLY_BYTES};
use plover_program::{ConnectionId, Entrance, Entry, Replica, Sessions};

impl World {
    pub(super) fn cut_off(&mut self, which: impl Fn((usize, ConnectionId)) -> bool) {
        for client in &mut self.clients {
            if client.to.is_some_and(&which) {
                *client = Client::default();
                self.coverage.hit("client: cut off");
            }
        }
    }

    pub(super) fn reply(&mut self, to: (usize, ConnectionId), bytes: &[u8]) {
        let Some(client) = self.clients.iter_mut().find(|it| it.to == Some(to)) else {
            return;
        };
        client.got.extend(bytes);
        client.received += bytes.len() as u64;
        if client.got.len() < REPLY_BYTES {
            return;
        }
        client.has_login = true;
        let number = client.request.take();
        let got = std::mem::take(&mut client.got);
        let is_wrong = self.hosts[to.0]
            .program
            .as_ref()
            .is_some_and(|it| it.is_wrong);
        let due = number.and_then(|number| self.reference.reply_to(number));
        if due.as_ref() != Some(&got) && !is_wrong {
            let message = format!(
                "r{} replies {got:?} to request {number:?}, not {due:?}",
                to.0
            );
            self.fail("replies_are_committed", "APUS §4.1", message);
        }
        self.coverage.hit("client: a reply");
    }

    pub(super) fn client(&mut self) {
        let place = self.rng.range(0, self.clients.len() as u64 - 1) as usize;
        if self.entrance != Entrance::Fed {
            return self.client_directly(place);
        }
        let Some((leader, _)) = self.leader else {
            return;
        };
        let accepts = self.hosts[leader]
            .brain
            .as_ref()
            .is_some_and(Replica::accepts);
        let Some((host, id)) = self.clients[place].to else {
            if accepts {
                let at = self
                    .append(Some(
                        Entry::Accept(plover_program::Client::default()).encode(),
                    ))
                    .expect("there is a leader");
                self.clients[place].to = Some((leader, ConnectionId(at)));
            }
            return;
        };
        if host != leader || !accepts {
            return;
        }
        if self.leaves(place) {
            let sent = std::mem::take(&mut self.clients[place]).received;
            self.append(Some(Entry::Close(id, sent).encode()));
            return;
        }
        let bytes = self.sends(place);
        if !bytes.is_empty() {
            let after = self.clients[place].received;
            self.append(Some(Entry::Bytes(id, after, &bytes).encode()));
        }
    }

    /// Whether a client leaves now. A slow program may give up its request or not, each on its own, so none leaves it behind.
    pub(super) fn leaves(&mut self, place: usize) -> bool {
        let may_leave = !self.slow || self.clients[place].request.is_none();
        let chance = if self.slow { 0.1 } else { 0.02 };
        self.faults && may_leave && self.rng.chance(chance)
    }

    /// What a client sends next, if it does not wait for a reply.
    pub(super) fn sends(&mut self, place: usize) -> Vec<u8> {
        let client = &mut self.clients[place];
        if client.request.is_none() {
            self.requests += 1;
            let is_login = self.sessions == Sessions::Login && !client.has_login;
            let number = self.requests | if is_login { LOGIN } else { 0 };
            client.request = Some(number);
            client.unsent = number.to_le_bytes().to_vec();
        }
        if client.unsent.is_empty() {
            return Vec::new();
        }
        let count = self.rng.range(1, client.unsent.len() as u64) as usize;
        let rest = client.unsent.split_off(count);
        std::mem::replace(&mut client.unsent, rest)
    }
}
