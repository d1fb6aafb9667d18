//! The leader's side towards clients: their address, and the door that lets them in.

use super::{AGAIN_AFTER, Body, FACE_TRIES, propose};
use crate::face::Face;
use crate::orphans::{ORPHANS_MAX, Orphans};
use plover_program::{Client, ConnectionId, Phase};
use std::time::Instant;

impl Body {
    /// Takes the clients' address, or gives it up, and reads clients as far as the brain takes their input.
    pub(super) fn face_clients(&mut self) {
        let (server, room) = (&mut self.server, self.room);
        self.clients
            .retry(&mut |entry| propose(server, room, entry));
        if !self.brain.serves() {
            if self.clients.is_listening() {
                self.clients.drop_all();
            }
            self.face = None;
            if !matches!(self.brain.phase(), Phase::Leading { .. }) {
                self.orphans.clear();
            }
            return;
        }
        if !self.clients.is_listening() && Instant::now() >= self.face_at {
            self.face_at = Instant::now() + AGAIN_AFTER;
            match self.take_address() {
                Ok(()) => self.face_failures = 0,
                Err(why) => {
                    self.face_failures += 1;
                    // The leader before may need a moment to let go of it.
                    if self.face_failures == FACE_TRIES {
                        tracing::error!("{why}");
                        self.remember(why);
                    }
                }
            }
        }
        if let Some(face) = &mut self.face {
            face.advance();
        }
        self.clients.set_reads(self.brain.accepts());
    }

    /// A connection that the log had open is over.
    pub(super) fn is_over(&mut self, id: ConnectionId) {
        let client: Option<Client> = self.addresses.remove(&id);
        let leads = matches!(self.brain.phase(), Phase::Leading { .. });
        if leads && self.face.is_none() && self.orphans.len() < ORPHANS_MAX {
            self.orphans.extend(client);
        }
    }

    pub(super) fn take_address(&mut self) -> Result<(), String> {
        let listen = self.config.program.listen;
        if let (Some(device), true) = (&self.config.program.device, self.face.is_none()) {
            let face = Face::take(*listen.ip(), device);
            let face = face.map_err(|e| format!(
                "cannot take the clients' address {} on {device} (program.device): {e}; it needs root and /dev/net/tun",
                listen.ip()
            ))?;
            let face = self.face.insert(face);
            let orphans = Orphans::new(listen, std::mem::take(&mut self.orphans));
            match orphans {
                Ok(orphans) => face.inherit(orphans),
                // They notice by themselves, later.
                Err(error) => {
                    tracing::warn!(%error, "clients cannot be told that their connections are over")
                }
            }
        }
        self.clients.listen(listen).map_err(|e| {
            format!(
                "cannot listen for clients at {listen} (program.listen): {e}; the address must be on this host, or \
                 program.device must be given"
            )
        })
    }
}
