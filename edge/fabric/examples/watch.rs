//! Prints a replica's link events as they happen, with a heartbeat every 20 ms on each link: to
//! watch cuts, healing and restarts between hosts or network namespaces.
//!
//! ```text
//! cargo run -p plover-fabric --example watch -- 0 10.0.0.1:7000 1=10.0.0.2:7000
//! cargo run -p plover-fabric --example watch -- 1 10.0.0.2:7000 0=10.0.0.1:7000
//! ```

use plover_fabric::{Fabric, FabricEvent, Lane, TcpConfig, TcpFabric};
use plover_types::ReplicaId;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use std::error::Error;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant, SystemTime};

const BEAT: Duration = Duration::from_millis(20);

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(me), Some(listen)) = (arguments.next(), arguments.next()) else {
        return Err("usage: watch ID LISTEN PEER_ID=ADDRESS...".into());
    };
    let mut peers = Vec::new();
    for peer in arguments {
        let (id, address) = peer.split_once('=').ok_or("a peer is ID=ADDRESS")?;
        peers.push((ReplicaId(id.parse()?), address.parse()?));
    }
    let me = ReplicaId(me.parse()?);
    let config = TcpConfig::new("watch", me, listen.parse()?, peers.clone());
    let mut fabric = TcpFabric::new(config)?;
    let (mut events, mut beat_at) = (Vec::new(), Instant::now());
    loop {
        let now = Instant::now();
        if now >= beat_at {
            beat_at = now + BEAT;
            for (peer, _) in &peers {
                // A link that is down or full misses a beat.
                let _ = fabric.write(*peer, Lane::Log, b"beat");
            }
            fabric.flush();
        }
        let until_beat = beat_at.saturating_duration_since(now);
        let wait = fabric
            .timeout()
            .map_or(until_beat, |timeout| timeout.min(until_beat));
        let wait = Timespec {
            tv_sec: 0,
            tv_nsec: i64::from(wait.subsec_nanos()),
        };
        // SAFETY: the fabric outlives the call and keeps its descriptor open.
        let fd = unsafe { BorrowedFd::borrow_raw(fabric.wait_fd()) };
        // An interrupted wait is a short one.
        let _ = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&wait));
        fabric.progress(&mut events);
        for event in events.drain(..) {
            if !matches!(event, FabricEvent::Record { .. }) {
                let at = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
                println!("{:.3} {me}: {event:?}", at.as_secs_f64());
            }
        }
    }
}
