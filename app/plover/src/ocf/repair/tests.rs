use super::*;
use crate::capacity::Place;
use crate::ocf::judge;
use serde_json::json;

fn node(name: &str, member: Option<u8>, spare: Option<u8>) -> Node {
    Node {
        name: name.into(),
        can_start: true,
        member: member.map(|id| Place::of_member(id, 948)),
        spare: spare.map(|id| (id, format!("192.0.2.1{id}:7700"))),
        ..Node::default()
    }
}

const RULES: Rules<'_> = Rules {
    guest: "shop",
    size: 3,
    after_s: 600,
    memory_mib: 948,
    now_s: 5000,
};

/// Three members and two spare hosts.
fn cluster() -> Vec<Node> {
    vec![
        // The host of the member that is lost in these tests.
        Node {
            can_start: false,
            ..node("alpha", Some(0), None)
        },
        node("beta", Some(1), None),
        node("gamma", Some(2), None),
        node("delta", None, Some(3)),
        node("epsilon", None, Some(4)),
    ]
}

/// The same, after this was done to the node `at`.
fn with(mut nodes: Vec<Node>, at: usize, change: impl Fn(&mut Node)) -> Vec<Node> {
    change(&mut nodes[at]);
    nodes
}

/// The step of the agent of the leader 1 of members 0, 1 and 2, with these fields in its status.
fn step(fields: &Value, nodes: &[Node]) -> String {
    step_by(fields, nodes, RULES)
}

fn step_by(fields: &Value, nodes: &[Node], rules: Rules<'_>) -> String {
    match group(fields, nodes, rules).next() {
        None => "nothing".into(),
        Some(Step::TakeBack(node)) => format!("none on {}", node.name),
        Some(Step::Give(node, id)) => format!("{id} on {}", node.name),
        Some(Step::Restore(node, id)) => format!("{id} again on {}", node.name),
        Some(Step::Change(change)) => {
            let add = change.add.map(|(id, at)| format!("add {id} at {at} "));
            let remove = change.remove.map(|id| format!("remove {id}"));
            add.unwrap_or_default() + &remove.unwrap_or_default()
        }
    }
}

fn lacks(fields: &Value, nodes: &[Node]) -> String {
    group(fields, nodes, RULES).lacks().unwrap_or_default()
}

fn group<'a>(fields: &Value, nodes: &'a [Node], rules: Rules<'a>) -> Group<'a> {
    let mut own = json!({"id": 1, "role": "leader", "view": "1@r1", "isr": [1, 2], "voters": [0, 1, 2], "left": []});
    for (key, value) in fields.as_object().unwrap() {
        own[key] = value.clone();
    }
    let own = serde_json::from_value(own).unwrap();
    Group {
        told: Told::of(&own),
        leader: 1,
        nodes,
        rules,
    }
}

fn silent(s: u64) -> Value {
    json!({"silences": [{"id": 0, "s": s, "stopped": false}]})
}

/// A spare replica was given a place on this node, a second ago.
fn given(nodes: Vec<Node>, at: usize, id: u8) -> Vec<Node> {
    given_at(4999, nodes, at, id)
}

fn given_at(s: u64, nodes: Vec<Node>, at: usize, id: u8) -> Vec<Node> {
    let place = Place {
        given_s: Some(s),
        ..Place::of_member(id, 948)
    };
    with(nodes, at, |it| it.member = Some(place))
}

fn with_spare_waiting(nodes: Vec<Node>, at: usize, id: u8) -> Vec<Node> {
    with(given(nodes, at, id), at, |it| {
        it.role = Some(judge::spare(id))
    })
}

