//! The answers of replicas as OpenMetrics, and as Prometheus' older text format.

use super::answer::Answer;
use super::read::{Figure, Label, Sample};
use super::table::{Kind, METRICS, Metric, Unit};
use crate::target::Target;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{self, Registry};
use std::fmt;
use std::sync::Arc;

/// A form of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    OpenMetrics,
    /// For programs that do not ask for OpenMetrics: `promtool check metrics`, older scrapers.
    Classic,
}

impl Form {
    /// The form that a request's `Accept` header asks for.
    pub fn wanted(accept: Option<&str>) -> Self {
        match accept {
            Some(accept) if accept.contains("application/openmetrics-text") => Self::OpenMetrics,
            _ => Self::Classic,
        }
    }

    pub fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Classic => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// All metrics of these answers.
pub fn encode(answers: Arc<Vec<Answer>>, form: Form) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix(super::PREFIX);
    registry.register_collector(Box::new(Scrape { answers }));
    let mut text = String::new();
    text::encode(&mut text, &registry)?;
    Ok(match form {
        Form::OpenMetrics => text,
        Form::Classic => classic(&text),
    })
}

#[derive(Debug)]
struct Scrape {
    answers: Arc<Vec<Answer>>,
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for metric in METRICS {
            let samples: Vec<_> = self
                .answers
                .iter()
                .flat_map(|answer| {
                    let samples = metric.from.samples(answer).into_iter();
                    samples.map(move |sample| (labels(&answer.from, &sample), sample))
                })
                .collect();
            if samples.is_empty() {
                continue;
            }
            let unit = metric.unit.map(|unit| match unit {
                Unit::Seconds => registry::Unit::Seconds,
                Unit::Bytes => registry::Unit::Bytes,
            });
            let kind = match metric.kind {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => MetricType::Gauge,
                Kind::Histogram => MetricType::Histogram,
                Kind::Info => MetricType::Info,
            };
            let mut family =
                encoder.encode_descriptor(metric.stem, metric.help, unit.as_ref(), kind)?;
            for (labels, sample) in &samples {
                match metric.kind {
                    // The crate writes a comma too many where a family's info has no labels of its own.
                    Kind::Info => family.encode_info(labels)?,
                    _ => write(metric, family.encode_family(labels)?, &sample.figure)?,
                }
            }
        }
        Ok(())
    }
}

fn labels(target: &Target, sample: &Sample) -> Vec<Label> {
    let own = [
        ("guest", target.guest.clone()),
        ("replica", target.replica.clone()),
    ];
    own.into_iter()
        .chain(sample.labels.iter().cloned())
        .collect()
}

fn write(metric: &Metric, mut encoder: MetricEncoder<'_>, figure: &Figure) -> fmt::Result {
    match (metric.kind, figure) {
        (Kind::Counter, Figure::Whole(value)) => {
            encoder.encode_counter::<NoLabelSet, _, f64>(value, None)
        }
        (Kind::Counter, Figure::Real(value)) => {
            encoder.encode_counter::<NoLabelSet, _, f64>(value, None)
        }
        (Kind::Gauge, Figure::Whole(value)) => encoder.encode_gauge(value),
        (Kind::Gauge, Figure::Real(value)) => encoder.encode_gauge(value),
        (Kind::Histogram, Figure::Histogram(sum, buckets)) => {
            let count = buckets.iter().map(|(_, count)| count).sum();
            encoder.encode_histogram::<NoLabelSet>(*sum, count, buckets, None)
        }
        _ => Err(fmt::Error),
    }
}

/// OpenMetrics in the older form: there the descriptors of counters and infos name the samples, an info is a
/// gauge, and units and the end are not written.
fn classic(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.lines() {
        let mut words = line.splitn(4, ' ');
        let (mark, word, name, rest) = (words.next(), words.next(), words.next(), words.next());
        match (mark, word, name, rest) {
            (Some("#"), Some("UNIT" | "EOF"), ..) => continue,
            (Some("#"), Some(word), Some(name), Some(rest)) => {
                let metric = METRICS.iter().find(|metric| metric.family() == name);
                let suffix = metric.map_or("", Metric::suffix);
                let rest = match (word, rest) {
                    ("TYPE", "info") => "gauge",
                    _ => rest,
                };
                out += &format!("# {word} {name}{suffix} {rest}\n");
            }
            _ => {
                out += line;
                out.push('\n');
            }
        }
    }
    out
}
