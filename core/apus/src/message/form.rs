//! One example of each message, each number different, so that a changed form is noticed.

use super::*;
use crate::EntryKind;
use plover_types::forms::{assert_every_kind, assert_form};
use plover_types::{Incarnation, ReplicaId, ReplicaSet};

const VIEW: View = View(1001);
const LAST: Viewstamp = Viewstamp {
    view: View(1002),
    index: Index(1003),
};
const COMMIT: Viewstamp = Viewstamp {
    view: View(1004),
    index: Index(1005),
};
const MEMBERS: Members = Members {
    voters: ReplicaSet(0b111),
    learners: ReplicaSet(0b1000),
};
const CONFIGURATION: Configuration = Configuration {
    in_sync: ReplicaSet(0b11),
    members: MEMBERS,
    version: 101,
};

fn append() -> Append {
    Append {
        view: VIEW,
        generation: View(1006),
        prev: LAST,
        commit: Index(1007),
        trim: Index(1008),
        stamp: Micros(1009),
        span: Micros(1029),
        incarnation: 1027,
        number: 1010,
        snapshot: None,
        count: 1011,
    }
}

fn stand(standing: Standing) -> Message {
    Message::RecoveryResponse(Response {
        incarnation: 1012,
        round: 1013,
        promised: VIEW,
        members: CONFIGURATION.members,
        standing,
    })
}

fn messages() -> Vec<Message> {
    let empty = Empty {
        fresh: false,
        guest: true,
        last: LAST,
        configuration: CONFIGURATION,
    };
    vec![
        Message::Append(append()),
        Message::Append(Append {
            snapshot: Some(CONFIGURATION),
            ..append()
        }),
        Message::Ack(Ack {
            view: VIEW,
            stamp: Micros(1014),
            span: Micros(1030),
            wanted: Micros(1031),
            matched: Index(1015),
            incarnation: 1028,
        }),
        Message::Gap(Gap {
            view: VIEW,
            stamp: Micros(1016),
            span: Micros(1032),
            number: 1017,
            last: LAST,
            commit: COMMIT,
        }),
        Message::Refuse {
            view: VIEW,
            promised: View(1018),
        },
        Message::PreVote {
            nonce: 1019,
            last: LAST,
            dead: Some(Incarnation {
                replica: ReplicaId(3),
                number: 1026,
            }),
        },
        Message::Grant(Grant {
            nonce: 1020,
            promised: VIEW,
            last: LAST,
            members: MEMBERS,
            generation: View(1021),
            forgot: Some(LAST),
        }),
        Message::Prepare { view: VIEW },
        Message::Promise {
            view: VIEW,
            vote: Vote {
                last: LAST,
                commit: COMMIT,
                base: Index(1022),
                members: MEMBERS,
                forgot: Some(LAST),
            },
        },
        Message::Fetch {
            view: VIEW,
            after: LAST,
        },
        Message::Suffix(Suffix {
            view: VIEW,
            after: LAST,
            reclaimed: true,
            count: 1023,
        }),
        Message::Recovery(Request {
            incarnation: 1024,
            round: 1025,
            promised: VIEW,
            last: LAST,
            commit: COMMIT,
            restarted: true,
        }),
        stand(Standing::Leading(LAST)),
        stand(Standing::Voting),
        stand(Standing::Empty(empty)),
        Message::Resigned {
            view: VIEW,
            stays: true,
        },
    ]
}

fn bytes<T: Serialize>(parts: &[T]) -> Vec<Vec<u8>> {
    let encode = |part| wire::encode_part(part, Vec::new());
    parts.iter().map(encode).collect()
}

#[test]
fn the_form_of_messages_is_that_of_their_version() {
    assert_every_kind(&messages());
    assert_form("consensus", &bytes(&messages()));
}

#[test]
fn the_form_of_entries_is_that_of_their_version() {
    let kinds = [
        EntryKind::Noop,
        EntryKind::App,
        EntryKind::InSync(ReplicaSet(0b101)),
        EntryKind::Members(MEMBERS),
        EntryKind::Version(102),
    ];
    assert_every_kind(&kinds);
    let entries = kinds.map(|kind| Entry {
        viewstamp: LAST,
        kind,
        payload: vec![1, 2, 3],
    });
    assert_form("entries", &bytes(&entries));
}