#[test]
fn a_member_that_is_silent_for_long_is_replaced_by_a_spare_replica() {
    let nodes = cluster();
    assert_eq!(step(&json!({}), &nodes), "nothing", "all answer");
    assert_eq!(step(&silent(599), &nodes), "nothing");
    let first = step(&silent(600), &nodes);
    let (at, id) = if first == "3 on delta" {
        (3, 3)
    } else {
        (4, 4)
    };
    assert_eq!(first, format!("{id} on {}", nodes[at].name));
    assert_eq!(
        step(&silent(610), &given(cluster(), at, id)),
        "nothing",
        "it starts"
    );
    let waits = with_spare_waiting(cluster(), at, id);
    let order = format!("add {id} at 192.0.2.1{id}:7700 remove 0");
    assert_eq!(step(&silent(620), &waits), order);
    // The lost host is back, or another replica leads, which counts anew.
    let none = format!("none on {}", nodes[at].name);
    assert_eq!(step(&silent(3), &waits), none);
    assert_eq!(step(&json!({}), &waits), none);
    // It does not come: the other one gets the place, and then it has none any more.
    let (other_at, other) = (7 - at, 7 - id);
    let second = format!("{other} on {}", nodes[other_at].name);
    let in_time = given_at(4821, cluster(), at, id);
    assert_eq!(step(&silent(780), &in_time), "nothing");
    let late = given_at(4820, cluster(), at, id);
    assert_eq!(step(&silent(780), &late), second);
    let both = given_at(4990, late.clone(), other_at, other);
    assert_eq!(step(&silent(790), &both), none);
    let alone = with(late, other_at, |it| it.spare = None);
    assert_eq!(step(&silent(780), &alone), "nothing", "there is no other");
    let at_last = with(alone, at, |it| it.role = Some(judge::spare(id)));
    assert_eq!(step(&silent(999), &at_last), order);
}

#[test]
fn the_spare_hosts_of_guests_are_asked_in_several_orders() {
    let first = |guest: &str| {
        let nodes = cluster();
        step_by(&silent(600), &nodes, Rules { guest, ..RULES })
    };
    let all = [
        "shop", "mail", "wiki", "build", "chat", "files", "dns", "ldap",
    ]
    .map(first);
    assert!(all.iter().any(|it| it == "3 on delta"), "{all:?}");
    assert!(all.iter().any(|it| it == "4 on epsilon"), "{all:?}");
}

#[test]
fn a_short_group_passes_over_a_spare_host_that_does_not_come() {
    let short = json!({"voters": [1, 2], "left": [0]});
    let nodes = || with(cluster(), 0, |it| it.member = None);
    let first = step(&short, &nodes());
    let (at, id) = if first == "3 on delta" {
        (3, 3)
    } else {
        (4, 4)
    };
    let late = given_at(4820, nodes(), at, id);
    assert_eq!(
        step(&short, &late),
        format!("{} on {}", 7 - id, late[7 - at].name)
    );
}

#[test]
fn a_member_is_not_replaced_while_somebody_works_on_it() {
    let standby = with(cluster(), 0, |it| it.is_away = true);
    assert_eq!(step(&silent(9000), &standby), "nothing");
    let stopped = json!({"silences": [{"id": 0, "s": 9000, "stopped": true}]});
    assert_eq!(step(&stopped, &cluster()), "nothing");
    let unknown = &cluster()[1..];
    assert_eq!(step(&silent(9000), unknown), "nothing");
    assert!(lacks(&silent(9000), unknown).contains("does not know its node"));
    assert!(lacks(&stopped, &cluster()).contains("alpha was told to stop"));
    // Its host is back, and Pacemaker is about to start it.
    let back = with(cluster(), 0, |it| it.can_start = true);
    assert_eq!(step(&silent(9000), &back), "nothing");
    let answers = with(back, 0, |it| it.answers = true);
    assert!(lacks(&silent(9000), &answers).contains("alpha runs, but the leader does not hear it"));
    let never = Rules {
        after_s: 0,
        ..RULES
    };
    assert_eq!(step_by(&silent(9000), &cluster(), never), "nothing");
}

