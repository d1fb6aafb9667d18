//! The account of a domain: the fate of each of its elements.
//!
//! Every element and every attribute of the XML is judged on its own, in the order of the document, and nothing is
//! judged twice: [`Account::of`] walks the tree and asks the rules for each node. A node that no rule knows is refused. So
//! nothing can be dropped in silence, whatever libvirt adds to its format.
//!
//! A judgement carries the keys of the configuration that it sets. The configuration is made of these alone, and the
//! account shows them: the two cannot disagree.

use super::domain::Domain;
use super::judge;
use crate::init::group::Keys;
use roxmltree::Node;
use serde_json::{Value, json};
use std::fmt;

/// The fate of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The guest finds it as it was.
    Kept,
    /// The guest, or the operator, finds it otherwise.
    Changed,
    /// It was a matter of the old host, and the guest never saw it.
    Ignored,
    /// Plover does not have it.
    Refused,
}

impl Verdict {
    fn name(self) -> &'static str {
        match self {
            Self::Kept => "kept",
            Self::Changed => "changed",
            Self::Ignored => "ignored",
            Self::Refused => "refused",
        }
    }
}

/// Where a key of the configuration belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    Guest,
    /// The disk of this place.
    Disk(usize),
    /// The network card of this place, which is not the first.
    Nic(usize),
}

/// A judgement of one node.
#[derive(Clone, Debug, PartialEq)]
pub struct Said {
    pub verdict: Verdict,
    /// Of a refused node: what `--without` calls it, and whether the guest would miss it.
    pub refused: Option<(String, bool)>,
    /// Why, and what to do. May be empty for a node that is kept.
    pub why: String,
    /// The keys that it sets. A list is added to the list that is there.
    pub sets: Vec<(Table, &'static str, toml::Value)>,
}

impl Said {
    fn new(verdict: Verdict, why: impl Into<String>) -> Self {
        Self {
            verdict,
            refused: None,
            why: why.into(),
            sets: Vec::new(),
        }
    }

    /// This judgement sets a key of `[guest]`, too.
    pub fn sets(mut self, key: &'static str, value: impl Into<toml::Value>) -> Self {
        self.sets.push((Table::Guest, key, value.into()));
        self
    }

    /// This judgement sets a key of a `[[nic]]`, too.
    pub fn sets_nic(
        mut self,
        place: usize,
        key: &'static str,
        value: impl Into<toml::Value>,
    ) -> Self {
        self.sets.push((Table::Nic(place), key, value.into()));
        self
    }

    /// This judgement sets a key of a `[[disk]]`, too.
    pub fn sets_disk(
        mut self,
        place: usize,
        key: &'static str,
        value: impl Into<toml::Value>,
    ) -> Self {
        self.sets.push((Table::Disk(place), key, value.into()));
        self
    }

    /// Whether it is one row of the table together with `other`.
    fn is_like(&self, other: &Self) -> bool {
        self.sets.is_empty()
            && other.sets.is_empty()
            && (self.verdict, &self.refused, &self.why)
                == (other.verdict, &other.refused, &other.why)
    }

    fn blocks(&self, without: &[String]) -> Option<&str> {
        match &self.refused {
            Some((kind, true)) if !is_accepted(kind, without) => Some(kind),
            _ => None,
        }
    }
}

/// Whether the operator accepts the loss of `kind`, or of all that is around it.
fn is_accepted(kind: &str, without: &[String]) -> bool {
    without.iter().any(|above| is_below(kind, above))
}

/// Whether `kind` is `above`, or, for nodes that no rule knows, a path into it.
pub fn is_below(kind: &str, above: &str) -> bool {
    let rest = kind.strip_prefix(above);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '@']))
}

/// The guest finds it as it was.
pub fn kept(why: impl Into<String>) -> Said {
    Said::new(Verdict::Kept, why)
}

/// The guest or the operator finds it otherwise, as `why` says.
pub fn changed(why: impl Into<String>) -> Said {
    Said::new(Verdict::Changed, why)
}

/// The guest never saw it.
pub fn ignored(why: impl Into<String>) -> Said {
    Said::new(Verdict::Ignored, why)
}

/// Plover does not have it, and the guest would miss it.
pub fn refused(kind: impl Into<String>, why: impl Into<String>) -> Said {
    Said {
        refused: Some((kind.into(), true)),
        ..Said::new(Verdict::Refused, why)
    }
}

