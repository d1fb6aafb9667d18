//! Clean replies (docs/decisions/0065): reads of a stock memcached leave without waiting for a checkpoint, and no client
//! sees a key go back, whichever host dies.

use anyhow::{Context, Result, bail, ensure};
use plover_lab::Lab;
use plover_lab::guests::Guest;
use plover_lab::net::Namespace;
use plover_lab::operate;
use plover_lab::options::Options;
use plover_lab::progress::Progress;
use plover_lab_proof::script::total;
use plover_lab_proof::{
    PATIENCE, kill_leader, overlay, prove_on, restart_as_witness, role, wait_for,
};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddrV4, TcpStream, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// Reads between two looks at the counters.
const READS: u64 = 200;

/// The way to memcached.
enum Link {
    /// With the number of the newest request.
    Udp(UdpSocket, u16),
    Tcp(TcpStream),
}

/// A client of memcached. It asks until it is answered; a connection that is reset is opened anew.
struct Client {
    network: Namespace,
    service: SocketAddrV4,
    link: Link,
    resets: u64,
}

impl Client {
    fn udp(lab: &Lab) -> Result<Self> {
        let (network, service) = (lab.topology().client(), lab.service());
        let socket = network.run(|| -> Result<UdpSocket> {
            let socket = UdpSocket::bind("0.0.0.0:0")?;
            socket.connect(service)?;
            socket.set_read_timeout(Some(Duration::from_millis(300)))?;
            Ok(socket)
        })?;
        Ok(Self {
            network,
            service,
            link: Link::Udp(socket, 0),
            resets: 0,
        })
    }

    fn tcp(lab: &Lab) -> Result<Self> {
        let (network, service) = (lab.topology().client(), lab.service());
        Ok(Self {
            link: Link::Tcp(connect(&network, service)?),
            network,
            service,
            resets: 0,
        })
    }

    /// One request and its answer, over UDP each of one datagram.
    fn ask(&mut self, line: &str, end: &str) -> Result<String> {
        match &mut self.link {
            Link::Udp(socket, request) => {
                *request = request.wrapping_add(1);
                ask_udp(socket, *request, line)
            }
            Link::Tcp(_) => self.ask_tcp(line, end),
        }
    }

    fn ask_tcp(&mut self, line: &str, end: &str) -> Result<String> {
        for _ in 0..5 {
            let Link::Tcp(stream) = &mut self.link else {
                bail!("it speaks UDP");
            };
            match answer_of(stream, line, end) {
                Ok(answer) => return Ok(answer),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => {
                    self.resets += 1;
                    self.link = Link::Tcp(connect(&self.network, self.service)?);
                }
                Err(error) => return Err(error).context("memcached's connection"),
            }
        }
        bail!("the connection is reset again and again")
    }

    fn set(&mut self, key: &str, value: u64) -> Result<()> {
        let value = value.to_string();
        let line = format!("set {key} 0 0 {}\r\n{value}\r\n", value.len());
        let answer = self.ask(&line, "STORED\r\n")?;
        ensure!(answer == "STORED\r\n", "set: {answer:?}");
        Ok(())
    }

    fn get(&mut self, key: &str) -> Result<u64> {
        let answer = self.ask(&format!("get {key}\r\n"), "END\r\n")?;
        let value = answer.lines().nth(1).and_then(|value| value.parse().ok());
        value.with_context(|| format!("get {key}: {answer:?}"))
    }
}

fn ask_udp(socket: &UdpSocket, number: u16, line: &str) -> Result<String> {
    let [high, low] = number.to_be_bytes();
    let mut request = vec![high, low, 0, 0, 0, 1, 0, 0];
    request.extend(line.as_bytes());
    let mut answer = [0; 2048];
    for _ in 0..200 {
        socket.send(&request).context("asking memcached")?;
        loop {
            match socket.recv(&mut answer) {
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

fn connect(network: &Namespace, service: SocketAddrV4) -> Result<TcpStream> {
    let stream = network.run(|| Ok(TcpStream::connect(service)?))?;
    stream.set_nodelay(true)?;
    // Longer than any failover. A connection that the next leader does not reset would wait for ever.
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    Ok(stream)
}

fn answer_of(stream: &mut TcpStream, line: &str, end: &str) -> std::io::Result<String> {
    stream.write_all(line.as_bytes())?;
    let (mut answer, mut part) = (String::new(), [0; 2048]);
    while !answer.ends_with(end) {
        match stream.read(&mut part)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            bytes => answer.push_str(&String::from_utf8_lossy(&part[..bytes])),
        }
    }
    Ok(answer)
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

/// Leaders die under readers and a writer of one key.
fn keys_never_go_back(
    lab: &mut Lab,
    progress: &Progress,
    open: impl Fn(&Lab) -> Result<Client>,
) -> Result<u64> {
    let mut client = open(lab)?;
    client.set("still", 1)?;
    let written = Written::default();
    let (writer, reader) = (open(lab)?, open(lab)?);
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
        Ok(client.resets)
    })
}

/// The lead moves as an operator orders it.
fn hand_over(lab: &Lab, progress: &Progress) -> Result<()> {
    let mut traces = lab.traces();
    lab.wait_until_settled(&mut traces, progress, PATIENCE)?;
    let control = lab.control(lab.find(&role("witness"))?);
    operate::switch_over(&control, None)?;
    Ok(())
}

fn options(overlay: &Path) -> Options {
    Options {
        guest: Guest::Memcached,
        // A reply that is not clean waits for the next of ten checkpoints a second.
        policy: "remus-100".parse().expect("there is such a policy"),
        overlay: Some(overlay.to_path_buf()),
        ..Options::default()
    }
}

#[test]
fn reads_leave_at_once_and_never_go_back() {
    let overlay = overlay("[policy]\nclean_replies = true\n");
    prove_on("t-clean", options(&overlay), |lab, progress| {
        keys_never_go_back(lab, progress, Client::udp).map(drop)
    });
}

/// A takeover resets connections over which replies have left early, and their clients open new ones. A planned one
/// resets none.
#[test]
fn reads_over_tcp_leave_at_once_and_a_takeover_resets_their_connections() {
    let overlay = overlay("[policy]\nclean_replies = true\n");
    prove_on("t-clean-tcp", options(&overlay), |lab, progress| {
        let resets = keys_never_go_back(lab, progress, Client::tcp)?;
        ensure!(resets == 2, "{resets} resets in two takeovers");
        let mut client = Client::tcp(lab)?;
        reads_leave_at_once(lab, progress, &mut client)?;
        hand_over(lab, progress)?;
        reads_leave_at_once(lab, progress, &mut client)?;
        ensure!(client.resets == 0, "a planned takeover resets connections");
        Ok(())
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
