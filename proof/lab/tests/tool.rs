//! The lab as a tool: its commands on a real lab, from the outside.

use anyhow::{Context, Result, ensure};
use plover_lab::Lab;
use plover_lab::process::{self, Process};
use plover_lab_proof::{Turn, converse, plover, program, progress, role, wait_for};
use rustix::process::Signal;
use serde_json::Value;
use std::io::{Read, Write};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A lab made by the command, taken down also when the test fails.
struct Up {
    name: &'static str,
}

impl Up {
    fn new(name: &'static str, options: &[&str]) -> (Self, Value) {
        let up = Self { name };
        up.succeeds(&["down"]);
        let said = up.succeeds(&[&["up", "--quiet", "--json"], options].concat());
        let status = serde_json::from_str(&said).expect("one JSON object");
        (up, status)
    }

    fn run(&self, arguments: &[&str]) -> Output {
        plover(&[&["lab", "--name", self.name], arguments].concat())
    }

    fn succeeds(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn fails(&self, arguments: &[&str], words: &str) {
        let output = self.run(arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            output.status.code() == Some(1) && said.contains(words),
            "{arguments:?}: {output:?}"
        );
    }

    /// As it is now: commands restart replicas, and a lab that was opened before does not know their processes.
    fn open(&self) -> Lab {
        Lab::open(&self.name.parse().expect("a good name")).expect("the lab is up")
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        let output = self.run(&["down"]);
        assert!(
            output.status.success() || std::thread::panicking(),
            "{output:?}"
        );
    }
}

/// A question to the guest's Redis, from the client's host, with nothing but a shell.
fn ping(status: &Value) -> String {
    let ip = status["guest_ip"].as_str().expect("an address");
    format!("exec 3<>/dev/tcp/{ip}/6379; printf 'PING\\r\\n' >&3; head -n 1 <&3")
}

/// The id of the replica that has this role.
fn replica_with_role(status: &Value, role: &str) -> u8 {
    let replicas = status["replicas"].as_array().expect("replicas");
    let place = replicas.iter().position(|replica| replica["role"] == role);
    place.unwrap_or_else(|| panic!("no {role}: {status}")) as u8
}

#[test]
fn a_replicated_guest_by_hand() {
    let _turn = Turn::wait();
    let (lab, status) = Up::new("t-tool", &[]);
    assert_eq!(status["protected"], true, "{status}");
    assert_ne!(
        replica_with_role(&status, "leader"),
        replica_with_role(&status, "secondary")
    );
    assert!(lab.succeeds(&["status"]).contains("protected"));

    assert_eq!(
        lab.succeeds(&["exec", "--", "bash", "-c", &ping(&status)]),
        "+PONG\r\n"
    );
    assert_eq!(
        lab.run(&["exec", "--", "sh", "-c", "exit 7"]).status.code(),
        Some(7)
    );
    lab.fails(&["exec", "--", "no-such-program"], "no-such-program");
    lab.fails(&["restart", "--replica", "0"], "replica 0 is running");
    lab.fails(&["restart", "--replica", "5"], "there are 0, 1, 2");
    lab.fails(&["fault", "cut", "--replica", "1", "--from", "1"], "itself");
    lab.fails(&["bootstrap"], "nothing is lost");
    for replica in ["r0 | ", "r1 | ", "r2 | "] {
        assert!(lab.succeeds(&["logs"]).contains(replica));
    }
    assert!(!lab.succeeds(&["logs", "--replica", "1"]).contains("r1 | "));

    // A daemon that is asked to end leaves no process behind, nor its QEMU.
    let secondary = replica_with_role(&status, "secondary");
    let host = lab.open().topology().replica(secondary.into());
    assert_eq!(
        process::in_namespace(&host.path()).len(),
        3,
        "the supervisor, the replica and QEMU"
    );
    let daemon = status["replicas"][usize::from(secondary)]["plover_pid"].as_u64();
    let daemon = daemon
        .and_then(|pid| Process::now(pid as u32))
        .expect("it runs");
    assert!(daemon.signal(Signal::TERM));
    let deadline = Instant::now() + Duration::from_secs(60);
    while !process::in_namespace(&host.path()).is_empty() {
        assert!(Instant::now() < deadline, "it does not end");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(!lab.open().files(secondary).control_socket().exists());
    lab.succeeds(&["restart", "--replica", &secondary.to_string()]);

    // The daemon itself reports the same.
    let run_dir = format!("/run/plover-lab/{}/replica-0/run", lab.name);
    let own = plover(&["status", "--here", "--json", "--run-dir", &run_dir]);
    let own: Value = serde_json::from_slice(&own.stdout).expect("one JSON object");
    assert_eq!(own["id"], 0);
    assert!(plover(&["status", "--run-dir", &run_dir]).status.success());
    // The only replica below a directory needs no name.
    let above = run_dir.trim_end_matches("/run");
    let all = plover(&["status", "--all", "--run-dir", above]);
    assert!(all.status.success(), "{all:?}");
    let rows = String::from_utf8_lossy(&all.stdout).into_owned();
    assert_eq!(rows.lines().count(), 2, "{rows}");
    assert!(
        rows.contains(&format!("0, {}", own["role"].as_str().unwrap_or_default())),
        "{rows}"
    );
    let bootstrap = plover(&["bootstrap", "--run-dir", above]);
    assert!(!bootstrap.status.success(), "{bootstrap:?}");
    let why = String::from_utf8_lossy(&bootstrap.stderr);
    let wanted = match own["holds_state"] == true {
        true => "nothing is lost",
        false => "no new guest is booted",
    };
    assert!(why.contains(wanted), "{why}");
}

fn wait_until_protected(lab: &Lab) -> Result<()> {
    let progress = progress();
    wait_for(&progress, "protected", || Ok(lab.status().protected))
}

/// Waits until another replica serves, and returns its id.
fn another_leads(up: &Up, first: u8) -> Result<u8> {
    let mut second = first;
    let progress = progress();
    wait_for(&progress, "another replica serves", || {
        let status = up.open().status();
        let serving = status.leader().filter(|leader| leader.serving);
        second = serving.map_or(first, |leader| leader.id);
        Ok(second != first)
    })?;
    Ok(second)
}

/// What is typed, a reboot, a power-off and a pause hold on whichever host leads next.
#[test]
fn a_guest_by_its_console_while_its_leaders_die() {
    let _turn = Turn::wait();
    let (up, _) = Up::new("t-console", &[]);
    let run = || {
        the_console_outlives_its_host(&up)?;
        the_leader_dies_in_a_reboot(&up)?;
        a_guest_that_is_off_stays_off(&up)
    };
    run().unwrap_or_else(|error| panic!("{error:#}\n{}", up.open().status()));
}

/// Typed text goes through the log: the shell that reads it is in the same state on both sides, and
/// keeps its state over a failover.
fn the_console_outlives_its_host(up: &Up) -> Result<()> {
    let leader = || up.open().find(&role("leader"));
    let first = leader()?;
    let mut console = up.open().control(first).console()?;
    converse(&mut console, "word=plo; echo is-$((6*7))", "is-42")?;
    // Typed on the command's standard input, as a script would.
    let mut typing = Command::new(program())
        .args(["lab", "--name", up.name, "console"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()?;
    typing
        .stdin
        .take()
        .context("a pipe")?
        .write_all(b"word=${word}ver\n")?;
    ensure!(typing.wait()?.success());
    converse(&mut console, "echo now-$word", "now-plover")?;

    // A console open on a leader that is deposed, and lives, gets a message and is closed.
    wait_until_protected(&up.open())?;
    let first = leader()?;
    let mut console = up.open().control(first).console()?;
    up.succeeds(&["fault", "stop", "--role", "leader"]);
    another_leads(up, first)?;
    up.succeeds(&["fault", "cont", "--replica", &first.to_string()]);
    console.set_read_timeout(Some(Duration::from_secs(60)))?;
    let mut heard = Vec::new();
    let read = console.read_to_end(&mut heard);
    // A guest that boots again prints bytes that are no text.
    let heard = String::from_utf8_lossy(&heard);
    read.with_context(|| format!("after: {heard}"))?;
    ensure!(
        heard.contains(&format!("replica {first} leads no more")),
        "it heard: {heard}"
    );
    // One that is opened later is the guest's as well: the replica sends on what is typed, and what the guest prints.
    wait_until_protected(&up.open())?;
    let mut console = up.open().control(first).console()?;
    converse(&mut console, "echo from-$word", "from-plover")?;

    let first = leader()?;
    up.succeeds(&["fault", "kill", "--role", "leader"]);
    let mut console = up.open().control(another_leads(up, first)?).console()?;
    converse(&mut console, "echo still-$word", "still-plover")?;
    up.succeeds(&["restart", "--replica", &first.to_string()]);
    Ok(())
}

/// A reboot is the guest's own doing, and goes on whichever host it began on.
fn the_leader_dies_in_a_reboot(up: &Up) -> Result<()> {
    for _ in 0..2 {
        wait_until_protected(&up.open())?;
        let first = up.open().find(&role("leader"))?;
        let mut console = up.open().control(first).console()?;
        converse(
            &mut console,
            "word=old; reboot -f; echo",
            "Restarting system",
        )?;
        up.succeeds(&["fault", "kill", "--role", "leader"]);
        let mut console = up.open().control(another_leads(up, first)?).console()?;
        console.set_read_timeout(Some(Duration::from_secs(1)))?;
        let progress = progress();
        let (mut heard, mut buffer) = (String::new(), [0; 4096]);
        wait_for(&progress, "a shell that has forgotten", || {
            // Text that is typed before the shell is up is lost.
            console.write_all(b"echo word=$word.\n")?;
            if let Ok(count) = console.read(&mut buffer) {
                heard += &String::from_utf8_lossy(&buffer[..count]);
            }
            Ok(heard.contains("word=."))
        })?;
        up.succeeds(&["restart", "--replica", &first.to_string()]);
    }
    Ok(())
}

/// A guest that powers off is off on whichever host leads next, until an operator starts it. A guest that an operator
/// pauses stands in the same way. The logs of all hosts tell of both.
fn a_guest_that_is_off_stays_off(up: &Up) -> Result<()> {
    let start = |id: u8| {
        let run_dir = format!("/run/plover-lab/{}/replica-{id}/run", up.name);
        let output = plover(&["start", "--run-dir", &run_dir]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.success(), said)
    };
    wait_until_protected(&up.open())?;
    let progress = progress();
    let first = up.open().find(&role("leader"))?;
    let (done, said) = start(first);
    ensure!(!done && said.contains("the guest is not off"), "{said}");
    let mut console = up.open().control(first).console()?;
    converse(
        &mut console,
        "poweroff -f",
        "it is off until 'plover start'",
    )?;
    wait_for(&progress, "both copies to be off", || {
        let off = |id: &u8| {
            up.open()
                .control(*id)
                .status()
                .is_ok_and(|s| s.guest_is_off())
        };
        Ok([0, 1, 2].iter().filter(|id| off(id)).count() == 2)
    })?;
    up.succeeds(&["fault", "kill", "--role", "leader"]);
    let second = another_leads(up, first)?;
    let status = up.open().control(second).status()?;
    ensure!(status.guest_is_off(), "it is on after a failover");
    up.succeeds(&["restart", "--replica", &first.to_string()]);
    wait_until_protected(&up.open())?;
    // Not on the leader's host: the replica there sends the order on.
    ensure!(
        up.open().find(&role("leader"))? == second,
        "{first} leads again"
    );
    let (done, said) = start(first);
    ensure!(done, "{said}");
    wait_for(&progress, "an answer of the service", || {
        Ok(up.open().guest_answers(Duration::from_secs(1)))
    })?;
    wait_until_protected(&up.open())?;
    up.succeeds(&["pause"]);
    up.fails(&["shutdown"], "plover unpause");
    up.succeeds(&["fault", "kill", "--role", "leader"]);
    let third = another_leads(up, second)?;
    ensure!(!up.open().guest_answers(Duration::from_secs(1)), "it runs");
    let told = up.succeeds(&["status"]);
    ensure!(told.contains("paused by the operator"), "{told}");
    up.succeeds(&["unpause"]);
    wait_for(&progress, "an answer of the guest", || {
        Ok(up.open().guest_answers(Duration::from_secs(1)))
    })?;
    let run_dir = format!("/run/plover-lab/{}/replica-{third}/run", up.name);
    let logs = plover(&["logs", "--run-dir", &run_dir]);
    let logs = String::from_utf8_lossy(&logs.stdout);
    let of = |id: u8| logs.contains(&format!("r{id} | "));
    ensure!(of(third) && of(first), "{logs}");
    ensure!(logs.contains(&format!("r{second} | [no log: ")), "{logs}");
    ensure!(logs.contains("an operator lets the guest go on"), "{logs}");
    Ok(())
}

#[test]
fn an_unreplicated_guest_and_a_second_lab() {
    let _turn = Turn::wait();
    let (first, status) = Up::new("t-none", &["--policy", "none"]);
    assert_eq!(
        status["replicas"].as_array().map(Vec::len),
        Some(1),
        "{status}"
    );
    assert_eq!(status["protected"], false);
    // The labs are separate, though their addresses are the same.
    let (second, status) = Up::new("t-none-2", &["--policy", "none"]);
    first.succeeds(&["fault", "kill", "--replica", "0"]);
    assert_eq!(
        second.succeeds(&["exec", "--", "bash", "-c", &ping(&status)]),
        "+PONG\r\n"
    );
    let said: Value = serde_json::from_str(&first.succeeds(&["status", "--json"])).expect("JSON");
    assert_eq!(said["replicas"][0]["role"], "down");
    assert_eq!(said["replicas"][0]["plover_pid"], Value::Null);
    first.fails(&["fault", "kill", "--replica", "0"], "down");
    first.fails(&["console"], "no replica leads");
}
