//! `plover log`, as an operator uses it.

use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

fn plover(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_plover"))
        .args(arguments)
        .output()
        .expect("plover starts")
}

fn says(output: &Output) -> String {
    let all = [&output.stdout[..], &output.stderr].concat();
    String::from_utf8_lossy(&all).into_owned()
}

/// The command's output. It must succeed.
fn prints(arguments: &[&str]) -> String {
    let output = plover(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", says(&output));
    String::from_utf8(output.stdout).expect("text")
}

/// Checks that the command fails with code 1 and says all of `words`.
fn fails(arguments: &[&str], words: &[&str]) {
    let output = plover(arguments);
    let said = says(&output);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
    for word in words {
        assert!(
            said.contains(word),
            "{arguments:?} does not say '{word}': {said}"
        );
    }
    assert!(!said.contains("panicked"), "{said}");
}

/// Replicas of one group, and the directory with their sockets. All of it goes at the end.
struct Group {
    dir: PathBuf,
    peers: Vec<SocketAddr>,
    replicas: Vec<Option<Child>>,
}

impl Group {
    /// Places for `size` replicas, none started.
    fn new(name: &str, size: usize) -> Self {
        static NEXT: AtomicU8 = AtomicU8::new(1);
        let [_, _, high, low] = std::process::id().to_be_bytes();
        let ip = Ipv4Addr::new(
            127,
            192 | high & 31,
            low,
            NEXT.fetch_add(1, Ordering::Relaxed),
        );
        let held: Vec<_> = (0..size)
            .map(|_| TcpListener::bind((ip, 0)).expect("loopback has free ports"))
            .collect();
        let address = |it: &TcpListener| it.local_addr().expect("bound");
        let dir = std::env::temp_dir().join(format!("plover-log-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory is made");
        Self {
            dir,
            peers: held.iter().map(address).collect(),
            replicas: (0..size).map(|_| None).collect(),
        }
    }

    fn door(&self, id: usize) -> String {
        self.dir.join(format!("{id}.sock")).display().to_string()
    }

    /// The file of the log messages of replica `id`.
    fn log(&self, id: usize) -> PathBuf {
        self.dir.join(format!("{id}.log"))
    }

    /// Starts replica `id` of a group of all up to `size`.
    fn start(&mut self, id: usize, size: usize, more: &[&str]) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_plover"));
        command.env_remove("RUST_LOG");
        command.args(["log", "serve", "--timeout-ms", "500"]);
        command.args(["--id", &id.to_string(), "--client-listen", &self.door(id)]);
        for (peer, address) in self.peers.iter().enumerate() {
            if peer < size || peer == id {
                command.args(["--peer", &format!("{peer}={address}")]);
            }
        }
        let mut child = command
            .args(more)
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(self.log(id)).expect("a file is made"))
            .spawn()
            .expect("plover starts");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("it is piped");
        BufReader::new(stdout)
            .read_line(&mut line)
            .expect("it says where it serves");
        assert!(line.contains(&self.door(id)), "{line}");
        self.replicas[id] = Some(child);
    }

    /// Ends replica `id` with SIGTERM, which it must obey.
    fn stop(&mut self, id: usize) {
        let mut child = self.replicas[id].take().expect("it runs");
        kill_process(Pid::from_child(&child), Signal::TERM).expect("it runs");
        let status = child.wait().expect("it ends");
        assert!(status.success(), "{status}");
        assert!(
            !Path::new(&self.door(id)).exists(),
            "the socket goes with it"
        );
    }

    fn append(&self, text: &str) -> String {
        let mut arguments = vec!["log".to_string(), "append".into(), text.into()];
        for id in 0..self.replicas.len() {
            if self.replicas[id].is_some() {
                arguments.extend(["--to".into(), self.door(id)]);
            }
        }
        let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        prints(&[&arguments[..], &["--patience", "30"]].concat())
    }

    /// Appends each line, as one client of replica `id`.
    fn append_lines(&self, id: usize, lines: &str) -> bool {
        let mut child = Command::new(env!("CARGO_BIN_EXE_plover"))
            .args(["log", "append", "-", "--to", &self.door(id)])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("plover starts");
        let mut stdin = child.stdin.take().expect("it is piped");
        stdin.write_all(lines.as_bytes()).expect("it reads");
        drop(stdin);
        child.wait().expect("it ends").success()
    }

    /// Waits until what replica `id` prints of its log is `expected`.
    fn shows(&self, id: usize, expected: &[&str]) {
        let until = Instant::now() + Duration::from_secs(30);
        let expected: String = expected.iter().map(|line| format!("{line}\n")).collect();
        loop {
            let found = prints(&["log", "tail", "-q", "--from", &self.door(id)]);
            if found == expected {
                return;
            }
            assert!(Instant::now() < until, "replica {id} shows {found}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for child in self.replicas.iter_mut().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

#[test]
fn a_group_takes_entries_and_shows_them_everywhere() {
    let mut group = Group::new("three", 3);
    for id in 0..3 {
        group.start(id, 3, &["--check-outputs"]);
    }
    let place = group.append("hello");
    assert!(place.contains("@r"), "{place}");
    assert!(group.append_lines(1, "one\ntwo\n"));
    for id in 0..3 {
        group.shows(id, &["hello", "one", "two"]);
    }
    let status = prints(&["log", "status", "--to", &group.door(2)]);
    assert!(status.contains("voters    {r0,r1,r2}"), "{status}");
    let json = prints(&["log", "status", "--json", "--to", &group.door(2)]);
    assert!(json.contains("\"durability\":\"memory\""), "{json}");
    fails(
        &["log", "check", "--to", &group.door(0)],
        &["nothing was compared yet"],
    );
    let agree = |group: &Group| {
        let check = plover(&["log", "check", "--to", &group.door(0)]);
        check.status.success() && says(&check).contains("{r0,r1,r2} agree up to 3000 bytes")
    };
    let start = Instant::now();
    loop {
        // A report is lost with a leader that a busy machine takes for dead. So there is another stream after a while.
        assert!(group.append_lines(1, &"line\n".repeat(400)));
        let looks = std::iter::repeat_n(Duration::from_millis(20), 100);
        let looked = looks.inspect(|pause| std::thread::sleep(*pause));
        if looked.into_iter().any(|_| agree(&group)) {
            break;
        }
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "nothing was compared"
        );
    }
    let log = std::fs::read_to_string(group.log(0)).expect("it is text");
    assert!(log.contains("leading"), "{log}");
    assert!(!log.contains('\x1b'), "a file is no terminal: {log}");
    for id in 0..3 {
        group.stop(id);
    }
}

#[test]
fn on_disk_a_group_goes_on_after_all_of_it_has_ended() {
    let mut group = Group::new("disk", 3);
    let dirs: Vec<_> = (0..3)
        .map(|id| group.dir.join(format!("d{id}")).display().to_string())
        .collect();
    for round in ["first", "second"] {
        for (id, dir) in dirs.iter().enumerate() {
            group.start(id, 3, &["--dir", dir, "--durability", "disk"]);
        }
        group.append(round);
        for id in 0..3 {
            match round {
                "first" => group.shows(id, &["first"]),
                _ => group.shows(id, &["first", "second"]),
            }
        }
        // The replicas are stopped only now: one that has yet to learn what was appended needs the
        // others.
        for id in 0..3 {
            group.stop(id);
        }
    }
}

#[test]
fn a_replica_is_replaced_while_the_group_works() {
    let mut group = Group::new("members", 4);
    for id in 0..3 {
        group.start(id, 3, &[]);
    }
    group.append("before");
    for id in 0..3 {
        group.shows(id, &["before"]);
    }
    group.stop(2);
    let door = group.door(0);
    let patience = ["--to", &door, "--patience", "30"];
    let removed = prints(&[&["log", "member", "remove", "2"][..], &patience].concat());
    assert!(removed.contains("done: {r0,r1} vote"), "{removed}");
    group.start(3, 3, &["--join"]);
    let newcomer = format!("3={}", group.peers[3]);
    let added = prints(&[&["log", "member", "add", &newcomer][..], &patience].concat());
    assert!(added.contains("done: {r0,r1,r3} vote"), "{added}");
    group.shows(3, &["before"]);
    // The newcomer counts: with it and one other the group goes on.
    group.stop(0);
    group.append("after");
    group.shows(1, &["before", "after"]);
    group.shows(3, &["before", "after"]);
}

#[test]
fn mistakes_are_named() {
    let serve = ["log", "serve", "--id", "0"];
    let with = |more: &[&'static str]| [&serve[..], more].concat();
    fails(&serve, &["--peer"]);
    fails(&with(&["--peer", "0"]), &["--peer 0 has no address"]);
    fails(&with(&["--peer", "127.0.0.1:1"]), &["ID=HOST:PORT"]);
    fails(&with(&["--peer", "1=127.0.0.1:1"]), &["--peer 0=ADDRESS"]);
    let own = ["--peer", "0=127.0.0.1:0"];
    fails(
        &with(&[&own[..], &["--peer", "0=127.0.0.1:1"]].concat()),
        &["two --peer"],
    );
    fails(
        &with(&[&own[..], &["--durability", "disk"]].concat()),
        &["--dir"],
    );
    fails(
        &with(&[&own[..], &["--timeout-ms", "1"]].concat()),
        &["--timeout-ms", "10"],
    );
    fails(
        &["log", "status", "--to", "/nowhere/sock"],
        &["cannot reach /nowhere/sock"],
    );
    fails(&["log", "append", "x"], &["--to"]);
    fails(
        &[
            "log",
            "append",
            "x",
            "--to",
            "/nowhere/sock",
            "--patience",
            "0",
        ],
        &["/nowhere/sock", "majority"],
    );
    fails(&["log", "tail", "--from", "7000"], &["'7000'"]);
}
