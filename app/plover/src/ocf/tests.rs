//! The agent on replicas that are not there: a socket that answers what a test says.

use super::{Code, Instance, META_DATA, Outcome, carry_out, judge};
use crate::testing::configuration;
use plover_lab::control::Control;
use plover_lab::leaving::{self, Leave};
use plover_lab::operate::{self, Drained};
use plover_lab::status::GroupStatus;
use plover_node::ReplicaConfig;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

/// A host with a configuration, and its folder.
fn host() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let text = configuration("shop", dir.path(), dir.path());
    std::fs::write(dir.path().join("shop.toml"), text).unwrap();
    dir
}

/// An action on this host, with a second of time.
fn act(host: &TempDir, action: &str) -> Outcome {
    let config = host.path().join("shop.toml");
    carry_out(action, host.path(), |name| match name {
        "OCF_RESKEY_config" => Some(config.clone().into()),
        "OCF_RESKEY_CRM_meta_timeout" => Some("1000".into()),
        _ => None,
    })
}

/// A replica that answers so, to all requests but `group`, until the test ends.
fn replica(host: &TempDir, own: &Value, group: &[Value]) {
    let listener = UnixListener::bind(host.path().join("control.sock")).unwrap();
    let (own, group) = (own.clone(), json!({"asked": own["id"], "replicas": group}));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut line = String::new();
            BufReader::new(stream.try_clone().unwrap())
                .read_line(&mut line)
                .unwrap();
            let is_group = line.contains("group");
            writeln!(stream, "{}", if is_group { &group } else { &own }).unwrap();
        }
    });
}

fn leader() -> Value {
    json!({"id": 0, "role": "leader", "view": "1@r0", "isr": [0, 1], "protected": true, "holds_state": true, "voters": [0, 1, 2]})
}

fn secondary() -> Value {
    json!({"id": 1, "role": "secondary", "view": "1@r0", "isr": [0, 1], "holds_state": true, "voters": [0, 1, 2]})
}

fn witness() -> Value {
    json!({"id": 2, "role": "witness", "view": "1@r0", "isr": [0, 1], "keeps_copy_of": 1, "voters": [0, 1, 2]})
}

fn silent(id: u8) -> Value {
    json!({"id": id, "silent": "it does not answer"})
}

/// `value` with these fields.
fn with(mut value: Value, fields: &[(&str, Value)]) -> Value {
    for (key, field) in fields {
        value[*key] = field.clone();
    }
    value
}

/// Whether replica `id` of this group may leave.
fn leave(id: u8, group: &[Value]) -> Leave {
    let host = host();
    replica(&host, &group[0], group);
    let status = GroupStatus::ask(&Control::in_run_dir(host.path())).unwrap();
    leaving::leave(&status, id)
}

fn is_never(leave: Leave, words: &str) {
    let Leave::Never(why) = leave else {
        panic!("{leave:?}, and must be refused: {words}");
    };
    assert!(why.contains(words), "{why}");
}

#[test]
fn a_replica_that_plays_its_part_is_well() {
    for own in [leader(), secondary(), witness()] {
        let host = host();
        replica(&host, &own, &[]);
        assert_eq!(act(&host, "monitor"), Outcome::SUCCESS, "{own}");
    }
}

#[test]
fn a_host_without_a_replica_is_told_from_one_whose_replica_hangs() {
    let host = host();
    let outcome = act(&host, "monitor");
    assert_eq!(outcome.code, Code::NotRunning, "{outcome:?}");
    assert_eq!(act(&host, "stop"), Outcome::SUCCESS);
    // It listens, and answers nobody.
    let _hung = UnixListener::bind(host.path().join("control.sock")).unwrap();
    let outcome = act(&host, "monitor");
    assert_eq!(outcome.code, Code::Failed, "{outcome:?}");
    assert!(outcome.reason.unwrap().contains("does not answer"));
}

