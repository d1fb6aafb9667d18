//! The figures of one measurement, and their names.

use super::observe::Window;
use crate::client::Measured;
use serde::Serialize;

/// The result of one workload under one policy in one round.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Run {
    pub round: u32,
    pub workload: String,
    pub policy: String,
    pub outcome: Outcome,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    Measured(Box<Figures>),
    /// It could not be measured: the reason, in the words of the program that refused.
    Missing(String),
}

/// The figures of a measurement.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figures {
    /// The client's figures; `None` without a client.
    pub client: Option<Measured>,
    /// What the replicas did during that time.
    pub window: Window,
}

/// A figure that is shown: its name in `report.json`, its title, and how to get it.
#[derive(Clone, Copy)]
pub(crate) struct Metric {
    pub key: &'static str,
    pub title: &'static str,
    /// Digits behind the point.
    pub decimals: usize,
    pub of: fn(&Figures) -> Option<f64>,
}

impl std::fmt::Debug for Metric {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.key)
    }
}

const fn metric(
    key: &'static str,
    title: &'static str,
    decimals: usize,
    of: fn(&Figures) -> Option<f64>,
) -> Metric {
    Metric {
        key,
        title,
        decimals,
        of,
    }
}

pub(crate) const RATE: Metric = metric("requests_per_s", "requests/s", 0, Figures::rate);
pub(crate) const P50: Metric = metric("p50_ms", "p50 ms", 2, |f| {
    Some(f.client?.latency?.p50_us / 1e3)
});
pub(crate) const P99: Metric = metric("p99_ms", "p99 ms", 2, |f| {
    Some(f.client?.latency?.p99_us / 1e3)
});
pub(crate) const PAUSE: Metric = metric("pause_ms", "pause ms", 2, |f| f.a_sync("pause_us", 1e3));
pub(crate) const SDPR: Metric = metric("sdpr_percent", "same %", 0, Figures::sdpr);
pub(crate) const BYTES: Metric = metric("bytes_per_request", "bytes/request", 0, |f| {
    f.a_request(f.window.bytes_of_protection())
});

/// All figures that are one number, in the order in which they are shown.
pub(crate) const METRICS: [Metric; 20] = [
    RATE,
    P50,
    metric("p95_ms", "p95 ms", 2, |f| {
        Some(f.client?.latency?.p95_us / 1e3)
    }),
    P99,
    metric("slots_per_s", "slots/s", 0, |f| {
        Some(f.window.syncs as f64 / f.window.seconds).filter(|_| f.window.syncs > 0)
    }),
    metric("slot_ms", "slot ms", 2, |f| f.a_sync("slot_us", 1e3)),
    PAUSE,
    metric("pause_p99_ms", "pause p99 ms", 2, |f| {
        Some(f.window.pause_us_p99? / 1e3)
    }),
    metric("dirty", "dirty", 0, |f| f.a_sync("dirty", 1.0)),
    metric("same", "same", 0, |f| f.compared("same")),
    metric("divergent", "divergent", 0, |f| f.compared("divergent")),
    SDPR,
    BYTES,
    metric("bytes_per_s", "MB/s", 2, |f| {
        let sent = f.window.bytes_of_protection();
        Some(sent / f.window.seconds / 1e6).filter(|_| sent > 0.0)
    }),
    metric("requests_per_slot", "requests/slot", 1, |f| {
        Some(f.rate()? * f.window.seconds / f.window.syncs as f64).filter(|_| f.window.syncs > 0)
    }),
    metric("held_ms", "held ms", 2, |f| {
        Some(f.window.held_us / f.window.outputs as f64 / 1e3).filter(|_| f.window.outputs > 0)
    }),
    metric("held_p99_ms", "held p99 ms", 2, |f| {
        Some(f.window.held_us_p99? / 1e3)
    }),
    metric("clean_percent", "clean %", 0, |f| {
        let clean = f.window.sums.get("clean").filter(|clean| **clean > 0.0)?;
        Some(clean / f.window.outputs as f64 * 100.0).filter(|_| f.window.outputs > 0)
    }),
    metric("clock_ppm", "clock ppm", 0, |f| f.client?.clock_ppm),
    metric("cpus", "CPUs", 2, |f| {
        Some(f.window.cpu_s.values().sum::<f64>() / f.window.seconds)
    }),
];

