//! The guest's serial console on the user's terminal, wherever the guest is.
//!
//! The connection goes to the leader's daemon, or to the daemon of this host, which passes it on. Typed bytes become an input of the guest like any other
//! and go through the log; what the guest prints comes back. When the leader is lost, or another takes
//! over, the console follows.
//!
//! Three sources feed one loop: the terminal, the connection, and the time.

use crate::control::Control;
use crate::lab::Lab;
use crate::progress::Interrupted;
use crate::status::GroupStatus;
use anyhow::{Context, Result, bail};
use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcsetattr};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

/// Ctrl-], as in `telnet` and `virsh console`.
const LEAVE: u8 = 0x1d;

/// How often the loop looks whether the guest has moved.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How long it looks for a leader at first: longer than an election.
const FIRST_LEADER_WITHIN: Duration = Duration::from_secs(3);

/// How long it looks for the next leader while the console is open.
const NEXT_LEADER_WITHIN: Duration = Duration::from_secs(60);

/// Without a terminal nothing says when to leave. The console closes after this long a silence.
const QUIET: Duration = Duration::from_secs(3);

/// How many messages may wait. When more come, their sources wait: so a guest that prints faster than the terminal takes it fills no
/// memory.
const MESSAGES_MAX: usize = 64;

#[derive(Debug)]
enum Message {
    Typed(Vec<u8>),
    InputEnded,
    Leave,
    /// Bytes from the connection with this number.
    Printed(u32, Vec<u8>),
    Closed(u32),
}

/// A group whose guest has a console.
pub trait Group {
    /// Where it stands; what it says if nobody answers.
    fn look(&self) -> Result<GroupStatus, String>;

    /// A way to the leader with this id.
    fn control(&self, leader: u8) -> Control;
}

impl Group for Lab {
    fn look(&self) -> Result<GroupStatus, String> {
        Ok(self.status().group)
    }

    fn control(&self, leader: u8) -> Control {
        Self::control(self, leader)
    }
}

/// The group of the replica that runs on this host.
impl Group for Control {
    fn look(&self) -> Result<GroupStatus, String> {
        GroupStatus::ask(self).map_err(|error| error.to_string())
    }

    fn control(&self, _leader: u8) -> Control {
        self.clone()
    }
}

/// Connects the terminal (or whatever the standard streams are) to the guest's console. Ends when Ctrl-]
/// is typed or, without a terminal, when the input has ended and the guest is quiet.
pub fn attach(group: &impl Group) -> Result<()> {
    let terminal = isatty(std::io::stdin());
    let mut console = Console::new(group);
    if terminal {
        // A signal ends the loop, so that the terminal is as before; a second one ends the process at once.
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            flag::register_conditional_shutdown(
                signal,
                128 + signal,
                Arc::clone(&console.interrupted),
            )?;
            flag::register(signal, Arc::clone(&console.interrupted))?;
        }
    }
    console.connect(FIRST_LEADER_WITHIN)?;
    if terminal {
        eprintln_quietly("[the guest's console; Ctrl-] leaves it]");
    }
    let _raw = if terminal {
        Some(RawTerminal::new()?)
    } else {
        None
    };
    let typed = console.sender.clone();
    std::thread::spawn(move || read_input(terminal, &typed));
    console.run()
}

struct Console<'a, G> {
    group: &'a G,
    sender: SyncSender<Message>,
    messages: Receiver<Message>,
    connection: Option<Connection>,
    number: u32,
    interrupted: Arc<AtomicBool>,
    /// Since when nothing was printed, once the input has ended.
    ended: Option<Instant>,
}

struct Connection {
    stream: UnixStream,
    replica: u8,
}

impl<'a, G: Group> Console<'a, G> {
    fn new(group: &'a G) -> Self {
        let (sender, messages) = sync_channel(MESSAGES_MAX);
        Self {
            group,
            sender,
            messages,
            connection: None,
            number: 0,
            interrupted: Arc::default(),
            ended: None,
        }
    }

