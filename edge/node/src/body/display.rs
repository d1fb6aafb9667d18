//! The guest's display, as operators of any host look at it (`viewer.rs`, docs/decisions/0069).
//!
//! Keys and the pointer go to the leader's guest only, and wait while it stands for a sync. Nothing of the picture is held: both
//! are for people, who see what has become of them.

use super::{Body, Role};
use crate::clock;
use crate::viewer::{self, Gate, Part, Route, Seat, View};
use plover_types::{Micros, ReplicaId};
use plover_vm::QemuVm;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::TrySendError;

/// Viewers that the display of this replica's guest may have, and viewers of this host: more are refused.
const VIEWERS_MAX: usize = 16;

/// How long a leader that does not serve shows its guest's display: longer than a busy host delays its lease.
const DOUBTFUL_FOR: Micros = Micros::from_ms(2_000);

/// Those who look at a display, from this host or on it.
#[derive(Debug, Default)]
pub(super) struct Viewers {
    last: u64,
    /// Since when this replica leads and does not serve: another may lead by now.
    doubtful_since: Option<Micros>,
    open: BTreeMap<u64, View>,
    /// Of what goes to this replica's guest.
    gate: Arc<Gate>,
}

impl Viewers {
    fn add(&mut self, view: View) -> u64 {
        self.last += 1;
        self.open.insert(self.last, view);
        self.last
    }

    fn find(&self, route: Route) -> Option<u64> {
        let is_it = |view: &View| view.route.as_ref().is_some_and(|(its, _)| *its == route);
        let mut open = self.open.iter();
        open.find(|(_, view)| is_it(view))
            .map(|(number, _)| *number)
    }

    /// Closes those that are like this.
    fn close(&mut self, is_so: impl Fn(&View) -> bool) {
        self.open.retain(|_, view| {
            let closes = is_so(view);
            if closes {
                view.close();
            }
            !closes
        });
    }
}

impl Body {
    /// Gives a viewer on this host its place. Returns its number, too.
    pub(super) fn seat_viewer(&mut self) -> Result<(u64, Seat), String> {
        if self.role == Role::Leader {
            let (view, guest) = self.show_display()?;
            let seat = Seat::Here(guest, Arc::clone(&self.viewers.gate));
            return Ok((self.viewers.add(view), seat));
        }
        self.has_room()?;
        let status = self.replica.status();
        let leader = status.leader.filter(|leader| *leader != status.id);
        let peer = leader.ok_or_else(|| self.knows_no_leader())?;
        let (passes, parts) = viewer::parts();
        let route = Route {
            peer,
            viewer: self.viewers.last + 1,
            to_guest: true,
        };
        let view = View {
            guest: None,
            route: Some((route, passes)),
        };
        Ok((self.viewers.add(view), Seat::There(route, parts)))
    }

    /// A viewer at another replica looks at the display of this one's guest.
    pub(super) fn look_from(&mut self, peer: ReplicaId, viewer: u64) -> Value {
        if self.role != Role::Leader {
            return json!({"error": self.not_leading("does not lead")});
        }
        let (mut view, guest) = match self.show_display() {
            Ok(shown) => shown,
            Err(why) => return json!({"error": why}),
        };
        let route = Route {
            peer,
            viewer,
            to_guest: false,
        };
        let (passes, parts) = viewer::parts();
        view.route = Some((route, passes));
        let number = self.viewers.add(view);
        let (handle, gate) = (self.control.handle(), Arc::clone(&self.viewers.gate));
        let thread = std::thread::Builder::new().name("viewer".into());
        let spawned = thread.spawn(move || {
            // Fails only where the socket is closed.
            let _ = viewer::carry(number, &guest, &gate, route, parts, &handle);
            handle.viewer_left(number);
        });
        if let Err(error) = spawned {
            self.viewer_left(number);
            return json!({"error": format!("this replica has no thread for a viewer: {error}")});
        }
        json!({"ok": true})
    }

