//! A viewer of the guest's display, on a connection of its own.

use super::{ANSWER_WITHIN, Op, Request, StopHandle, ask};
use crate::viewer::{self, Gate, Seat};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::channel;

/// A place for a viewer of the guest's display, and its number.
pub fn take_seat(handle: &StopHandle) -> Result<(u64, Seat), String> {
    let (reply, answer) = channel();
    handle.send(Request::View { reply });
    let answer = answer.recv_timeout(ANSWER_WITHIN);
    let (number, seat) = answer.map_err(|_| Op::Display.wait().late)??;
    if let Seat::There(route, _) = &seat {
        let op = Op::Look {
            viewer: route.viewer,
        };
        let wait = op.wait();
        let of = route.peer;
        let answer = ask(handle, &wait, |reply| Request::Ask { of, op, reply });
        if let Some(why) = answer["error"].as_str() {
            handle.viewer_left(number);
            return Err(why.to_owned());
        }
    }
    Ok((number, seat))
}

/// Carries the viewer's bytes until it has gone or is to go.
pub fn look(number: u64, viewer: &UnixStream, seat: Seat, handle: &StopHandle) {
    let carried = match seat {
        Seat::Here(guest, gate) => viewer::join_through(&gate, viewer, &guest),
        Seat::There(route, parts) => {
            viewer::carry(number, viewer, &Gate::default(), route, parts, handle)
        }
    };
    if let Err(error) = carried {
        tracing::debug!(%error, "a viewer's connection ended");
    }
}
