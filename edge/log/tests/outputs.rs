//! The output check (APUS §3) on a group in which one replica sends something else.

mod common;

use common::{append, config, free_addresses, tcp, turn_until};
use plover_log::{Server, StateMachine};
use plover_types::{ReplicaId, ReplicaSet, Viewstamp};

/// Answers with each entry. One replica gets the 200th wrong.
#[derive(Default)]
struct Echo {
    wrong: bool,
    entries: u64,
}

impl StateMachine for Echo {
    fn apply(&mut self, _at: Viewstamp, entry: &[u8], answer: &mut Vec<u8>) {
        self.entries += 1;
        answer.extend_from_slice(entry);
        if self.wrong && self.entries == 200 {
            answer[0] ^= 1;
        }
    }
    fn snapshot(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.entries.to_le_bytes());
    }
    fn restore(&mut self, snapshot: Option<&[u8]>) -> Result<(), String> {
        let bytes = snapshot.unwrap_or(&[0; 8]).try_into();
        self.entries = u64::from_le_bytes(bytes.map_err(|_| "not eight bytes")?);
        Ok(())
    }
}

#[test]
fn the_replica_that_differs_is_named_on_all_of_them() {
    let addresses = free_addresses(3);
    let open = |me| {
        let mut config = config(me, 3);
        config.check_outputs = true;
        let wrong = me == 2;
        let machine = Echo { wrong, entries: 0 };
        Server::in_memory(config, tcp(me, &addresses), machine).expect("it opens")
    };
    let mut servers: Vec<_> = (0..3).map(open).collect();
    for _ in 0..300 {
        append(&mut servers, &[7; 30]);
    }
    let all = ReplicaSet::of((0..3).map(ReplicaId));
    turn_until(&mut servers, |servers| {
        servers.iter().all(|server| {
            let verdicts = server.report().outputs;
            verdicts.first().is_some_and(|it| {
                it.reported_by == all && it.diverged.is_some_and(|it| it.replicas.len() == 1)
            })
        })
    });
    for server in &servers {
        let verdict = server.report().outputs[0];
        let diverged = verdict.diverged.expect("it was just there");
        // 50 entries a piece: the 200th is the last of piece 3.
        assert_eq!(diverged.piece, 3);
        assert_eq!(diverged.replicas, ReplicaSet::of([ReplicaId(2)]));
        assert_eq!(verdict.agreed, 4500);
    }
}
