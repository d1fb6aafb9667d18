//! A program, preloaded, and its clients.

use super::{Direct, Happened};
use crate::config::RunConfig;
use crate::program::{Program, kill_group};
use plover_program::Client;
use plover_types::{Index, View, Viewstamp};
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::Path;
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
    accepted: u64,
    _state: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
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
        let words = ["perl", "-e", PROGRAM, &port.to_string()].map(Into::into);
        let program = Program::start(&words, state.path(), Some(&launch)).unwrap();
        let mut bench = Self {
            direct,
            epoll,
            program,
            listener: TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap(),
            accepted: 0,
            _state: state,
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
            let mut index = self.accepted;
            while let Some(happened) = self.direct.pump(&mut |_| {
                index += 1;
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
