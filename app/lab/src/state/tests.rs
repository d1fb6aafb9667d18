use super::*;

#[test]
fn names_that_cannot_become_paths_are_refused() {
    for good in ["default", "a", "Lab-2", "0123456789abcdef"] {
        assert_eq!(good.parse::<LabName>().unwrap().as_str(), good);
    }
    for bad in ["", "..", "a/b", "0123456789abcdefg", "-x", "a b", "ü"] {
        let error = bad.parse::<LabName>().unwrap_err();
        assert!(error.contains("no name"), "{error}");
    }
}

fn scratch() -> (tempfile::TempDir, LabDir) {
    let dir = tempfile::tempdir().unwrap();
    let lab = LabDir {
        name: "scratch".parse().unwrap(),
        path: dir.path().join("lab"),
    };
    std::fs::create_dir(&lab.path).unwrap();
    (dir, lab)
}

#[test]
fn the_error_for_a_damaged_record_says_what_to_do() {
    let (_above, dir) = scratch();
    let state = LabState {
        builder: None,
        guest_ip: Ipv4Addr::new(10, 0, 0, 1),
        guest: Guest::default(),
        answers: None,
        policy: "vsmr".into(),
        program: "/bin/true".into(),
        replicas: vec![ReplicaState {
            id: 0,
            daemon: Process::me(),
        }],
    };
    dir.save(&state).unwrap();
    assert_eq!(dir.load().unwrap().replicas[0].daemon, Process::me());
    assert!(
        state
            .replica(3)
            .unwrap_err()
            .to_string()
            .contains("there are 0")
    );
    std::fs::write(dir.path.join("lab.json"), "{\"builder\":").unwrap();
    assert!(format!("{:#}", dir.load().unwrap_err()).contains("plover lab down"));
    std::fs::remove_dir_all(&dir.path).unwrap();
    assert!(format!("{:#}", dir.load().unwrap_err()).contains("there is no lab"));
}

#[test]
fn a_lock_excludes_others_and_ends_with_the_directory() {
    let (_above, dir) = scratch();
    let lock = dir.try_lock().unwrap().unwrap();
    let _a_childs = lock.fd.try_clone().unwrap();
    assert!(dir.try_lock().unwrap().is_none());
    assert!(
        dir.lock(Duration::ZERO)
            .unwrap_err()
            .to_string()
            .contains("another command")
    );
    drop(lock);
    assert!(dir.try_lock().unwrap().is_some());
    std::fs::remove_dir_all(&dir.path).unwrap();
    assert!(dir.try_lock().is_err());
}
