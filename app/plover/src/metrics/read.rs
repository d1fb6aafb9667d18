//! The numbers of a metric, from the status of a replica.
//!
//! A field that is absent or null gives no sample: the replica is of another release, or the field means
//! nothing in its role.

use super::answer::Answer;
use serde_json::Value;

/// Where a metric has its numbers.
#[derive(Clone, Copy, Debug)]
pub enum From {
    /// Whether there was an answer.
    Answered,
    /// How long it took.
    AnswerTime,
    /// The field at this JSON pointer.
    Number(&'static str),
    /// The same, in microseconds.
    Micros(&'static str),
    /// The same, true or false.
    Truth(&'static str),
    /// The length of the array there.
    Length(&'static str),
    /// The text there, as the label that is named second.
    Text(&'static str, &'static str),
    /// The number of each key of the object there. The key is the label that is named second.
    PerKey(&'static str, &'static str),
    /// The histogram there.
    Buckets(&'static str),
    /// Several fields.
    Many(fn(&Value) -> Vec<Sample>),
}

/// A label and its value.
pub type Label = (&'static str, String);

/// One of a metric's numbers.
#[derive(Debug, PartialEq)]
pub struct Sample {
    pub labels: Vec<Label>,
    pub figure: Figure,
}

#[derive(Debug, PartialEq)]
pub enum Figure {
    Whole(u64),
    Real(f64),
    /// The sum of all values in seconds, and the number of values up to each bound that are above the one before.
    Histogram(f64, Vec<(f64, u64)>),
}

const MICROS_A_SECOND: f64 = 1e6;

/// A text of the status as the value of a label is cut at this length: Prometheus keeps each one.
const LABEL_CHARS_MAX: usize = 200;

impl From {
    /// The numbers in an answer.
    pub fn samples(self, answer: &Answer) -> Vec<Sample> {
        let one = |figure| {
            vec![Sample {
                labels: Vec::new(),
                figure,
            }]
        };
        let status = match (self, answer) {
            (Self::Answered, _) => return one(Figure::Whole(answer.status.is_some().into())),
            (Self::AnswerTime, _) => return one(Figure::Real(answer.took.as_secs_f64())),
            (
                _,
                Answer {
                    status: Some(status),
                    ..
                },
            ) => status,
            _ => return Vec::new(),
        };
        let figure = match self {
            Self::Answered | Self::AnswerTime => None,
            Self::Number(at) => number(status, at),
            Self::Micros(at) => micros(status, at),
            Self::Truth(at) => truth(status, at),
            Self::Length(at) => {
                let list = status.pointer(at).and_then(Value::as_array);
                list.map(|list| Figure::Whole(list.len() as u64))
            }
            Self::Buckets(at) => status.pointer(at).and_then(histogram),
            Self::Text(at, label) => return text(status, at, label).into_iter().collect(),
            Self::PerKey(at, label) => return per_key(status, at, label),
            Self::Many(read) => return read(status),
        };
        figure.map_or_else(Vec::new, one)
    }
}

fn whole(status: &Value, at: &str) -> Option<u64> {
    status.pointer(at)?.as_u64()
}

fn number(status: &Value, at: &str) -> Option<Figure> {
    whole(status, at).map(Figure::Whole)
}

fn micros(status: &Value, at: &str) -> Option<Figure> {
    whole(status, at).map(|us| Figure::Real(us as f64 / MICROS_A_SECOND))
}

fn truth(status: &Value, at: &str) -> Option<Figure> {
    let is = status.pointer(at)?.as_bool()?;
    Some(Figure::Whole(is.into()))
}

/// The daemon's `{"le_us": […], "counts": […], "sum_us": …}`.
fn histogram(at: &Value) -> Option<Figure> {
    let list =
        |key: &str| -> Option<Vec<u64>> { at[key].as_array()?.iter().map(Value::as_u64).collect() };
    let (bounds, counts) = (list("le_us")?, list("counts")?);
    if counts.len() != bounds.len() + 1 {
        return None;
    }
    let seconds = |us: u64| us as f64 / MICROS_A_SECOND;
    let bounds = bounds.into_iter().map(seconds).chain([f64::INFINITY]);
    Some(Figure::Histogram(
        seconds(at["sum_us"].as_u64()?),
        bounds.zip(counts).collect(),
    ))
}

fn cut(text: &str) -> String {
    text.chars().take(LABEL_CHARS_MAX).collect()
}

fn text(status: &Value, at: &str, label: &'static str) -> Option<Sample> {
    let text = status.pointer(at)?.as_str()?;
    Some(Sample {
        labels: vec![(label, cut(text))],
        figure: Figure::Whole(1),
    })
}

fn per_key(status: &Value, at: &str, label: &'static str) -> Vec<Sample> {
    let keys = status.pointer(at).and_then(Value::as_object);
    let sample = |(key, value): (&String, &Value)| {
        let figure = Figure::Whole(value.as_u64()?);
        Some(Sample {
            labels: vec![(label, key.clone())],
            figure,
        })
    };
    keys.into_iter().flatten().filter_map(sample).collect()
}

/// One sample for each label value whose field is there.
fn labelled(
    status: &Value,
    label: &'static str,
    fields: &[(&str, &str)],
    figure: fn(&Value, &str) -> Option<Figure>,
) -> Vec<Sample> {
    let sample = |(value, at): &(&str, &str)| {
        Some(Sample {
            labels: vec![(label, (*value).to_owned())],
            figure: figure(status, at)?,
        })
    };
    fields.iter().filter_map(sample).collect()
}

pub fn replica(status: &Value) -> Vec<Sample> {
    let label = |key: &'static str| (key, cut(status[key].as_str().unwrap_or_default()));
    let labels = ["policy", "machine", "accel", "warm_witness"];
    let labels = labels.map(label).to_vec();
    vec![Sample {
        labels,
        figure: Figure::Whole(1),
    }]
}

/// The roles of a replica, as the status names them.
const ROLES: [&str; 6] = [
    "leader",
    "secondary",
    "witness",
    "joining",
    "recovering",
    "deposed",
];

pub fn roles(status: &Value) -> Vec<Sample> {
    let Some(own) = status["role"].as_str() else {
        return Vec::new();
    };
    let sample = |role: &str| Sample {
        labels: vec![("role", role.to_owned())],
        figure: Figure::Whole((role == own).into()),
    };
    ROLES.into_iter().map(sample).collect()
}

/// The status has it as `7@r1`.
pub fn view(status: &Value) -> Vec<Sample> {
    let view = status["view"]
        .as_str()
        .and_then(|view| view.split('@').next());
    let number = view.and_then(|number| number.parse().ok());
    let sample = |number| Sample {
        labels: Vec::new(),
        figure: Figure::Whole(number),
    };
    number.map(sample).into_iter().collect()
}

pub fn in_sync(status: &Value) -> Vec<Sample> {
    let (Some(members), Some(in_sync)) = (status["members"].as_array(), status["isr"].as_array())
    else {
        return Vec::new();
    };
    let sample = |member: &Value| Sample {
        labels: vec![("member", member.to_string())],
        figure: Figure::Whole(in_sync.contains(member).into()),
    };
    members.iter().map(sample).collect()
}

pub fn refused(status: &Value) -> Vec<Sample> {
    let peers = status["refused"].as_object();
    let sample = |(peer, why): (&String, &Value)| Sample {
        labels: vec![
            ("peer", peer.clone()),
            ("why", cut(why.as_str().unwrap_or_default())),
        ],
        figure: Figure::Whole(1),
    };
    peers.into_iter().flatten().map(sample).collect()
}

pub fn last_takeover(status: &Value) -> Vec<Sample> {
    let parts = [
        ("silence", "/last_failover/noticed_us"),
        ("elected", "/last_failover/elected_us"),
        ("serving", "/last_failover/serving_us"),
    ];
    labelled(status, "part", &parts, micros)
}

pub fn phases(status: &Value) -> Vec<Sample> {
    let phases = status
        .pointer("/sync/totals/phases_us")
        .and_then(Value::as_object);
    let sample = |(phase, us): (&String, &Value)| {
        let figure = Figure::Real(us.as_u64()? as f64 / MICROS_A_SECOND);
        Some(Sample {
            labels: vec![("phase", phase.clone())],
            figure,
        })
    };
    // No sync spends time in `idle`.
    let phases = phases
        .into_iter()
        .flatten()
        .filter(|(phase, _)| *phase != "idle");
    phases.filter_map(sample).collect()
}

pub fn sync_bytes(status: &Value) -> Vec<Sample> {
    let kinds = [
        ("hashes", "/sync/totals/bytes_hashes"),
        ("pages", "/sync/totals/bytes_pages"),
        ("device", "/sync/totals/bytes_device"),
    ];
    labelled(status, "kind", &kinds, number)
}

pub fn outputs(status: &Value) -> Vec<Sample> {
    let by = [
        ("sync", "/sync/totals/outputs"),
        ("match", "/sync/totals/matched"),
        ("clean", "/sync/totals/clean"),
    ];
    labelled(status, "cleared_by", &by, number)
}

pub fn dropped(status: &Value) -> Vec<Sample> {
    let ways = [
        ("to_guest", "/dropped_inputs"),
        ("from_guest", "/dropped_outputs"),
    ];
    labelled(status, "direction", &ways, number)
}

pub fn sent(status: &Value) -> Vec<Sample> {
    let lanes = [
        ("log", "/traffic/log_bytes_out"),
        ("bulk", "/traffic/bulk_bytes_out"),
    ];
    labelled(status, "lane", &lanes, number)
}

pub fn received(status: &Value) -> Vec<Sample> {
    let lanes = [
        ("log", "/traffic/log_bytes_in"),
        ("bulk", "/traffic/bulk_bytes_in"),
    ];
    labelled(status, "lane", &lanes, number)
}

pub fn sent_bulk(status: &Value) -> Vec<Sample> {
    let kinds = [
        ("digests", "/traffic/digests_bytes_out"),
        ("subpage_hashes", "/traffic/subpage_hashes_bytes_out"),
        ("pages", "/traffic/pages_bytes_out"),
        ("device", "/traffic/device_bytes_out"),
        ("copy", "/traffic/copy_bytes_out"),
        ("outputs", "/traffic/outputs_bytes_out"),
        ("relayed", "/traffic/relayed_bytes_out"),
        ("other", "/traffic/other_bytes_out"),
    ];
    labelled(status, "kind", &kinds, number)
}

/// A number of the copy that the replica makes.
fn of_copy(status: &Value, figure: Option<Figure>) -> Vec<Sample> {
    let labels = || vec![("to", status["copy"]["to"].to_string())];
    let sample = |figure| Sample {
        labels: labels(),
        figure,
    };
    figure.map(sample).into_iter().collect()
}

pub fn copy_open(status: &Value) -> Vec<Sample> {
    of_copy(status, truth(status, "/copy/open"))
}

pub fn copy_behind(status: &Value) -> Vec<Sample> {
    of_copy(status, number(status, "/copy/bytes_behind"))
}

pub fn copy_size(status: &Value) -> Vec<Sample> {
    of_copy(status, number(status, "/copy/bytes"))
}

pub fn disk_failed(status: &Value) -> Vec<Sample> {
    if status["disks_whole"].is_null() {
        return Vec::new();
    }
    is_told(status, "disk_failure")
}

pub fn awaits_off(status: &Value) -> Vec<Sample> {
    is_told(status, "awaits_off")
}

/// Whether the status has something there.
fn is_told(status: &Value, key: &str) -> Vec<Sample> {
    let told = !status[key].is_null();
    vec![Sample {
        labels: Vec::new(),
        figure: Figure::Whole(told.into()),
    }]
}

pub fn memory(status: &Value) -> Vec<Sample> {
    let kinds = [
        ("private", "/memory/private_kib"),
        ("shared", "/memory/shared_kib"),
    ];
    let bytes = |status: &Value, at: &str| whole(status, at).map(|kib| Figure::Whole(kib * 1024));
    labelled(status, "kind", &kinds, bytes)
}
