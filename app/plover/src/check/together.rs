//! `plover check --together`: the hosts of a group measure the ways between them, each to each other one.
//!
//! The command runs on all hosts at once, at the addresses of the replicas, which do not run yet. Each host listens, and each
//! connects to the others in turn:
//!
//! ```text
//!   client                                            server
//!     │ ── Card ─────────────────────────────────────► │  who I am
//!     │ ◄───────────────────────────────────── Card ── │
//!     │ ── b'?' ─────────────────────────────────────► │  PINGS times
//!     │ ◄───────────────────── its clock, 8 bytes ──── │
//!     │ ── b'!', bytes for SENT_FOR, end of stream ──► │
//!     │ ◄──────── how many bytes came, 8 bytes ─────── │
//! ```
//!
//! A stranger who connects gets the card of this host, and costs a thread for a few seconds.

use super::{Report, Verdict};
use anyhow::{Context, Result};
use plover_node::ReplicaConfig;
use plover_types::wire::{OLDEST_VERSION, WIRE_VERSION};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant, SystemTime};

/// For so long the hosts wait for each other: an operator starts the command on each.
const MET_WITHIN: Duration = Duration::from_secs(120);
/// How often a host that does not listen yet is tried.
const TRY_EVERY: Duration = Duration::from_millis(200);
/// A peer that says nothing for so long is given up.
const SILENT_FOR: Duration = Duration::from_secs(5);
/// Bytes are sent for this time.
const SENT_FOR: Duration = Duration::from_secs(1);
const PINGS: usize = 50;
const CARD_BYTES_MAX: u64 = 1024;
/// So many connections are served at once.
const SERVED_MAX: usize = 8;
/// A slower way is worth a word: a page that differs takes 33 us over it, and as long as to hash forty.
const SLOW_MBIT: u64 = 1000;
/// Times in logs that differ by more than this mislead their reader.
const CLOCK_APART: Duration = Duration::from_millis(500);

/// What a host says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Card {
    group: String,
    id: u8,
    version: String,
    /// The oldest and the newest wire version.
    wire: (u8, u8),
}

/// What was found of the way to a peer.
#[derive(Debug)]
struct Met {
    card: Card,
    /// The quickest answer.
    rtt: Duration,
    /// The peer's clock less ours, in microseconds, give or take half of `rtt`.
    ahead_us: i64,
    mbit_per_s: u64,
}

/// Measures the ways from this host to all others of its group, and is there for theirs.
///
/// # Errors
/// This host cannot listen at its replica's address.
pub fn together(report: &mut Report, config: &ReplicaConfig) -> Result<()> {
    let me = config.group.me;
    let own = Card {
        group: config.group.name.clone(),
        id: me,
        version: env!("CARGO_PKG_VERSION").into(),
        wire: (OLDEST_VERSION, WIRE_VERSION),
    };
    let all = &config.group.replica;
    let address = all.iter().find(|it| it.id == me).map(|it| it.address);
    let address = address.with_context(|| format!("the group has no replica {me}"))?;
    let listener = TcpListener::bind(address).with_context(|| {
        format!("cannot listen at {address}: stop the replica of this host, if it runs")
    })?;
    // Each host begins with the next one, so that they seldom send to the same.
    let others = |is_after: bool| {
        all.iter()
            .filter(move |it| it.id != me && (it.id > me) == is_after)
            .map(|it| (it.id, it.address))
    };
    let peers: Vec<_> = others(true).chain(others(false)).collect();
    tell!(
        "waiting for the same command on the other hosts, for {} s at most",
        MET_WITHIN.as_secs()
    );
    for (id, met) in meet(&own, &listener, &peers, MET_WITHIN) {
        let (verdict, found) = judge(&own, met);
        report.add(format!("the way to replica {id}"), verdict, found);
    }
    Ok(())
}

