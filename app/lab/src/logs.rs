//! The daemons' logs, merged by time: of a lab's replicas from their files, of hosts in earnest from the replicas.

use crate::control::Control;
use crate::growing::Growing;
use crate::lab::Lab;
use anyhow::Result;
use serde_json::{Value, json};
use std::io::Write;
use std::time::Duration;

/// How often the loop looks for new lines.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// The log of one replica.
pub trait Source {
    /// The replica.
    fn id(&self) -> u8;

    /// The new whole lines; with `all` also a last line without its end.
    ///
    /// # Errors
    /// The log cannot be read now. The next call tries again.
    fn take(&mut self, all: bool) -> Result<Vec<String>>;
}

/// A daemon's log of a lab: a file, which is there also when the daemon is not.
#[derive(Debug)]
pub struct LogFile {
    id: u8,
    file: Growing,
}

impl LogFile {
    /// The log of this replica.
    pub fn of(lab: &Lab, id: u8) -> Self {
        let file = Growing::new(lab.files(id).log());
        Self { id, file }
    }
}

impl Source for LogFile {
    fn id(&self) -> u8 {
        self.id
    }

    fn take(&mut self, all: bool) -> Result<Vec<String>> {
        let bytes = self.file.take(all);
        let text = String::from_utf8_lossy(&bytes);
        Ok(text.lines().map(str::to_owned).collect())
    }
}

/// The log of a replica of a group, as it tells it through the replica behind `control`.
#[derive(Debug)]
pub struct ToldLog {
    control: Control,
    id: u8,
    /// The request for the next lines.
    next: Value,
}

impl ToldLog {
    /// The last `lines` lines of the replica with this id, and then those that follow.
    pub fn of(control: &Control, id: u8, lines: usize) -> Self {
        Self {
            control: control.clone(),
            id,
            next: json!({"op": "logs", "of": id, "last": lines}),
        }
    }

    /// Goes on where it is, through another replica.
    pub fn through(&mut self, control: &Control) {
        self.control = control.clone();
    }
}

impl Source for ToldLog {
    fn id(&self) -> u8 {
        self.id
    }

    fn take(&mut self, _all: bool) -> Result<Vec<String>> {
        let mut lines = Vec::new();
        loop {
            let answer = match self.control.request(&self.next) {
                // Those that it told before are told once, so they are not to be lost.
                Err(error) if !lines.is_empty() => {
                    lines.push(format!("[the rest of this log is missing: {error}]"));
                    return Ok(lines);
                }
                answer => answer?,
            };
            self.next = json!({
                "op": "logs",
                "of": self.id,
                "process": answer["process"],
                "after": answer["next"],
            });
            let told = answer["lines"].as_array().into_iter().flatten();
            lines.extend(told.filter_map(Value::as_str).map(str::to_owned));
            if answer["more"] != true {
                return Ok(lines);
            }
        }
    }
}

