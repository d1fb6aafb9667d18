//! A program, preloaded, and its clients.

use super::{Direct, Happened};
use crate::config::RunConfig;
use crate::program::{Program, kill_group};
use plover_program::{Client, Entry};
use plover_types::{Index, View, Viewstamp};
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags};
use rustix::net::sockopt;
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use std::ffi::OsString;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

const DOOR: u64 = 1 << 40;
const WAKER: u64 = 2 << 40;

/// Accepts clients for ever, one after the other.
const PROGRAM: &str = r#"
    use IO::Socket::INET;
    my $listener = IO::Socket::INET->new(Listen => 9, LocalAddr => "127.0.0.1", LocalPort => $ARGV[0]) or die;
    while (1) { my $client = $listener->accept or next; <$client>; }
"#;

struct Bench {
    direct: Direct,
    epoll: Arc<OwnedFd>,
    program: Program,
    listener: TcpListener,
    /// Entries that were proposed.
    accepted: u64,
    /// The bytes that the program has read.
    read: Vec<u8>,
    /// The number of connections that it has closed.
    closed: usize,
    state: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        Self::start(|port, _| ["perl", "-e", PROGRAM, port].map(OsString::from).to_vec())
    }

    /// A program in C that does this with each client: see `tests/server.c`.
    fn in_c(does: &str) -> Self {
        Self::start(|port, directory| {
            let program = directory.join("server");
            let root = Path::new(env!("CARGO_MANIFEST_DIR"));
            let built = Command::new("cc")
                .args(["-O2", "-Wall", "-pthread", "-I"])
                .arg(root.join("../preload/src"))
                .arg("-o")
                .args([&program, &root.join("src/direct/tests/server.c")])
                .status();
            assert!(built.is_ok_and(|status| status.success()), "cc failed");
            vec![program.into(), port.into(), does.into()]
        })
    }

    /// Starts a program of these words, which depend on its port and its directory.
    fn start(words: impl FnOnce(&str, &Path) -> Vec<OsString>) -> Self {
        let state = tempfile::tempdir().unwrap();
        let unused = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = unused.local_addr().unwrap().port();
        drop(unused);
        let path = state.path().join("group.toml");
        let text = format!(
            r#"
            group.name = "shop"
            group.me = 0
            group.plaintext = true
            group.replica = [
                {{ id = 0, address = "192.0.2.10:7700" }},
                {{ id = 1, address = "192.0.2.11:7700" }},
                {{ id = 2, address = "192.0.2.12:7700" }},
            ]
            program.via = "preload"
            program.listen = "192.0.2.100:6379"
            program.device = "eth0"
            program.port = {port}
            program.snapshot_cmd = "true"
            paths.state_dir = "{0}"
            paths.run_dir = "{0}"
            "#,
            state.path().display()
        );
        std::fs::write(&path, text).unwrap();
        let config = RunConfig::load(&path).unwrap();
        let epoll = Arc::new(epoll::create(CreateFlags::CLOEXEC).unwrap());
        let mut direct = Direct::new(&config, epoll.clone(), DOOR, WAKER).unwrap();
        let launch = direct.launch(0).unwrap();
        let words = words(&port.to_string(), state.path());
        let program = Program::start(&words, state.path(), Some(&launch)).unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        // A client's socket of the program takes all that a test sends, without a read.
        sockopt::set_socket_recv_buffer_size(&listener, 1 << 20).unwrap();
        let mut bench = Self {
            direct,
            epoll,
            program,
            listener,
            accepted: 0,
            read: Vec::new(),
            closed: 0,
            state,
        };
        bench.turn_until("the program listens", |it| it.direct.listens());
        bench
    }

    /// How many files the program may have open.
    fn limit_files(&self, to: u64) {
        let limit = Rlimit {
            current: Some(to),
            maximum: Some(4096),
        };
        let pid = i32::try_from(self.program.pid()).unwrap();
        prlimit(Pid::from_raw(pid), Resource::Nofile, limit).unwrap();
    }

    fn connect(&mut self) -> TcpStream {
        let client = TcpStream::connect(self.listener.local_addr().unwrap()).unwrap();
        let (stream, _) = self.listener.accept().unwrap();
        let of = Client {
            ip: [192, 0, 2, 200],
            port: 4000,
        };
        self.direct.offer(stream, of);
        client
    }

    fn turn_until(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let until = Instant::now() + Duration::from_secs(20);
        while !is_so(self) {
            assert!(Instant::now() < until, "in vain: {what}");
            let mut ready = Vec::with_capacity(8);
            let patience = Timespec::try_from(Duration::from_millis(10)).unwrap();
            let events = rustix::buffer::spare_capacity(&mut ready);
            epoll::wait(&*self.epoll, events, Some(&patience)).unwrap();
            for event in &ready {
                let token = event.data.u64();
                if token != WAKER {
                    self.direct.ready(token);
                }
            }
            if self.direct.looks() {
                self.direct.look_for_the_dead(self.program.pid());
            }
            let mut index = self.accepted;
            let (read, closed) = (&mut self.read, &mut self.closed);
            while let Some(happened) = self.direct.pump(&mut |entry| {
                index += 1;
                match entry {
                    Entry::Bytes(_, _, bytes) => read.extend_from_slice(bytes),
                    Entry::Close(..) => *closed += 1,
                    _ => {}
                }
                Ok(Viewstamp {
                    view: View(1),
                    index: Index(index),
                })
            }) {
                assert!(!matches!(happened, Happened::Broken(_)), "{happened:?}");
            }
            self.accepted = index;
        }
    }

    /// Waits until the program has written a file of this name in its directory, and reads it.
    fn word(&mut self, name: &str) -> String {
        let path = self.state.path().join(name);
        let text = || std::fs::read_to_string(&path).unwrap_or_default();
        self.turn_until(name, |_| text().ends_with('\n'));
        text().trim_end().into()
    }

    fn turn_until_closed(&mut self) {
        self.turn_until("the connection is closed", |it| {
            it.closed == 1 && it.direct.connections.are_none()
        });
    }
}