fn judge(own: &Card, met: io::Result<Met>) -> (Verdict, String) {
    let met = match met {
        Ok(met) => met,
        Err(error) => {
            let found = format!(
                "not measured ({error}): run this command on all hosts at once, before the replicas"
            );
            return (Verdict::Weak, found);
        }
    };
    let (us, mbit, card) = (met.rtt.as_micros(), met.mbit_per_s, &met.card);
    let ms = met.ahead_us / 1000;
    let mut found = format!(
        "{us} us there and back, {mbit} Mbit/s, its clock is {} ms {}, plover {}",
        ms.abs(),
        if ms < 0 { "behind" } else { "ahead" },
        card.version
    );
    if (
        &card.group,
        card.wire.0 > own.wire.1 || own.wire.0 > card.wire.1,
    ) != (&own.group, false)
    {
        found += &format!(
            "; it is of the group \"{}\" and speaks wire versions {} to {}, this one of \"{}\" and {} to {}: install \
             neighbouring releases on all hosts, and give them the files of one `plover init`",
            card.group, card.wire.0, card.wire.1, own.group, own.wire.0, own.wire.1
        );
        return (Verdict::Missing, found);
    }
    let mut verdict = Verdict::Good;
    if mbit < SLOW_MBIT {
        found += "; pages that differ take long over it";
        verdict = Verdict::Weak;
    }
    if Duration::from_micros(met.ahead_us.unsigned_abs()) > CLOCK_APART {
        found += "; times in the hosts' logs do not compare: set the clocks (chrony)";
        verdict = Verdict::Weak;
    }
    (verdict, found)
}

/// Meets each of `peers`, and serves until each has met this host.
fn meet(
    own: &Card,
    listener: &TcpListener,
    peers: &[(u8, SocketAddr)],
    within: Duration,
) -> Vec<(u8, io::Result<Met>)> {
    let until = Instant::now() + within;
    let served_now = AtomicUsize::new(0);
    let (served, has_served) = channel();
    std::thread::scope(|scope| {
        let mut all = Vec::new();
        let clients = scope.spawn(move || {
            for &(id, address) in peers {
                all.push((id, measure(own, address, until)));
            }
            all
        });
        let mut left: BTreeSet<u8> = peers.iter().map(|(id, _)| *id).collect();
        let cannot_wait = listener.set_nonblocking(true).is_err();
        while !cannot_wait && Instant::now() < until && !(left.is_empty() && clients.is_finished())
        {
            match listener.accept() {
                Ok((stream, _)) if served_now.load(Ordering::Relaxed) < SERVED_MAX => {
                    served_now.fetch_add(1, Ordering::Relaxed);
                    let (served, served_now) = (served.clone(), &served_now);
                    scope.spawn(move || {
                        let _ = serve(own, stream, &served);
                        served_now.fetch_sub(1, Ordering::Relaxed);
                    });
                }
                _ => std::thread::sleep(Duration::from_millis(5)),
            }
            has_served.try_iter().for_each(|id| {
                left.remove(&id);
            });
        }
        clients.join().unwrap_or_default()
    })
}

fn now_us() -> i64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(0, |now| now.as_micros() as i64)
}

fn opened(stream: &TcpStream) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(SILENT_FOR))?;
    stream.set_write_timeout(Some(SILENT_FOR))
}

fn send_card(mut to: &TcpStream, card: &Card) -> io::Result<()> {
    let mut line = serde_json::to_vec(card)?;
    line.push(b'\n');
    to.write_all(&line)
}

fn read_card(from: &mut impl BufRead) -> io::Result<Card> {
    let mut line = String::new();
    from.take(CARD_BYTES_MAX).read_line(&mut line)?;
    serde_json::from_str(&line).map_err(|_| {
        let words = "what answers there is no `plover check --together`";
        io::Error::new(ErrorKind::InvalidData, words)
    })
}

fn measure(own: &Card, address: SocketAddr, until: Instant) -> io::Result<Met> {
    let stream = loop {
        match TcpStream::connect_timeout(&address, super::PEER_WITHIN) {
            Ok(stream) => break stream,
            Err(error) if Instant::now() + TRY_EVERY >= until => return Err(error),
            Err(_) => std::thread::sleep(TRY_EVERY),
        }
    };
    opened(&stream)?;
    let mut from = BufReader::new(&stream);
    send_card(&stream, own)?;
    let card = read_card(&mut from)?;
    let (mut rtt, mut ahead_us) = (Duration::MAX, 0);
    for _ in 0..PINGS {
        let (begun, sent_us) = (Instant::now(), now_us());
        (&stream).write_all(b"?")?;
        let theirs = i64::from_le_bytes(read_eight(&mut from)?);
        let took = begun.elapsed();
        if took < rtt {
            rtt = took;
            ahead_us = theirs.saturating_sub(sent_us + took.as_micros() as i64 / 2);
        }
    }
    (&stream).write_all(b"!")?;
    let (begun, bytes) = (Instant::now(), vec![0; 256 << 10]);
    while begun.elapsed() < SENT_FOR {
        (&stream).write_all(&bytes)?;
    }
    stream.shutdown(Shutdown::Write)?;
    let came = u64::from_le_bytes(read_eight(&mut from)?);
    let took_us = begun.elapsed().as_micros().max(1) as u64;
    Ok(Met {
        card,
        rtt,
        ahead_us,
        mbit_per_s: came.saturating_mul(8) / took_us,
    })
}