    fn run(&mut self) -> Result<()> {
        let mut output = std::io::stdout();
        while !self.interrupted.load(Ordering::Relaxed) {
            match self.messages.recv_timeout(LOOK_EVERY) {
                Ok(Message::Typed(bytes)) => {
                    let written = self.connection.as_mut().map(|c| c.stream.write_all(&bytes));
                    if !matches!(written, Some(Ok(()))) {
                        self.follow()?;
                    }
                }
                Ok(Message::Printed(number, bytes)) if number == self.number => {
                    output.write_all(&bytes)?;
                    output.flush()?;
                    self.ended = self.ended.map(|_| Instant::now());
                }
                Ok(Message::Closed(number)) if number == self.number => self.follow()?,
                Ok(Message::Printed(..) | Message::Closed(..)) => {}
                Ok(Message::InputEnded) => self.ended = Some(Instant::now()),
                Ok(Message::Leave) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
                Err(RecvTimeoutError::Timeout) => self.look()?,
            }
            if self.ended.is_some_and(|since| since.elapsed() > QUIET) {
                return Ok(());
            }
        }
        Err(Interrupted.into())
    }

    /// Goes to another replica if the guest has moved there.
    fn look(&mut self) -> Result<()> {
        let leader = self.leader();
        match (leader, &self.connection) {
            (Some(leader), Some(connection)) if leader != connection.replica => self.follow(),
            _ => Ok(()),
        }
    }

    fn follow(&mut self) -> Result<()> {
        let before = self.connection.take().map(|connection| connection.replica);
        self.connect(NEXT_LEADER_WITHIN)?;
        let now = self
            .connection
            .as_ref()
            .map(|connection| connection.replica);
        if let (Some(before), Some(now)) = (before, now) {
            if before != now {
                eprintln_quietly(&format!("\r\n[replica {now} runs the guest now]\r"));
            }
        }
        Ok(())
    }

    fn leader(&self) -> Option<u8> {
        Some(self.group.look().ok()?.leader()?.id)
    }

    fn connect(&mut self, patience: Duration) -> Result<()> {
        let deadline = Instant::now() + patience;
        let mut refused = None;
        loop {
            let leader = self.leader();
            let opened = leader.map(|id| (id, self.group.control(id).console()));
            let stream = match opened {
                Some((id, Ok(stream))) => Some((id, stream)),
                Some((_, Err(error))) => {
                    refused = Some(error);
                    None
                }
                None => None,
            };
            if let Some((replica, stream)) = stream {
                let mut reader = stream.try_clone().context("cannot read the console")?;
                self.number += 1;
                let (number, printed) = (self.number, self.sender.clone());
                std::thread::spawn(move || {
                    let mut bytes = [0; 4096];
                    while let Ok(got @ 1..) = reader.read(&mut bytes) {
                        let _ = printed.send(Message::Printed(number, bytes[..got].to_vec()));
                    }
                    let _ = printed.send(Message::Closed(number));
                });
                self.connection = Some(Connection { stream, replica });
                return Ok(());
            }
            if self.interrupted.load(Ordering::Relaxed) {
                return Err(Interrupted.into());
            }
            if Instant::now() > deadline {
                match self.group.look() {
                    Ok(status) if status.leader().is_some() => {
                        let why = refused.map_or_else(
                            || "its leader has just changed".into(),
                            |it| it.to_string(),
                        );
                        bail!("the guest's console cannot be opened: {why}");
                    }
                    Ok(status) => bail!("no replica leads, so there is no console:\n{status}"),
                    Err(why) => bail!("{why}"),
                }
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

fn read_input(terminal: bool, typed: &SyncSender<Message>) {
    let mut input = std::io::stdin().lock();
    let mut bytes = [0; 1024];
    while let Ok(got @ 1..) = input.read(&mut bytes) {
        let leave = bytes[..got]
            .iter()
            .position(|byte| terminal && *byte == LEAVE);
        let _ = typed.send(Message::Typed(bytes[..leave.unwrap_or(got)].to_vec()));
        if leave.is_some() {
            let _ = typed.send(Message::Leave);
            return;
        }
    }
    let _ = typed.send(Message::InputEnded);
}

/// The terminal passes every key on, Ctrl-C too, until this is dropped.
struct RawTerminal {
    before: Termios,
}

impl RawTerminal {
    fn new() -> Result<Self> {
        let before = tcgetattr(std::io::stdin()).context("cannot ask the terminal")?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(std::io::stdin(), OptionalActions::Flush, &raw)
            .context("cannot set the terminal")?;
        Ok(Self { before })
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Flush, &self.before);
        eprintln_quietly("");
    }
}

/// Unlike `eprintln!`, does not panic on a closed pipe.
fn eprintln_quietly(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}
