//! Leaders whose programs read their clients themselves, before their input is committed.

use super::{Waiting, World};
use crate::program::Connection;
use plover_program::{ConnectionId, Entrance, Entry, Event, Phase, Replica};
use plover_types::{Index, Viewstamp};

impl World {
    /// A client of the host that leads, or believes that it leads.
    pub(super) fn client_directly(&mut self, place: usize) {
        let Some((host, id)) = self.clients[place].to else {
            return self.connect_directly(place);
        };
        if self.hosts[host].still_until > self.now {
            if self.rng.chance(0.05) {
                self.apply(host, Event::StandsStill);
            }
            return;
        }
        // A thread whose read waits for its commit does not close the connection.
        let is_in_read = self.entrance == Entrance::HoldsInput
            && self.hosts[host].waits.iter().any(|it| it.connection == id);
        if !is_in_read && self.leaves(place) {
            let sent = std::mem::take(&mut self.clients[place]).received;
            if let Some(program) = &mut self.hosts[host].program {
                program.connections.remove(&id);
            }
            self.reads(host, id, &Entry::Close(id, sent), Vec::new());
            return;
        }
        let is_full = |it: &Replica| it.is_full();
        if self.hosts[host].brain.as_ref().is_some_and(is_full) {
            self.coverage.hit("log: full");
            return;
        }
        let bytes = self.sends(place);
        if !bytes.is_empty() {
            let after = self.clients[place].received;
            self.reads(host, id, &Entry::Bytes(id, after, &bytes), bytes.clone());
        }
    }

    fn connect_directly(&mut self, place: usize) {
        let accepts = |it: &usize| {
            let host = &self.hosts[*it];
            host.program.is_some() && host.brain.as_ref().is_some_and(Replica::accepts)
        };
        let Some(host) = (0..self.hosts.len()).find(accepts) else {
            return;
        };
        let entry = Entry::Accept(plover_program::Client::default());
        if self.hosts[host].still_until > self.now {
            return;
        }
        self.turn_clock(host, 1.0);
        if self.hosts[host].program.is_none() {
            return;
        }
        if let Some(at) = self.propose(host, &entry) {
            let id = ConnectionId(at);
            let own = Connection {
                is_own: true,
                ..Connection::default()
            };
            let program = self.hosts[host].program.as_mut().expect("it runs");
            program.connections.insert(id, own);
            self.clients[place].to = Some((host, id));
            self.apply(host, Event::Proposed(at));
        }
    }

    /// The program's time goes on, perhaps.
    fn turn_clock(&mut self, host: usize, chance: f64) {
        if self.entrance != Entrance::HoldsOutput || !self.rng.chance(chance) {
            return;
        }
        let now = self.now.0;
        if let Some(program) = &mut self.hosts[host].program {
            program.time = now;
            let at = self.propose(host, &Entry::Clock(now));
            self.apply(host, at.map_or(Event::Unproposed, Event::ProposedTime));
        }
    }

    /// Proposes an entry for the leader of a view. A leader that is deposed and does not know appends to a log that
    /// is lost, or finds out.
    fn propose(&mut self, host: usize, entry: &Entry<'_>) -> Option<Viewstamp> {
        let phase = self.hosts[host].brain.as_ref()?.phase().clone();
        let Phase::Leading { view, .. } = phase else {
            return None;
        };
        if self.leader == Some((host, view)) {
            return self.append(Some(entry.encode()));
        }
        self.longest += 1;
        let index = Index(self.longest);
        self.rng.chance(0.7).then_some(Viewstamp { view, index })
    }

    /// The program reads what a client has sent, and executes it now or at the commit.
    fn reads(&mut self, host: usize, connection: ConnectionId, entry: &Entry<'_>, bytes: Vec<u8>) {
        self.turn_clock(host, 0.5);
        let at = self.propose(host, entry);
        if self.entrance == Entrance::HoldsInput {
            if let Some(at) = at {
                let waiting = Waiting {
                    at,
                    connection,
                    bytes,
                };
                self.hosts[host].waits.push_back(waiting);
            }
        } else if let Some(program) = &mut self.hosts[host].program {
            if let Some(open) = program.connections.get_mut(&connection) {
                open.unread.extend(bytes);
                let bytes = program.read(connection);
                let at = at.unwrap_or_default();
                let waiting = Waiting {
                    at,
                    connection,
                    bytes,
                };
                self.hosts[host].waits.push_back(waiting);
            }
        }
        let event = at.map_or(Event::Unproposed, Event::Proposed);
        self.apply(host, event);
    }

    /// What the program has read up to `at` is committed.
    pub(super) fn release(&mut self, host: usize, at: Viewstamp) {
        let waits = &mut self.hosts[host].waits;
        let mut released = Vec::new();
        while waits.front().is_some_and(|it| it.at.index <= at.index) {
            released.extend(waits.pop_front());
        }
        for Waiting {
            connection, bytes, ..
        } in released
        {
            let Some(program) = &mut self.hosts[host].program else {
                return;
            };
            let Some(open) = program.connections.get_mut(&connection) else {
                continue;
            };
            let is_cut = open.is_cut;
            let output = if self.entrance == Entrance::HoldsInput {
                open.unread.extend(bytes);
                program.read(connection)
            } else {
                bytes
            };
            if !output.is_empty() && !is_cut {
                self.apply(host, Event::Output(connection, &output));
                self.reply((host, connection), &output);
            }
        }
    }

    /// Ends all clients' connections to a host.
    pub(super) fn cut_off_all(&mut self, host: usize) {
        self.cut_off(|(to, _)| to == host);
        if let Some(program) = &mut self.hosts[host].program {
            let own = program.connections.values_mut().filter(|it| it.is_own);
            own.for_each(|it| it.is_cut = true);
        }
    }
}
