//! The configuration file of a replica of a program.

use plover_node::{ConfigError, GroupConfig, PathConfig, read};
use plover_program::{Entrance, Sessions};
use plover_types::{ReplicaId, ReplicaSet};
use serde::Deserialize;
use serde::de::Error;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::Path;

/// A whole configuration. Doc comments of its keys are the operator's reference.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunConfig {
    /// `[group]`: the replicas that run the program together; as for `plover replica`, without the keys
    /// that are about a guest.
    pub group: GroupConfig,
    /// `[program]`: the program; the same on all replicas.
    pub program: ProgramConfig,
    /// `[paths]`: the directories for this replica's files.
    pub paths: PathConfig,
}

/// `[program]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProgramConfig {
    /// How the program's connections are replicated.
    #[serde(default)]
    pub via: Via,
    /// With `via = "preload"`: `"output"` makes the program's output wait until all that it has read is committed;
    /// `"read"` makes each read wait for its own commit.
    #[serde(default)]
    pub wait: Option<Wait>,
    /// With `via = "preload"`: the program may open connections and use UDP. Every replica does, and nothing of it
    /// is replicated.
    #[serde(default)]
    pub outgoing: bool,
    /// With `via = "preload"`: the time of day that the program sees. `"host"`: its host's, on each replica another.
    /// `"log"`: that of its last input, on all replicas the same; before the first client it is 2000-01-01.
    #[serde(default)]
    pub clock: Clock,
    /// The address and the port for clients, such as `"192.0.2.100:6379"`. Only the leader listens there.
    pub listen: SocketAddrV4,
    /// The device of this host on the clients' network, such as `"eth0"`. The leader takes the address of `listen`,
    /// and announces it there; the address must belong to no host. Without this key the address must be on
    /// this host already, as 127.0.0.1 is.
    #[serde(default)]
    pub device: Option<String>,
    /// The port on which the program listens.
    pub port: u16,
    /// With `via = "proxy"`: the address of this host at which the program listens; on all addresses is fine, too. A program
    /// that takes no loopback address, such as a UPnP server, needs another one here, on each host its own.
    #[serde(default = "default_address")]
    pub address: Ipv4Addr,
    /// How long a program may take, in s, until it listens and is ready.
    #[serde(default = "default_start_s")]
    pub start_s: u64,
    /// A command that succeeds once the program answers clients, such as `redis-cli -p 6380 ping | grep -q PONG`. It
    /// runs in a shell, in the program's directory, again and again. A program that listens before it has read its
    /// files needs it: it would answer its first input with an error. Without it a program is ready when it listens.
    #[serde(default)]
    pub ready_cmd: Option<String>,
    /// A program that leaves its input unread for this long, in ms, stands still: its replica does not lead.
    #[serde(default = "default_stall_ms")]
    pub stall_ms: u64,
    /// Bytes of output of each connection that one hash covers; `"off"` compares nothing.
    #[serde(default)]
    pub check: Check,
    /// A command that makes the running program write its state into its directory, such as `redis-cli -e -p 6380
    /// save`. It runs there, in a shell. Then the directory is archived as a checkpoint. It must fail where the state was not
    /// written: what it leaves is taken for the whole state, and the inputs before it are forgotten.
    #[serde(default)]
    pub snapshot_cmd: Option<String>,
    /// Take checkpoints without a command: end the program by SIGTERM, archive its directory, start it again. The
    /// program must have written all its state when it ends, with code 0 or 143 or by the signal.
    #[serde(default)]
    pub snapshot_by_stop: bool,
    /// A command that prepares the directory after a checkpoint was unpacked into it, before the program is
    /// started.
    #[serde(default)]
    pub restore_cmd: Option<String>,
    /// How clients' connections outlive a checkpoint. `"reconnect"`: not at all. `"stateless"`: the program remembers nothing
    /// of a connection between two requests. `"login"`: it remembers what a connection has sent before the first answer.
    /// With the last two, clients must wait for the answer to each request before they send the next one.
    #[serde(default)]
    pub sessions: Sessions,
    /// A checkpoint or a command of it that takes longer than this, in s, has failed.
    #[serde(default = "default_snapshot_s")]
    pub snapshot_s: u64,
}

/// The entrance of inputs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Via {
    /// Connections end at a proxy, which gives the program what is committed (the default).
    #[default]
    Proxy,
    /// A library that is loaded into the program stands between it and its clients (APUS §3).
    Preload,
}