#[test]
fn a_replica_that_has_given_up_its_guest_is_degraded_until_it_has_a_copy() {
    let lost = json!("QEMU has ended");
    let mut own = with(
        witness(),
        &[("last_failure", lost), ("keeps_copy_of", Value::Null)],
    );
    let judged = |own: &Value| judge::health(&serde_json::from_value(own.clone()).unwrap());
    let outcome = judged(&own);
    assert_eq!(outcome.code, Code::Degraded);
    assert!(outcome.reason.unwrap().ends_with("QEMU has ended"));
    own["keeps_copy_of"] = json!(1);
    assert_eq!(judged(&own), Outcome::SUCCESS);
    let full = with(leader(), &[("disk_failure", json!("no space left"))]);
    assert_eq!(judged(&full), Outcome::of(Code::Degraded, "no space left"));
}

#[test]
fn the_nodes_attributes_name_the_leader_and_the_guests_protection() {
    let host = host();
    let file = host.path().join("shop.toml");
    let group = || ReplicaConfig::load(&file).unwrap().group;
    let of = |own: Value, cold: bool| {
        let own = serde_json::from_value(own).unwrap();
        let cold = cold && judge::is_to_be_warm(&own, &group());
        judge::attributes(&own, &group(), cold).map(|(_, value)| value.unwrap_or_default())
    };
    assert_eq!(of(leader(), true), ["leader", "yes"]);
    let alone = with(leader(), &[("protected", json!(false))]);
    assert_eq!(of(alone, true), ["leader", "no"]);
    assert_eq!(of(witness(), false), ["witness", ""]);
    assert_eq!(of(witness(), true), ["joining", ""]);
    let text = std::fs::read_to_string(&file).unwrap();
    let write = |to: &str| std::fs::write(&file, text.replace("me = 0\n", to)).unwrap();
    write("me = 0\nwarm_witness = \"off\"\n");
    assert_eq!(of(witness(), true), ["witness", ""]);
    let more = (3..5).map(|id| format!("{{ id = {id}, address = \"192.0.2.1{id}:7700\" }},\n"));
    let five = text.replace(
        "]\n[guest]",
        &format!("{}]\n[guest]", more.collect::<String>()),
    );
    assert_ne!(five, text);
    std::fs::write(&file, five).unwrap();
    assert_eq!(
        of(witness(), true),
        ["witness", ""],
        "one of the three is warm"
    );
    write("me = 3\nspare = [{ id = 3, address = \"192.0.2.13:7700\" }]\n");
    let spare = json!({"id": 3, "role": "recovering", "view": "0@r0", "isr": [], "waits_to_be_added": true});
    assert_eq!(of(spare, true), ["spare 3", ""]);
}

#[test]
fn a_replica_leaves_when_it_is_not_needed() {
    let whole = [leader(), secondary(), witness()];
    assert_eq!(leave(2, &whole), Leave::Now);
    for id in [0, 1] {
        assert!(
            matches!(leave(id, &whole), Leave::Later(_)),
            "it holds the guest: {id}"
        );
    }
}

