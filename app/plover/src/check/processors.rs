//! The processors that hosts can give a guest.

use super::{Report, Verdict};
use crate::output::{line, print, table};
use anyhow::{Context, Result, ensure};
use plover_node::ReplicaConfig;
use plover_types::Mac;
use plover_vm::{Accel, Boot, Machine, Processors, QemuConfig, choose_accel};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Models that are better than the best common one, of which the lacking features are shown.
const BETTER_MAX: usize = 5;

/// Whether this host can give the guest the processor that its configuration names.
pub(super) fn model(report: &mut Report, qemu: &QemuConfig) {
    let Some(name) = &qemu.identity.cpu else {
        return;
    };
    // The translator gives any model, without what it lacks.
    if choose_accel(qemu).accel != Accel::Kvm {
        return;
    }
    let processors = match Processors::of_host(qemu) {
        Ok(processors) => processors,
        Err(error) => return report.add("guest.cpu", Verdict::Weak, error.to_string()),
    };
    let away = |feature: &str| qemu.identity.cpu_features.contains(&format!("-{feature}"));
    let (verdict, found) = match processors.models.get(name) {
        None => (
            Verdict::Weak,
            format!("QEMU lists no model {name} for all hosts"),
        ),
        Some(model) => {
            let lacks = model.lacks.iter().filter(|feature| !away(feature));
            let lacks: Vec<&str> = lacks.map(String::as_str).collect();
            match lacks.is_empty() {
                true => (Verdict::Good, format!("this host can be a {name}")),
                false => (
                    Verdict::Missing,
                    format!(
                        "for a {name} this host lacks {}: name another one (plover check --processors), or take these \
                         away with guest.cpu_features",
                        lacks.join(", ")
                    ),
                ),
            }
        }
    };
    report.add("guest.cpu", verdict, found);
}

/// Prints the processors of this host, or of those in `files` the best one that all have.
///
/// # Errors
/// QEMU does not answer, or a file is not an answer of this command.
pub fn processors(config: Option<&Path>, files: &[PathBuf]) -> Result<ExitCode> {
    if files.is_empty() {
        let qemu = match config {
            Some(file) => ReplicaConfig::load(file)?.qemu(),
            None => {
                let mut any = QemuConfig::new(Boot::Firmware, Mac([0x52, 0x54, 0, 0, 0, 1]));
                any.machine = Machine::Q35;
                any
            }
        };
        line(serde_json::to_string(&Processors::of_host(&qemu)?)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let hosts: Result<Vec<_>> = files.iter().map(|file| read(file)).collect();
    let hosts = hosts?;
    for (file, host) in files.iter().zip(&hosts) {
        ensure!(
            host.accel == hosts[0].accel,
            "{} and {} do not run guests in the same way ({} and {}): load KVM on both, or set guest.accel on all hosts and \
             ask again with --config",
            files[0].display(),
            file.display(),
            hosts[0].accel,
            host.accel
        );
    }
    print(told(files, &hosts))?;
    let found = !Processors::common(&hosts).is_empty();
    Ok(ExitCode::from(if found { 0 } else { 2 }))
}

fn read(file: &Path) -> Result<Processors> {
    let text = std::fs::read_to_string(file);
    let text = text.with_context(|| format!("cannot read {}", file.display()))?;
    serde_json::from_str(&text).with_context(|| {
        format!(
            "{} is no output of `plover check --processors`",
            file.display()
        )
    })
}

/// The hosts, the best model that all can run, and which host keeps them from better ones.
fn told(files: &[PathBuf], hosts: &[Processors]) -> String {
    let names: Vec<_> = files
        .iter()
        .map(|file| file.display().to_string())
        .collect();
    let mut rows = vec![
        ["host", "processor", "QEMU", "accelerator"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for (name, host) in names.iter().zip(hosts) {
        let accel = host.accel.to_string();
        rows.push(vec![
            name.clone(),
            host.host.clone(),
            host.qemu.clone(),
            accel,
        ]);
    }
    let mut text = table(&rows);
    let common = Processors::common(hosts);
    let features = |name: &str| {
        hosts
            .iter()
            .find_map(|host| Some(host.models.get(name)?.features))
    };
    let best = common.first().copied();
    let _ = match best {
        Some(best) => write!(
            text,
            "\nall of them can give a guest this processor, on all hosts:\n\n  [guest]\n  cpu = \"{best}\"\n"
        ),
        None => write!(
            text,
            "\nthere is no model that all of them can give a guest\n"
        ),
    };
    let least = best.and_then(features).unwrap_or(0);
    let mut better: Vec<_> = hosts
        .iter()
        .flat_map(|host| &host.models)
        .filter(|(name, model)| {
            let runs = model.lacks.is_empty() && !common.contains(&name.as_str());
            runs && model.features > least
        })
        .map(|(name, model)| (model.features, name.as_str()))
        .collect();
    better.sort_unstable();
    better.dedup();
    if !better.is_empty() {
        text.push_str("\nbetter ones, and what keeps which host from them:\n\n");
    }
    let mut rows = Vec::new();
    for (_, better) in better.iter().take(BETTER_MAX) {
        for (name, host) in names.iter().zip(hosts) {
            let why = match host.models.get(*better) {
                None => format!("QEMU {} does not know it", host.qemu),
                Some(model) if model.lacks.is_empty() => continue,
                Some(model) => format!("lacks {}", model.lacks.join(", ")),
            };
            rows.push(vec![format!("  {better}"), name.clone(), why]);
        }
    }
    text + &table(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Map, json};

    fn host(processor: &str, models: &[(&str, usize, &[&str])]) -> Processors {
        let models = models.iter().map(|(name, features, lacks)| {
            let model = json!({"features": features, "lacks": lacks});
            ((*name).to_owned(), model)
        });
        let models: Map<_, _> = models.collect();
        let told = json!({"host": processor, "qemu": "7.2", "accel": "kvm", "models": models});
        serde_json::from_value(told).unwrap()
    }

    #[test]
    fn hosts_are_told_what_all_can_run_and_what_keeps_them_from_more() {
        let older = host(
            "Xeon E5-2680 v3",
            &[
                ("Haswell", 90, &["hle", "rtm"]),
                ("Haswell-noTSX", 88, &[]),
                (
                    "Skylake-Server",
                    110,
                    &["avx512f", "avx512dq", "clflushopt"],
                ),
            ],
        );
        let newer = host(
            "Xeon Gold 6130",
            &[
                ("Haswell", 90, &[]),
                ("Haswell-noTSX", 88, &[]),
                ("Skylake-Server", 110, &[]),
            ],
        );
        let files = ["a.json".into(), "b.json".into()];
        insta::assert_snapshot!(told(&files, &[older.clone(), newer]));
        let amd = host("EPYC 7401", &[("EPYC", 100, &[])]);
        let none = told(&files, &[older, amd]);
        assert!(none.contains("no model that all of them can"), "{none}");
    }

    #[test]
    fn an_answer_of_this_host_can_be_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.json");
        std::fs::write(&file, "{}").unwrap();
        let error = processors(None, std::slice::from_ref(&file))
            .unwrap_err()
            .to_string();
        assert!(error.contains("a.json is no output of"), "{error}");
        let host = host("a processor", &[("EPYC", 100, &[])]);
        std::fs::write(&file, serde_json::to_string(&host).unwrap()).unwrap();
        assert_eq!(read(&file).unwrap(), host);
    }
}
