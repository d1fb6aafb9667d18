//! One example of each message of the bulk lane, with a different number in every field, so that a
//! changed format is noticed.

use super::*;
use plover_types::forms::{assert_every_kind, assert_form};
use plover_types::wire;

const SYNC: SyncNo = SyncNo(1001);

fn runs() -> Runs {
    Runs(vec![(1002, 3), (1006, 7)])
}

/// Messages of a copy to another replica.
fn copies() -> Vec<Body> {
    let start = |purpose| Body::CopyStart {
        purpose,
        attempt: 1101,
        stream: 1102,
        policy: "a policy".into(),
        machine: MachineWords {
            needed: "a machine".into(),
            wanted: "a processor".into(),
        },
        pages: 1103,
        disk_blocks: 1104,
    };
    let ready = |written| Body::CopyReady {
        attempt: 1105,
        written,
        compare_from: 1106,
        keep_from: 1107,
    };
    vec![
        start(CopyPurpose::Join),
        start(CopyPurpose::Warm),
        ready(None),
        ready(Some(1108)),
        Body::CopyFailed {
            attempt: 1109,
            why: "why".into(),
        },
        Body::Compare {
            attempt: 1110,
            first: 1111,
            count: 1112,
            key: [13; 32],
        },
        Body::Compared {
            attempt: 1114,
            first: 1115,
            digests: vec![16],
        },
        Body::Copy {
            attempt: 1117,
            seq: 1118,
            chunk: vec![19],
        },
        Body::CopyAck {
            attempt: 1120,
            chunks: 1121,
        },
    ]
}

/// Messages that compare pages and subpages.
fn comparing() -> Vec<Body> {
    vec![
        Body::Dirty {
            sync: SYNC,
            runs: runs(),
            key: [22; 32],
        },
        Body::Hashes {
            sync: SYNC,
            runs: runs(),
            first: 1201,
            total: 1202,
            digests: vec![23],
            wait: Micros(1203),
        },
        Body::Subpages {
            sync: SYNC,
            runs: runs(),
            heard: 1206,
        },
        Body::SubpageHashes {
            sync: SYNC,
            anew: true,
            first: 1204,
            total: 1205,
            said: vec![24],
        },
    ]
}

/// Messages since wire version 3.
fn under_keys() -> Vec<Body> {
    vec![
        Body::DirtyUnderKeys {
            sync: SYNC,
            runs: runs(),
            pages: [61; 32],
            subpages: [62; 32],
        },
        Body::CompareUnderKey {
            attempt: 1601,
            first: 1602,
            count: 1603,
            key: [63; 32],
        },
    ]
}

/// Messages since wire version 4.
fn streams() -> Vec<Body> {
    let route = Route {
        protocol: 6,
        source: ([10, 0, 0, 2].into(), 1701),
        destination: ([10, 0, 0, 9].into(), 1702),
    };
    vec![Body::Streams {
        sync: SYNC,
        streams: vec![KnownStream {
            route,
            macs: [71; MACS_BYTES],
            first: 1703,
            acked: 1704,
            heard: 1705,
            early: true,
        }],
    }]
}

/// Messages that transfer pages and end a sync.
fn transfer() -> Vec<Body> {
    let refeed = Unconsumed {
        frames: vec![Frame(vec![31, 32])],
        typed: vec![33],
    };
    vec![
        Body::Checkpoint { sync: SYNC },
        Body::Pages {
            sync: SYNC,
            seq: 1301,
            chunk: vec![34],
        },
        Body::PagesAck {
            sync: SYNC,
            chunks: 1302,
        },
        Body::End {
            sync: SYNC,
            chunks: 1303,
            device: vec![35],
            age: Micros(1035),
            refeed,
            compare: true,
            // Their format is tested in the crate that defines them.
            translations: Vec::new(),
        },
        Body::Fetch {
            sync: SYNC,
            runs: runs(),
        },
        Body::Fetched {
            sync: SYNC,
            chunk: vec![36],
            last: true,
        },
        Body::Ack { sync: SYNC },
        Body::GaveUp {
            sync: SYNC,
            why: "why".into(),
        },
    ]
}

/// Messages about the outputs of a compared slot.
fn matching() -> Vec<Body> {
    let (syn, _) = wire::decode_part(&[0; 64]).expect("zeroes are a connection");
    vec![
        Body::LeaderSyn { sync: SYNC, syn },
        Body::OutputsReported {
            sync: SYNC,
            first: 1401,
            frames: vec![Frame(vec![41])],
        },
        Body::OutputsReleased {
            sync: SYNC,
            frames: 1402,
        },
        Body::Uplink { up: true },
        Body::Drained { drained: true },
        Body::ResetPages { runs: runs() },
        Body::GuestLost { why: "why".into() },
        Body::Members { record: vec![51] },
        Body::Copied { peer: ReplicaId(7) },
    ]
}

#[test]
fn the_form_of_messages_is_that_of_their_version() {
    let bodies = [
        copies(),
        comparing(),
        transfer(),
        matching(),
        under_keys(),
        streams(),
    ];
    let bodies = bodies.concat();
    assert_every_kind(&bodies);
    assert_every_kind(&[CopyPurpose::Join, CopyPurpose::Warm]);
    let view = View(1501);
    let encode = |body: Body| wire::encode_part(&SyncMessage { view, body }, Vec::new());
    let of = |version| {
        let known = bodies.iter().filter(|it| it.since() <= version);
        known.cloned().map(encode).collect::<Vec<_>>()
    };
    assert_form("syncvm of version 2", &of(2));
    assert_form("syncvm of version 3", &of(3));
    assert_form("syncvm", &of(wire::WIRE_VERSION));
}
