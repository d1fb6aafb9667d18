//! A client that loads a server for a given time: connections that each have one batch of
//! requests outstanding, in one thread.
//!
//! It exists beside the well-known clients because the policies compared here differ by a factor of a
//! hundred in speed: a client that ends after a number of requests would run for a second under one
//! policy and for minutes under the next. It also mixes reads and writes in a batch, and knows every
//! latency, not only the usual quantiles.
//!
//! It runs on the client's host of a lab, as a process of its own. It prints [`BEGAN`] when the time that
//! counts begins, [`ENDED`] when it is over, and then its figures as one JSON object.

mod connection;
mod datagrams;
mod guest_clock;
mod traffic;

pub(crate) use traffic::{Kind, Traffic};

use anyhow::{Context, Result, ensure};
use connection::{Answered, Connection};
use guest_clock::Reading;
use hdrhistogram::Histogram;
use mio::{Events, Interest, Poll, Token};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// The line when the time that counts begins.
pub(crate) const BEGAN: &str = "began";

/// The line when it is over.
pub(crate) const ENDED: &str = "ended";

/// The longest latency that is told from longer ones.
const LATENCY_US_MAX: u64 = 600_000_000;

/// How many requests that fill the server go out at a time.
const FILLING: u64 = 500;

/// How often requests that are lost are looked for.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// How long filling may wait for an answer.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The server.
    #[arg(long)]
    to: SocketAddr,
    #[command(flatten)]
    traffic: Traffic,
    /// Connections.
    #[arg(long)]
    connections: u32,
    /// Requests outstanding on each.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    batch: u32,
    /// Time before what counts.
    #[arg(long)]
    warm_up_ms: u64,
    /// Time that counts.
    #[arg(long)]
    span_ms: u64,
}

/// A client's figures.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measured {
    /// Requests answered.
    pub requests: u64,
    /// The time in which they were answered.
    pub seconds: f64,
    /// From sending to the answer, or to a batch's last answer. `None` if there was no answer.
    pub latency: Option<Latency>,
    /// How much faster the guest's clock ran than the client's meanwhile, in millionths. `None` if the
    /// server does not tell the time.
    pub clock_ppm: Option<f64>,
}

/// Quantiles of a latency, µs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Latency {
    pub p50_us: f64,
    pub p95_us: f64,
    pub p99_us: f64,
}

impl Latency {
    /// The quantiles of latencies in µs. `None` if there are none.
    pub fn of(latencies: impl IntoIterator<Item = u64>) -> Option<Self> {
        // Three digits: finer than any two runs agree. The bounds are valid, so this does not fail.
        let mut histogram = Histogram::<u64>::new_with_bounds(1, LATENCY_US_MAX, 3).ok()?;
        for latency in latencies {
            histogram.saturating_record(latency);
        }
        let at = |quantile| histogram.value_at_quantile(quantile) as f64;
        (!histogram.is_empty()).then(|| Self {
            p50_us: at(0.5),
            p95_us: at(0.95),
            p99_us: at(0.99),
        })
    }
}

/// Loads the server and prints the figures.
pub(crate) fn run(options: &Options) -> Result<()> {
    fill(options)?;
    let clock = || {
        let tells = options.traffic.is_of_redis();
        tells.then(|| Reading::take(options.to)).transpose()
    };
    let before = clock()?;
    let say = |line| {
        let mut out = std::io::stdout();
        writeln!(out, "{line}")?;
        Ok(out.flush()?)
    };
    let mut measured = load(options, || say(BEGAN))?;
    // The clock's answers always differ, so that reading it costs slots.
    say(ENDED)?;
    let both = clock()?.zip(before);
    measured.clock_ppm = both.map(|(after, before)| after.ppm_since(&before));
    println!("{}", serde_json::to_string(&measured)?);
    Ok(())
}

/// A connection whose answers are waited for.
fn connect(to: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&to, PATIENCE)
        .with_context(|| format!("cannot connect to {to}"))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Puts the keys into a server whose keys are read.
fn fill(options: &Options) -> Result<()> {
    let traffic = options.traffic;
    if traffic.filling(0).is_none() {
        return Ok(());
    }
    let mut stream = connect(options.to)?;
    let mut answers = BufReader::new(stream.try_clone()?);
    let requests: Vec<String> = (0..).map_while(|number| traffic.filling(number)).collect();
    for some in requests.chunks(FILLING as usize) {
        stream.write_all(some.concat().as_bytes())?;
        for _ in some {
            let mut answer = Vec::new();
            answers.read_until(b'\n', &mut answer)?;
            let whole = traffic.answer(&answer)?.is_some();
            ensure!(whole, "the server closed the connection that fills it");
        }
    }
    Ok(())
}

