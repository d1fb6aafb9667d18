//! The start of a replica: its files, links, network and disks.

use super::agent::AgentLine;
use super::answers::Answers;
use super::backup::Backup;
use super::display::Viewers;
use super::failover::{Failover, LostLeads};
use super::inputs::Inputs;
use super::printed::Printed;
use super::relay::Relay;
use super::resize::Resizing;
use super::restore::Restoring;
use super::unsent::Unsent;
use super::waiting::Waiting;
use super::{Body, BoxError, KEPT_BYTES, Ready};
use crate::announce::Announcement;
use crate::background::Background;
use crate::config::ConfigFile;
use crate::control::Control;
use crate::death::{Reporter, Reports, SentOn};
use crate::histogram::Histogram;
use crate::host::{self, NICE};
use crate::metrics::{Failures, HeldOutputs, SyncMetrics};
use crate::pack::Packer;
use crate::recent::RecentLog;
use crate::service::Service;
use crate::storage::Storage;
use crate::supervisor::ThisProcess;
use crate::trace::Trace;
use crate::uplink::Uplink;
use crate::variables::Variables;
use crate::{clock, images, private};
use plover_disk::Disks;
use plover_fabric::BoxedFabric;
use plover_replica::{Replica, Role, Watch};
use plover_types::{Lane, Micros, PageLayout, ReplicaId};
use plover_vm::choose_accel;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

