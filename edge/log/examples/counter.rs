//! A counter in three processes, over TCP. Start it three times:
//!
//! ```text
//! cargo run -p plover-log --example counter -- 0 127.0.0.1:7000 127.0.0.1:7001 127.0.0.1:7002
//! cargo run -p plover-log --example counter -- 1 127.0.0.1:7000 127.0.0.1:7001 127.0.0.1:7002
//! cargo run -p plover-log --example counter -- 2 127.0.0.1:7000 127.0.0.1:7001 127.0.0.1:7002
//! ```
//!
//! Replica 0 counts to ten; each says when it has seen that, and ends when its input does.

use plover_fabric::{TcpConfig, TcpFabric};
use plover_log::{Config, Server, StateMachine};
use plover_types::{ReplicaId, ReplicaSet, Viewstamp};
use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Default)]
struct Counter(u64);

impl StateMachine for Counter {
    fn apply(&mut self, _at: Viewstamp, entry: &[u8], answer: &mut Vec<u8>) {
        self.0 += entry.len() as u64;
        answer.extend_from_slice(&self.0.to_le_bytes());
    }
    fn snapshot(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0.to_le_bytes());
    }
    fn restore(&mut self, snapshot: Option<&[u8]>) -> Result<(), String> {
        let bytes = snapshot.unwrap_or(&[0; 8]).try_into();
        self.0 = u64::from_le_bytes(bytes.map_err(|_| "not eight bytes")?);
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let me = ReplicaId(arguments.next().ok_or("which replica?")?.parse()?);
    let addresses: Vec<SocketAddr> = arguments.map(|it| it.parse()).collect::<Result<_, _>>()?;
    let all: Vec<_> = (0..).map(ReplicaId).zip(addresses).collect();
    let own = all.iter().find(|(id, _)| *id == me);
    let listen = own.ok_or("this replica has no address")?.1;
    let others = all.iter().copied().filter(|(id, _)| *id != me).collect();

    let fabric = TcpFabric::new(TcpConfig::new("counter", me, listen, others))?;
    let config = Config::new(me, ReplicaSet::of(all.iter().map(|(id, _)| *id)));
    let mut server = Server::in_memory(config, fabric, Counter::default())?;
    if me == ReplicaId(0) && server.wait_until_leading(PATIENCE)? {
        for _ in 0..10 {
            server.append(b"+", PATIENCE)??;
        }
    }
    server.turn_until(PATIENCE, |server| server.machine().0 == 10)?;
    println!("{me} counts {}", server.machine().0);

    // The others may need this one still.
    let stopper = server.stopper();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_line(&mut String::new());
        stopper.stop();
    });
    Ok(server.run()?)
}
