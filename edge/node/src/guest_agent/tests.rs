//! A channel without a guest: the tests say what it reads and answers, and when.

use super::*;

const NUMBER: u64 = 4_000;
const SECOND: Micros = Micros::from_ms(1_000);

type Agent = GuestAgent<&'static str>;

/// The number of the attempt that these bytes begin.
fn id_of(bytes: &[u8]) -> u64 {
    let sync = bytes.strip_prefix(&[DELIMITER]).unwrap();
    let line = sync.split(|byte| *byte == b'\n').next().unwrap();
    let sync: Value = serde_json::from_slice(line).unwrap();
    assert_eq!(sync["execute"], "guest-sync-delimited");
    sync["arguments"]["id"].as_u64().unwrap()
}

fn sent(step: Option<Step<&'static str>>) -> (u64, String) {
    match step {
        Some(Step::Send(bytes)) => (
            id_of(&bytes),
            String::from_utf8_lossy(&bytes[1..]).into_owned(),
        ),
        other => panic!("{other:?}"),
    }
}

fn returned(id: u64, value: &str) -> Vec<u8> {
    let text = format!("{{\"return\": {id}}}\n{{\"return\": {value}}}\n");
    [&[DELIMITER], text.as_bytes()].concat()
}

/// An agent in whose guest file systems are frozen since second 1, for 5 s.
fn frozen() -> Agent {
    let mut agent = Agent::new(NUMBER);
    agent
        .ask(SECOND, GuestOrder::Freeze { for_s: 5 }, "a")
        .unwrap();
    let (id, text) = sent(agent.step(SECOND));
    assert!(text.ends_with("{\"execute\":\"guest-fsfreeze-freeze\"}\n"));
    let answer = agent.heard(SECOND, &returned(id, "2"));
    assert_eq!(answer, Some(Step::Answer("a", Ok(json!(2)))));
    agent
}

#[test]
fn an_answer_counts_only_behind_its_own_number() {
    let mut agent = Agent::new(NUMBER);
    agent.ask(SECOND, GuestOrder::Ping, "a").unwrap();
    let (id, _) = sent(agent.step(SECOND));
    // Answers to others, garbage, and the answer in pieces.
    assert_eq!(agent.heard(SECOND, &returned(id - 1, "1")), None);
    assert_eq!(agent.heard(SECOND, b"{\"error\": {}}\n\x80"), None);
    let answer = returned(id, "{}");
    for byte in &answer[..answer.len() - 1] {
        assert_eq!(agent.heard(SECOND, &[*byte]), None);
    }
    assert_eq!(
        agent.heard(SECOND, b"\n"),
        Some(Step::Answer("a", Ok(json!({}))))
    );
    assert_eq!(agent.heard(SECOND, &answer), None, "twice");
    assert!(!agent.is_waiting());
}

#[test]
fn refusals_and_garbage_are_told() {
    for (line, words) in [
        (
            "{\"error\": {\"class\": \"C\", \"desc\": \"is disabled\"}}\n",
            "is disabled",
        ),
        ("{\"error\": 7}\n", "refuses"),
        ("[\n", "no JSON"),
    ] {
        let mut agent = Agent::new(NUMBER);
        agent.ask(SECOND, GuestOrder::Ping, "a").unwrap();
        let (id, _) = sent(agent.step(SECOND));
        let bytes = [
            &[DELIMITER],
            format!("{{\"return\": {id}}}\n{line}").as_bytes(),
        ]
        .concat();
        match agent.heard(SECOND, &bytes) {
            Some(Step::Answer("a", Err(why))) => assert!(why.contains(words), "{why}"),
            other => panic!("{other:?}"),
        }
    }
    let mut agent = Agent::new(NUMBER);
    agent.ask(SECOND, GuestOrder::Ping, "a").unwrap();
    sent(agent.step(SECOND));
    let endless = agent.heard(SECOND, &vec![b'x'; ANSWER_BYTES_MAX + 1]);
    assert!(matches!(endless, Some(Step::Answer("a", Err(_)))));
}

#[test]
fn a_request_that_was_not_read_is_sent_again_with_another_number() {
    let mut agent = Agent::new(NUMBER);
    agent.ask(SECOND, GuestOrder::Ping, "a").unwrap();
    assert!(
        agent.ask(SECOND, GuestOrder::Ping, "b").is_err(),
        "one at a time"
    );
    let (first, _) = sent(agent.step(SECOND));
    // The guest had all but the line's end.
    agent.unread(b"\n");
    assert_eq!(agent.step(SECOND + AGAIN_AFTER), None);
    agent.unread(b"}\n");
    assert_eq!(agent.step(SECOND), None, "not at every pause");
    let (second, _) = sent(agent.step(SECOND + AGAIN_AFTER));
    assert_ne!(first, second);
    assert_eq!(agent.heard(SECOND, &returned(first, "{}")), None);
    assert!(agent.heard(SECOND, &returned(second, "{}")).is_some());
}