/// Prints the logs, merged by the time at the beginning of their lines: at first at most the last `lines` of all. If
/// there are several logs, each line starts with its replica. With `follow` this goes on for ever, also while a replica does
/// not answer.
///
/// # Errors
/// The only log cannot be read at first, or `output` cannot be written.
pub fn print<S: Source>(
    sources: &mut [S],
    follow: bool,
    lines: Option<usize>,
    output: &mut impl Write,
) -> Result<()> {
    let named = sources.len() > 1;
    let mut begun = false;
    let mut silent: Vec<Option<String>> = vec![None; sources.len()];
    let mut at_most = lines;
    loop {
        let mut taken = Vec::new();
        for (source, silent) in sources.iter_mut().zip(&mut silent) {
            match source.take(!follow) {
                Ok(lines) => {
                    *silent = None;
                    taken.push((source.id(), lines));
                }
                Err(error) if !named && !begun => return Err(error),
                Err(error) => {
                    let why = error.to_string();
                    if silent.as_ref() != Some(&why) {
                        writeln!(output, "r{} | [no log: {why}]", source.id())?;
                    }
                    *silent = Some(why);
                }
            }
        }
        let merged = merge(taken);
        let left_out = merged.len() - at_most.take().unwrap_or(merged.len()).min(merged.len());
        for (id, line) in merged.into_iter().skip(left_out) {
            if named {
                write!(output, "r{id} | ")?;
            }
            writeln!(output, "{line}")?;
        }
        output.flush()?;
        begun = true;
        if !follow {
            return Ok(());
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Merges logs by time. The lines of one log keep their order; one without a time belongs to the line before it.
pub fn merge(logs: Vec<(u8, Vec<String>)>) -> Vec<(u8, String)> {
    let mut timed = Vec::new();
    for (id, lines) in logs {
        let mut time = String::new();
        for line in lines {
            if let Some(later) = time_of(&line).filter(|at| *at > time.as_str()) {
                time = later.to_owned();
            }
            timed.push((time.clone(), id, line));
        }
    }
    timed.sort_by(|one, other| one.0.cmp(&other.0));
    timed.into_iter().map(|(_, id, line)| (id, line)).collect()
}

/// The time at the beginning of a line, such as `2026-01-31T12:00:00.123456Z`. As texts they have the order of the
/// times.
fn time_of(line: &str) -> Option<&str> {
    let word = line.split(' ').next()?;
    let is_time = word.ends_with('Z') && word.get(10..11) == Some("T") && word.len() >= 20;
    is_time.then_some(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixed(u8, Vec<Result<Vec<String>, &'static str>>);

    impl Source for Fixed {
        fn id(&self) -> u8 {
            self.0
        }

        fn take(&mut self, _all: bool) -> Result<Vec<String>> {
            self.1.remove(0).map_err(|why| anyhow::anyhow!(why))
        }
    }

    fn printed(sources: &mut [Fixed], lines: Option<usize>) -> Result<String> {
        let mut out = Vec::new();
        print(sources, false, lines, &mut out)?;
        Ok(String::from_utf8(out)?)
    }

    fn at(second: u8, text: &str) -> String {
        format!("2026-01-31T12:00:{second:02}.000001Z  INFO {text}")
    }

    #[test]
    fn lines_are_merged_by_time_and_keep_their_order() {
        let mut sources = [
            Fixed(
                0,
                vec![Ok(vec![at(1, "a"), "of a".into(), at(5, "c"), at(4, "d")])],
            ),
            Fixed(2, vec![Ok(vec![at(3, "b"), at(9, "e")])]),
        ];
        let text = printed(&mut sources, None).unwrap();
        let order: String = text
            .lines()
            .filter_map(|line| line.chars().last())
            .collect();
        assert_eq!(order, "aabcde");
        assert!(text.starts_with("r0 | 2026"), "{text}");
    }

    #[test]
    fn only_the_last_lines_of_all_are_printed() {
        let mut sources = [
            Fixed(0, vec![Ok(vec![at(1, "a"), at(5, "c")])]),
            Fixed(2, vec![Ok(vec![at(3, "b")])]),
        ];
        let text = printed(&mut sources, Some(2)).unwrap();
        assert_eq!(text.lines().count(), 2);
        assert!(text.ends_with("c\n") && text.contains("r2 | "), "{text}");
    }

    #[test]
    fn a_replica_that_does_not_answer_is_named() {
        let silent = || Fixed(1, vec![Err("it is down")]);
        let mut sources = [Fixed(0, vec![Ok(vec![at(1, "a")])]), silent()];
        let text = printed(&mut sources, None).unwrap();
        assert!(text.contains("r1 | [no log: it is down]"), "{text}");
        assert!(printed(&mut [silent()], None).is_err(), "there is no other");
    }

    #[test]
    fn one_that_is_followed_is_followed_over_its_silence() {
        /// Full once it has the words.
        struct Until(&'static str, Vec<u8>);
        impl Write for Until {
            fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                self.1.extend_from_slice(bytes);
                if String::from_utf8_lossy(&self.1).contains(self.0) {
                    return Err(std::io::ErrorKind::StorageFull.into());
                }
                Ok(bytes.len())
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let (before, after) = (vec![at(1, "before")], vec![at(9, "after")]);
        let mut source = [Fixed(1, vec![Ok(before), Err("it restarts"), Ok(after)])];
        let mut out = Until("after", Vec::new());
        print(&mut source, true, None, &mut out).unwrap_err();
        let text = String::from_utf8(out.1).unwrap();
        assert!(text.contains("r1 | [no log: it restarts]"), "{text}");
    }

    #[test]
    fn whole_lines_of_a_file_are_taken_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        std::fs::write(&path, "one\ntwo").unwrap();
        let file = Growing::new(path.clone());
        let mut log = LogFile { id: 1, file };
        assert_eq!(log.take(false).unwrap(), ["one"]);
        std::fs::write(&path, "one\ntwo\nthree").unwrap();
        assert_eq!(log.take(false).unwrap(), ["two"]);
        assert_eq!(log.take(true).unwrap(), ["three"]);
    }
}