impl Figures {
    fn rate(&self) -> Option<f64> {
        let client = self.client?;
        Some(client.requests as f64 / client.seconds)
    }

    /// A sum divided by the number of syncs.
    fn a_sync(&self, name: &str, unit: f64) -> Option<f64> {
        let sum = self.window.sums.get(name)?;
        Some(sum / self.window.syncs as f64 / unit).filter(|_| self.window.syncs > 0)
    }

    /// Pages of a comparison. `None` without one: Remus sends all pages, unhashed.
    fn compared(&self, name: &str) -> Option<f64> {
        self.a_sync(name, 1.0).filter(|_| self.compares())
    }

    fn compares(&self) -> bool {
        let hashes = self.window.sums.get("bytes_hashes");
        hashes.is_some_and(|bytes| *bytes > 0.0)
    }

    /// A sum divided by the number of requests. The client's time and the window's differ a little.
    pub fn a_request(&self, sum: f64) -> Option<f64> {
        let requests = self.rate()? * self.window.seconds;
        Some(sum / requests).filter(|_| requests > 0.0 && sum > 0.0)
    }

    /// The part of the dirty pages that are the same on both sides (PLOVER §6.3), in percent.
    fn sdpr(&self) -> Option<f64> {
        let of = |name| self.window.sums.get(name).copied();
        let (same, divergent) = (of("same")?, of("divergent")?);
        let compared = same + divergent;
        Some(100.0 * same / compared).filter(|_| self.compares() && compared > 0.0)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::client::Latency;

    /// A measurement with this rate.
    pub fn figures(requests_per_s: f64) -> Figures {
        let sums = [
            ("slot_us", 40_000.0),
            ("pause_us", 20_000.0),
            ("dirty", 1000.0),
            ("same", 600.0),
            ("divergent", 200.0),
            ("bytes_hashes", 16_000.0),
        ];
        Figures {
            client: Some(Measured {
                clock_ppm: None,
                requests: (requests_per_s * 2.0) as u64,
                seconds: 2.0,
                latency: Latency::of([1000, 2000, 3000]),
            }),
            window: Window {
                seconds: 2.5,
                syncs: 10,
                sums: sums.map(|(name, sum)| (name.to_owned(), sum)).into(),
                phases_us: [("scan".to_owned(), 1000.0), ("hash".to_owned(), 500.0)].into(),
                bytes: [("pages".to_owned(), 1e6), ("log".to_owned(), 2.5e5)].into(),
                outputs: 100,
                held_us: 1e6,
                ..Window::default()
            },
        }
    }

    fn value(key: &str, figures: &Figures) -> Option<f64> {
        (METRICS.iter().find(|metric| metric.key == key).unwrap().of)(figures)
    }

    #[test]
    fn figures_are_means_of_what_was_counted() {
        let figures = figures(1000.0);
        for (key, expected) in [
            ("requests_per_s", 1000.0),
            ("p50_ms", 2.0),
            ("slots_per_s", 4.0),
            ("slot_ms", 4.0),
            ("pause_ms", 2.0),
            ("dirty", 100.0),
            ("sdpr_percent", 75.0),
            ("bytes_per_request", 500.0),
            ("bytes_per_s", 0.5),
            ("requests_per_slot", 250.0),
            ("held_ms", 10.0),
        ] {
            assert_eq!(value(key, &figures), Some(expected), "{key}");
        }
    }

    #[test]
    fn what_was_not_counted_is_not_zero() {
        let mut figures = figures(0.0);
        figures.window.syncs = 0;
        for key in [
            "bytes_per_request",
            "slot_ms",
            "slots_per_s",
            "requests_per_slot",
        ] {
            assert_eq!(value(key, &figures), None, "{key}");
        }
        figures.client = None;
        assert_eq!(value("requests_per_s", &figures), None);
        figures.window.syncs = 10;
        figures.window.sums.insert("bytes_hashes".into(), 0.0);
        assert_eq!(
            value("dirty", &figures),
            Some(100.0),
            "all of them are sent"
        );
        for key in ["same", "divergent", "sdpr_percent"] {
            assert_eq!(value(key, &figures), None, "{key}");
        }
    }
}
