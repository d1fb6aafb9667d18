//! The holders of trusted keys.

use plover_types::ReplicaId;
use std::fmt;
use std::str::FromStr;

/// The holder of a key: the first word of a line in a trust file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// A replica of the group, by its id.
    Replica(ReplicaId),
    /// A client of a log: it may append and read.
    Client,
    /// A client of a log that may change the members and begin a new log as well.
    Admin,
}

impl From<ReplicaId> for Holder {
    fn from(id: ReplicaId) -> Self {
        Self::Replica(id)
    }
}

impl FromStr for Holder {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "client" => Ok(Self::Client),
            "admin" => Ok(Self::Admin),
            _ => match text.parse() {
                Ok(id) => Ok(Self::Replica(ReplicaId(id))),
                Err(_) => Err(format!(
                    "'{text}' is no replica's id, and neither `client` nor `admin`"
                )),
            },
        }
    }
}

/// As a trust file has it.
impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Replica(id) => write!(f, "{}", id.0),
            Self::Client => f.write_str("client"),
            Self::Admin => f.write_str("admin"),
        }
    }
}
