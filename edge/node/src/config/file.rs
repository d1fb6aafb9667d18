//! A configuration file that was read, as keys and as what they mean.

use super::{ConfigError, ReplicaConfig};
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// A configuration and the keys that it was read from.
#[derive(Clone, Debug)]
pub struct ConfigFile {
    /// The file, as an absolute path.
    pub path: PathBuf,
    /// What it says.
    pub config: ReplicaConfig,
    pub(super) table: Table,
}

impl ConfigFile {
    /// Reads a file and checks it whole.
    ///
    /// # Errors
    /// It cannot be read, is not valid, or its keys do not fit together; the text has the line or the keys.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let path = &std::path::absolute(path).unwrap_or_else(|_| path.into());
        let text = super::text(path)?;
        let mut config: ReplicaConfig = super::parse(path, &text)?;
        config.group.seat();
        config.check().map_err(|why| ConfigError::Mismatch {
            path: path.clone(),
            why,
        })?;
        Ok(Self {
            path: path.clone(),
            config,
            table: super::parse(path, &text)?,
        })
    }

    /// The keys of the file with their values, in their order. An array of tables is one key for their number
    /// (`disk`), and the keys of each table (`disk[0].path`).
    pub(super) fn keys(&self) -> Vec<(String, Value)> {
        let mut keys = Vec::new();
        flatten("", &self.table, &mut keys);
        keys
    }

    /// The same file with `key` as `from` has it.
    pub(super) fn with(&self, key: &str, from: &Self) -> Result<Self, String> {
        let mut table = self.table.clone();
        let path: Vec<&str> = key.split('.').collect();
        set(&mut table, &path, &from.table);
        let config = table.clone().try_into::<ReplicaConfig>();
        let mut config = config.map_err(|error| error.to_string())?;
        config.group.seat();
        Ok(Self {
            path: self.path.clone(),
            config,
            table,
        })
    }
}

/// The name of a key without the numbers of tables, as [`super::KEYS`] has it.
pub(super) fn plain(key: &str) -> String {
    let mut plain = key.to_owned();
    while let (Some(from), Some(to)) = (plain.find('['), plain.find(']')) {
        plain.replace_range(from..=to, "");
    }
    plain
}

fn flatten(path: &str, table: &Table, keys: &mut Vec<(String, Value)>) {
    for (name, value) in table {
        let key = match path {
            "" => name.clone(),
            path => format!("{path}.{name}"),
        };
        match value {
            Value::Table(table) => flatten(&key, table, keys),
            Value::Array(parts) if parts.iter().any(Value::is_table) => {
                keys.push((key.clone(), Value::Integer(parts.len() as i64)));
                for (i, part) in parts.iter().enumerate() {
                    if let Value::Table(table) = part {
                        flatten(&format!("{key}[{i}]"), table, keys);
                    }
                }
            }
            value => keys.push((key, value.clone())),
        }
    }
}

/// Gives the key at `path`, which is in no array, the value that `from` has there, or none.
fn set(table: &mut Table, path: &[&str], from: &Table) {
    match path {
        [] => {}
        [name] => {
            match from.get(*name) {
                Some(value) => table.insert((*name).into(), value.clone()),
                None => table.remove(*name),
            };
        }
        [name, rest @ ..] => {
            let none = Table::new();
            let from = from.get(*name).and_then(Value::as_table).unwrap_or(&none);
            let part = table.entry(*name).or_insert_with(|| Table::new().into());
            if let Some(part) = part.as_table_mut() {
                set(part, rest, from);
            }
        }
    }
}
