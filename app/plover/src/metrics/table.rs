//! The metrics: each one's name, kind, unit and help, and where the status of a replica has it.
//!
//! Names follow Prometheus' conventions: base units, and `_total` on counters. The encoder appends unit and
//! `_total`. `docs/metrics.md` has a row for each metric; a test compares them.

use super::read::{self, From, From::*};
use std::fmt;

/// The meaning of a metric's numbers together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only rises, until the replica's process is started anew.
    Counter,
    Gauge,
    Histogram,
    /// Always 1; what it says is in its labels.
    Info,
}

/// A metric's unit, a part of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Seconds,
    Bytes,
}

/// One metric.
#[derive(Debug)]
pub struct Metric {
    /// Without the prefix, the unit and `_total`.
    pub stem: &'static str,
    pub kind: Kind,
    pub unit: Option<Unit>,
    pub help: &'static str,
    /// Labels besides `guest` and `replica`, for the guide.
    pub labels: &'static [&'static str],
    pub from: From,
}

use Kind::*;
use Unit::*;

const fn metric(
    stem: &'static str,
    kind: Kind,
    unit: Option<Unit>,
    labels: &'static [&'static str],
    from: From,
    help: &'static str,
) -> Metric {
    Metric {
        stem,
        kind,
        unit,
        help,
        labels,
        from,
    }
}

