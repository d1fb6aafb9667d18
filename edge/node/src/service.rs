//! Messages to systemd about this replica: that it serves, its state in one line, and that its loop still turns.
//!
//! ```text
//!   systemd ── NOTIFY_SOCKET, WATCHDOG_USEC ──▶ plover replica ── fork ──▶ the replica
//!      │ ◀────────── READY=1, once the control socket serves ─────────────────┤
//!      │ ◀────────── WATCHDOG=1 and a new STATUS=, from the loop ─────────────┤
//!      │ ◀────────── STOPPING=1, when it hands over ──────────────────────────┘
//!      ├── SIGABRT, after `WatchdogSec` without WATCHDOG=1 ──▶ the supervisor: kills the replica, reports its death
//!      └── starts the service again
//! ```
//!
//! The replica sends these messages and not the supervisor, which is the service's main process: a watchdog that the
//! supervisor fed would say nothing about the loop. The unit therefore needs `NotifyAccess=all`. Without `NOTIFY_SOCKET`
//! nothing is sent.

use plover_types::Micros;
use rustix::process::Pid;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The longest time between two messages of a loop that turns, and hence how old the state in `systemctl status` may be.
const EVERY: Micros = Micros::from_ms(1000);

/// The way to the service manager, if one has started this process.
#[derive(Debug)]
pub(crate) struct Service {
    link: Option<(UnixDatagram, SocketAddr)>,
    has_watchdog: bool,
    every: Micros,
    due: Micros,
    /// Whether `READY=1` is still to be sent.
    owes_ready: bool,
    /// The state that was sent last.
    said: String,
}

impl Service {
    /// As systemd's variables in the environment say. `main` is the process that systemd has started.
    pub(crate) fn from_environment(main: Pid) -> Self {
        let number = |name| std::env::var(name).ok()?.parse::<u64>().ok();
        // The variable is inherited by processes of other services, too.
        let is_ours =
            number("WATCHDOG_PID").is_none_or(|pid| pid == main.as_raw_nonzero().get() as u64);
        let watchdog = number("WATCHDOG_USEC").filter(|_| is_ours).map(Micros);
        Self::new(std::env::var_os("NOTIFY_SOCKET").as_deref(), watchdog).unwrap_or_else(|error| {
            tracing::warn!(event = "systemd_untold", %error, "systemd's NOTIFY_SOCKET cannot be used: it is told nothing");
            Self::none()
        })
    }

    fn none() -> Self {
        Self {
            link: None,
            has_watchdog: false,
            every: EVERY,
            due: Micros::NEVER,
            owes_ready: false,
            said: String::new(),
        }
    }