#[test]
fn nobody_leaves_whom_the_guest_needs() {
    // Without a majority nobody leads.
    let one_is_lost = [leader(), secondary(), silent(2)];
    for id in [0, 1] {
        is_never(leave(id, &one_is_lost), "replica 2 does not answer");
    }
    is_never(
        leave(2, &[leader(), silent(1), witness()]),
        "replica 1 does not answer",
    );
    // The only copy of the guest.
    let alone = with(
        leader(),
        &[("isr", json!([0])), ("protected", json!(false))],
    );
    let joining = with(
        secondary(),
        &[("role", json!("joining")), ("holds_state", json!(false))],
    );
    is_never(
        leave(0, &[alone.clone(), joining.clone(), witness()]),
        "the only one that holds",
    );
    assert_eq!(leave(1, &[alone.clone(), joining, witness()]), Leave::Now);
    // One that has just handed over is about to know its new role.
    let old = with(
        leader(),
        &[("role", json!("deposed")), ("holds_state", json!(false))],
    );
    let new = with(
        secondary(),
        &[("role", json!("leader")), ("view", json!("2@r1"))],
    );
    assert!(matches!(leave(0, &[old, new, witness()]), Leave::Later(_)));
    // One of two goes on by itself, if it has the guest.
    let of_pair = |own: Value| with(own, &[("pair", json!(true)), ("voters", json!([0, 1]))]);
    for id in [0, 1] {
        let pair = [of_pair(leader()), of_pair(secondary())];
        assert_eq!(leave(id, &pair), Leave::Now);
    }
    is_never(
        leave(0, &[of_pair(alone), silent(1)]),
        "replica 1 does not answer",
    );
    // Two members of three are no pair.
    let of_two = |own: Value| with(own, &[("voters", json!([0, 1]))]);
    is_never(
        leave(1, &[of_two(leader()), of_two(secondary())]),
        "of the 2 members too few",
    );
}

#[test]
fn a_replica_that_cannot_vote_or_is_not_heard_counts_for_nothing() {
    let recovering = with(witness(), &[("role", json!("recovering"))]);
    let few = "of the 3 members too few";
    is_never(leave(1, &[leader(), secondary(), recovering]), few);
    let silences = ("silences", json!([{"id": 2, "s": 1, "stopped": false}]));
    let leader_hears_not = with(leader(), &[silences]);
    is_never(leave(1, &[leader_hears_not, secondary(), witness()]), few);
    // One that does not vote, since it joins, is not needed.
    let joining = with(witness(), &[("id", json!(3)), ("role", json!("joining"))]);
    let three = [leader(), secondary(), silent(2), joining];
    assert_eq!(leave(3, &three), Leave::Now);
}

#[test]
fn a_replica_that_was_replaced_leaves() {
    let own = with(witness(), &[("id", json!(0)), ("voters", json!([0, 1, 2]))]);
    let told = ("left", json!([0]));
    let other = with(secondary(), &[told, ("voters", json!([1, 2, 3]))]);
    assert_eq!(leave(0, &[own, other, silent(2)]), Leave::Now);
}

#[test]
fn a_guest_that_is_off_or_lost_holds_nobody() {
    let off = with(leader(), &[("guest_off", json!(true))]);
    assert_eq!(leave(0, &[off, silent(1), silent(2)]), Leave::Now);
    let gone = |own: Value| {
        with(
            own,
            &[("holds_state", json!(false)), ("role", json!("recovering"))],
        )
    };
    let lost = [leader(), secondary(), witness()].map(gone);
    assert_eq!(leave(1, &lost), Leave::Now);
}

#[test]
fn a_stop_that_would_end_the_guest_is_refused() {
    let host = host();
    let alone = with(leader(), &[("isr", json!([0]))]);
    replica(&host, &alone, &[alone.clone(), witness(), witness()]);
    let outcome = act(&host, "stop");
    assert_eq!(outcome.code, Code::Failed);
    let why = outcome.reason.unwrap();
    assert!(why.contains("plover shutdown"), "{why}");
}

#[test]
fn a_replica_runs_on_while_its_file_has_a_mistake() {
    let host = host();
    std::fs::write(host.path().join("shop.toml"), "[group]\n").unwrap();
    assert_eq!(act(&host, "stop"), Outcome::SUCCESS, "none runs");
    assert_eq!(act(&host, "monitor").code, Code::NotInstalled);
    // Where `plover init` would have put its socket.
    std::os::unix::fs::symlink(host.path(), host.path().join("shop")).unwrap();
    replica(&host, &leader(), &[]);
    for (action, code) in [("monitor", Code::Degraded), ("stop", Code::Failed)] {
        let outcome = act(&host, action);
        assert_eq!(outcome.code, code, "{action}");
        let why = outcome.reason.unwrap();
        assert!(
            why.contains("the replica runs on, but") && why.contains("shop.toml"),
            "{why}"
        );
    }
    assert_eq!(act(&host, "start").code, Code::NotInstalled);
    // It listens, and answers nobody.
    std::fs::remove_file(host.path().join("control.sock")).unwrap();
    let _hung = UnixListener::bind(host.path().join("control.sock")).unwrap();
    assert_eq!(act(&host, "stop").code, Code::Failed);
}

