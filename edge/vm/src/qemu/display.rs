//! Viewers of the guest's display (docs/decisions/0069).

use super::{Phase, Purpose, QemuVm};
use rustix::fd::{AsFd, OwnedFd};
use serde_json::json;

/// The name by which QEMU knows the descriptor of a viewer until it takes it.
const VIEWER: &str = "viewer";

impl QemuVm {
    /// Shows the display to a viewer that speaks the protocol of VNC (RFC 6143) at the other end of this stream socket, and
    /// takes its keys and its pointer. QEMU closes the socket when it ends or refuses the viewer.
    ///
    /// # Errors
    /// Why it cannot be shown now, and what to do.
    pub fn show_display(&mut self, viewer: OwnedFd) -> Result<(), String> {
        if !self.config.display {
            return Err(
                "this guest has no display: set guest.display = true on all hosts, shut the guest down, stop the services \
                 of all hosts, and then start them"
                    .into(),
            );
        }
        if self.phase != Phase::Ready {
            return Err("the guest's machine is not ready: try again in a moment".into());
        }
        let name = json!({ "fdname": VIEWER });
        self.qmp
            .send_with(Purpose::Viewer, "getfd", &name, viewer.as_fd())
            .map_err(|error| format!("QEMU does not take a viewer: {error}"))?;
        // The socket that viewers come from asks who they are.
        let viewer = json!({ "protocol": "vnc", "fdname": VIEWER, "skipauth": true });
        self.send(Purpose::Viewer, "add_client", viewer);
        Ok(())
    }
}
