//! `plover status --all`: all guests that have a replica on this host, one a line.

use crate::at::{CONFIGURATIONS, all_in};
use crate::output::table;
use anyhow::{Result, ensure};
use plover_lab::control::{Control, ControlError};
use plover_lab::status::{GroupStatus, ReplicaStatus};
use serde_json::{Value, json};
use std::fmt;
use std::path::{Path, PathBuf};

/// The guests.
pub struct Overview(Vec<Guest>);

struct Guest {
    run_dir: PathBuf,
    /// Its group, and the id of the replica that runs here.
    told: Result<(GroupStatus, u8), ControlError>,
}

impl Overview {
    /// Asks all replicas below `root` at the same time, also those that are down.
    ///
    /// # Errors
    /// There is none.
    pub fn ask(root: &Path) -> Result<Self> {
        let found = all_in(root, Path::new(CONFIGURATIONS));
        ensure!(
            !found.is_empty(),
            "no replica has run on this host: no directory in {} has a control socket, or is named by a configuration; if \
             paths.run_dir is elsewhere, name its parent with --run-dir",
            root.display()
        );
        let ask = |run_dir: &Path| {
            let control = Control::in_run_dir(run_dir);
            Ok((GroupStatus::ask(&control)?, control.status()?.id))
        };
        Ok(Self(std::thread::scope(|scope| {
            let asked: Vec<_> = found
                .into_iter()
                .map(|run_dir| {
                    scope.spawn(move || Guest {
                        told: ask(&run_dir),
                        run_dir,
                    })
                })
                .collect();
            let answers = asked.into_iter().filter_map(|thread| thread.join().ok());
            answers.collect()
        })))
    }

    /// Whether every replica has answered.
    pub fn is_whole(&self) -> bool {
        self.0.iter().all(|guest| guest.told.is_ok())
    }

    /// The groups that have answered.
    pub fn into_answers(self) -> Vec<GroupStatus> {
        let told = self.0.into_iter().filter_map(|guest| guest.told.ok());
        told.map(|(status, _)| status).collect()
    }

    /// For programs: an array with what `plover status --json` prints of each guest.
    pub fn to_json(&self) -> serde_json::Result<String> {
        let guests: Result<Vec<Value>, _> = self.0.iter().map(Guest::to_json).collect();
        serde_json::to_string(&guests?)
    }
}

impl Guest {
    /// The name of its run directory, which is its group's by default.
    fn place(&self) -> String {
        let name = self.run_dir.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }

    fn to_json(&self) -> serde_json::Result<Value> {
        let run_dir = self.run_dir.to_string_lossy();
        Ok(match &self.told {
            Ok((status, here)) => {
                json!({"run_dir": run_dir, "here": here, "status": serde_json::to_value(status)?})
            }
            Err(error) => json!({"run_dir": run_dir, "error": error.to_string()}),
        })
    }

    /// Its line: name, state, leader, in-sync set, role here, what to know.
    fn cells(&self) -> [String; 6] {
        let dash = || "-".to_string();
        let (status, here) = match &self.told {
            Ok(told) => told,
            Err(error) => {
                return [
                    self.place(),
                    "SILENT".into(),
                    dash(),
                    dash(),
                    dash(),
                    error.to_string(),
                ];
            }
        };
        let leader = status.leader();
        let isr = leader.map(|leader| leader.isr.iter().map(ToString::to_string).collect());
        let isr: Vec<String> = isr.unwrap_or_default();
        let own = status.replicas.iter().find(|replica| replica.id == *here);
        let or_dash =
            |text: Option<String>| text.filter(|text| !text.is_empty()).unwrap_or_else(dash);
        [
            status.name.clone(),
            status.protection().into(),
            or_dash(leader.map(|leader| leader.id.to_string())),
            or_dash(Some(isr.join(","))),
            or_dash(own.map(|own: &ReplicaStatus| format!("{}, {}", own.id, own.role))),
            status.troubles().join(" "),
        ]
    }
}

impl fmt::Display for Overview {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = ["guest", "state", "leader", "in sync", "here", ""].map(String::from);
        let rows = std::iter::once(head).chain(self.0.iter().map(Guest::cells));
        f.write_str(&table(&rows.map(Vec::from).collect::<Vec<_>>()))
    }
}