#[test]
fn mistakes_in_the_configuration_are_this_hosts_or_everybodys() {
    let none = carry_out("start", Path::new("/nowhere"), |_| None);
    assert_eq!(none.code, Code::NotConfigured);
    let host = host();
    std::fs::write(host.path().join("shop.toml"), "[group]\nname = 7\n").unwrap();
    for action in ["validate-all", "start", "monitor"] {
        assert_eq!(act(&host, action).code, Code::NotInstalled, "{action}");
    }
    std::fs::remove_file(host.path().join("shop.toml")).unwrap();
    assert_eq!(act(&host, "monitor").code, Code::NotInstalled);
    assert_eq!(act(&host, "stop"), Outcome::SUCCESS, "nothing runs there");
}

#[test]
fn the_meta_data_names_the_actions_and_parameters_that_there_are() {
    let document = roxmltree::Document::parse(META_DATA).unwrap();
    let named = |tag: &str| -> BTreeSet<String> {
        let nodes = document.descendants().filter(|node| node.has_tag_name(tag));
        nodes
            .filter_map(|node| node.attribute("name"))
            .map(Into::into)
            .collect()
    };
    let host = host();
    for action in named("action") {
        assert_ne!(act(&host, &action).code, Code::Unimplemented, "{action}");
    }
    for action in ["promote", "demote", "migrate_to", ""] {
        assert!(!named("action").contains(action));
        assert_eq!(act(&host, action).code, Code::Unimplemented, "{action}");
    }
    let asked = std::cell::RefCell::new(BTreeSet::new());
    let read = Instance::read(|name| {
        let parameter = name.strip_prefix("OCF_RESKEY_")?;
        if !parameter.starts_with("CRM_meta") {
            asked.borrow_mut().insert(parameter.to_owned());
        }
        Some(OsString::from(Path::new("/none")))
    });
    assert!(read.is_err());
    assert_eq!(asked.into_inner(), named("parameter"));
}

/// As where a configuration was copied for another guest, with its run_dir.
#[test]
fn another_guests_replica_is_neither_taken_for_its_own_nor_stopped() {
    let host = host();
    let another = with(leader(), &[("group", json!("wiki"))]);
    replica(&host, &another, std::slice::from_ref(&another));
    for action in ["monitor", "start", "reload-agent"] {
        let outcome = act(&host, action);
        assert_eq!(outcome.code, Code::NotInstalled, "{action}");
        let why = outcome.reason.unwrap();
        assert!(why.contains("replica 0 of wiki answers"), "{why}");
    }
    // The other one's: the socket's process, which is this test's, lives on.
    assert_eq!(act(&host, "stop"), Outcome::SUCCESS);
}

/// `plover drain && systemctl stop` on the witness, while the leader is alone with it.
#[test]
fn a_host_whose_vote_the_group_needs_is_not_said_to_be_drained() {
    let host = host();
    let follows = with(witness(), &[("leader", json!(0))]);
    let group = [leader(), silent(1), follows];
    replica(&host, &group[2], &group);
    let control = Control::in_run_dir(host.path());
    let drained = |lasts| operate::drain(&control, lasts, Duration::ZERO, |_| {});
    let error = drained(Drained::UntilUndrained).unwrap_err().to_string();
    assert!(
        error.contains("must not be stopped: replica 1 does not answer"),
        "{error}"
    );
}