/// Plover does not have it, and the guest works as well without it.
pub fn not_missed(kind: impl Into<String>, why: impl Into<String>) -> Said {
    Said {
        refused: Some((kind.into(), false)),
        ..Said::new(Verdict::Refused, why)
    }
}

/// One node of the XML with its judgement.
#[derive(Debug)]
pub struct Entry {
    /// An XPath to it from the domain, with numbers where siblings have its name: `devices/disk[2]/target/@dev`. Empty for
    /// the domain itself.
    pub path: String,
    /// The value of an attribute, or an element's own text.
    pub value: String,
    pub said: Said,
}

/// The whole account.
pub struct Account<'o> {
    pub entries: Vec<Entry>,
    /// Changes that the XML does not show: libvirt's defaults are others.
    pub notes: Vec<Said>,
    /// The losses that the operator accepts.
    without: &'o [String],
}

impl<'o> Account<'o> {
    /// Judges every node of `domain`.
    pub fn of(domain: &Domain<'_>, without: &'o [String]) -> Self {
        let mut entries = Vec::new();
        for element in domain.root.descendants().filter(Node::is_element) {
            let path = path_of(element);
            let mut judge = |path: String, attribute: Option<(&str, &str)>| {
                let value = match attribute {
                    Some((_, value)) => value,
                    None => element.text().unwrap_or_default().trim(),
                };
                let said = judge::judge(domain, element, attribute.map(|(name, _)| name));
                let value = value.to_owned();
                entries.push(Entry { path, value, said });
            };
            judge(path.clone(), None);
            for attribute in element.attributes() {
                let slash = if path.is_empty() { "" } else { "/" };
                let name = qualified(element, attribute.namespace(), attribute.name());
                judge(
                    format!("{path}{slash}@{name}"),
                    Some((&name, attribute.value())),
                );
            }
        }
        Self {
            entries,
            notes: judge::notes(domain),
            without,
        }
    }

    fn all(&self) -> impl Iterator<Item = &Said> {
        let said = self.entries.iter().map(|entry| &entry.said);
        said.chain(&self.notes)
    }

    /// The losses that nobody has accepted, by what `--without` calls them. If there is one, nothing is written.
    pub fn blocking(&self) -> Vec<&str> {
        let mut kinds: Vec<&str> = Vec::new();
        for kind in self.all().filter_map(|said| said.blocks(self.without)) {
            if !kinds.iter().any(|above| is_below(kind, above)) {
                kinds.push(kind);
            }
        }
        kinds
    }

    /// The keys of `[guest]`, of each `[[disk]]` and of each `[[nic]]`.
    pub fn keys(&self, disks: usize, nics: usize) -> (Keys, Vec<Keys>, Vec<Keys>) {
        let (mut guest, mut all) = (Keys::new(), vec![Keys::new(); disks]);
        let mut others = vec![Keys::new(); nics];
        for (table, key, value) in self.all().flat_map(|said| &said.sets) {
            let keys = match table {
                Table::Guest => &mut guest,
                Table::Disk(place) => &mut all[*place],
                Table::Nic(place) => &mut others[*place - 1],
            };
            let there = keys.iter_mut().find(|(name, _)| name == key);
            match (there, value) {
                (Some((_, toml::Value::Array(list))), toml::Value::Array(more)) => {
                    list.extend(more.iter().cloned());
                }
                (Some((_, there)), value) => *there = value.clone(),
                (None, value) => keys.push(((*key).to_owned(), value.clone())),
            }
        }
        (guest, all, others)
    }

    /// For programs: every node on its own.
    pub fn to_json(&self) -> Value {
        let of = |path: Option<&str>, value: &str, said: &Said| {
            let sets = said
                .sets
                .iter()
                .map(|(table, key, value)| json!({"key": full_key(*table, key), "value": value}));
            let kind = said.refused.as_ref().map(|(kind, _)| kind);
            json!({
                "path": path,
                "value": value,
                "verdict": said.verdict.name(),
                "kind": kind,
                "missed": said.refused.as_ref().is_some_and(|(_, missed)| *missed),
                "accepted": kind.is_some_and(|kind| is_accepted(kind, self.without)),
                "why": said.why,
                "sets": sets.collect::<Vec<_>>(),
            })
        };
        let nodes = self.entries.iter();
        let nodes = nodes.map(|entry| of(Some(&entry.path), &entry.value, &entry.said));
        json!({
            "nodes": nodes.collect::<Vec<_>>(),
            "not_in_the_xml": self.notes.iter().map(|said| of(None, "", said)).collect::<Vec<_>>(),
            "refused": self.blocking(),
        })
    }
}