    fn show_display(&mut self) -> Result<(View, UnixStream), String> {
        self.has_room()?;
        let vm = self.vm.as_mut().ok_or("this replica has no guest")?;
        let made = UnixStream::pair().and_then(|(ours, qemu)| Ok((ours.try_clone()?, ours, qemu)));
        let (kept, ours, qemu) = made.map_err(|error| format!("making a socket: {error}"))?;
        vm.show_display(qemu.into())?;
        let view = View {
            guest: Some(kept),
            route: None,
        };
        Ok((view, ours))
    }

    fn has_room(&self) -> Result<(), String> {
        match self.viewers.open.len() < VIEWERS_MAX {
            true => Ok(()),
            false => Err(format!(
                "{VIEWERS_MAX} viewers of the display are open at replica {} already: close one",
                self.config.group.me
            )),
        }
    }

    /// Another replica has bytes for a viewer here, or from one there. Returns the answer, unless a thread gives it.
    pub(super) fn pass_on(
        &mut self,
        peer: ReplicaId,
        id: u64,
        (viewer, to_guest): (u64, bool),
        bytes: &str,
    ) -> Option<Value> {
        // Both ends name the same viewer; each sends the other way.
        let route = Route {
            peer,
            viewer,
            to_guest: !to_guest,
        };
        let closed = || Some(json!({"error": "the viewer has gone"}));
        let Some(number) = self.viewers.find(route) else {
            return closed();
        };
        let bytes = match viewer::decode(bytes) {
            Ok(bytes) => bytes,
            Err(why) => {
                self.viewer_left(number);
                return Some(json!({"error": format!("not a viewer's bytes: {why}")}));
            }
        };
        let (_, passes) = self.viewers.open.get(&number)?.route.as_ref()?;
        match passes.try_send(Part { bytes, id }) {
            Ok(()) => None,
            Err(TrySendError::Disconnected(_)) => closed(),
            Err(TrySendError::Full(_)) => {
                self.viewer_left(number);
                Some(json!({"error": "a viewer's bytes came before the last ones were answered"}))
            }
        }
    }

    /// A viewer has closed its connection, or is to lose it.
    pub(super) fn viewer_left(&mut self, number: u64) {
        if let Some(view) = self.viewers.open.remove(&number) {
            view.close();
        }
    }

    /// The guest is about to stand: keys wait.
    pub(super) fn hold_keys(&self) {
        if !self.viewers.open.is_empty() {
            self.viewers.gate.set(true);
        }
    }

    /// Once a turn: closes the viewers that see a guest which is not the group's any more.
    pub(super) fn mind_viewers(&mut self) {
        if self.viewers.open.is_empty() {
            return;
        }
        let stands = self.vm.as_ref().is_some_and(QemuVm::holds_inputs);
        self.viewers.gate.set(stands);
        let (status, now) = (self.replica.status(), clock::now());
        match self.viewers.doubtful_since {
            _ if status.serving || status.role != Role::Leader => {
                self.viewers.doubtful_since = None;
            }
            Some(since) if now.since(since) >= DOUBTFUL_FOR => self.hide_display(),
            Some(_) => {}
            None => self.viewers.doubtful_since = Some(now),
        }
        if let Some(leader) = status.leader {
            let is_elsewhere = |(route, _): &(Route, _)| route.to_guest && route.peer != leader;
            self.viewers
                .close(|view| view.route.as_ref().is_some_and(is_elsewhere));
        }
    }

    /// This replica leads no more: nobody looks at its guest's display.
    pub(super) fn hide_display(&mut self) {
        self.viewers.close(|view| view.guest.is_some());
    }

    /// The link to a replica is down, and with it the viewers whose bytes went over it.
    pub(super) fn viewers_lost(&mut self, peer: ReplicaId) {
        let is_theirs = |view: &View| matches!(&view.route, Some((route, _)) if route.peer == peer);
        self.viewers.close(is_theirs);
    }
}
