//! The operator has changed the configuration file of a replica that runs.

use super::{Body, BoxError};
use crate::config::{ConfigFile, Reload};
use plover_replica::Event;
use serde_json::{Value, json};
use std::path::Path;

impl Body {
    /// Takes what can change while this replica runs, and says of each key that differs when it takes effect. If `dry_run`, it
    /// only says so.
    pub(super) fn reload(&mut self, now: ConfigFile, dry_run: bool) -> Result<Value, BoxError> {
        let mut reload = match Reload::plan(&self.file, &now) {
            Ok(reload) => reload,
            Err(error) => return Ok(json!({"error": error.to_string()})),
        };
        // The file was brought up to date with the log, which counts already.
        let record = self.replica.group_record();
        let is_up_to_date = record.is_of_the_log() && now.config.group.stale(record).is_none();
        if is_up_to_date {
            let is_member =
                |key: &str| key.starts_with("group.replica") || key.starts_with("group.spare");
            reload.changes.retain(|change| !is_member(&change.key));
            reload.next.config.group.take_members(&now.config.group);
        }
        // A leader whose uplink is down hands over, and one that does not exist is never up.
        let uplink = reload.next.config.net.uplink.as_deref();
        let exists = |name: &str| Path::new("/sys/class/net").join(name).exists();
        if let Some(name) =
            uplink.filter(|it| Some(*it) != self.config.net.uplink.as_deref() && !exists(it))
        {
            let why = format!(
                "{} is not taken, and nothing has changed: this host has no network device '{name}' (net.uplink)",
                now.path.display()
            );
            return Ok(json!({"error": why}));
        }
        let answer = json!({
            "ok": true,
            "id": self.config.group.me,
            "file": now.path,
            "dry_run": dry_run,
            "changes": reload.changes,
        });
        if !dry_run {
            self.waiting_keys = reload.waiting();
            for change in &reload.changes {
                let (from, to) = (change.from.as_deref(), change.to.as_deref());
                tracing::info!(
                    event = "key_reloaded",
                    key = change.key,
                    from,
                    to,
                    "the configuration was read again: {} {}",
                    change.key,
                    change.effect
                );
            }
            self.put_into_force(reload.next)?;
        }
        Ok(answer)
    }

    /// The keys that differ are those of [`crate::Effect::Now`].
    fn put_into_force(&mut self, next: ConfigFile) -> Result<(), BoxError> {
        self.config = next.config.clone();
        self.file = next;
        let config = &self.config;
        self.packer.set(config.policy.compresses());
        self.trace.set_syncs(config.debug.trace_syncs);
        self.uplink.set(config.net_devices());
        let tuning = config.tuning();
        self.place();
        self.apply(Event::Tuned(Box::new(tuning)))?;
        self.look_at_uplink()
    }
}