/// The call of the program that waits for the commit of an input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wait {
    /// The program's next output (the default).
    #[default]
    Output,
    /// The read that has got it.
    Read,
}

/// The program's time of day.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Clock {
    /// Its host's (the default).
    #[default]
    Host,
    /// That of its last input, which the log says.
    Log,
}

/// The output check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Check(pub Option<u32>);

impl Default for Check {
    /// What fits one Ethernet frame (APUS §3).
    fn default() -> Self {
        Self(Some(1500))
    }
}

impl<'de> Deserialize<'de> for Check {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Given {
            Bytes(u64),
            Word(String),
        }
        let refused = "give \"off\", or a number of bytes from 16 to 65536";
        match Given::deserialize(from).map_err(|_| D::Error::custom(refused))? {
            Given::Word(word) if word == "off" => Ok(Self(None)),
            Given::Bytes(bytes @ 16..=65536) => Ok(Self(Some(bytes as u32))),
            _ => Err(D::Error::custom(refused)),
        }
    }
}

fn default_address() -> Ipv4Addr {
    Ipv4Addr::LOCALHOST
}

fn default_start_s() -> u64 {
    30
}

fn default_stall_ms() -> u64 {
    5000
}

fn default_snapshot_s() -> u64 {
    120
}

/// Bytes of the log that are kept for the entries of replicas, since only these let it be trimmed: announcements of checkpoints,
/// and cuts. A replica that tries for weeks proposes so many.
const ROOM_OF_REPLICAS: usize = 1 << 20;

/// The longest that a program may be given for something.
const WEEK_S: u64 = 7 * 24 * 3600;

