//! One example of each message between clients and servers. All numbers differ, so that a change of the
//! form is noticed.

use super::*;
use crate::outputs::Divergence;
use plover_types::forms::{assert_every_kind, assert_form};
use plover_types::wire;

const AT: Viewstamp = Viewstamp {
    view: View(1001),
    index: Index(1002),
};

fn requests() -> Vec<Request<'static>> {
    let changes = [
        MemberChange::Add {
            id: ReplicaId(3),
            address: "an address".into(),
        },
        MemberChange::Remove { id: ReplicaId(4) },
    ];
    assert_every_kind(&changes);
    let mut requests = vec![
        Request::Append {
            number: 1003,
            session: Some(1004),
            bytes: b"bytes",
        },
        Request::Tail {
            since: Index(1005),
            follow: true,
        },
        Request::Status,
        Request::Begin,
    ];
    requests.extend(changes.map(Request::Member));
    requests
}

fn report(phase: Phase) -> StatusReport {
    let divergence = Divergence {
        piece: 1101,
        replicas: ReplicaSet(0b10),
    };
    StatusReport {
        id: ReplicaId(5),
        phase,
        view: View(1102),
        leader: Some(ReplicaId(6)),
        leader_address: None,
        voters: ReplicaSet(0b111),
        learners: ReplicaSet(0b1000),
        linked: ReplicaSet(0b110),
        durability: Durability::Disk,
        last: AT,
        commit: Index(1103),
        applied: Index(1104),
        base: Index(1105),
        log_bytes: 1106,
        pending: 1107,
        clients: 1108,
        rejected: 1109,
        lost: true,
        outputs: vec![Verdict {
            stream: 1110,
            agreed: 1111,
            compared: ReplicaSet(0b11),
            diverged: Some(divergence),
        }],
    }
}

fn replies() -> Vec<Reply<'static>> {
    let reasons = [Refusal::TooLarge { max: 1201 }, Refusal::Stale];
    let phases = [
        Phase::Recovering,
        Phase::Following,
        Phase::PreVoting,
        Phase::Electing,
        Phase::Leading,
    ];
    assert_every_kind(&reasons);
    assert_every_kind(&phases);
    let mut replies = vec![
        Reply::Appended {
            number: 1202,
            at: AT,
            answer: b"answer",
        },
        Reply::Elsewhere {
            number: 1203,
            leader: Some(ReplicaId(7)),
            address: Some("an address".into()),
        },
        Reply::Entry {
            at: AT,
            bytes: b"bytes",
        },
        Reply::Trimmed { base: Index(1206) },
        Reply::End,
        Reply::Progress("progress".into()),
        Reply::Done("done".into()),
        Reply::Failed("failed".into()),
    ];
    replies.extend(reasons.map(|why| Reply::Refused { number: 1208, why }));
    replies.extend(phases.map(|phase| Reply::Status(Box::new(report(phase)))));
    replies
}

#[test]
fn the_form_of_what_clients_and_servers_say_is_that_of_its_version() {
    assert_every_kind(&requests());
    assert_every_kind(&replies());
    let asked = requests();
    let asked = asked.iter().map(|it| wire::encode_part(it, Vec::new()));
    let answered = replies();
    let answered = answered.iter().map(|it| wire::encode_part(it, Vec::new()));
    let bytes: Vec<Vec<u8>> = asked.chain(answered).collect();
    assert_form("log clients", &bytes);
}