fn read_eight(from: &mut impl Read) -> io::Result<[u8; 8]> {
    let mut bytes = [0; 8];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Answers one host. Tells its id when it has measured all.
fn serve(own: &Card, stream: TcpStream, served: &Sender<u8>) -> io::Result<()> {
    opened(&stream)?;
    let mut from = BufReader::new(&stream);
    let card = read_card(&mut from)?;
    send_card(&stream, own)?;
    for _ in 0..=PINGS {
        let mut order = [0];
        from.read_exact(&mut order)?;
        if order == *b"!" {
            break;
        }
        (&stream).write_all(&now_us().to_le_bytes())?;
    }
    let (mut came, mut buffer) = (0_u64, vec![0; 256 << 10]);
    let until = Instant::now() + SENT_FOR + SILENT_FOR;
    loop {
        match from.read(&mut buffer)? {
            0 => break,
            _ if Instant::now() > until => return Err(ErrorKind::TimedOut.into()),
            count => came += count as u64,
        }
    }
    (&stream).write_all(&came.to_le_bytes())?;
    let _ = served.send(card.id);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(id: u8) -> Card {
        Card {
            group: "shop".into(),
            id,
            version: "1.2.3".into(),
            wire: (2, 4),
        }
    }

    #[test]
    fn two_hosts_measure_each_other_and_a_stranger_is_in_nobodys_way() {
        let listeners = [0, 1].map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
        let at = |n: usize| listeners[n].local_addr().unwrap();
        let silent = TcpStream::connect(at(0)).unwrap();
        let mut rude = TcpStream::connect(at(1)).unwrap();
        rude.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let within = Duration::from_secs(60);
        let (one, other) = std::thread::scope(|scope| {
            let one = scope.spawn(|| meet(&card(0), &listeners[0], &[(1, at(1))], within));
            let other = meet(&card(1), &listeners[1], &[(0, at(0))], within);
            (one.join().unwrap(), other)
        });
        drop(silent);
        for (id, mut all) in [(1, one), (0, other)] {
            let (of, met) = all.pop().unwrap();
            assert_eq!((of, all.len()), (id, 0));
            let met = met.unwrap();
            assert_eq!(met.card, card(id));
            assert!(met.mbit_per_s > 0);
            assert!(met.ahead_us.unsigned_abs() < 1_000_000, "one clock");
        }
    }

    #[test]
    fn what_is_amiss_is_said() {
        let met = |card: Card, ahead_us, mbit_per_s| {
            let rtt = Duration::from_micros(80);
            let met = Met {
                card,
                rtt,
                ahead_us,
                mbit_per_s,
            };
            judge(&card_of_me(), Ok(met))
        };
        fn card_of_me() -> Card {
            card(0)
        }
        let (verdict, found) = met(card(1), 2300, 9400);
        assert_eq!(verdict, Verdict::Good);
        assert_eq!(
            found,
            "80 us there and back, 9400 Mbit/s, its clock is 2 ms ahead, plover 1.2.3"
        );
        assert_eq!(met(card(1), -700_000, 9400).0, Verdict::Weak);
        assert_eq!(met(card(1), 0, 94).0, Verdict::Weak);
        let newer = Card {
            wire: (5, 6),
            ..card(1)
        };
        assert_eq!(met(newer, 0, 9400).0, Verdict::Missing);
        let of_another = Card {
            group: "web".into(),
            ..card(1)
        };
        assert_eq!(met(of_another, 0, 9400).0, Verdict::Missing);
        let nobody = judge(&card(0), Err(ErrorKind::ConnectionRefused.into()));
        assert_eq!(nobody.0, Verdict::Weak);
    }
}
