//! How far a guest's clock falls behind while its server is loaded.

use super::connect;
use anyhow::{Context, Result};
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// How often the clock is read at a time. The quickest answer counts.
const READINGS: u32 = 30;

/// One reading: the guest's time, halfway between the question and its answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    at: Instant,
    guest: Duration,
}

impl Reading {
    /// Asks a Redis.
    pub fn take(to: SocketAddr) -> Result<Self> {
        let stream = connect(to)?;
        stream.set_nodelay(true)?;
        let mut answers = BufReader::new(stream);
        let mut quickest: Option<(Duration, Self)> = None;
        for _ in 0..READINGS {
            let asked = Instant::now();
            answers.get_mut().write_all(b"*1\r\n$4\r\nTIME\r\n")?;
            let guest = read_time(&mut answers)?;
            let took = asked.elapsed();
            let at = asked + took / 2;
            if quickest.is_none_or(|(least, _)| took < least) {
                quickest = Some((took, Self { at, guest }));
            }
        }
        let (_, reading) = quickest.context("no reading")?;
        Ok(reading)
    }

    /// How much faster the guest's clock ran since `before`, in millionths; negative if it lost time.
    pub fn ppm_since(&self, before: &Self) -> f64 {
        let passed = self.at.duration_since(before.at).as_secs_f64();
        (self.guest.as_secs_f64() - before.guest.as_secs_f64() - passed) / passed * 1e6
    }
}

/// `*2`, then seconds and microseconds as bulk strings: a line of their length, a line of digits.
fn read_time(from: &mut impl BufRead) -> Result<Duration> {
    let mut lines = [const { String::new() }; 5];
    for line in &mut lines {
        from.read_line(line)?;
    }
    let number = |line: &String| line.trim_end().parse::<u64>().ok();
    let time = number(&lines[2]).zip(number(&lines[4]));
    let (s, us) = time.with_context(|| format!("Redis says no time but {lines:?}"))?;
    Ok(Duration::from_secs(s) + Duration::from_micros(us))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_stood_still_has_lost_time() {
        let said = b"*2\r\n$10\r\n1700000000\r\n$6\r\n250000\r\n";
        let guest = read_time(&mut &said[..]).unwrap();
        assert_eq!(guest, Duration::from_micros(1_700_000_000_250_000));
        assert!(read_time(&mut &b"-ERR no\r\n"[..]).is_err());
        let before = Reading {
            at: Instant::now(),
            guest,
        };
        let after = Reading {
            at: before.at + Duration::from_secs(10),
            guest: guest + Duration::from_secs(9),
        };
        assert!((after.ppm_since(&before) + 100_000.0).abs() < 1.0);
    }
}
