//! What replicas say to each other beside the log: parts of syncvms and copies.

use crate::api::{Action, Note, Role};
use crate::replica::Replica;
use crate::standby::Offer;
use plover_syncvm::SyncMessage;
use plover_syncvm::message::{Body, CopyPurpose};
use plover_types::{Lane, ReplicaId, wire};

impl Replica {
    pub(crate) fn on_bulk(&mut self, from: ReplicaId, bytes: &[u8]) {
        let message: SyncMessage = match wire::decode(bytes) {
            Ok(message) => message,
            Err(error) => {
                return self.note(Note::Rejected {
                    from,
                    why: error.to_string(),
                });
            }
        };
        if message.view != self.view {
            // Not an error: the sender has not heard of the new view, or we have not yet.
            let why = format!(
                "bulk message of view {}, ours is {}",
                message.view, self.view
            );
            return self.note(Note::Rejected { from, why });
        }
        let leads = self.role == Role::Leader;
        let follows = self.leader == Some(from) && !leads;
        match message.body {
            Body::CopyStart {
                purpose,
                attempt,
                stream,
                policy,
                pages,
                disk_blocks,
            } if follows || (purpose == CopyPurpose::Warm && self.in_sync.contains(from)) => {
                let offer = Offer {
                    attempt,
                    stream,
                    policy,
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
            } => self.on_compare(from, attempt, (first, count), key),
            Body::CopyReady {
                attempt,
                written,
                compare_from,
                keep_from,
            } => self.on_copy_ready(from, attempt, written, (compare_from, keep_from)),
            Body::CopyFailed { attempt, why } => self.on_copy_failed(from, attempt, &why),
            Body::CopyAck { attempt, chunks } => self.on_copy_ack(from, attempt, chunks),
            Body::Compared {
                attempt,
                first,
                digests,
            } => self.on_compared(from, attempt, first, &digests),
            Body::Dirty { sync, runs, key } if follows => self.follow_dirty(sync, &runs, key),
            Body::Checkpoint { sync } if follows => self.follow_checkpoint(sync),
            Body::Blocks { sync, runs, heard } if follows => self.follow_blocks(sync, &runs, heard),
            Body::BlockHashes {
                sync,
                anew,
                first,
                total,
                said,
            } if leads => self.lead_block_hashes(from, sync, anew, (first, total), &said),
            Body::Pages { sync, seq, chunk } if follows => self.follow_pages(sync, seq, chunk),
            Body::End {
                sync,
                chunks,
                device,
                refeed,
                compare,
                translations,
            } if follows => {
                self.follow_end(sync, chunks, device, refeed, (compare, translations));
            }
            Body::Fetched { sync, chunk, last } if follows => {
                self.follow_fetched(sync, chunk, last);
            }
            Body::LeaderSyn { sync, syn } if follows => self.on_leader_syn(sync, syn),
            Body::Done { sync, frames } if follows => self.on_done(sync, frames),
            Body::Said {
                sync,
                first,
                frames,
            } if leads => self.on_said(from, sync, first, &frames),
            Body::Hashes {
                sync,
                runs,
                first,
                total,
                digests,
                wait,
            } if leads => {
                self.lead_hashes(from, sync, &runs, (first, total), &digests, wait);
            }
            Body::PagesAck { sync, chunks } if leads => self.lead_pages_ack(from, sync, chunks),
            Body::Fetch { sync, runs } if leads => self.lead_fetch(from, sync, &runs),
            Body::Ack { sync } if leads => self.lead_ack(from, sync),
            Body::GuestLost { why } if leads => self.lose_peer(from, &why),
            body => {
                let why = format!("{body:?}").chars().take(40).collect::<String>();
                self.note(Note::Rejected {
                    from,
                    why: format!("out of place: {why}"),
                });
            }
        }
    }

    pub(crate) fn send_bulk(&mut self, to: ReplicaId, body: Body) -> u64 {
        let payload = body.payload();
        let bytes = wire::encode(&SyncMessage {
            view: self.view,
            body,
        });
        let len = bytes.len() as u64;
        self.out.push(Action::Write {
            to,
            lane: Lane::Bulk,
            payload,
            bytes,
        });
        len
    }
}
