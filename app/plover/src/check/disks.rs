//! The guest's images: whether the replica could use them, and whether their sizes are those of the other hosts.

use super::{ANSWER_WITHIN, Report, Verdict};
use plover_disk::import::Format;
use plover_disk::{DiskError, DiskSpec, Disks, Found};
use plover_lab::control::Control;
use plover_lab::status::GroupStatus;
use plover_node::ReplicaConfig;
use std::fs::File;

/// Looks at each disk.
pub fn disks(report: &mut Report, config: &ReplicaConfig) {
    let is_first = config.group.me == config.group.first_leader();
    let journal = config.disk_journal();
    let mut all: Vec<(DiskSpec, Found)> = Vec::new();
    for (disk, raw) in config.disk.iter().zip(config.raw_disks()) {
        let what = format!("disk {}", disk.path.display());
        let is_imported = Format::of_name(&disk.path).is_some();
        if is_imported && !raw.exists() && disk.path.exists() {
            let found = match File::open(&disk.path) {
                Ok(_) => (
                    Verdict::Good,
                    "it is there, and will be imported".to_string(),
                ),
                Err(error) => (Verdict::Missing, error.to_string()),
            };
            report.add(what, found.0, found.1);
            continue;
        }
        let mut spec = disk.spec();
        if is_imported {
            spec.path = raw;
        }
        let found = Disks::look(&spec, &journal);
        let (verdict, words) = in_words(&found, is_first);
        report.add(what, verdict, words);
        all.extend(found.ok().map(|found| (spec, found)));
    }
    // Without all of them the sum is unknown.
    if all.len() == config.disk.len() && !all.is_empty() {
        compare_with_journal(report, &all, config);
    }
    if !all.is_empty() {
        compare_with_others(report, config);
    }
}

fn in_words(found: &Result<Found, DiskError>, is_first: bool) -> (Verdict, String) {
    match found {
        Ok(Found::Bytes(bytes)) => (Verdict::Good, format!("it is there, with {}", size(*bytes))),
        Ok(Found::ToBeMade(_)) if is_first => (
            Verdict::Weak,
            "it is not there: this replica boots the guest, from an empty disk".into(),
        ),
        Ok(Found::ToBeMade(bytes)) => (
            Verdict::Good,
            format!(
                "it will be made, with {}, and filled by the leader",
                size(*bytes)
            ),
        ),
        Err(error) => (Verdict::Missing, error.to_string()),
    }
}

fn size(bytes: u64) -> String {
    match bytes % (1 << 20) {
        0 => format!("{} MiB", bytes >> 20),
        _ => format!("{bytes} bytes"),
    }
}

fn compare_with_journal(report: &mut Report, all: &[(DiskSpec, Found)], config: &ReplicaConfig) {
    let journal = config.disk_journal();
    match Disks::look_at_journal(all, &journal) {
        Ok(()) => {}
        // Right after all hosts were stopped and their disks were given another size.
        Err(error @ DiskError::Resized { .. }) => {
            let found = format!(
                "{error}; if those of the other hosts were not changed, too, bring the old size back"
            );
            report.add("size of the disks", Verdict::Weak, found);
        }
        Err(error) => report.add("journal of the disks", Verdict::Missing, error.to_string()),
    }
}

/// Asks the other hosts through the replica of this one, if that runs.
fn compare_with_others(report: &mut Report, config: &ReplicaConfig) {
    let control = Control::in_run_dir(&config.paths.run_dir).within(ANSWER_WITHIN);
    let Ok(group) = GroupStatus::ask(&control) else {
        return;
    };
    for (what, found) in differences(config, &group) {
        report.add(what, Verdict::Missing, found);
    }
}

fn differences(config: &ReplicaConfig, group: &GroupStatus) -> Vec<(String, String)> {
    let me = config.group.me;
    let mut told = Vec::new();
    // Those that may grow differ for a moment.
    let fixed = config.disk.iter().enumerate();
    for (i, disk) in fixed.filter(|(_, disk)| disk.max_size_mib.is_none()) {
        let of = |id| group.replica(id).and_then(|it| it.disk_bytes(i));
        let Some(own) = of(me) else { continue };
        let others = group.replicas.iter().map(|it| it.id).filter(|id| *id != me);
        for (id, theirs) in others.filter_map(|id| Some((id, of(id)?))) {
            if theirs != own {
                told.push((
                    format!("disk {}", disk.path.display()),
                    format!(
                        "it has {} here and {} on the host of replica {id}: all replicas need a disk of the same size",
                        size(own),
                        size(theirs)
                    ),
                ));
            }
        }
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::path::{Path, PathBuf};

    fn config(folder: &Path, size_mib: &str) -> ReplicaConfig {
        let file: PathBuf = folder.join("shop.toml");
        let folder = folder.display();
        let text = format!(
            "[group]\nname = \"shop\"\nme = 1\nplaintext = true\nreplica = [\n\
             {{ id = 0, address = \"192.0.2.10:7700\" }},\n\
             {{ id = 1, address = \"192.0.2.11:7700\" }},\n\
             {{ id = 2, address = \"192.0.2.12:7700\" }},\n]\n\
             [guest]\nmachine = \"q35\"\nmac = \"52:54:00:00:00:01\"\n\
             [[disk]]\npath = \"{folder}/d.raw\"\n{size_mib}\n\
             [net]\ntap = \"guest0\"\n\
             [paths]\nstate_dir = \"{folder}\"\nrun_dir = \"{folder}\"\n"
        );
        std::fs::write(&file, text).unwrap();
        ReplicaConfig::load(&file).unwrap()
    }

    fn told(config: &ReplicaConfig) -> String {
        let mut report = Report::default();
        disks(&mut report, config);
        report.to_string()
    }

    #[test]
    fn an_image_of_another_size_is_not_ok() {
        let dir = tempfile::tempdir().unwrap();
        let sized = config(dir.path(), "size_mib = 2");
        assert!(told(&sized).contains("ok       it will be made, with 2 MiB"));
        let image = File::create(dir.path().join("d.raw")).unwrap();
        image.set_len(1 << 20).unwrap();
        let found = told(&sized);
        assert!(
            found.contains("MISSING") && found.contains("has 1048576 bytes, not 2097152"),
            "{found}"
        );
        let free = config(dir.path(), "");
        assert!(told(&free).contains("ok       it is there, with 1 MiB"));
        let spec = free.disk[0].spec();
        drop(Disks::open(&[spec], &free.disk_journal()).unwrap());
        assert!(!told(&free).contains("weak"));
        image.set_len(2 << 20).unwrap();
        let found = told(&free);
        assert!(
            found.contains("weak     the disks have 512 blocks (4 KiB) now and had 256"),
            "{found}"
        );
    }

    #[test]
    fn sizes_are_compared_between_hosts() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path(), "");
        let said = |id: u8, bytes: u64| json!({"id": id, "disks": {"list": [{"bytes": bytes}]}});
        let group = |theirs| {
            let silent = json!({"id": 2, "silent": "it is away"});
            GroupStatus::of_answers(1, &[said(0, theirs), said(1, 1 << 20), silent])
        };
        assert!(differences(&config, &group(1 << 20)).is_empty());
        let told = differences(&config, &group(2 << 20));
        let [(_, found)] = &told[..] else {
            panic!("{told:?}")
        };
        assert!(
            found.contains("1 MiB here and 2 MiB on the host of replica 0"),
            "{found}"
        );
    }
}
