//! What becomes of a configuration file that has changed while its replica runs.
//!
//! ```text
//!   the file that is in force ─┐
//!                              ├─ keys that differ ─ by effect ─┬─ now:      the file in force with these keys
//!   the file as it is now ─────┘                                ├─ restart, group: told, and left for later
//!                                                               └─ never:    the whole file is refused
//! ```
//!
//! Only what takes effect at once is put into force. So the file in force may be one that nobody has written: it is
//! checked like one that somebody has.

use super::file::plain;
use super::{ConfigError, ConfigFile, Effect};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use toml::Value;

/// A key whose value differs from the one in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The key, such as `policy.slot_max_ms` or `disk[0].path`.
    pub key: String,
    /// The value in force, as TOML; `None` for the default.
    pub from: Option<String>,
    /// The value in the file.
    pub to: Option<String>,
    /// When it takes effect.
    pub effect: Effect,
}

/// A changed file that can be taken.
#[derive(Clone, Debug)]
pub struct Reload {
    /// The keys that differ, in the order of their effects.
    pub changes: Vec<Change>,
    /// The file that is in force once it is taken.
    pub next: ConfigFile,
}

impl Reload {
    /// Compares the file `now` with the one `in_force`.
    ///
    /// # Errors
    /// A key has changed that never can, or the keys that take effect at once do not fit to those that wait.
    pub fn plan(in_force: &ConfigFile, now: &ConfigFile) -> Result<Self, ConfigError> {
        let refused = |why: String| ConfigError::NotTaken {
            path: now.path.clone(),
            why,
        };
        let mut changes = changes(in_force, now);
        if let Some(change) = changes.iter().find(|it| it.effect == Effect::Never) {
            return Err(refused(format!(
                "{} cannot change from {} to {}, because paths.state_dir belongs to it: write the old value, or make a \
                 new group",
                change.key,
                in_words(change.from.as_deref()),
                in_words(change.to.as_deref()),
            )));
        }
        changes.sort_by_key(|change| change.effect);
        let mut next = in_force.clone();
        for change in changes.iter().filter(|it| it.effect == Effect::Now) {
            next = next.with(&change.key, now).map_err(refused)?;
        }
        next.config.check().map_err(|error| {
            refused(format!(
                "{error}. The keys that take effect at once do not fit to those that wait for a restart: change those first"
            ))
        })?;
        Ok(Self { changes, next })
    }

    /// The keys that wait for a restart.
    pub fn waiting(&self) -> Vec<String> {
        let later = self.changes.iter().filter(|it| it.effect != Effect::Now);
        later.map(|change| change.key.clone()).collect()
    }
}

fn in_words(value: Option<&str>) -> &str {
    value.unwrap_or("the default")
}

/// The keys that mean something else in `now` than in `before`.
fn changes(before: &ConfigFile, now: &ConfigFile) -> Vec<Change> {
    let old: BTreeMap<String, Value> = before.keys().into_iter().collect();
    let new: BTreeMap<String, Value> = now.keys().into_iter().collect();
    let mut all: Vec<&String> = old.keys().chain(new.keys()).collect();
    all.sort();
    all.dedup();
    let differ = all.into_iter().filter(|key| old.get(*key) != new.get(*key));
    differ
        // A default that is written down says nothing new.
        .filter(|key| !means_the_same(before, now, key))
        .map(|key| Change {
            key: key.clone(),
            from: old.get(key).map(Value::to_string),
            to: new.get(key).map(Value::to_string),
            effect: Effect::of(&plain(key)),
        })
        .collect()
}