/// Bytes that show where they stand.
fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at % 251) as u8).collect()
}

impl Drop for Bench {
    fn drop(&mut self) {
        kill_group(self.program.pid());
    }
}

/// Its slot would be missing for ever, and the client would wait.
#[test]
fn a_client_whose_socket_the_program_cannot_take_is_turned_away() {
    let mut bench = Bench::new();
    let files = format!("/proc/{}/fd", bench.program.pid());
    let is_free = |number: &u64| !Path::new(&format!("{files}/{number}")).exists();
    let accepted = (0..).find(is_free).unwrap();
    bench.limit_files(accepted + 1);
    let mut client = bench.connect();
    bench.turn_until("the client is let go", |it| {
        it.direct.connections.are_none()
    });
    client
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    let end = client.read(&mut [0]).map_err(|error| error.kind());
    assert_eq!(end, Err(ErrorKind::ConnectionReset));
    assert_eq!(bench.accepted, 0);
    bench.limit_files(4096);
    let _client = bench.connect();
    bench.turn_until("the next client is accepted", |it| it.accepted > 0);
}

/// The connection has no option that makes its end a reset, as if the program had taken it away.
#[test]
fn an_end_that_is_not_committed_is_a_reset() {
    let mut bench = Bench::new();
    let losses: [fn(&mut Direct); 2] = [Direct::cut_off, Direct::clear];
    for lose in losses {
        let mut client = bench.connect();
        client.write_all(b"bye\n").unwrap();
        bench.turn_until("the program ends the connection", |it| {
            !it.direct.closing.is_empty()
        });
        lose(&mut bench.direct);
        client
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        let end = client.read(&mut [0]).map_err(|error| error.kind());
        assert_eq!(end, Err(ErrorKind::ConnectionReset));
    }
}

