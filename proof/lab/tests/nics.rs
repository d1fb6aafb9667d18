//! A guest with several network cards, each on a network of its own.

use anyhow::{Result, ensure};
use plover_lab::Lab;
use plover_lab::net::{GUEST_IP, guest_mac, on_network, tap};
use plover_lab::options::Options;
use plover_lab::progress::Progress;
use plover_lab_proof::redis::Connection;
use plover_lab_proof::{ask_guest, kill_leader, prove_on, restart_as_witness, role, wait_for};
use std::net::{SocketAddrV4, UdpSocket};
use std::process::Command;
use std::time::Duration;

/// The guest gives itself an address on its second card. The third one stays down in the guest.
const CONFIGURE: &str = "ip link set eth1 up && ip addr add 10.77.11.100/24 dev eth1; \
                         cat /sys/class/net/eth2/address; echo to''ld";

/// On the third network a client asks for an address that nobody has: its frames wait for a guest that reads none.
const NOBODY: &str = "10.77.12.100:9";

/// Writes by each connection, and reads by the other.
const WRITES: usize = 100;

type Connections = [Connection; 2];

fn use_both(connections: &mut Connections, name: &str) -> Result<()> {
    for count in 0..WRITES {
        let (key, value) = (format!("{name}{count}"), count.to_string());
        connections[count % 2].set(&key, &value)?;
        let read = connections[1 - count % 2].get(&key)?;
        ensure!(read == Some(value.into_bytes()), "{key} is {read:?}");
    }
    Ok(())
}

fn is_there(connections: &mut Connections, name: &str) -> Result<()> {
    for count in 0..WRITES {
        let read = connections[count % 2].get(&format!("{name}{count}"))?;
        ensure!(
            read == Some(count.to_string().into_bytes()),
            "{name}{count} is {read:?}"
        );
    }
    Ok(())
}

fn serves_both_over_failovers(lab: &mut Lab, progress: &Progress) -> Result<()> {
    let told = ask_guest(lab, CONFIGURE, "told")?;
    ensure!(told.contains(&guest_mac(2).to_string()), "{told}");
    let client = lab.topology().client();
    let asker = client.run(|| Ok(UdpSocket::bind("0.0.0.0:0")?))?;
    std::thread::spawn(move || {
        // Until the client's network is gone.
        while asker.send_to(b"?", NOBODY).is_ok() {
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    let open = |nic| {
        let address = SocketAddrV4::new(on_network(nic, GUEST_IP), lab.service().port());
        client.run(|| Ok(Connection::open(address, Duration::from_secs(20))?))
    };
    let mut connections = [open(0)?, open(1)?];
    use_both(&mut connections, "first")?;
    let dead = kill_leader(lab, progress)?;
    is_there(&mut connections, "first")?;
    use_both(&mut connections, "second")?;
    progress.say("both networks go on");
    restart_as_witness(lab, dead, progress)?;

    // A leader that does not reach one of its networks hands over.
    let mut traces = lab.traces();
    traces.take();
    lab.wait_until_settled(&mut traces, progress, Duration::from_secs(60))?;
    let leader = lab.find(&role("leader"))?;
    let host = lab.topology().replica(leader.into());
    let mut unplug = Command::new("ip");
    unplug.args(["link", "set", &tap(1), "down"]);
    ensure!(host.exec_in(unplug)?.status()?.success());
    wait_for(progress, "another leads", || {
        Ok(lab.find(&role("leader")).is_ok_and(|now| now != leader))
    })?;
    is_there(&mut connections, "second")?;
    use_both(&mut connections, "third")?;
    Ok(())
}

#[test]
fn each_network_card_is_served_over_failovers() {
    let options = Options {
        nics: 3,
        ..Options::default()
    };
    prove_on("t-nics", options, serves_both_over_failovers);
}