#[test]
fn nobody_waits_for_ever() {
    for (unread, words) in [(&b"}"[..], "not read"), (b"", "not answered")] {
        let mut agent = Agent::new(NUMBER);
        agent.ask(SECOND, GuestOrder::Ping, "a").unwrap();
        sent(agent.step(SECOND));
        agent.unread(unread);
        let end = SECOND + ANSWER_WITHIN;
        match agent.step(end) {
            Some(Step::Answer("a", Err(why))) => assert!(why.contains(words), "{why}"),
            other => panic!("{other:?}"),
        }
        assert_eq!(agent.due(), Micros::NEVER);
        assert!(agent.ask(end, GuestOrder::Ping, "b").is_ok());
    }
}

#[test]
fn a_freeze_ends_when_its_time_is_over_whoever_is_gone() {
    let mut agent = frozen();
    let (_, why) = agent
        .ask(SECOND, GuestOrder::Freeze { for_s: 60 }, "b")
        .unwrap_err();
    assert!(why.contains("5 s more"), "{why}");
    let due = agent.due();
    assert_eq!(due, SECOND + Micros::from_ms(5_000));
    let (id, text) = sent(agent.step(due));
    assert!(text.contains("guest-fsfreeze-thaw"));
    assert_eq!(agent.heard(due, &returned(id, "2")), None);
    assert_eq!(agent.due(), Micros::NEVER);
}

#[test]
fn a_thaw_is_tried_until_the_agent_answers() {
    let mut agent = frozen();
    let mut due = agent.due();
    for pause in [THAW_AGAIN, Micros(THAW_AGAIN.0 * 2)] {
        sent(agent.step(due));
        let failed = due + ANSWER_WITHIN;
        assert!(matches!(agent.step(failed), Some(Step::Warn(_))));
        due = agent.due();
        assert_eq!(due, failed + pause);
    }
    // An operator need not wait for it.
    agent.ask(due, GuestOrder::Thaw, "b").unwrap();
    let (id, _) = sent(agent.step(due));
    let answer = agent.heard(due, &returned(id, "2"));
    assert_eq!(answer, Some(Step::Answer("b", Ok(json!(2)))));
    assert_eq!(agent.due(), Micros::NEVER);
}

#[test]
fn a_freeze_that_was_not_answered_is_followed_by_a_thaw() {
    let mut agent = Agent::new(NUMBER);
    agent
        .ask(SECOND, GuestOrder::Freeze { for_s: 5 }, "a")
        .unwrap();
    sent(agent.step(SECOND));
    let failed = SECOND + ANSWER_WITHIN;
    assert!(matches!(
        agent.step(failed),
        Some(Step::Answer("a", Err(_)))
    ));
    let (_, text) = sent(agent.step(failed));
    assert!(text.contains("guest-fsfreeze-thaw"));
    // One that the agent refuses has frozen nothing.
    let mut agent = Agent::new(NUMBER);
    agent
        .ask(SECOND, GuestOrder::Freeze { for_s: 5 }, "a")
        .unwrap();
    let (id, _) = sent(agent.step(SECOND));
    let bytes = format!("{{\"return\": {id}}}\n{{\"error\": {{}}}}\n");
    agent.heard(SECOND, &[&[DELIMITER], bytes.as_bytes()].concat());
    assert_eq!(agent.due(), Micros::NEVER);
}

#[test]
fn a_new_leader_thaws_and_an_old_one_does_not() {
    let mut agent = Agent::new(NUMBER);
    agent.took_over(SECOND);
    let (id, text) = sent(agent.step(SECOND));
    assert!(text.contains("guest-fsfreeze-thaw"));
    // No agent runs in this guest. That is no reason for a warning.
    assert_eq!(agent.step(SECOND + ANSWER_WITHIN), None);
    assert_eq!(agent.due(), SECOND + ANSWER_WITHIN + THAW_AGAIN);
    assert_eq!(agent.heard(SECOND, &returned(id, "0")), None, "too late");

    let mut agent = frozen();
    agent.ask(SECOND, GuestOrder::Ping, "b").unwrap();
    assert_eq!(agent.leave(), Some("b"));
    assert_eq!(agent.due(), Micros::NEVER);
}

#[test]
fn file_systems_are_not_frozen_for_long() {
    for for_s in [0, FROZEN_S_MAX + 1] {
        let mut agent = Agent::new(NUMBER);
        let (_, why) = agent
            .ask(SECOND, GuestOrder::Freeze { for_s }, "a")
            .unwrap_err();
        assert!(why.contains("1 to 600 s"), "{why}");
        assert_eq!(agent.due(), Micros::NEVER);
    }
}
