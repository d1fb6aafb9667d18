//! The bulk lane: messages between replicas beside the log, for syncvms and copies.
//! [`plover_syncvm::message::Body`] says of each message who sends it, and when.

use crate::api::Note;
use crate::context::Context;
use crate::copy::offer::Offer;
use crate::hash_keys::SyncKeys;
use crate::heir_streams::STREAMS_TOLD_MAX;
use crate::leader::Leader;
use crate::phase::Phase;
use crate::replica::Replica;
use plover_syncvm::SyncMessage;
use plover_syncvm::message::{Body, CopyPurpose};
use plover_types::{DeviceState, HashKey, ReplicaId, wire};

impl Replica {
    pub(crate) fn on_bulk(&mut self, from: ReplicaId, bytes: &[u8]) {
        let view = self.cx.group.view;
        let message = match wire::decode::<SyncMessage>(bytes) {
            Ok(message) => message,
            Err(error) => {
                let why = format!("bytes that are no message of the bulk lane: {error}");
                return self.cx.cut_link(from, &why);
            }
        };
        let rejected = match message {
            SyncMessage {
                body: Body::Members { record },
                ..
            } => return self.on_members_told(from, &record),
            // Not an error: the sender has not heard of the new view, or we have not yet.
            message if message.view != view => Some(format!(
                "bulk message of view {}, ours is {view}",
                message.view
            )),
            message => self.on_body(from, message.body).map(|body| {
                let what = format!("{body:?}").chars().take(40).collect::<String>();
                format!("out of place: {what}")
            }),
        };
        if let Some(why) = rejected {
            self.cx.note(Note::Rejected { from, why });
        }
    }

    /// Gives a message back that is out of place here.
    fn on_body(&mut self, from: ReplicaId, body: Body) -> Option<Body> {
        let follows = self.cx.group.leader == Some(from) && self.leading().is_none();
        let is_in_sync = self.cx.group.in_sync.contains(from);
        match body {
            Body::CopyStart {
                purpose,
                attempt,
                stream,
                policy,
                machine,
                pages,
                disk_blocks,
            } if follows || (purpose == CopyPurpose::Warm && is_in_sync) => {
                let offer = Offer {
                    attempt,
                    stream,
                    policy,
                    machine,
                    size: (pages, disk_blocks),
                };
                self.on_copy_start(from, purpose, &offer);
            }
            Body::Copy {
                attempt,
                seq,
                chunk,
            } => self.on_copy(from, attempt, seq, chunk),
            Body::Compare {
                attempt,
                first,
                count,
                key,
            } => self.on_compare(from, attempt, (first, count), HashKey::Xxh3(key)),
            Body::CompareUnderKey {
                attempt,
                first,
                count,
                key,
            } => self.on_compare(from, attempt, (first, count), HashKey::Universal(key)),
            Body::CopyReady {
                attempt,
                written,
                compare_from,
                keep_from,
            } => {
                let pages = (compare_from, keep_from);
                let is_news = self.cx.on_copy_ready(from, attempt, written, pages);
                if let Some((leader, cx)) = self.leading().filter(|_| is_news) {
                    leader.join_opened(cx, attempt, written.is_some());
                }
            }
            Body::CopyFailed { attempt, why } => self.on_copy_failed(from, attempt, &why),
            Body::CopyAck { attempt, chunks } => self.cx.on_copy_ack(from, attempt, chunks),
            Body::Compared {
                attempt,
                first,
                digests,
            } => self.cx.on_compared(from, attempt, first, &digests),
            body if follows => return self.on_body_of_leader(body),
            body => {
                return match self.leading() {
                    Some((leader, cx)) => leader.on_body(cx, from, body),
                    None => Some(body),
                };
            }
        }
        None
    }