#[test]
fn a_spare_host_that_cannot_help_is_passed_over() {
    let (other, none) = ("4 on epsilon", "nothing");
    let only_delta = || with(cluster(), 4, |it| it.spare = None);
    let cannot = |change: fn(&mut Node)| {
        let second = step(&silent(600), &with(cluster(), 3, change));
        let alone = step(&silent(600), &with(only_delta(), 3, change));
        (second, alone)
    };
    let passed_over = (other.to_owned(), none.to_owned());
    assert_eq!(step(&silent(600), &only_delta()), "3 on delta");
    assert_eq!(cannot(|it| it.can_start = false), passed_over);
    assert_eq!(cannot(|it| it.spare = None), passed_over);
    let full = |it: &mut Node| (it.memory_mib, it.taken_mib) = (Some(1000), 53);
    assert_eq!(cannot(full), passed_over);
    let fits = |it: &mut Node| (it.memory_mib, it.taken_mib) = (Some(1000), 52);
    assert_eq!(
        step(&silent(600), &with(only_delta(), 3, fits)),
        "3 on delta"
    );
    let mut used = silent(600);
    used["left"] = json!([3]);
    assert_eq!(step(&used, &cluster()), other, "3 was a member once");
    // It had the place, and cannot take it any more: it has failed, or another guest has the room.
    let given = given(only_delta(), 3, 3);
    let failed = with(given.clone(), 3, |it| it.can_start = false);
    assert_eq!(step(&silent(600), &failed), "none on delta");
    assert_eq!(step(&silent(600), &with(given, 3, full)), "none on delta");
    let words = lacks(&silent(600), &with(only_delta(), 3, full));
    assert_eq!(
        words,
        "replica 0 is lost: no spare host is there that has room and can start one"
    );
    assert_eq!(
        lacks(&silent(600), &only_delta()),
        "replica 0 is lost: delta gets the place"
    );
    assert_eq!(lacks(&json!({}), &cluster()), "");
}

#[test]
fn a_new_host_that_is_lost_gives_way_to_the_next() {
    let under_way = |s: u64| {
        let silences =
            json!([{"id": 0, "s": 900, "stopped": false}, {"id": 3, "s": s, "stopped": true}]);
        json!({"change": {"add": 3, "remove": 0, "words": "", "step": null}, "silences": silences})
    };
    let begun = given(cluster(), 3, 3);
    assert_eq!(step(&under_way(30), &begun), "nothing");
    assert_eq!(step(&under_way(600), &begun), "remove 3");
    let away = with(begun.clone(), 3, |it| it.is_away = true);
    assert_eq!(step(&under_way(600), &away), "nothing");
    let runs = with(begun.clone(), 3, |it| it.answers = true);
    assert_eq!(
        step(&under_way(600), &runs),
        "nothing",
        "it cannot be reached"
    );
    let short = json!({"voters": [1, 2], "left": [0, 3]});
    assert_eq!(step(&short, &begun), "4 on epsilon");
    let next = given(begun, 4, 4);
    assert_eq!(step(&short, &next), "none on alpha");
    let known = with(cluster(), 0, |it| it.member = None);
    assert_eq!(step(&short, &known), "4 on epsilon");
    assert_eq!(
        lacks(&short, &known),
        "the group has 2 members of 3: epsilon gets the place"
    );
    let placed = with_spare_waiting(known, 4, 4);
    assert_eq!(step(&short, &placed), "add 4 at 192.0.2.14:7700 ");
}

#[test]
fn the_host_of_a_persons_order_gets_its_replica_and_one_that_has_left_gets_none() {
    let ordered = json!({"change": {"add": 4, "remove": 2, "words": "", "step": null}});
    // Room or not: the members have decided.
    let full = with(cluster(), 4, |it| it.memory_mib = Some(1));
    assert_eq!(step(&ordered, &full), "4 again on epsilon");
    let members = json!({"voters": [0, 1, 4], "left": [2]});
    let begun = given(cluster(), 4, 4);
    assert_eq!(step(&members, &begun), "none on gamma");
    let done = with(begun, 2, |it| it.member = None);
    assert_eq!(step(&members, &done), "nothing");
    // A partition of the cluster without this change was the one that counted.
    let forgotten = with(cluster(), 4, |it| it.member = None);
    assert_eq!(step(&members, &forgotten), "4 again on epsilon");
}

#[test]
fn the_host_of_a_member_is_where_it_belongs() {
    let belongs = |own: Value| belongs(&serde_json::from_value(own).unwrap());
    let own = |role: &str, voters: &[u8], add: Option<u8>| {
        let change = add.map(|add| json!({"add": add, "remove": 0}));
        json!({"id": 3, "role": role, "view": "1@r1", "isr": [], "voters": voters, "change": change})
    };
    assert!(belongs(own("witness", &[1, 2, 3], None)));
    assert!(!belongs(own("recovering", &[0, 1, 3], None)), "by its file");
    assert!(belongs(own("recovering", &[0, 1, 2], Some(3))));
    assert!(!belongs(own("witness", &[0, 1, 2], Some(4))));
}
