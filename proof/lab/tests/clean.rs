//! Clean replies (docs/decisions/0065 and 0081): reads of a stock memcached and Redis leave without waiting for a checkpoint, and no
//! client sees a key go back, whichever host is lost.

use anyhow::{Context, Result, bail, ensure};
use plover_lab::Fault;
use plover_lab::Lab;
use plover_lab::guests::Guest;
use plover_lab::net::Namespace;
use plover_lab::operate;
use plover_lab::options::Options;
use plover_lab::progress::Progress;
use plover_lab_proof::redis::Connection;
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

/// Longer than any failover. A connection that the next leader does not reset would wait for ever.
const SILENCE: Duration = Duration::from_secs(30);

/// The way to the server.
enum Link {
    /// To memcached, with the number of the newest request.
    Udp(UdpSocket, u16),
    Memcached(TcpStream),
    Redis(Connection),
}

impl Link {
    fn udp(service: SocketAddrV4) -> Result<Self> {
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        socket.connect(service)?;
        socket.set_read_timeout(Some(Duration::from_millis(300)))?;
        Ok(Self::Udp(socket, 0))
    }

    fn memcached(service: SocketAddrV4) -> Result<Self> {
        let stream = TcpStream::connect(service)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SILENCE))?;
        Ok(Self::Memcached(stream))
    }

    fn redis(service: SocketAddrV4) -> Result<Self> {
        Ok(Self::Redis(Connection::open(service, SILENCE)?))
    }

    fn set(&mut self, key: &str, value: u64) -> Result<()> {
        let value = value.to_string();
        let line = format!("set {key} 0 0 {}\r\n{value}\r\n", value.len());
        let answer = match self {
            Self::Redis(redis) => return Ok(redis.set(key, &value)?),
            Self::Memcached(stream) => answer_of(stream, &line, "STORED\r\n")?,
            Self::Udp(socket, number) => ask_udp(socket, number, &line)?,
        };
        ensure!(answer == "STORED\r\n", "set: {answer:?}");
        Ok(())
    }

    fn get(&mut self, key: &str) -> Result<u64> {
        let line = format!("get {key}\r\n");
        let answer = match self {
            Self::Redis(redis) => {
                let value = redis.get(key)?.unwrap_or_default();
                String::from_utf8_lossy(&value).into_owned()
            }
            Self::Memcached(stream) => answer_of(stream, &line, "END\r\n")?,
            Self::Udp(socket, number) => ask_udp(socket, number, &line)?,
        };
        let value = match self {
            Self::Redis(_) => Some(answer.as_str()),
            _ => answer.lines().nth(1),
        };
        let value = value.and_then(|value| value.parse().ok());
        value.with_context(|| format!("get {key}: {answer:?}"))
    }
}

/// A client. It asks until it is answered; a connection that is reset is opened anew.
struct Client {
    network: Namespace,
    service: SocketAddrV4,
    open: fn(SocketAddrV4) -> Result<Link>,
    link: Link,
    resets: u64,
}

impl Client {
    fn new(lab: &Lab, open: fn(SocketAddrV4) -> Result<Link>) -> Result<Self> {
        let (network, service) = (lab.topology().client(), lab.service());
        Ok(Self {
            link: network.run(|| open(service))?,
            network,
            service,
            open,
            resets: 0,
        })
    }

    fn ask<T>(&mut self, ask: impl Fn(&mut Link) -> Result<T>) -> Result<T> {
        for _ in 0..5 {
            match ask(&mut self.link) {
                Err(error) if is_reset(&error) => self.resets += 1,
                answer => return answer,
            }
            let (open, service) = (self.open, self.service);
            self.link = self.network.run(|| open(service))?;
        }
        bail!("the connection is reset again and again")
    }

    fn set(&mut self, key: &str, value: u64) -> Result<()> {
        self.ask(|link| link.set(key, value))
    }

    fn get(&mut self, key: &str) -> Result<u64> {
        self.ask(|link| link.get(key))
    }
}

fn is_reset(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<std::io::Error>();
    error.is_some_and(|error| error.kind() == ErrorKind::ConnectionReset)
}