    /// The other side of a copy refuses it, or has given it up.
    pub(crate) fn on_copy_failed(&mut self, from: ReplicaId, attempt: u64, why: &str) {
        if matches!(&self.phase, Phase::Joining { copy } if copy.is_of(from, attempt)) {
            return self.leave_join();
        }
        self.leave_if_ended(from, attempt);
        if !self.cx.on_copy_failed(from, attempt) {
            return;
        }
        let cx = &mut self.cx;
        match &mut self.phase {
            Phase::Leader(leader) if leader.joins_with(attempt) => {
                leader.fail_join(cx, why);
            }
            Phase::Secondary(secondary) => {
                secondary
                    .warm
                    .refused(from, cx.newcomer() == Some(from), cx.now);
                let why = why.to_string();
                cx.note(Note::WarmRefused { peer: from, why });
            }
            _ => {}
        }
    }

    /// A message that only the leader sends.
    fn on_body_of_leader(&mut self, body: Body) -> Option<Body> {
        match body {
            Body::Dirty { sync, runs, key } => self.follow_dirty(sync, &runs, SyncKeys::xxh3(key)),
            Body::DirtyUnderKeys {
                sync,
                runs,
                pages,
                subpages,
            } => self.follow_dirty(sync, &runs, SyncKeys::universal(pages, subpages)),
            Body::Checkpoint { sync } => self.follow_checkpoint(sync),
            Body::Subpages { sync, runs, heard } => self.follow_subpages(sync, &runs, heard),
            Body::Pages { sync, seq, chunk } => self.follow_pages(sync, seq, chunk),
            Body::End {
                sync,
                chunks,
                device: bytes,
                age,
                refeed,
                compare,
                translations,
            } => {
                let stopped_at = self.cx.now.since(age);
                let device = DeviceState { bytes, stopped_at };
                self.follow_end(sync, chunks, device, refeed, (compare, translations));
            }
            Body::Fetched { sync, chunk, last } => self.follow_fetched(sync, chunk, last),
            Body::ResetPages { runs } => self.on_reset_pages(&runs),
            Body::Streams { streams, .. } if streams.len() > STREAMS_TOLD_MAX => {
                self.cx
                    .cut_leader("more connections than a leader tells of");
            }
            Body::Streams { sync, streams } => self.cx.guest.streams.told(sync, streams),
            Body::LeaderSyn { sync, syn } => self.on_leader_syn(sync, syn),
            Body::OutputsReleased { sync, frames } => {
                if let Some((secondary, cx)) = self.following() {
                    secondary.on_released(cx, sync, frames);
                }
            }
            body => return Some(body),
        }
        None
    }
}

impl Leader {
    /// A message that only a secondary sends, or a replica that joins.
    fn on_body(&mut self, cx: &mut Context, from: ReplicaId, body: Body) -> Option<Body> {
        match body {
            Body::SubpageHashes {
                sync,
                anew,
                first,
                total,
                said,
            } => self.on_subpage_hashes(cx, from, sync, anew, (first, total), &said),
            Body::OutputsReported {
                sync,
                first,
                frames,
            } => self.on_reported(cx, from, sync, first, &frames),
            Body::Hashes {
                sync,
                runs,
                first,
                total,
                digests,
                wait,
            } => self.on_hashes(cx, (from, sync), &runs, (first, total), &digests, wait),
            Body::PagesAck { sync, chunks } => self.on_pages_ack(cx, from, sync, chunks),
            Body::Fetch { sync, runs } => self.on_fetch(cx, from, sync, &runs),
            Body::Ack { sync } => self.on_ack(cx, from, sync),
            Body::GaveUp { sync, why } => self.on_gave_up(cx, from, sync, &why),
            Body::GuestLost { why } => {
                if self.secondary(cx) == Some(from) {
                    cx.peers.refused(from, cx.now);
                }
                self.lose_peer(cx, from, &why);
            }
            Body::Uplink { up } => cx.on_peers_uplink(from, up),
            Body::Drained { drained } => cx.on_peer_drained(from, drained),
            Body::Copied { peer } => self.on_copied(cx, from, peer),
            body => return Some(body),
        }
        None
    }
}
