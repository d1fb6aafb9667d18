//! The page's memory, and the addresses that it fetches from.

use super::fleet::Fleet;
use super::history::{Failovers, History};
use super::{CSS, Dash, HEADERS, HTML, JS};
use crate::fleet::FleetStatus;
use anyhow::{Result, bail};
use plover_lab::status::{GroupStatus, ReplicaStatus};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A leader that has run for so many seconds since `process` started, and taken in 100 frames in each.
fn leader(id: u8, process: u32, seconds: u64) -> ReplicaStatus {
    let more = json!({
        "mono_us": seconds * 1_000_000,
        "inputs": seconds * 100,
        "outputs": {"released": seconds * 50, "held_us_total": seconds * 50 * 300},
        "traffic": {"log_bytes_out": seconds * 1000, "bulk_bytes_out": seconds * 2000},
    });
    let mut leader = ReplicaStatus::default();
    leader.id = id;
    leader.role = "leader".into();
    leader.view = Some(seconds);
    leader.plover_pid = Some(process);
    leader.more = more.as_object().cloned().unwrap_or_default();
    // A sync every two seconds.
    let syncs = seconds / 2;
    let totals = json!({
        "count": syncs, "slot_us": syncs * 40_000, "pause_us": syncs * 7000, "dirty": syncs * 90, "divergent": syncs * 10,
    });
    leader.sync.more.insert("totals".into(), totals);
    leader
}

fn group(leader: ReplicaStatus, protected: bool) -> GroupStatus {
    let mut status = GroupStatus::default();
    status.policy = "hybrid".into();
    status.protected = protected;
    status.replicas = vec![leader];
    status
}

#[test]
fn a_point_has_the_figures_since_the_one_before() {
    let mut history = History::default();
    history.add(Some(&group(leader(0, 7, 10), true)), 1000);
    history.add(Some(&group(leader(0, 7, 14), true)), 5000);
    history.add(Some(&group(leader(0, 7, 15), true)), 6000);
    let points = history.after(0);
    assert_eq!(points[0]["figures"], Value::Null, "nothing to compare with");
    let figures = &points[1]["figures"];
    for (key, value) in [
        ("inputs_per_s", 100.0),
        ("outputs_per_s", 50.0),
        ("output_wait_us", 300.0),
        ("slot_us", 40_000.0),
        ("pause_us", 7000.0),
        ("dirty", 90.0),
        ("divergent", 10.0),
        ("sent_bytes_per_s", 3000.0),
    ] {
        assert_eq!(figures[key], value, "{key}");
    }
    let figures = &points[2]["figures"];
    assert_eq!(
        figures["pause_us"],
        Value::Null,
        "no sync ended in that second"
    );
    assert_eq!(figures["inputs_per_s"], 100.0);
}

#[test]
fn another_leader_or_silence_breaks_the_line() {
    let mut history = History::default();
    history.add(Some(&group(leader(0, 7, 10), true)), 1000);
    history.add(None, 2000);
    history.add(Some(&group(leader(0, 7, 12), true)), 3000);
    history.add(Some(&group(leader(0, 8, 1), true)), 4000);
    history.add(Some(&group(leader(1, 9, 20), false)), 5000);
    let points = history.after(0);
    for point in &points {
        assert_eq!(point["figures"], Value::Null, "{point}");
    }
    let states: Vec<_> = points.iter().map(|it| it["state"].as_str()).collect();
    let protected = Some("protected");
    let states_then = [
        protected,
        Some("unknown"),
        protected,
        protected,
        Some("unprotected"),
    ];
    assert_eq!(states, states_then);
}

#[test]
fn a_history_is_bounded_and_told_in_parts() {
    let mut history = History::default();
    for second in 1..=2000 {
        history.add(None, second * 1000);
    }
    let all = history.after(0);
    assert_eq!((all.len(), &all[0]["n"]), (900, &json!(1101)));
    assert_eq!(history.after(1998).len(), 2);
    assert_eq!(history.after(2000).len(), 0);
    assert_eq!(
        history.after(5000).len(),
        900,
        "another process gave that number"
    );
}

#[test]
fn a_failover_is_told_once_with_its_parts() {
    let mut failovers = Failovers::default();
    failovers.learn(&group(leader(0, 7, 10), true), 100_000);
    let mut new = leader(1, 8, 20);
    let last = json!({
        "how": "silence", "mono_us": 19_500_000, "unix_s": 109, "noticed_us": 75_000, "elected_us": 11_200,
        "serving_us": 3000,
    });
    new.more.insert("last_failover".into(), last);
    failovers.learn(&group(new.clone(), false), 110_000);
    let told = failovers.to_json();
    assert_eq!(told.len(), 1);
    assert_eq!((&told[0]["from"], &told[0]["by"]), (&json!(0), &json!(1)));
    assert_eq!(told[0]["unix_ms"], 109_500);
    assert_eq!(
        (&told[0]["noticed_us"], &told[0]["elected_us"]),
        (&json!(75_000), &json!(11_200))
    );
    assert_eq!(told[0]["protection_awaited"], true);

    new.more["mono_us"] = 22_000_000.into();
    failovers.learn(&group(new, true), 112_000);
    let told = failovers.to_json();
    assert_eq!(told.len(), 1, "the same one");
    assert_eq!(told[0]["protected_within_ms"], 2500);
    assert_eq!(told[0]["protection_awaited"], false);
}

