//! The secondary's report of its guest's outputs. With it the leader releases the outputs that both have sent
//! ([`crate::leader::matching`] has the whole protocol).
//!
//! A frame that was reported is kept until the leader says that clients have it: if the leader dies, it is
//! this side's to send.

use super::Secondary;
use crate::api::Config;
use crate::context::Context;
use crate::replica::Replica;
use plover_matching::LeaderSyn;
use plover_syncvm::message::Body;
use plover_types::{OutputNo, SyncNo};

/// Bytes that the secondary may have reported and not heard to be released. A slot's frames are seldom
/// more; 1 MiB fits the bulk lane's ring 16 times.
const WINDOW_BYTES: usize = 1 << 20;

/// Bytes of frames in one message, about.
const MESSAGE_BYTES: usize = 256 << 10;

/// Bytes that may be reported and not released.
pub(crate) fn window(config: &Config) -> usize {
    config.guard_bytes_max.min(WINDOW_BYTES)
}

/// How far the report of this slot is.
#[derive(Debug)]
pub(crate) struct OutputReport {
    sync: SyncNo,
    /// The slot's first frame, and the next one to be reported.
    first: OutputNo,
    next: OutputNo,
    bytes_under_way: usize,
}

impl OutputReport {
    /// The slot, and how many frames of it were reported.
    pub fn reported(&self) -> (SyncNo, u64) {
        (self.sync, self.next.0 - self.first.0)
    }
}

impl Secondary {
    /// The state of this syncvm is in place; what the guest sends from here on is reported if the
    /// leader wants to hear it.
    pub(crate) fn begin_report(&mut self, cx: &Context, sync: SyncNo, compare: bool) {
        let first = cx.outputs.guard.next_no();
        self.report = compare.then_some(OutputReport {
            sync,
            first,
            next: first,
            bytes_under_way: 0,
        });
    }

    /// Nothing more is reported of this slot.
    pub(crate) fn stop_report(&mut self, cx: &mut Context) {
        self.report = None;
        cx.stop_translating();
    }

    /// Reports what the guest has sent and the window allows. Once a frame was dropped, the frames behind
    /// it cannot be compared.
    pub(crate) fn report_outputs(&mut self, cx: &mut Context, dropped: bool) {
        if dropped && self.report.is_some() {
            self.stop_report(cx);
        }
        let window = window(&cx.config);
        let Some(leader) = cx.group.leader else {
            return;
        };
        while let Some(report) = &mut self.report {
            let (mut frames, mut bytes) = (Vec::new(), 0);
            let (sync, first) = report.reported();
            for (no, frame) in cx.outputs.guard.from(report.next) {
                if report.bytes_under_way >= window || bytes >= MESSAGE_BYTES {
                    break;
                }
                report.next = OutputNo(no.0 + 1);
                report.bytes_under_way += frame.0.len();
                bytes += frame.0.len();
                frames.push(frame.clone());
            }
            if frames.is_empty() {
                return;
            }
            let body = Body::OutputsReported {
                sync,
                first,
                frames,
            };
            cx.send_bulk(leader, body);
        }
    }

    /// Clients have got these frames.
    pub(crate) fn on_released(&mut self, cx: &mut Context, sync: SyncNo, frames: u64) {
        let Some(report) = self.report.as_mut().filter(|report| report.sync == sync) else {
            return;
        };
        let no = OutputNo(report.first.0.saturating_add(frames));
        if no > report.next {
            return cx.reject_leader("it has released more frames than this replica has reported");
        }
        let bytes = cx.outputs.guard.forget_before(no);
        report.bytes_under_way = report.bytes_under_way.saturating_sub(bytes);
        self.report_outputs(cx, false);
    }
}

impl Replica {
    /// The leader's guest has opened a connection: what ours has sent on it can be reported. It may come
    /// while the state of its syncvm is still being loaded.
    pub(crate) fn on_leader_syn(&mut self, sync: SyncNo, syn: LeaderSyn) {
        let cx = &mut self.cx;
        let mut dropped = false;
        for frame in cx.guest.translator.on_leader_syn(sync, syn) {
            let held = cx.outputs.guard.hold(cx.now, cx.guest.taken, frame);
            dropped |= held.is_none();
        }
        if let Some((secondary, cx)) = self.following() {
            secondary.report_outputs(cx, dropped);
        }
    }
}
