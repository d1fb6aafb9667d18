//! The processors that this host's QEMU can give a guest, by its models.
//!
//! Hosts of different processors give their guest a model that all of them can run: [`Processors::common`].

use crate::qemu::process::{Process, binary, files};
use crate::qemu::words::{host_processor, version};
use crate::qmp::{Incoming, Qmp};
use crate::{Accel, QemuConfig, VmError, choose_accel};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::time::Timespec;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

/// A QEMU that has not answered by then never will. It looks at all models in a tenth of a second.
const WITHIN: Duration = Duration::from_secs(20);

/// A host's processor, and the models of processors that its guests can have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Processors {
    /// The name of the host's own.
    pub host: String,
    /// QEMU's release: `7.2`.
    pub qemu: String,
    /// The accelerator that the models are for.
    pub accel: Accel,
    /// By QEMU's names. Without those that differ from host to host, or that QEMU is about to drop.
    pub models: BTreeMap<String, Model>,
}

/// A model of a processor, on one host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Model {
    /// How many features the model has.
    pub features: usize,
    /// QEMU's names of those that the host cannot give it. A guest gets the model only if there are none.
    pub lacks: Vec<String>,
}

impl Processors {
    /// Asks the QEMU of a configuration.
    ///
    /// # Errors
    /// QEMU does not start, or does not answer as it should.
    pub fn of_host(config: &QemuConfig) -> Result<Self, VmError> {
        let accel = choose_accel(config).accel;
        let mut qemu = Asked::start(config, accel)?;
        let about = qemu.ask("query-version", Value::Null)?;
        let mut models = BTreeMap::new();
        for model in list(&qemu.ask("query-cpu-definitions", Value::Null)?) {
            let (Some(name), Some(lacks)) =
                (model["name"].as_str(), model.get("unavailable-features"))
            else {
                continue;
            };
            // The others are `host` and its like, which are different processors on different hosts.
            if model["migration-safe"] != true || model["deprecated"] == true {
                continue;
            }
            let question = json!({"type": "full", "model": {"name": name}});
            let whole = qemu.ask("query-cpu-model-expansion", question)?;
            let features = whole["model"]["props"].as_object();
            let features = features.map_or(0, |all| all.values().filter(|it| **it == true).count());
            let lacks = list(lacks).iter().filter_map(Value::as_str);
            let model = Model {
                features,
                lacks: lacks.map(str::to_owned).collect(),
            };
            models.insert(name.to_owned(), model);
        }
        Ok(Self {
            host: host_processor(),
            qemu: version(&json!({"version": about})),
            accel,
            models,
        })
    }

    /// The models that all hosts can run, those with the most features first; of equal ones the shortest name, which is
    /// the one without a version.
    pub fn common(hosts: &[Self]) -> Vec<&str> {
        let runs = |host: &Self, name: &str| {
            let model = host.models.get(name);
            model.is_some_and(|model| model.lacks.is_empty())
        };
        let Some(first) = hosts.first() else {
            return Vec::new();
        };
        let mut common: Vec<_> = first
            .models
            .iter()
            .filter(|(name, _)| hosts.iter().all(|host| runs(host, name)))
            .collect();
        common.sort_by_key(|(name, model)| (usize::MAX - model.features, name.len(), *name));
        common.into_iter().map(|(name, _)| name.as_str()).collect()
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// A QEMU without a guest, which answers questions about itself.
struct Asked {
    process: Process,
    qmp: Qmp<()>,
    until: Instant,
}

impl Asked {
    fn start(config: &QemuConfig, accel: Accel) -> Result<Self, VmError> {
        let (ours, theirs) = socketpair(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )
        .map_err(VmError::io("making a connection to QEMU (a socket pair)"))?;
        // KVM looks at its processor when a machine is made, and the models of a machine's type are its own.
        let machine = config.identity.machine_type.as_deref();
        let socket = format!("socket,id=qmp,fd={}", theirs.as_raw_fd());
        let arguments = [
            "-nodefaults",
            "-no-user-config",
            "-display",
            "none",
            "-S",
            "-m",
            "16",
            "-M",
            machine.unwrap_or(config.machine.name()),
            "-accel",
            &accel.to_string(),
            "-chardev",
            &socket,
            "-mon",
            "chardev=qmp,mode=control",
        ];
        let process = Process::start(
            &binary(config),
            arguments.map(OsString::from).to_vec(),
            &[theirs.as_fd()],
            None,
            &files(config),
        )?;
        // A QEMU that ends closes the connection.
        drop(theirs);
        let mut asked = Self {
            process,
            qmp: Qmp::new(ours),
            until: Instant::now() + WITHIN,
        };
        asked.ask("qmp_capabilities", Value::Null)?;
        Ok(asked)
    }

    /// The answer to one question.
    fn ask(&mut self, execute: &str, arguments: Value) -> Result<Value, VmError> {
        let failed = |why: String| {
            VmError::Unsupported(format!(
                "QEMU does not tell which processors it has ({execute}): {why}"
            ))
        };
        let sent = self.qmp.send((), execute, arguments);
        sent.map_err(|error| failed(error.to_string()))?;
        loop {
            self.qmp.begin_turn();
            match self.qmp.receive() {
                Ok(Some(Incoming::Answer { result, .. })) => return result.map_err(failed),
                Ok(Some(_)) => continue,
                Ok(None) => {}
                Err(error) => {
                    let how = self.process.ended().unwrap_or_else(|| error.to_string());
                    return Err(failed(how));
                }
            }
            let left = self.until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(failed(format!("no answer within {WITHIN:?}")));
            }
            let mut fds = [
                PollFd::from_borrowed_fd(self.qmp.fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(self.process.pidfd(), PollFlags::IN),
            ];
            // If the wait fails, the next round looks again.
            let _ = poll(&mut fds, Timespec::try_from(left).ok().as_ref());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(models: &[(&str, usize, &[&str])]) -> Processors {
        let models = models.iter().map(|(name, features, lacks)| {
            let lacks = lacks.iter().map(ToString::to_string).collect();
            let features = *features;
            ((*name).to_owned(), Model { features, lacks })
        });
        Processors {
            host: "a processor".into(),
            qemu: "7.2".into(),
            accel: Accel::Kvm,
            models: models.collect(),
        }
    }

    #[test]
    fn the_common_models_are_those_that_no_host_lacks_anything_for() {
        let older = host(&[
            ("EPYC", 100, &[]),
            ("EPYC-v1", 100, &[]),
            ("EPYC-Rome", 120, &["umip"]),
            ("Nehalem", 60, &[]),
        ]);
        let newer = host(&[
            ("EPYC", 100, &[]),
            ("EPYC-v1", 100, &[]),
            ("EPYC-Rome", 120, &[]),
            ("EPYC-Milan", 140, &[]),
            ("Nehalem", 60, &[]),
        ]);
        assert_eq!(
            Processors::common(std::slice::from_ref(&newer))[0],
            "EPYC-Milan"
        );
        for hosts in [[older.clone(), newer.clone()], [newer, older]] {
            assert_eq!(Processors::common(&hosts), ["EPYC", "EPYC-v1", "Nehalem"]);
        }
    }
}