/// One request and its answer, each of one datagram.
fn ask_udp(socket: &UdpSocket, number: &mut u16, line: &str) -> Result<String> {
    *number = number.wrapping_add(1);
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

/// The ways in which leaders are lost.
enum Loss {
    /// Each host dies.
    Kill,
    /// The first stands still, the second is cut off from the others, and both come back.
    StopAndCut,
}

/// The leader is lost for a while, and comes back when another leads.
fn outlast_leader(lab: &Lab, progress: &Progress, loss: Fault, back: Fault) -> Result<()> {
    let mut traces = lab.traces();
    lab.wait_until_settled(&mut traces, progress, PATIENCE)?;
    let leader = lab.find(&role("leader"))?;
    lab.fault(loss, leader)?;
    progress.say(format!("replica {leader}: {loss}"));
    wait_for(progress, "another leads", || {
        let status = lab.status();
        let others = || status.replicas.iter().filter(|it| it.id != leader);
        Ok(others().any(|it| it.role == "leader"))
    })?;
    lab.fault(back, leader)?;
    progress.say(format!("replica {leader}: {back}"));
    wait_for(progress, &format!("replica {leader} takes part"), || {
        let status = lab.status();
        let role = status.replica(leader).map(|it| it.role.clone());
        Ok(role.is_some_and(|role| role == "witness" || role == "secondary"))
    })?;
    lab.wait_until_settled(&mut traces, progress, PATIENCE)?;
    Ok(())
}

/// Leaders are lost under readers and a writer of one key.
fn keys_never_go_back(
    lab: &mut Lab,
    progress: &Progress,
    open: fn(SocketAddrV4) -> Result<Link>,
    loss: &Loss,
) -> Result<u64> {
    let mut client = Client::new(lab, open)?;
    client.set("still", 1)?;
    let written = Written::default();
    let (writer, reader) = (Client::new(lab, open)?, Client::new(lab, open)?);
    thread::scope(|scope| {
        let writing = scope.spawn(|| write(writer, &written));
        let reading = scope.spawn(|| read(reader, &written));
        let mut script = || -> Result<()> {
            for round in 0..2 {
                reads_leave_at_once(lab, progress, &mut client)?;
                match (loss, round) {
                    (Loss::Kill, _) => {
                        let dead = kill_leader(lab, progress)?;
                        restart_as_witness(lab, dead, progress)?;
                    }
                    (Loss::StopAndCut, 0) => {
                        outlast_leader(lab, progress, Fault::Stop, Fault::Continue)?;
                    }
                    (Loss::StopAndCut, _) => {
                        outlast_leader(lab, progress, Fault::Cut { from: None }, Fault::Heal)?;
                    }
                }
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

fn options(guest: Guest, overlay: &Path) -> Options {
    Options {
        guest,
        // A reply that is not clean waits for the next of ten checkpoints a second.
        policy: "remus-100".parse().expect("there is such a policy"),
        overlay: Some(overlay.to_path_buf()),
        ..Options::default()
    }
}

#[test]
fn reads_leave_at_once_and_never_go_back() {
    let overlay = overlay("[policy]\nclean_replies = true\n");
    let options = options(Guest::Memcached, &overlay);
    prove_on("t-clean", options, |lab, progress| {
        keys_never_go_back(lab, progress, Link::udp, &Loss::Kill).map(drop)
    });
}

/// A takeover resets connections over which replies have left early, and their clients open new ones. A planned one
/// resets none.
#[test]
fn reads_over_tcp_leave_at_once_and_a_takeover_resets_their_connections() {
    let overlay = overlay("[policy]\nclean_replies = true\n");
    let options = options(Guest::Memcached, &overlay);
    prove_on("t-clean-tcp", options, |lab, progress| {
        let resets = keys_never_go_back(lab, progress, Link::memcached, &Loss::Kill)?;
        ensure!(resets == 2, "{resets} resets in two takeovers");
        let leader = lab.find(&role("leader"))?;
        let log = std::fs::read_to_string(lab.files(leader).log())?;
        ensure!(log.contains("connections_reset"), "no word of resets");
        let mut client = Client::new(lab, Link::memcached)?;
        reads_leave_at_once(lab, progress, &mut client)?;
        hand_over(lab, progress)?;
        reads_leave_at_once(lab, progress, &mut client)?;
        ensure!(client.resets == 0, "a planned takeover resets connections");
        Ok(())
    });
}

/// The same with Redis, and leaders that come back.
#[test]
fn reads_of_redis_leave_at_once_and_never_go_back() {
    let overlay = overlay("[policy]\nclean_replies = true\n");
    let options = options(Guest::RedisClean, &overlay);
    prove_on("t-clean-redis", options, |lab, progress| {
        let resets = keys_never_go_back(lab, progress, Link::redis, &Loss::StopAndCut)?;
        ensure!(resets == 2, "{resets} resets in two takeovers");
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