/// All metrics, in the order of the output.
#[rustfmt::skip]
pub const METRICS: &[Metric] = &[
    // The question itself. These are there also for a replica that does not answer.
    metric("up", Gauge, None, &[], Answered, "Whether the replica on this host answered within a second"),
    metric("answer", Gauge, Some(Seconds), &[], AnswerTime, "How long the replica took to answer"),
    // Where it stands.
    metric("replica", Info, None, &["policy", "machine", "accel", "warm_witness"], Many(read::replica), "The policy of the group, the machine and accelerator of the guest, and `group.warm_witness` of the replica"),
    metric("role", Gauge, None, &["role"], Many(read::roles), "1 for the role that the replica has, 0 for the others"),
    metric("view", Gauge, None, &[], Many(read::view), "The number of the view that the replica is in"),
    metric("leader", Gauge, None, &[], Number("/leader"), "The id of the group's leader, while the replica knows it"),
    metric("members", Gauge, None, &[], Length("/members"), "The number of replicas in the group"),
    metric("in_sync_members", Gauge, None, &[], Length("/isr"), "The number of replicas that hold the guest's state, as far as the replica knows"),
    metric("in_sync", Gauge, None, &["member"], Many(read::in_sync), "Whether this member of the group holds the guest's state, as far as the replica knows"),
    metric("protected", Gauge, None, &[], Truth("/protected"), "Whether the guest survives the loss of any one replica; only the leader says 1"),
    metric("unprotected", Info, None, &["why"], Text("/unprotected_because", "why"), "Why the last copy of the guest to another replica failed, until one succeeds"),
    metric("serving", Gauge, None, &[], Truth("/serving"), "Whether the replica faces the clients"),
    metric("holds_state", Gauge, None, &[], Truth("/holds_state"), "Whether the replica has a guest whose state counts"),
    metric("guest_running", Gauge, None, &[], Truth("/guest_running"), "Whether the replica's guest runs"),
    metric("guest_off", Gauge, None, &[], Truth("/guest_off"), "Whether the guest has ended by itself and waits for `plover start`"),
    metric("drained", Gauge, None, &[], Truth("/drained"), "Whether an operator has drained the replica's host"),
    metric("leaving", Gauge, None, &[], Truth("/leaving"), "Whether the replica hands its roles over to end"),
    metric("can_split", Gauge, None, &[], Truth("/can_split"), "Whether two replicas of the group may lead at once: it has no third one"),
    metric("doubts", Gauge, None, &[], Truth("/doubts"), "Whether one of two replicas was stopped for so long that the other may have gone on alone"),
    metric("awaits_off", Gauge, None, &[], Many(read::awaits_off), "Whether the other one of two replicas is silent, and this one waits until it is heard or known to be off"),
    metric("commit_index", Gauge, None, &[], Number("/commit"), "The last committed entry of the log that the replica knows"),
    // Losses, noticed and suffered.
    metric("peer_refused", Info, None, &["peer", "why"], Many(read::refused), "A peer without a link to the replica because one refuses the other"),
    metric("rejected_messages", Counter, None, &[], Number("/rejected"), "Messages of peers that did not decode, or that no correct replica sends"),
    metric("links_cut", Counter, None, &[], Number("/links_cut"), "How often the replica cut a link because the peer had sent what no correct replica sends"),
    metric("lines_lost", Counter, None, &["of"], PerKey("/lines_lost", "of"), "Lines of the log, the trace and the console's log that were lost, because the file or journal they go to stood still"),
    metric("suspicions", Counter, None, &[], Number("/suspicions"), "How often the replica took the leader for dead"),
    metric("depositions", Counter, None, &[], Number("/times_deposed"), "How often others deposed the replica while it led and was alive: it was suspected wrongly, or cut off. A lead that it gave up itself does not count"),
    metric("suspected_after", Gauge, Some(Seconds), &[], Micros("/suspected_after_us"), "How long the leader may be silent at present before the replica suspects it"),
    metric("takeovers", Counter, None, &["how"], PerKey("/takeovers", "how"), "How often the replica has taken over: after the leader's silence, a report of its death, a handover, or the end of a leader that was told to stop"),
    metric("handovers", Counter, None, &["why"], PerKey("/handovers", "why"), "How often the replica gave up the lead because its own host was at fault: its uplink was down, or QEMU or a disk did not answer in time"),
    metric("last_takeover_timestamp", Gauge, Some(Seconds), &[], Number("/last_failover/unix_s"), "When the replica last took over, in Unix time"),
    metric("last_takeover", Gauge, Some(Seconds), &["part"], Many(read::last_takeover), "The parts of the last takeover: silence of the old leader, until elected, until serving"),
    metric("guests_lost", Counter, None, &[], Number("/guests_lost"), "How often the replica lost its guest"),
    metric("copies_failed", Counter, None, &[], Number("/copies_failed"), "Copies of the guest to a joining replica that failed"),
    // Syncs that it led.
    metric("syncs", Counter, None, &["reason"], PerKey("/sync/totals/reasons", "reason"), "Syncs that the replica led, by the reason that ended the slot"),
    metric("syncs_failed", Counter, None, &[], Number("/syncs_failed"), "Syncs that were given up"),
    metric("slot", Histogram, Some(Seconds), &[], Buckets("/sync/slot_histogram"), "How long slots ran until the guest was paused for a sync"),
    metric("slot_longest", Gauge, Some(Seconds), &[], Micros("/slot_longest_us"), "How long a busy guest may run at present while outputs wait"),
    metric("idle_threshold", Gauge, Some(Seconds), &[], Micros("/idle_threshold_us"), "How long the guest must look idle, as learned from it"),
    metric("sync_pause", Histogram, Some(Seconds), &[], Buckets("/sync/pause_histogram"), "How long syncs paused the guest"),
    metric("sync_phase", Counter, Some(Seconds), &["phase"], Many(read::phases), "Time that syncs spent in each phase; `wait` lies within `exchange`, and `apply` is no pause"),
    metric("sync_dirty_pages", Counter, None, &[], Number("/sync/totals/dirty"), "Pages written on either side since the sync before"),
    metric("sync_dirty_leader_pages", Counter, None, &[], Number("/sync/totals/dirty_leader"), "Pages written on the leader"),
    metric("sync_dirty_secondary_pages", Counter, None, &[], Number("/sync/totals/dirty_secondary"), "Pages written on the secondary"),
    metric("sync_same_pages", Counter, None, &[], Number("/sync/totals/same"), "Dirty pages that were equal on both sides"),
    metric("sync_divergent_pages", Counter, None, &[], Number("/sync/totals/divergent"), "Dirty pages that differed, and were sent"),
    metric("sync_compared_subpages", Counter, None, &[], Number("/sync/totals/subpages_compared"), "Subpages of divergent pages that were compared"),
    metric("sync_sent_subpages", Counter, None, &[], Number("/sync/totals/subpages"), "Subpages of divergent pages that were sent"),
    metric("sync", Counter, Some(Bytes), &["kind"], Many(read::sync_bytes), "Bytes of syncs: hashes and bitmaps, contents of pages, device state"),
    // Outputs.
    metric("outputs", Counter, None, &["cleared_by"], Many(read::outputs), "Frames of the guest that left after a sync, on a match, or as clean replies; those of a leader that is alone are counted by `plover_output_wait_seconds` only"),
    metric("held_outputs", Gauge, None, &[], Number("/held_outputs"), "Frames of the guest that are held at present"),
    metric("held_output_age", Gauge, Some(Seconds), &[], Micros("/outputs/oldest_us"), "The age of the oldest frame that is held on the leader"),
    metric("output_wait", Histogram, Some(Seconds), &[], Buckets("/outputs/held_histogram"), "How long frames waited between the guest and the clients, all that left"),
    metric("inputs", Counter, None, &[], Number("/inputs"), "Frames of clients that the replica took in while it led"),
    metric("dropped_frames", Counter, None, &["direction"], Many(read::dropped), "Frames that were dropped because a queue was full, as a network card drops them"),
    // Traffic with the peers.
    metric("sent", Counter, Some(Bytes), &["lane"], Many(read::sent), "Bytes sent to the peers, by lane"),
    metric("received", Counter, Some(Bytes), &["lane"], Many(read::received), "Bytes received from the peers, by lane"),
    metric("sent_bulk", Counter, Some(Bytes), &["kind"], Many(read::sent_bulk), "Bytes of the bulk lane, by what they hold; `copy` counts pages"),
    metric("sent_uncompressed", Counter, Some(Bytes), &[], Number("/traffic/plain_bytes_out"), "Bytes sent to the peers, as they were before compression"),
    // The copy that it makes.
    metric("copy_open", Gauge, None, &["to"], Many(read::copy_open), "Whether the copy that the replica makes is taken at present by its target"),
    metric("copy_behind", Gauge, Some(Bytes), &["to"], Many(read::copy_behind), "How much of the copy the target may hold otherwise"),
    metric("copy_size", Gauge, Some(Bytes), &["to"], Many(read::copy_size), "How much the target of the copy keeps in all"),
    metric("keeps_copy_of", Gauge, None, &[], Number("/keeps_copy_of"), "On a witness: the id of the replica whose guest it keeps a warm copy of"),
    // Disks and memory.
    metric("disks_whole", Gauge, None, &[], Truth("/disks_whole"), "Whether the replica's copy of the guest's disks is whole; absent without disks"),
    metric("disk_failed", Gauge, None, &[], Many(read::disk_failed), "Whether the replica's disks have failed; absent without disks"),
    metric("disk_stage", Histogram, Some(Seconds), &[], Buckets("/disk_stage_histogram"), "How long the secondary took to make the blocks of a sync durable"),
    metric("memory", Gauge, Some(Bytes), &["kind"], Many(read::memory), "Memory of the replica's process: its own, and the guest's that it maps"),
];

impl Unit {
    pub fn word(self) -> &'static str {
        match self {
            Seconds => "seconds",
            Bytes => "bytes",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Counter => "counter",
            Gauge => "gauge",
            Histogram => "histogram",
            Info => "info",
        })
    }
}

impl Metric {
    /// The name of the family, as the descriptors of OpenMetrics have it.
    pub fn family(&self) -> String {
        let unit = self
            .unit
            .map_or(String::new(), |unit| format!("_{}", unit.word()));
        format!("{}_{}{unit}", super::PREFIX, self.stem)
    }

    /// The ending of its samples' names.
    pub fn suffix(&self) -> &'static str {
        match self.kind {
            Counter => "_total",
            Info => "_info",
            Gauge | Histogram => "",
        }
    }

    /// Its row in the guide.
    pub fn row(&self) -> String {
        let labels: Vec<_> = self
            .labels
            .iter()
            .map(|label| format!("`{label}`"))
            .collect();
        format!(
            "| `{}{}` | {} | {} | {} |",
            self.family(),
            self.suffix(),
            self.kind,
            labels.join(", "),
            self.help
        )
    }
}