/// Redis forks for each snapshot, and its host may have no memory for that.
#[test]
fn a_connection_is_closed_after_a_fork_that_failed() {
    let mut bench = Bench::in_c("fork fails");
    let _client = bench.connect();
    bench.turn_until_closed();
}

/// As with a server that has a process for each client.
#[test]
fn the_connections_of_a_child_that_is_killed_are_reset_and_others_go_on() {
    let mut bench = Bench::in_c("a child each");
    let [mut lives, mut dies] = [(); 2].map(|()| bench.connect());
    dies.write_all(b"k").unwrap();
    bench.turn_until("one connection is closed", |it| it.closed == 1);
    dies.set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    let end = dies.read(&mut [0]).map_err(|error| error.kind());
    assert_eq!(end, Err(ErrorKind::ConnectionReset));
    lives.write_all(b"x").unwrap();
    bench.turn_until("the other one is closed by its child", |it| {
        it.closed == 2 && it.direct.connections.are_none()
    });
    assert_eq!(bench.read, b"kx");
}

#[test]
fn a_connection_is_closed_although_a_child_had_it_that_executes() {
    let mut bench = Bench::in_c("child executes");
    let _client = bench.connect();
    bench.turn_until_closed();
}

/// Its copies are none of its parent's.
#[test]
fn a_child_of_vfork_changes_no_table() {
    let mut bench = Bench::in_c("vfork copies");
    let _client = bench.connect();
    bench.turn_until_closed();
}

/// The number that it has taken for an input is given to the next one.
#[test]
fn a_read_goes_on_after_a_child_has_died_with_the_lock() {
    let mut bench = Bench::in_c("child dies with the lock");
    let mut client = bench.connect();
    assert_eq!(bench.word("child"), "dead");
    client.write_all(b"hello").unwrap();
    assert_eq!(bench.word("result"), "5");
    bench.turn_until_closed();
    assert_eq!(bench.direct.outstanding.back().map(|it| it.number), Some(2));
}

/// With edge-triggered events a program reads on only when its buffer was filled.
#[test]
fn a_read_gives_all_that_is_there() {
    let mut bench = Bench::in_c("read all");
    let sent = pattern(100 << 10);
    let mut client = bench.connect();
    client.write_all(&sent).unwrap();
    assert_eq!(bench.word("result"), "102400");
    bench.turn_until_closed();
    assert!(bench.read == sent);
}

#[test]
fn what_is_thrown_away_unread_is_input() {
    let mut bench = Bench::in_c("truncate");
    let sent = pattern(60_000);
    let mut client = bench.connect();
    client.write_all(&sent).unwrap();
    assert_eq!(bench.word("result"), "50000 10000");
    bench.turn_until_closed();
    assert!(bench.read == sent);
}

/// The program has told `word` in the file `name`, and reads all that a client sends after that.
fn reads_after(does: &str, (name, word): (&str, &str)) {
    let mut bench = Bench::in_c(does);
    let mut client = bench.connect();
    assert_eq!(bench.word(name), word);
    client.write_all(b"hello").unwrap();
    assert_eq!(bench.word("result"), "5");
}

#[test]
fn a_read_goes_on_after_a_signal() {
    reads_after("signals", ("signals", "many"));
}

#[test]
fn a_read_ends_at_its_timeout() {
    let mut bench = Bench::in_c("timeout");
    let _client = bench.connect();
    assert_eq!(bench.word("result"), "nothing came");
}

/// The thread that was cancelled has not kept the lock.
#[test]
fn others_read_after_a_thread_was_cancelled() {
    reads_after("cancel", ("thread", "cancelled"));
}

/// The leader is deposed while the program waits in a read.
#[test]
fn a_read_that_waits_ends_with_the_lead() {
    let mut bench = Bench::in_c("read");
    let _client = bench.connect();
    bench.turn_until("the client is accepted", |it| it.accepted == 1);
    bench.direct.cut_off();
    assert_eq!(bench.word("result"), "reset");
}
