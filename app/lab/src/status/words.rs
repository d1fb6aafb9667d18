//! One replica's own answers, in words.

use super::ReplicaStatus;

impl ReplicaStatus {
    pub(crate) fn says(&self, key: &str) -> bool {
        self.more.get(key).and_then(serde_json::Value::as_bool) == Some(true)
    }

    /// The change of the members that it has under way.
    pub(crate) fn change(&self) -> Option<&serde_json::Value> {
        self.more.get("change").filter(|change| !change.is_null())
    }

    /// A list of replicas that it names.
    pub fn ids(&self, key: &str) -> Vec<u8> {
        let list = self.more.get(key).cloned().unwrap_or_default();
        serde_json::from_value(list).unwrap_or_default()
    }

    pub(super) fn text(&self, key: &str) -> Option<&str> {
        self.more.get(key)?.as_str()
    }

    /// Lines of its log and trace that could not be written.
    pub(super) fn lines_lost(&self) -> Option<String> {
        let lost = self.more.get("lines_lost")?.as_object()?.iter();
        let lost = lost.filter(|(_, lines)| lines.as_u64() > Some(0));
        let words = lost.map(|(of, lines)| format!("{lines} lines of its {of} were lost"));
        let words: Vec<_> = words.collect();
        let why = "what they go to has stood still, or is full";
        (!words.is_empty()).then(|| format!("{}: {why}", words.join(", ")))
    }

    /// Whether the secondary's guest rests, and why, where the policy lets it.
    pub(super) fn rest_in_words(&self) -> Option<String> {
        let rest = self.more.get("secondary_rests")?;
        let per_s = |key: &str| match rest.get(key)?.as_u64() {
            Some(frames) => Some(format!("{frames} frames/s")),
            None => Some("not measured".into()),
        };
        let usually = match rest.get("usually")?.as_bool()? {
            true => "rests",
            false => "runs",
        };
        let trying = match rest.get("trying")?.as_bool()? {
            true => "; the other is tried at present",
            false => "",
        };
        Some(format!(
            "The secondary's guest usually {usually}: released where it runs {}, {}% of them before the sync, \
             where it rests {}{trying}.",
            per_s("running_per_s")?,
            rest.get("early_percent")?,
            per_s("resting_per_s")?
        ))
    }

    /// The copy of its guest that it makes or keeps warm on another replica, if there is one. A witness whose copy is whole could go
    /// on from it.
    pub(super) fn copy_in_words(&self) -> Option<String> {
        let copy = self.more.get("copy")?;
        let bytes = |key: &str| copy.get(key)?.as_u64();
        let (to, of) = (bytes("to")?, bytes("bytes")?);
        let behind = bytes("bytes_behind")?.min(of);
        let percent = (of - behind) * 100 / of.max(1);
        let kind = match self.role.as_str() {
            "leader" => "the copy that joins",
            _ => "the warm copy",
        };
        let is = |key: &str| copy.get(key).and_then(serde_json::Value::as_bool) == Some(true);
        if !is("open") {
            return self.refused_in_words(to);
        }
        if is("whole") {
            return Some(format!(
                "replica {to} has a warm copy of replica {}'s {} MiB, and lacks {} of it",
                self.id,
                of >> 20,
                mebibytes(behind)
            ));
        }
        Some(format!(
            "replica {to} has {percent}% of replica {}'s {} MiB: {kind} lacks {}",
            self.id,
            of >> 20,
            mebibytes(behind)
        ))
    }

    /// Whether it has made a warm copy for this replica, all of it.
    pub(super) fn keeps_warm(&self, id: u8) -> bool {
        let copy = self.more.get("copy").filter(|copy| copy["to"] == id);
        copy.is_some_and(|copy| copy["open"] == true && copy["whole"] == true)
    }

    /// Why the replica that it offers a copy takes none.
    fn refused_in_words(&self, to: u64) -> Option<String> {
        let refused = self.more.get("copy_refused")?;
        let why = refused.get("why")?.as_str()?;
        (refused.get("peer")?.as_u64() == Some(to)).then(|| {
            format!("replica {to} takes no copy of the guest, so it could not go on with it: {why}")
        })
    }
}

/// An amount of memory for people.
fn mebibytes(bytes: u64) -> String {
    let tenths = bytes / (1 << 20) * 10 + (bytes % (1 << 20)) * 10 / (1 << 20);
    format!("{}.{} MiB", tenths / 10, tenths % 10)
}