    fn new(socket: Option<&OsStr>, watchdog: Option<Micros>) -> io::Result<Self> {
        let Some(name) = socket else {
            return Ok(Self::none());
        };
        let address = match name.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
            path => SocketAddr::from_pathname(OsStr::from_bytes(path))?,
        };
        let socket = UnixDatagram::unbound()?;
        // The loop must not wait for a service manager that does not read.
        socket.set_nonblocking(true)?;
        Ok(Self {
            link: Some((socket, address)),
            has_watchdog: watchdog.is_some(),
            // Half of the time, as sd_watchdog_enabled(3) recommends.
            every: watchdog.map_or(EVERY, |within| EVERY.min(Micros(within.0 / 2))),
            ..Self::none()
        })
    }

    /// When the loop must call [`Service::beat`] next.
    pub(crate) fn due(&self) -> Micros {
        self.due
    }

    /// The replica serves: from now on the loop is watched.
    pub(crate) fn ready(&mut self, now: Micros, state: &str) {
        if self.link.is_some() {
            self.due = now + self.every;
            self.owes_ready = true;
        }
        self.send("", state);
    }

    /// The loop turns. Says so, and the replica's state if that is another one.
    pub(crate) fn beat(&mut self, now: Micros, state: &str) {
        self.due = now + self.every;
        let alive = if self.has_watchdog { "WATCHDOG=1" } else { "" };
        self.send(alive, state);
    }

    /// The replica has been told to end.
    pub(crate) fn stopping(&mut self, state: &str) {
        self.send("STOPPING=1", state);
    }

    /// Sends the words, and the state if it has changed. `READY=1` and the state are sent again if its queue was full.
    fn send(&mut self, words: &str, state: &str) {
        let Some((socket, address)) = &self.link else {
            return;
        };
        let ready = if self.owes_ready { "READY=1" } else { "" };
        let is_new = self.said != state;
        // A line is an assignment.
        let status = format!("STATUS={}", state.replace('\n', " "));
        let status = if is_new { &status } else { "" };
        let lines: Vec<_> = [ready, words, status]
            .into_iter()
            .filter(|line| !line.is_empty())
            .collect();
        if lines.is_empty() {
            return;
        }
        if socket
            .send_to_addr(lines.join("\n").as_bytes(), address)
            .is_ok()
        {
            self.owes_ready = false;
            if is_new {
                state.clone_into(&mut self.said);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// systemd's end of the socket, and this replica's.
    fn pair(watchdog: Option<Micros>) -> (tempfile::TempDir, UnixDatagram, Service) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        manager.set_nonblocking(true).unwrap();
        let service = Service::new(Some(path.as_os_str()), watchdog).unwrap();
        (dir, manager, service)
    }

    fn read(manager: &UnixDatagram) -> Option<String> {
        let mut bytes = [0; 256];
        let n = manager.recv(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes[..n]).into_owned())
    }

    #[test]
    fn a_loop_that_turns_says_so_in_time_and_a_state_only_once() {
        let (_dir, manager, mut service) = pair(Some(Micros::from_ms(500)));
        assert_eq!(
            service.due(),
            Micros::NEVER,
            "it is not watched before it serves"
        );
        service.ready(Micros::from_ms(1), "recovers");
        assert_eq!(read(&manager).unwrap(), "READY=1\nSTATUS=recovers");
        assert_eq!(service.due(), Micros::from_ms(251));
        service.beat(Micros::from_ms(260), "recovers");
        assert_eq!(read(&manager).unwrap(), "WATCHDOG=1");
        assert_eq!(service.due(), Micros::from_ms(510));
        service.beat(Micros::from_ms(520), "leads");
        assert_eq!(read(&manager).unwrap(), "WATCHDOG=1\nSTATUS=leads");
        service.stopping("hands over");
        assert_eq!(read(&manager).unwrap(), "STOPPING=1\nSTATUS=hands over");
        assert_eq!(read(&manager), None);
    }

    #[test]
    fn without_a_watchdog_only_the_state_is_told() {
        let (_dir, manager, mut service) = pair(None);
        service.ready(Micros::ZERO, "");
        assert_eq!(read(&manager).unwrap(), "READY=1");
        service.beat(service.due(), "leads\nand serves");
        assert_eq!(read(&manager).unwrap(), "STATUS=leads and serves");
    }

    #[test]
    fn a_manager_that_reads_nothing_does_not_hold_up_the_loop() {
        let (dir, manager, mut service) = pair(Some(EVERY));
        for n in 0..2000 {
            service.beat(Micros::ZERO, &format!("state {n}"));
        }
        service.ready(Micros::ZERO, "serves");
        while let Some(message) = read(&manager) {
            assert!(!message.contains("READY"), "the queue was full");
        }
        service.beat(Micros::ZERO, "serves");
        assert_eq!(
            read(&manager).unwrap(),
            "READY=1\nWATCHDOG=1\nSTATUS=serves"
        );
        service.beat(Micros::ZERO, "serves");
        assert_eq!(read(&manager).unwrap(), "WATCHDOG=1");
        drop((manager, dir));
        service.beat(Micros::ZERO, "nobody listens");
    }

    #[test]
    fn the_socket_may_be_abstract_or_missing() {
        let name = format!("plover-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let manager = UnixDatagram::bind_addr(&address).unwrap();
        let mut service = Service::new(Some(OsStr::new(&format!("@{name}"))), None).unwrap();
        service.ready(Micros::ZERO, "");
        assert_eq!(read(&manager).unwrap(), "READY=1");
        let mut none = Service::new(None, Some(EVERY)).unwrap();
        none.ready(Micros::ZERO, "leads");
        assert_eq!(none.due(), Micros::NEVER);
    }
}