/// A leader at this second of its process, which took over at that one.
fn took_over(id: u8, seconds: u64, at: u64) -> ReplicaStatus {
    let mut leader = leader(id, 7, seconds);
    let last = json!({
        "how": "silence", "mono_us": at * 1_000_000, "noticed_us": 75_000, "elected_us": 11_200, "serving_us": 3000,
    });
    leader.more.insert("last_failover".into(), last);
    leader
}

#[test]
fn an_old_failover_does_not_come_back_when_others_have_taken_its_place() {
    let mut failovers = Failovers::default();
    // Replica 0 took over once. Replica 1 takes over again and again, beside it.
    for second in 10..100 {
        let mut status = group(took_over(1, second, second), true);
        let mut first = took_over(0, second, 5);
        first.role = "secondary".into();
        status.replicas.push(first);
        failovers.learn(&status, second * 1000);
    }
    let told = failovers.to_json();
    assert_eq!(told.len(), 50);
    let by: Vec<_> = told.iter().filter(|it| it["by"] != 1).collect();
    assert!(by.is_empty(), "{by:?}");
    assert_eq!(told[49]["unix_ms"], 99_000);
}

/// A cluster whose guest `shop` has a leader that is protected.
fn cluster() -> Result<FleetStatus> {
    FleetStatus::of(
        "<pacemaker-result><resources><clone id=\"shop-clone\"><resource id=\"shop\" resource_agent=\"ocf:plover:guest\">\
         <node name=\"alpha\"/></resource></clone></resources><node_attributes><node name=\"alpha\">\
         <attribute name=\"plover-shop\" value=\"leader\"/><attribute name=\"plover-shop-protected\" value=\"yes\"/>\
         </node></node_attributes></pacemaker-result>",
        "<cib/>",
        &[],
    )
}

#[test]
fn a_cluster_that_does_not_answer_keeps_its_last_answer_and_that_gets_old() {
    let begin = Instant::now();
    let at = |seconds: u64| begin + Duration::from_secs(seconds);
    let fleet = Fleet::default();
    let nothing = json!({"age_ms": null, "trouble": null, "guests": []});
    assert_eq!(fleet.to_json(begin), nothing);

    fleet.look(begin, cluster);
    let shop = json!([
        {"guest": "shop", "state": "protected", "hosts": {"alpha": "leader"}, "troubles": []}
    ]);
    let fresh = json!({"age_ms": 1000, "trouble": null, "guests": shop});
    assert_eq!(fleet.to_json(at(1)), fresh);

    fleet.look(at(2), || bail!("crm_mon failed: no cluster"));
    let old = json!({"age_ms": 3000, "trouble": "crm_mon failed: no cluster", "guests": shop});
    assert_eq!(fleet.to_json(at(3)), old);

    fleet.look(at(4), cluster);
    assert_eq!(fleet.to_json(at(5)), fresh);

    fleet.look(at(6), || {
        assert_eq!(fleet.to_json(at(7))["trouble"], Value::Null);
        let hung = fleet.to_json(at(15));
        assert_eq!((&hung["age_ms"], &hung["guests"]), (&json!(11_000), &shop));
        let trouble = hung["trouble"].as_str().unwrap_or_default();
        assert!(trouble.starts_with("crm_mon has not answered"), "{trouble}");
        cluster()
    });
    let late = fleet.to_json(at(15));
    assert_eq!(
        (&late["age_ms"], &late["trouble"]),
        (&json!(9000), &Value::Null),
        "as old as the question"
    );
}

#[test]
fn a_host_without_replicas_shows_the_fleet_alone() {
    let dash = |fleet| Dash {
        groups: Vec::new(),
        fleet,
        started_unix_ms: 0,
    };
    let data = dash(Some(Arc::default())).data("group=0&after=0").unwrap();
    assert_eq!(
        (&data["group"], &data["groups"]),
        (&Value::Null, &json!([]))
    );
    assert_eq!(data["fleet"]["guests"], json!([]));
    assert!(dash(Some(Arc::default())).data("group=1").is_none());
    assert_eq!(dash(None).data("").unwrap()["fleet"], Value::Null);
}

#[test]
fn the_page_fetches_nothing_from_elsewhere() {
    for (name, text) in [("index.html", HTML), ("dash.css", CSS), ("dash.js", JS)] {
        let text = text.replace("http://www.w3.org/2000/svg", "");
        for word in ["http:", "https:", "//cdn", "@import", "url("] {
            assert!(!text.contains(word), "{name} has '{word}'");
        }
    }
    for word in ["<style", " style=", " onload=", " onclick=", "<script>"] {
        assert!(!HTML.contains(word), "the policy forbids '{word}'");
    }
    let policy = HEADERS
        .iter()
        .find(|(name, _)| *name == "Content-Security-Policy");
    let policy = policy.map(|(_, value)| *value).unwrap_or_default();
    assert!(
        policy.starts_with("default-src 'none'") && !policy.contains("unsafe"),
        "{policy}"
    );
}