impl Body {
    pub(super) fn open(
        file: ConfigFile,
        process: ThisProcess,
        log: RecentLog,
        ends: &AtomicBool,
    ) -> Result<Self, BoxError> {
        let config = file.config.clone();
        let qemu = config.qemu();
        // Before this replica has peers who wait for it: the first call tries KVM.
        choose_accel(&qemu);
        let now = clock::now();
        let me = ReplicaId(config.group.me);
        let run_dir = &config.paths.run_dir;
        private::folder("paths.run_dir", run_dir)?;
        private::folder("paths.state_dir", &config.paths.state_dir)?;
        let control = Control::listen(run_dir, &file.path)
            .map_err(|e| format!("cannot listen in paths.run_dir {}: {e}", run_dir.display()))?;
        let uplink = Uplink::watch(config.net_devices())
            .map_err(|e| format!("cannot watch the network devices of this host: {e}"))?;
        let durability = config.group.durability;
        let newest = config.group.newest_version();
        let (dir, name) = (&config.paths.state_dir, &config.group.name);
        // Its thread inherits the priority: this one waits for it.
        let _ = rustix::process::setpriority_process(None, NICE);
        let opened = Storage::open(dir, name, me, durability, newest);
        let _ = rustix::process::setpriority_process(None, 0);
        let (storage, start) = opened?;
        let record = storage.members().cloned();
        let group = config.group.linked_at_start(record.as_ref());
        let contacts = record.as_ref().map(|it| config.group.contacts(it));
        if let Some(asked) = contacts.filter(|contacts| !contacts.is_empty()) {
            tracing::info!(
                event = "members_asked",
                "the configuration file names {}, which this replica's log does not know: it asks them, too, who the \
                 members of the group are",
                asked.in_words()
            );
        } else if let Some(stale) = record.as_ref().and_then(|it| config.group.stale(it)) {
            tracing::warn!(event = "file_stale", "{stale}");
        }
        let disks = match &images::prepare(&config, || !ends.load(Ordering::Acquire))?[..] {
            [] => None,
            specs => Some(Disks::open(specs, &config.disk_journal())?),
        };
        let variables = Variables::open(dir, qemu.firmware)?;
        let left = record.as_ref().map(|it| it.left).unwrap_or_default();
        let (keys, missing) = config.group.keys_at_start(left)?;
        for error in missing {
            tracing::error!(
                event = "peer_without_key",
                "there is no link to one of the replicas. To let it in: {error}. If it is shut out, put another host in its place: \
                 `plover member replace`"
            );
        }
        let mut fabric = crate::fabric::open(&group, keys.clone(), process.number)?;
        let record_bytes_max = Lane::ALL.map(|lane| {
            let max = |fabric: &BoxedFabric| fabric.record_bytes_max(lane);
            fabric.as_ref().map_or(1 << 20, max)
        });
        let message_bytes_max = record_bytes_max[Lane::Log.index()].min(1 << 20);
        let deaths = Reports::listen(&config.group, keys.clone()).unwrap_or_else(|error| {
            tracing::warn!(event = "deaths_unheard", %error, "cannot listen for UDP at this replica's address: the death of a \
                process is noticed by the timeout only");
            None
        });
        let mut hash_key = [0u8; 32];
        rustix::rand::getrandom(&mut hash_key, rustix::rand::GetRandomFlags::empty())?;
        let layout = PageLayout::new(qemu.ram_pages(), disks.as_ref().map_or(0, Disks::blocks));
        let members = record.as_ref();
        let mut brain = config.brain(message_bytes_max, hash_key, process.number, layout, members);
        brain.drained = storage.is_drained();
        // Without it, clients send again what they sent in the moment of a switchover.
        let reporter = Reporter::open(&group, keys.clone(), process.number)
            .ok()
            .flatten();
        // Before this thread gets its priority, which QEMU is not to have.
        let starter = super::start::starter()?;
        prepare_process();
        if let Some(host) = &config.host {
            host.check_here()?;
        }
        let console_log = std::fs::File::create(run_dir.join("console.log"))?;
        let console_log = Background::start("console-log", console_log);
        let trace = Trace::open(run_dir, me, config.debug.trace_syncs)?;
        let last_failure = storage.damage();
        let replica = Replica::new(brain, start, now);
        if let Some(fabric) = &mut fabric {
            fabric.speak(replica.consensus_core().versions());
        }
        let announcements = qemu
            .nics
            .iter()
            .map(|nic| Announcement::new(nic.mac))
            .collect();
        Ok(Self {
            qemu,
            variables,
            layout,
            replica,
            watch: Watch::default(),
            role: Role::Recovering,
            actions: VecDeque::new(),
            events: VecDeque::new(),
            storage,
            packer: Packer::new(config.policy.compresses(), record_bytes_max),
            fabric,
            set_aside: None,
            deaths,
            supervisor: process.supervisor,
            service: Service::from_environment(process.supervisor),
            sent_on: SentOn::default(),
            taps: process.taps,
            uplink,
            facing: false,
            vm: None,
            disks,
            starter,
            starting: None,
            control,
            answers: Answers::new(),
            work: VecDeque::new(),
            work_until: Micros::ZERO,
            copy_reads: VecDeque::new(),
            scans: VecDeque::new(),
            console: Vec::new(),
            printed: Printed::default(),
            agent: AgentLine::new(process.number),
            console_log,
            console_log_bytes: 0,
            trace,
            log,
            metrics: SyncMetrics::default(),
            held: HeldOutputs::default(),
            failures: Failures::default(),
            staging: None,
            staged: Histogram::default(),
            announcements,
            crash_in: None,
            crash_at: None,
            stops_in_release: false,
            silences: BTreeMap::new(),
            suspicions: 0,
            inputs: 0,
            dropped_inputs: 0,
            dropped_outputs: 0,
            last_failure,
            copy_refused: None,
            unprotected: None,
            stopping: None,
            leaving: None,
            failover: Failover::default(),
            lost_leads: LostLeads::default(),
            relay: Relay::default(),
            viewers: Viewers::default(),
            given: Inputs::default(),
            backup: Backup::default(),
            resizing: Resizing::default(),
            restoring: Restoring::default(),
            keys,
            reporter,
            number: process.number,
            sends_on_until: Micros::ZERO,
            sampled_at: Micros::ZERO,
            scanned_at: Micros::ZERO,
            look_at_written_at: Micros::ZERO,
            answering: Arc::default(),
            ready: Ready::default(),
            bulk: Waiting::new(layout.pages()),
            unsent: Unsent::new(layout.pages()),
            outputs_left: false,
            fabric_due: Micros::ZERO,
            first_until: None,
            config,
            file,
            waiting_keys: Vec::new(),
        })
    }
}

/// Exact sleeps, kept memory, and a priority before the guests' vCPUs: this thread does little, but
/// others wait for it. A failure costs only latency.
fn prepare_process() {
    // SAFETY: PR_SET_TIMERSLACK takes its argument by value.
    unsafe {
        libc::prctl(libc::PR_SET_TIMERSLACK, 1_000 as libc::c_ulong);
    }
    // A sync frees its memory and the next one allocates as much a few milliseconds later. So the
    // allocator keeps it, instead of returning it to the kernel, which would zero it anew each time.
    // SAFETY: mallopt takes its arguments by value; no other thread allocates yet.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, KEPT_BYTES);
        libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT_BYTES);
    }
    let _ = rustix::process::setpriority_process(None, NICE);
    // The loop waits for those that hash for it, at most 2 ms of work at a time.
    let pool = rayon::ThreadPoolBuilder::new().start_handler(|_| {
        host::come_first();
    });
    let _ = pool.build_global();
}