fn means_the_same(before: &ConfigFile, now: &ConfigFile, key: &str) -> bool {
    if key.contains('[') {
        return false;
    }
    let with = before.with(key, now);
    with.is_ok_and(|with| format!("{:?}", with.config) == format!("{:?}", before.config))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const FILE: &str = r#"
        [group]
        name = "lab"
        me = 1
        plaintext = true
        replica = [
            { id = 0, address = "10.77.1.10:7700" },
            { id = 1, address = "10.77.1.11:7700" },
            { id = 2, address = "10.77.1.12:7700" },
        ]
        [guest]
        kernel = "/k"
        mac = "52:54:00:77:00:01"
        [[disk]]
        path = "/d"
        [net]
        tap = "guest0"
        [policy]
        slot_max_ms = 60
        [paths]
        state_dir = "/s"
        run_dir = "/r"
    "#;

    fn file(text: &str) -> ConfigFile {
        let table: toml::Table = text.parse().unwrap();
        let config: crate::ReplicaConfig = table.clone().try_into().unwrap();
        config.check().unwrap();
        ConfigFile {
            path: Path::new("/etc/plover/lab.toml").into(),
            config,
            table,
        }
    }

    fn told(changes: &[Change]) -> Vec<(&str, Effect)> {
        let told = changes.iter().map(|it| (it.key.as_str(), it.effect));
        told.collect()
    }

    #[test]
    fn a_change_is_told_with_its_effect() {
        use Effect::{Group, Now, Restart};
        let before = file(FILE);
        for (from, to, wanted) in [
            ("= 60", "= 40", vec![("policy.slot_max_ms", Now)]),
            ("slot_max_ms = 60", "", vec![("policy.slot_max_ms", Now)]),
            ("me = 1", "me = 1\nheartbeat_ms = 25", vec![]),
            (
                "me = 1",
                "me = 1\ntimeout_ms = 400",
                vec![("group.timeout_ms", Restart)],
            ),
            (
                "me = 1",
                "me = 1\nspare = [{ id = 3, address = \"10.77.1.13:7700\" }]",
                vec![
                    ("group.spare", Restart),
                    ("group.spare[0].address", Restart),
                    ("group.spare[0].id", Restart),
                ],
            ),
            ("\"/d\"", "\"/e\"", vec![("disk[0].path", Restart)]),
            (
                "\"/d\"",
                "\"/d\"\nserial = \"x\"",
                vec![("disk[0].serial", Group)],
            ),
            (
                "[net]",
                "[[disk]]\npath = \"/e\"\n[net]",
                vec![("disk[1].path", Restart), ("disk", Group)],
            ),
            ("1.12:", "1.13:", vec![("group.replica[2].address", Group)]),
            (
                "[paths]",
                "quiet_max_ms = 300\nname = \"vsmr\"\n[debug]\ndisk_delay_us = 1\n[paths]",
                vec![
                    ("policy.quiet_max_ms", Now),
                    ("debug.disk_delay_us", Restart),
                    ("policy.name", Group),
                ],
            ),
        ] {
            let reload = Reload::plan(&before, &file(&FILE.replace(from, to))).unwrap();
            let mut found = told(&reload.changes);
            found.sort_by_key(|(key, effect)| (*effect, *key));
            assert_eq!(found, wanted, "{from} {to}");
        }
    }

    #[test]
    fn only_what_takes_effect_at_once_is_in_force() {
        let before = file(FILE);
        let text = FILE.replace("= 60", "= 40\nname = \"vsmr\"");
        let now = file(&text.replace("kernel", "mem_mib = 512\nkernel"));
        let reload = Reload::plan(&before, &now).unwrap();
        assert_eq!(reload.next.config.policy.slot_max_ms, Some(40));
        assert_eq!(reload.next.config.policy.name, before.config.policy.name);
        assert_eq!(reload.next.config.guest.mem_mib, 256);
        assert_eq!(reload.waiting(), ["guest.mem_mib", "policy.name"]);
        // Once more: what is in force is told no more, what waits is.
        let again = Reload::plan(&reload.next, &now).unwrap();
        assert_eq!(
            told(&again.changes),
            [
                ("guest.mem_mib", Effect::Group),
                ("policy.name", Effect::Group)
            ]
        );
    }

    #[test]
    fn a_file_of_another_replica_is_refused_whole() {
        let other = FILE.replace("me = 1", "me = 2").replace("= 60", "= 40");
        let error = Reload::plan(&file(FILE), &file(&other)).unwrap_err();
        let said = error.to_string();
        for part in [
            "/etc/plover/lab.toml",
            "group.me",
            "from 1 to 2",
            "nothing has changed",
        ] {
            assert!(said.contains(part), "{said}");
        }
    }

    #[test]
    fn a_file_on_disk_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lab.toml");
        std::fs::write(&path, FILE).unwrap();
        let before = ConfigFile::load(&path).unwrap();
        std::fs::write(
            &path,
            FILE.replace("slot_max_ms = 60", "slot_max_ms = \"long\""),
        )
        .unwrap();
        let error = ConfigFile::load(&path).unwrap_err().to_string();
        let line = 1 + FILE
            .lines()
            .position(|line| line.contains("slot_max"))
            .unwrap();
        for part in [&format!("line {line},"), "lab.toml", "slot_max_ms"] {
            assert!(error.contains(part), "{error}");
        }
        std::fs::write(&path, FILE).unwrap();
        let same = ConfigFile::load(&path).unwrap();
        assert!(Reload::plan(&before, &same).unwrap().changes.is_empty());
    }
}
