//! Clean replies (docs/decisions/0065): reads of a stock memcached leave without waiting for a checkpoint, and no client
//! sees a key go back, whichever host dies.

use anyhow::{Context, Result, bail, ensure};
use plover_lab::Lab;
use plover_lab::guests::Guest;
use plover_lab::options::Options;
use plover_lab::progress::Progress;
use plover_lab_proof::script::total;
use plover_lab_proof::{kill_leader, overlay, prove_on, restart_as_witness, wait_for};
use std::io::ErrorKind;
use std::net::UdpSocket;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// Reads between two looks at the counters.
const READS: u64 = 200;

/// A client of memcached over UDP. It asks until it is answered, as such clients do.
struct Client {
    socket: UdpSocket,
    request: u16,
}

impl Client {
    fn new(lab: &Lab) -> Result<Self> {
        let (client, service) = (lab.topology().client(), lab.service());
        let socket = client.run(|| -> Result<UdpSocket> {
            let socket = UdpSocket::bind("0.0.0.0:0")?;
            socket.connect(service)?;
            socket.set_read_timeout(Some(Duration::from_millis(300)))?;
            Ok(socket)
        })?;
        Ok(Self { socket, request: 0 })
    }

    /// One request and its answer, each of one datagram.
    fn ask(&mut self, line: &str) -> Result<String> {
        self.request = self.request.wrapping_add(1);
        let [high, low] = self.request.to_be_bytes();
        let mut request = vec![high, low, 0, 0, 0, 1, 0, 0];
        request.extend(line.as_bytes());
        let mut answer = [0; 2048];
        for _ in 0..200 {
            self.socket.send(&request).context("asking memcached")?;
            loop {
                match self.socket.recv(&mut answer) {
                    Ok(bytes) if bytes >= 8 && answer[..2] == request[..2] => {
                        return Ok(String::from_utf8_lossy(&answer[8..bytes]).into_owned());
                    }
                    // Of an earlier request, which was asked twice.
                    Ok(_) => {}
                    Err(error) if is_silence(&error) => break,
                    Err(error) => return Err(error).context("memcached's answer"),
                }
            }
        }
        bail!("memcached does not answer '{}'", line.trim_end())
    }

    fn set(&mut self, key: &str, value: u64) -> Result<()> {
        let value = value.to_string();
        let line = format!("set {key} 0 0 {}\r\n{value}\r\n", value.len());
        let answer = self.ask(&line)?;
        ensure!(answer == "STORED\r\n", "set: {answer:?}");
        Ok(())
    }

    fn get(&mut self, key: &str) -> Result<u64> {
        let answer = self.ask(&format!("get {key}\r\n"))?;
        let value = answer.lines().nth(1).and_then(|value| value.parse().ok());
        value.with_context(|| format!("get {key}: {answer:?}"))
    }
}

/// A guest that is just taken over is answered for by nobody, and its port may be refused for a moment.
fn is_silence(error: &std::io::Error) -> bool {
    let kinds = [
        ErrorKind::WouldBlock,
        ErrorKind::TimedOut,
        ErrorKind::ConnectionRefused,
    ];
    kinds.contains(&error.kind())
}

/// Most reads of a key that nobody writes leave as clean.
fn reads_leave_at_once(lab: &Lab, progress: &Progress, client: &mut Client) -> Result<()> {
    let before = total(lab, "clean").unwrap_or_default();
    for _ in 0..READS {
        client.get("still")?;
    }
    wait_for(progress, "most reads were clean", || {
        Ok(total(lab, "clean") >= Some(before + READS / 2))
    })
}

/// Values of one key: the newest that was acknowledged, and whether the writer is to go on.
#[derive(Default)]
struct Written {
    acknowledged: AtomicU64,
    ends: AtomicBool,
}

fn write(mut client: Client, written: &Written) -> Result<u64> {
    let mut value = 0;
    while !written.ends.load(Ordering::SeqCst) {
        value += 1;
        client.set("grows", value)?;
        written.acknowledged.store(value, Ordering::SeqCst);
    }
    Ok(value)
}

/// Reads are as new as all writes that were acknowledged before, and never go back.
fn read(mut client: Client, written: &Written) -> Result<u64> {
    let (mut seen, mut reads) = (0, 0);
    while !written.ends.load(Ordering::SeqCst) {
        let acknowledged = written.acknowledged.load(Ordering::SeqCst);
        if acknowledged == 0 {
            continue;
        }
        let value = client.get("grows")?;
        let least = seen.max(acknowledged);
        ensure!(value >= least, "{value} is read after {least}");
        seen = value;
        reads += 1;
    }
    Ok(reads)
}

#[test]
fn reads_leave_at_once_and_never_go_back() {
    let overlay = overlay("[policy]\nclean_replies = true\n");
    let options = Options {
        guest: Guest::Memcached,
        // A reply that is not clean waits for the next of ten checkpoints a second.
        policy: "remus-100".parse().expect("there is such a policy"),
        overlay: Some(overlay.to_path_buf()),
        ..Options::default()
    };
    prove_on("t-clean", options, |lab, progress| {
        let mut client = Client::new(lab)?;
        client.set("still", 1)?;
        let written = Written::default();
        let (writer, reader) = (Client::new(lab)?, Client::new(lab)?);
        thread::scope(|scope| {
            let writing = scope.spawn(|| write(writer, &written));
            let reading = scope.spawn(|| read(reader, &written));
            let mut script = || -> Result<()> {
                for _ in 0..2 {
                    reads_leave_at_once(lab, progress, &mut client)?;
                    let dead = kill_leader(lab, progress)?;
                    restart_as_witness(lab, dead, progress)?;
                }
                reads_leave_at_once(lab, progress, &mut client)
            };
            let done = script();
            written.ends.store(true, Ordering::SeqCst);
            let writes = writing.join().expect("the writer does not panic")?;
            let reads = reading.join().expect("the reader does not panic")?;
            done?;
            ensure!(writes > 0 && reads > 0, "{writes} writes and {reads} reads");
            progress.say(format!("{writes} writes, {reads} reads of what is written"));
            Ok(())
        })
    });
}

/// The library and the preload, against a channel in a file. Its writers and readers are stopped at any instruction.
#[test]
fn the_guests_half_says_clean_of_nothing_else() {
    let test = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guests/clean/test");
    let output = Command::new(&test).output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stdout);
    let why = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}{why}", test.display());
}
