//! The leader's side towards clients: their address, and the door that lets them in.

use super::{AGAIN_AFTER, Body, FACE_TRIES, propose};
use crate::direct::Direct;
use crate::face::Face;
use crate::orphans::Orphans;
use std::net::SocketAddrV4;
use std::time::{Duration, Instant};

/// A leader that has had no lease for so long gives up the clients' address, if it has taken it, and resets their connections:
/// it cannot serve them, and another one may. It lets clients in again when it has the lease again.
const CUT_OFF_AFTER: Duration = Duration::from_secs(3);

impl Body {
    /// Takes the clients' address, or gives it up, and reads clients as far as the brain takes their input.
    pub(super) fn face_clients(&mut self) {
        let (server, room) = (&mut self.server, self.room);
        self.clients
            .retry(&mut |entry| propose(server, room, entry));
        if !self.brain.serves() {
            self.clients.drop_all();
            self.face = None;
            self.face_failures = 0;
            return;
        }
        let now = Instant::now();
        if now < self.server.leased_until() {
            self.leased_at = now;
        }
        let is_cut_off = now > self.leased_at + CUT_OFF_AFTER;
        if is_cut_off && (self.clients.is_listening() || self.face.is_some()) {
            // Before the address goes: the kernel sends no reset from one that it has no more.
            self.clients.reset_all();
            self.directly(Direct::reset_clients);
            self.face = None;
            let why = "this leader reaches no majority of the group: it has reset its clients, and lets none in";
            tracing::warn!("{why}");
            self.remember(why.into());
        }
        if !is_cut_off && !self.faces() && now >= self.face_at {
            self.face_at = now + AGAIN_AFTER;
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
            // Another replica may announce the address if this one has no lease.
            if self.leased_at == now {
                face.advance();
            }
        }
        self.clients.set_reads(self.brain.accepts());
    }

    /// Whether clients find this leader.
    pub(super) fn faces(&self) -> bool {
        let has_address = self.config.program.device.is_none() || self.face.is_some();
        has_address && self.clients.is_listening()
    }

    pub(super) fn take_address(&mut self) -> Result<(), String> {
        let listen = self.config.program.listen;
        if let (Some(device), true) = (&self.config.program.device, self.face.is_none()) {
            let face = Face::take(*listen.ip(), device, &self.low_number);
            let face = face.map_err(|e| format!(
                "cannot take the clients' address {} on {device} (program.device): {e}; it needs root and /dev/net/tun",
                listen.ip()
            ))?;
            self.face = Some(face);
        }
        if !self.clients.is_listening() {
            self.clients.listen(listen).map_err(|e| format!(
                "cannot listen for clients at {listen} (program.listen): {e}; the address must be on this host, or \
                 program.device must be given"
            ))?;
        }
        self.tell_orphans(listen);
        Ok(())
    }

    fn tell_orphans(&mut self, listen: SocketAddrV4) {
        let Some(face) = &mut self.face else { return };
        match Orphans::new(listen, self.clients_known.take(Instant::now())) {
            Ok(orphans) => face.inherit(orphans),
            // They notice by themselves, later.
            Err(error) => {
                tracing::warn!(%error, "clients cannot be told that their connections are over")
            }
        }
    }
}