fn full_key(table: Table, key: &str) -> String {
    match table {
        Table::Guest => format!("guest.{key}"),
        Table::Disk(place) => format!("disk[{place}].{key}"),
        Table::Nic(place) => format!("nic[{}].{key}", place - 1),
    }
}

/// The path of an element as in [`Entry::path`].
fn path_of(element: Node<'_, '_>) -> String {
    let Some(parent) = element.parent_element() else {
        return String::new();
    };
    let name = name_of(element);
    let alike = parent.children().filter(|child| child.is_element());
    let alike: Vec<_> = alike.filter(|child| name_of(*child) == name).collect();
    let number = match alike.iter().position(|child| *child == element) {
        Some(at) if alike.len() > 1 => format!("[{}]", at + 1),
        _ => String::new(),
    };
    match path_of(parent) {
        above if above.is_empty() => format!("{name}{number}"),
        above => format!("{above}/{name}{number}"),
    }
}

/// An element's name, with the prefix of its namespace.
pub fn name_of(element: Node<'_, '_>) -> String {
    let name = element.tag_name();
    qualified(element, name.namespace(), name.name())
}

fn qualified(element: Node<'_, '_>, namespace: Option<&str>, name: &str) -> String {
    match namespace.and_then(|uri| element.lookup_prefix(uri)) {
        Some(prefix) => format!("{prefix}:{name}"),
        None => name.to_owned(),
    }
}

/// Where the third column begins.
const WHY_AT: usize = 56;

impl fmt::Display for Account<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.entries.as_slice();
        while let Some(first) = rest.first() {
            let count = rest.iter().skip(1);
            let count = 1 + count
                .take_while(|entry| entry.said.is_like(&first.said))
                .count();
            let (row, others) = rest.split_at(count);
            self.row(f, &label(row), &first.said)?;
            rest = others;
        }
        for note in &self.notes {
            self.row(f, "(not in the XML)", note)?;
        }
        let of = |verdict| self.all().filter(|said| said.verdict == verdict).count();
        write!(
            f,
            "\n{} kept, {} changed, ",
            of(Verdict::Kept),
            of(Verdict::Changed)
        )?;
        let (ignored, refused) = (of(Verdict::Ignored), of(Verdict::Refused));
        writeln!(f, "{ignored} ignored by the guest, {refused} refused")
    }
}

impl Account<'_> {
    fn row(&self, f: &mut fmt::Formatter<'_>, what: &str, said: &Said) -> fmt::Result {
        let line = format!("{:<8} {what}", said.verdict.name());
        let mut why = String::new();
        for (table, key, value) in &said.sets {
            why += &format!("{} = {value}; ", full_key(*table, key));
        }
        why += &said.why;
        if let Some((kind, missed)) = &said.refused {
            why += &match (missed, is_accepted(kind, self.without)) {
                (_, true) => format!(" [{kind}: accepted]"),
                (true, false) => format!(" [--without {kind}]"),
                (false, false) => " [not missed]".into(),
            };
        }
        let why = why.trim_end_matches("; ");
        if why.is_empty() {
            return writeln!(f, "{line}");
        }
        if line.chars().count() < WHY_AT {
            return writeln!(f, "{line:<WHY_AT$}{why}");
        }
        writeln!(f, "{line}\n{:WHY_AT$}{why}", "")
    }
}

/// The nodes of one row: the first by its whole path, the others shorter where they are inside of it.
fn label(row: &[Entry]) -> String {
    let mut label = String::new();
    let (mut top, mut last) = ("", "");
    for entry in row {
        let (element, attribute) = match entry.path.split_once('@') {
            Some((element, attribute)) => (element.trim_end_matches('/'), Some(attribute)),
            None => (entry.path.as_str(), None),
        };
        let is_first = label.is_empty();
        if !is_first {
            label.push(' ');
        }
        if is_first || element != last {
            let inside = element
                .strip_prefix(top)
                .and_then(|path| path.strip_prefix('/'));
            let shown = match (is_first || top.is_empty(), inside) {
                (false, Some(inside)) => inside,
                _ => element,
            };
            label += if element.is_empty() { "domain" } else { shown };
            if is_first {
                top = element;
            }
            last = element;
            if attribute.is_some() {
                label.push(' ');
            }
        }
        match attribute {
            Some(name) => label += &format!("{name}=\"{}\"", entry.value),
            None if entry.value.is_empty() => {}
            None => label += &format!(" \"{}\"", entry.value),
        }
    }
    label
}
