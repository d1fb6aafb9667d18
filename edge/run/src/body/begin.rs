//! How a replica begins.

use super::{Body, CLIENT, DOOR, LISTENER, SOCKET, Stop, WAKER};
use crate::BoxError;
use crate::clients::Clients;
use crate::config::{RunConfig, Via};
use crate::control::Control;
use crate::direct::{self, Direct};
use crate::face::LowNumber;
use crate::files::{Files, own_folder};
use crate::jobs::{Jobs, serve};
use crate::orphans::Known;
use crate::sockets::Sockets;
use plover_log::{LogOnly, Server};
use plover_program::{Canary, Replica, State};
use plover_types::{Index, Micros, ReplicaId, ReplicaSet};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Instant;

/// While the log is full, clients wait, and another replica is asked so soon for a checkpoint that does not come: a program may
/// stand still. One that takes longer counts all the same when it is there.
const CHECKPOINT_WITHIN_IF_FULL: Micros = Micros::from_ms(10_000);

/// Runs one replica until it is stopped. `ready` gets the handle that stops it. The program is `words`.
///
/// # Errors
/// What ended the replica, or why it could not begin.
pub fn run(
    config: RunConfig,
    words: Vec<OsString>,
    ready: impl FnOnce(Stop),
) -> Result<(), BoxError> {
    let low_number = LowNumber::keep()?;
    let words = crate::program::found(words)?;
    let paths = &config.paths;
    plover_node::private_folder("paths.state_dir", &paths.state_dir)?;
    plover_node::private_folder("paths.run_dir", &paths.run_dir)?;
    let control = Control::listen(&paths.run_dir)
        .map_err(|e| format!("cannot listen in {}: {e}", paths.run_dir.display()))?;
    let me = ReplicaId(config.group.me);
    let own = config
        .group
        .replica
        .iter()
        .find(|it| it.id == config.group.me);
    let ip = own.ok_or("group.me has no [[group.replica]]")?.address.ip();
    let (keys, missing) = config.group.keys_at_start(ReplicaSet::EMPTY)?;
    for error in missing {
        tracing::error!(
            event = "peer_without_key",
            "there is no link to one of the replicas: {error}"
        );
    }
    let fabric =
        match plover_node::open_fabric(&config.group, keys.clone(), plover_fabric::draw_process())?
        {
            Some(fabric) => fabric,
            None => alone(&config, me)?,
        };
    let log = paths.state_dir.join("log");
    own_folder(&log).map_err(|e| format!("cannot use {}: {e}", log.display()))?;
    let name = &config.group.name;
    let mut server = Server::in_directory(config.log(), fabric, LogOnly, &log, name)?;
    // It has locked the log. Another process of this replica, whose checkpoint may be in the making, would be refused there.
    let files = Files::open(&paths.state_dir)
        .map_err(|e| format!("cannot use {}: {e}", paths.state_dir.display()))?;
    let address = serve(ip, files.clone(), keys.clone())
        .map_err(|e| format!("cannot listen for the other replicas at {ip}: {e}"))?;
    let epoll = Arc::new(epoll::create(CreateFlags::CLOEXEC)?);
    server.watch(epoll.as_fd())?;
    let stop = Stop::new()?;
    let jobs = Jobs::new(files.clone(), &config.program, me, keys)?;
    for waker in [jobs.as_fd(), control.as_fd(), stop.0.1.as_fd()] {
        epoll::add(&*epoll, waker, EventData::new_u64(WAKER), EventFlags::IN)?;
    }
    let room = config.clients_room() as u64;
    let brain = plover_program::Config {
        me,
        members: config.members(),
        address: address.to_string(),
        check: config.program.check.0,
        checkpoints: config.takes_checkpoints(),
        checkpoint_bytes: room / 4,
        checkpoint_bytes_max: room / 2,
        room,
        stall: Micros::from_ms(config.program.stall_ms),
        checkpoint_within: Micros::from_ms(2000 * config.program.snapshot_s),
        checkpoint_within_if_full: CHECKPOINT_WITHIN_IF_FULL,
        entrance: config.entrance(),
        sessions: config.program.sessions,
        restarts: config.program.snapshot_by_stop,
        canary: Canary::None,
    };
    let newest = files.newest()?;
    if !config.takes_checkpoints() {
        tracing::warn!(
            log_mib = config.group.log_mib,
            "there is no way to take checkpoints (program.snapshot_cmd): when the log is full of inputs, the group \
             takes no more"
        );
    }
    let direct = match config.program.via {
        Via::Proxy => None,
        Via::Preload => {
            direct::refuse(&words)?;
            let direct = Direct::new(&config, epoll.clone(), DOOR, WAKER);
            Some(direct.map_err(|e| format!("cannot prepare program.via = \"preload\": {e}"))?)
        }
    };
    // A client has its connection, and one to the program. A preloaded program has the connection itself, and its own limit.
    let files_each = if direct.is_some() { 1 } else { 2 };
    let entry_bytes_max = server.entry_bytes_max();
    let mut body = Body {
        direct,
        listens_late: None,
        commit: Index(0),
        clients: Clients::new(epoll.clone(), CLIENT, LISTENER, entry_bytes_max, files_each),
        sockets: Sockets::new(config.program_address(), epoll.clone(), SOCKET)?,
        brain: Replica::new(brain, newest),
        room: config.clients_room(),
        program: None,
        starting: None,
        restored: State::default(),
        starts: 0,
        archiving: None,
        jobs,
        files,
        control,
        face: None,
        low_number,
        face_at: Instant::now(),
        leased_at: Instant::now(),
        clients_known: Known::default(),
        face_failures: 0,
        epoll,
        stop: stop.clone(),
        began: Instant::now(),
        looks: 0,
        died: None,
        notes: Vec::new(),
        out: Vec::new(),
        entry: Vec::new(),
        config,
        words,
        server,
    };
    ready(stop);
    body.live()
}

/// The fabric of a group of one, which reaches nobody.
fn alone(config: &RunConfig, me: ReplicaId) -> Result<plover_fabric::BoxedFabric, BoxError> {
    use plover_fabric::{ShmConfig, ShmFabric};
    let name = config.group.name.clone();
    Ok(Box::new(ShmFabric::new(ShmConfig::new(
        name,
        me,
        Vec::new(),
    ))?))
}
