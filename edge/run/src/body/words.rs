//! Messages for operators: notes, and the answers to `plover run status` and `plover run begin`.

use super::Body;
use crate::program::Program;
use plover_program::{Note, Progress, Taint};
use plover_types::Index;
use serde_json::{Value, json};

impl Body {
    pub(super) fn remember(&mut self, text: String) {
        self.notes.retain(|it| *it != text);
        self.notes.push(text);
        let old = self.notes.len().saturating_sub(8);
        self.notes.drain(..old);
    }

    pub(super) fn note(&mut self, note: &Note) {
        let text = describe(note);
        match note {
            Note::Runs(_) | Note::Serves(_) | Note::Unanswered => tracing::info!("{text}"),
            Note::Restores(Taint::Behind) => tracing::info!("{text}"),
            _ => {
                tracing::warn!("{text}");
                self.remember(text);
            }
        }
    }

    pub(super) fn answer(&mut self) {
        for (request, reply) in self.control.take() {
            let answer = match request.as_str() {
                "status" => self.status(),
                "begin" if self.server.begin() => json!({"ok": true}),
                "begin" => {
                    json!({"error": "no new log was begun: some replica still holds the old one, has not \
                    answered, or another one begins it (the one with the lowest id); start the replicas that are down"})
                }
                _ => json!({"error": format!("'{request}' is no request")}),
            };
            let _ = reply.send(answer);
        }
    }

    pub(super) fn status(&self) -> Value {
        let (log, brain) = (self.server.status(), self.brain.status());
        let index = |index: Option<Index>| index.map(|it| it.0);
        json!({
            "id": self.config.group.me,
            "group": self.config.group.name,
            "phase": brain.phase,
            "consensus": format!("{:?}", log.phase).to_lowercase(),
            "view": log.view.0,
            "leader": log.leader.map(|it| it.0),
            "lost": self.server.is_lost(),
            "committed": log.commit.0,
            "executed": brain.executed.0,
            "stalled": brain.stalled,
            "progress": progress(brain.progress),
            "waits_for_followers": brain.waits,
            "too_few_in_step": brain.too_few,
            "full": self.brain.is_full(),
            "log_bytes": log.log_bytes,
            "log_begins": log.base.0,
            "checkpoint": index(brain.checkpoint),
            "newest_checkpoint": index(brain.newest),
            "connections": brain.connections,
            "clients": self.clients.count() + self.direct.as_ref().map_or(0, |it| it.clients()),
            "serves": self.faces(),
            "listen": self.config.program.listen.to_string(),
            "plover_pid": std::process::id(),
            "program_pid": self.program.as_ref().map(Program::pid),
            "stopped_because": brain.taint.map(|it| why(&it)),
            "notes": self.notes,
        })
    }
}

fn progress(progress: Progress) -> &'static str {
    match progress {
        Progress::InStep => "in step",
        Progress::Behind => "behind",
        Progress::Away => "away",
    }
}

fn why(taint: &Taint) -> String {
    match taint {
        Taint::Died(how) => format!("the program has died: {how}"),
        Taint::NotStarted(how) => format!("the program did not start: {how}"),
        Taint::Diverged(id) => {
            format!("the program has sent something else than the others on connection {id}")
        }
        Taint::Ahead => "the program has executed input that the group has not committed".into(),
        Taint::Behind => "the log does not hold the program's next input any more".into(),
    }
}

/// A note as a sentence.
fn describe(note: &Note) -> String {
    match note {
        Note::Runs(index) => format!("the program runs, and goes on behind entry {index}"),
        Note::Restores(taint) => format!("{}: it is started again, from a checkpoint or the log's beginning", why(taint)),
        Note::Serves(view) => format!("clients are served in view {view}"),
        Note::Differs(it) => format!(
            "{} sent different bytes on connection {}, in the piece from byte {}; no majority tells which is right",
            it.replicas.in_words(), it.connection, it.from
        ),
        Note::Wrong(it) => format!(
            "{} sent something else than the majority on connection {}, in the piece from byte {}",
            it.replicas.in_words(), it.connection, it.from
        ),
        Note::Excerpts(it) => format!(
            "connection {} differs at byte {}: replica {} sent {:?}, replica {} sent {:?}",
            it.connection, it.position,
            it.one.0.0, String::from_utf8_lossy(&it.one.1), it.other.0.0, String::from_utf8_lossy(&it.other.1)
        ),
        Note::CheckpointFailed(why) => format!("a checkpoint failed: {why}"),
        Note::Unanswered => "no checkpoint was taken now: a client's request was not answered in time (program.sessions)".into(),
        Note::NoCheckpoint => "the log begins behind every checkpoint that this replica can get: it waits for a new one".into(),
    }
}