impl RunConfig {
    /// Reads and checks a configuration file.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let config: Self = read(path)?;
        let checked = config.group.check().and_then(|()| config.check());
        checked.map_err(|why| ConfigError::Mismatch {
            path: path.into(),
            why,
        })?;
        Ok(config)
    }

    /// Whether `[group]` has keys that a program's group has not.
    fn check_group(&self) -> Result<(), String> {
        let group = &self.group;
        let of_a_guest = "is about a guest, and a program has none";
        let lowest = group.replica.iter().map(|it| it.id).min();
        for (is_given, key, why) in [
            (
                group
                    .first_leader
                    .is_some_and(|it| it != 0 && Some(it) != lowest),
                "first_leader",
                of_a_guest,
            ),
            (
                group.hypervisor_timeout_ms != 600,
                "hypervisor_timeout_ms",
                of_a_guest,
            ),
            (
                group.warm_witness != Default::default(),
                "warm_witness",
                of_a_guest,
            ),
            (group.warm_mib_per_s != 64, "warm_mib_per_s", of_a_guest),
            (!group.spare.is_empty(), "spare", of_a_guest),
            (group.replace_after_s != 600, "replace_after_s", of_a_guest),
            (
                group.version_max.is_some(),
                "version_max",
                "is for guests, and a program's group has the newest version that all its replicas speak",
            ),
            (
                group.fencing,
                "fencing",
                "is for two replicas, and a program never runs on two",
            ),
        ] {
            if is_given {
                return Err(format!("group.{key} {why}: remove it"));
            }
        }
        if !matches!(group.replica.len(), 1 | 3 | 5 | 7 | 9) {
            return Err(format!(
                "a program runs on 1, 3, 5, 7 or 9 replicas, and the group has {}",
                group.replica.len()
            ));
        }
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        self.check_group()?;
        let program = &self.program;
        let port = program.listen.port();
        if port == 0 || program.port == 0 {
            return Err("program.listen and program.port need ports other than 0".into());
        }
        let ip = program.listen.ip();
        if program.address.is_unspecified() {
            return Err(format!(
                "program.address {} must be an address of this host alone, such as 127.0.0.1",
                program.address
            ));
        }
        let is_same = ip.is_loopback() || ip.is_unspecified() || *ip == program.address;
        if program.via == Via::Preload && program.address != default_address() {
            return Err(format!(
                "program.address {} goes with program.via = \"proxy\": a preloaded program listens at 127.0.0.1, alone or \
                 with all others",
                program.address
            ));
        }
        if port == program.port && is_same {
            return Err(format!(
                "program.listen {} is where the program listens itself (program.port): give clients another port",
                program.listen
            ));
        }
        if program.device.is_some() && (ip.is_loopback() || ip.is_unspecified()) {
            return Err(format!(
                "program.listen {ip} cannot move to program.device: give an address of the clients' network, or \
                 remove the device"
            ));
        }
        if program.snapshot_cmd.is_some() && program.snapshot_by_stop {
            return Err(
                "program.snapshot_cmd and snapshot_by_stop are two ways to one thing: remove one"
                    .into(),
            );
        }
        if program.restore_cmd.is_some() && !self.takes_checkpoints() {
            return Err("program.restore_cmd goes with snapshot_cmd or snapshot_by_stop".into());
        }
        if program.via == Via::Proxy && (program.wait.is_some() || program.outgoing) {
            return Err(
                "program.wait and program.outgoing go with program.via = \"preload\"".into(),
            );
        }
        if program.clock == Clock::Log && self.entrance() != Entrance::HoldsOutput {
            return Err(
                "program.clock = \"log\" needs program.via = \"preload\", and no program.wait = \"read\": the \
                 program sees the time of its input before the commit"
                    .into(),
            );
        }
        if program.sessions != Sessions::Reconnect && !self.takes_checkpoints() {
            return Err("program.sessions goes with snapshot_cmd or snapshot_by_stop".into());
        }
        if program.sessions != Sessions::Reconnect && program.check.0.is_none() {
            return Err(
                "program.sessions needs program.check: it counts what the program answers, which must be the same on all \
                 replicas"
                    .into(),
            );
        }
        for (key, given, least, most) in [
            ("start_s", program.start_s, 1, WEEK_S),
            ("snapshot_s", program.snapshot_s, 1, WEEK_S),
            ("stall_ms", program.stall_ms, 100, 1000 * WEEK_S),
        ] {
            if !(least..=most).contains(&given) {
                return Err(format!("program.{key} = {given} must be {least} to {most}"));
            }
        }
        Ok(())
    }

    /// Where the program listens.
    pub(crate) fn program_address(&self) -> SocketAddrV4 {
        SocketAddrV4::new(self.program.address, self.program.port)
    }

    /// Whether there is a way to take checkpoints.
    pub fn takes_checkpoints(&self) -> bool {
        self.program.snapshot_cmd.is_some() || self.program.snapshot_by_stop
    }

    /// Where the input of clients enters a leader's program.
    pub(crate) fn entrance(&self) -> Entrance {
        match (self.program.via, self.program.wait.unwrap_or_default()) {
            (Via::Proxy, _) => Entrance::Fed,
            (Via::Preload, Wait::Output) => Entrance::HoldsOutput,
            (Via::Preload, Wait::Read) => Entrance::HoldsInput,
        }
    }

    pub(crate) fn members(&self) -> ReplicaSet {
        ReplicaSet::of(self.group.replica.iter().map(|it| ReplicaId(it.id)))
    }

    /// The consensus of this group.
    pub(crate) fn log(&self) -> plover_log::Config {
        use plover_types::Micros;
        let group = &self.group;
        let mut config = plover_log::Config::new(ReplicaId(group.me), self.members());
        config.heartbeat = Micros::from_ms(group.heartbeat_ms);
        config.timeout = Micros::from_ms(group.timeout_ms());
        config.timeout_min = Some(Micros::from_ms(group.timeout_min_ms()));
        config.durability = group.durability;
        // Only checkpoints let the log be trimmed, so this much is what a restored program executes again.
        config.log_bytes_max = self.clients_room() + ROOM_OF_REPLICAS;
        if self.program.via == Via::Preload {
            // The program may have read a ring full of input that was not proposed yet.
            config.log_bytes_max += plover_preload::RING_BYTES;
        }
        config.retain_bytes = usize::MAX;
        config
    }

    /// The bytes of the log that clients can fill.
    pub(crate) fn clients_room(&self) -> usize {
        self.group.log_mib << 20
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
        [group]
        name = "shop"
        me = 1
        plaintext = true
        replica = [
            { id = 0, address = "192.0.2.10:7700" },
            { id = 1, address = "192.0.2.11:7700" },
            { id = 2, address = "192.0.2.12:7700" },
        ]
        [program]
        via = "proxy"
        listen = "192.0.2.100:6379"
        device = "eth0"
        port = 6380
        snapshot_cmd = "redis-cli -e -p 6380 save"
        [paths]
        state_dir = "/var/lib/plover/shop"
        run_dir = "/run/plover/shop"
    "#;

    fn parse(text: &str) -> Result<RunConfig, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("group.toml");
        std::fs::write(&path, text).unwrap();
        RunConfig::load(&path).map_err(|error| error.to_string())
    }

    #[test]
    fn a_sound_configuration_is_taken() {
        let config = parse(GOOD).unwrap();
        assert_eq!(config.program.check, Check(Some(1500)));
        assert_eq!(config.entrance(), Entrance::Fed);
        let preload = GOOD.replace("\"proxy\"", "\"preload\"");
        assert_eq!(parse(&preload).unwrap().entrance(), Entrance::HoldsOutput);
        let read = GOOD.replace("\"proxy\"", "\"preload\"\nwait = \"read\"");
        assert_eq!(parse(&read).unwrap().entrance(), Entrance::HoldsInput);
        let off = GOOD.replace("port = 6380", "port = 6380\ncheck = \"off\"");
        assert_eq!(parse(&off).unwrap().program.check, Check(None));
    }

    /// A key of the group that consensus ignored would promise what does not happen.
    #[test]
    fn consensus_gets_the_timeouts_of_the_group() {
        let given = GOOD.replace(
            "me = 1",
            "me = 1\ntimeout_ms = 400\ntimeout_min_ms = 90\nheartbeat_ms = 20",
        );
        let log = parse(&given).unwrap().log();
        assert_eq!(log.timeout, plover_types::Micros::from_ms(400));
        assert_eq!(log.timeout_min, Some(plover_types::Micros::from_ms(90)));
    }

    #[test]
    fn mistakes_are_named() {
        for (from, to, names) in [
            ("me = 1", "me = 1\nwarm_witness = \"off\"", "about a guest"),
            (
                "me = 1",
                "me = 1\nversion_max = 2",
                "version_max is for guests",
            ),
            ("me = 1", "me = 1\nfencing = true", "fencing is for two"),
            ("me = 1", "me = 7", "group.me"),
            ("me = 1", "me = 7", "/group.toml does not fit together"),
            (
                "port = 6380",
                "port = 6380\nsnapshot_s = 9000000000000000000",
                "snapshot_s = 9000000000000000000 must be 1 to 604800",
            ),
            (
                "port = 6380",
                "port = 6380\nstart_s = 0",
                "start_s = 0 must be 1",
            ),
            (
                "port = 6380",
                "port = 6380\nstall_ms = 99",
                "stall_ms = 99 must be 100",
            ),
            ("port = 6380", "port = 6380\ncolour = 1", "colour"),
            ("port = 6380", "port = 6380\ncheck = 3", "16 to 65536"),
            ("port = 6380", "port = 6380\ncheck = \"on\"", "off"),
            ("\"proxy\"", "\"socks\"", "preload"),
            (
                "port = 6380",
                "port = 6380\nwait = \"read\"",
                "go with program.via",
            ),
            ("\"proxy\"", "\"preload\"\nwait = \"both\"", "output"),
            (
                "\"proxy\"",
                "\"proxy\"\nclock = \"log\"",
                "needs program.via",
            ),
            (
                "\"proxy\"",
                "\"preload\"\nwait = \"read\"\nclock = \"log\"",
                "no program.wait",
            ),
            ("192.0.2.100:6379", "127.0.0.1:6379", "cannot move"),
            (
                "port = 6380",
                "port = 6380\nsnapshot_by_stop = true",
                "two ways",
            ),
            (
                "port = 6380",
                "port = 6380\ncheck = \"off\"\nsessions = \"login\"",
                "needs program.check",
            ),
            (
                "port = 6380",
                "port = 6380\nsessions = \"sticky\"",
                "reconnect",
            ),
            (
                "snapshot_cmd =",
                "sessions = \"login\"\nready_cmd =",
                "sessions goes with",
            ),
            ("snapshot_cmd =", "restore_cmd =", "goes with snapshot_cmd"),
            ("port = 6380", "port = 0", "other than 0"),
            (
                "port = 6380",
                "port = 6380\naddress = \"0.0.0.0\"",
                "of this host alone",
            ),
            (
                "\"proxy\"",
                "\"preload\"\naddress = \"192.0.2.10\"",
                "goes with program.via",
            ),
            ("192.0.2.100:6379", "192.0.2.100", "listen"),
            ("{ id = 2, address = \"192.0.2.12:7700\" },", "", "1, 3, 5"),
        ] {
            let text = GOOD.replace(from, to);
            assert_ne!(text, GOOD, "{from}");
            let error = parse(&text).expect_err(to);
            assert!(error.contains(names), "{to}: {error}");
        }
    }
}