fn load(options: &Options, began: impl FnOnce() -> Result<()>) -> Result<Measured> {
    ensure!(
        options.batch == 1 || !options.traffic.is_datagrams(),
        "a datagram holds one request: leave out --batch"
    );
    let mut poll = Poll::new()?;
    let mut connections = Vec::new();
    for number in 0..options.connections {
        let (to, traffic, batch) = (options.to, options.traffic, options.batch);
        let mut connection = Connection::open(to, traffic, batch, u64::from(number))?;
        let both = Interest::READABLE | Interest::WRITABLE;
        let token = Token(number as usize);
        poll.registry().register(connection.source(), token, both)?;
        connections.push(connection);
    }
    let warm = Instant::now() + Duration::from_millis(options.warm_up_ms);
    answers_until(warm, &mut poll, &mut connections, &mut Vec::new())?;
    began()?;
    let start = Instant::now();
    let mut answered = Vec::new();
    let end = start + Duration::from_millis(options.span_ms);
    answers_until(end, &mut poll, &mut connections, &mut answered)?;
    // The turn also read answers from after the end. They do not count.
    answered.retain(|answered| answered.at <= end);
    let latencies = answered.iter().map(|answered| {
        let span = answered.at.duration_since(answered.since);
        span.as_micros() as u64
    });
    Ok(Measured {
        requests: answered.len() as u64 * u64::from(options.batch),
        seconds: end.duration_since(start).as_secs_f64(),
        latency: Latency::of(latencies),
        clock_ppm: None,
    })
}

fn answers_until(
    end: Instant,
    poll: &mut Poll,
    connections: &mut [Connection],
    answered: &mut Vec<Answered>,
) -> Result<()> {
    let mut events = Events::with_capacity(connections.len());
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        match poll.poll(&mut events, Some(left.min(LOOK_EVERY))) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            polled => polled?,
        }
        for event in &events {
            let connection = &mut connections[event.token().0];
            if event.is_writable() {
                connection.write()?;
            }
            if event.is_readable() {
                connection.read(answered)?;
            }
        }
        let now = Instant::now();
        for connection in &mut *connections {
            connection.repeat(now)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, TcpListener};

    fn options(to: SocketAddr, kind: Kind, batch: u32) -> Options {
        Options {
            to,
            traffic: Traffic {
                kind,
                updates: 5,
                value_bytes: 100,
            },
            connections: 3,
            batch,
            warm_up_ms: 10,
            span_ms: 50,
        }
    }

    /// A server that answers every line which starts with `marks`.
    fn server(answer: &'static [u8], marks: u8) -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                std::thread::spawn(move || {
                    let mut reader = BufReader::new(stream);
                    let mut line = Vec::new();
                    while reader.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
                        if line.first() == Some(&marks) && reader.get_mut().write(answer).is_err() {
                            return;
                        }
                        line.clear();
                    }
                });
            }
        });
        address
    }

    /// Loads a server, again and again until something is answered in time: a busy machine may be too slow.
    fn answered(options: &Options) -> Result<Measured> {
        loop {
            let mut told = 0;
            let measured = load(options, || {
                told += 1;
                Ok(())
            })?;
            assert_eq!(told, 1);
            if measured.requests > 0 {
                return Ok(measured);
            }
        }
    }

    #[test]
    fn batches_are_counted_by_their_requests() {
        let to = server(b":1\r\n", b'*');
        let measured = answered(&options(to, Kind::RedisIncr, 10)).unwrap();
        assert_eq!(measured.requests % 10, 0);
        let latency = measured.latency.unwrap();
        assert!(latency.p50_us <= latency.p99_us);
    }

    #[test]
    fn a_server_that_says_no_is_an_error() {
        let to = server(b"-ERR no\r\n", b'*');
        let options = options(to, Kind::RedisTime, 1);
        let error = answered(&options).unwrap_err().to_string();
        assert!(error.contains("ERR no"), "{error}");
    }

    #[test]
    fn nobody_there_is_an_error_and_silence_is_none() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let to = listener.local_addr().unwrap();
        let silent = load(&options(to, Kind::RedisTime, 1), || Ok(())).unwrap();
        assert_eq!((silent.requests, silent.latency), (0, None));
        drop(listener);
        assert!(answered(&options(to, Kind::RedisTime, 1)).is_err());
    }

    #[test]
    fn a_server_that_is_read_is_filled_first() {
        let to = server(b"STORED\r\n", b's');
        fill(&options(to, Kind::Memcached, 1)).unwrap();
    }

    #[test]
    fn quantiles_are_those_of_the_latencies() {
        let latency = Latency::of(1..=1000).unwrap();
        assert_eq!(
            (latency.p50_us, latency.p95_us, latency.p99_us),
            (500.0, 950.0, 990.0)
        );
        assert_eq!(Latency::of([]), None);
    }
}
