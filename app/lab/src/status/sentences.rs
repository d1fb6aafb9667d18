//! The sentences below a group's table: why it is not protected, what goes on, troubles, and what to do about them.

use super::{GroupStatus, ReplicaStatus, milliseconds};
use crate::control::refused;
use plover_node::SPLIT_WARNING;

impl GroupStatus {
    /// The sentences that an operator should read beside the table.
    pub fn sentences(&self) -> Vec<String> {
        let mut told = self.tell_guest();
        if self.leader_says("guest_reboots") {
            told.push("The guest reboots: it boots again when it has powered off.".into());
        }
        if let Some(change) = self.change_in_words() {
            told.push(format!("The members change: {change}."));
        }
        told.extend(self.version_in_words());
        if let Some(last) = self.last_failover() {
            told.push(format!("Last failover: {last}."));
        }
        if let Some(words) = self.leader().and_then(ReplicaStatus::rest_in_words) {
            told.push(words);
        }
        self.tell_troubles(&mut told);
        told.extend(
            self.replicas
                .iter()
                .filter_map(ReplicaStatus::copy_in_words),
        );
        told.extend(self.after_a_loss());
        told
    }

    /// Those of them that are not good news: what the guest lacks, and troubles.
    pub fn troubles(&self) -> Vec<String> {
        let mut told = self.tell_guest();
        self.tell_troubles(&mut told);
        told.extend(self.after_a_loss());
        told
    }

    fn leader_says(&self, key: &str) -> bool {
        self.leader().is_some_and(|leader| leader.says(key))
    }

    /// Why the guest is not protected, or does not run.
    fn tell_guest(&self) -> Vec<String> {
        let mut told = Vec::new();
        // Of the status of one follower alone, nobody can say why: the leader is not in it.
        let can_say = self.leader().is_some() || self.is_whole();
        if !self.protected && self.policy != "none" && can_say {
            told.push(format!("Not protected: {}.", self.why_unprotected()));
        }
        told.extend(self.why_cut_off());
        if self.leader_says("guest_off") {
            let start = self.words("plover lab start", "plover start");
            told.push(format!("The guest is off until `{start}`."));
        }
        if self.leader_says("guest_paused") {
            let unpause = self.words("plover lab unpause", "plover unpause");
            told.push(format!(
                "The guest is paused by the operator until `{unpause}`."
            ));
        }
        told
    }

    fn tell_troubles(&self, told: &mut Vec<String>) {
        for replica in &self.replicas {
            if let Some(trouble) = &replica.trouble {
                told.push(format!("Replica {}: {trouble}", replica.id));
            }
            let refused = refused(&replica.more).into_iter();
            for why in refused.filter(|why| replica.trouble.as_ref() != Some(why)) {
                told.push(format!("Replica {}: {why}", replica.id));
            }
            if let Some(stale) = replica.text("stale_file") {
                told.push(format!("Replica {}: {stale}.", replica.id));
            }
            if let Some(lost) = replica.lines_lost() {
                told.push(format!("Replica {}: {lost}.", replica.id));
            }
            if replica.more.get("reaches_clients") == Some(&false.into()) {
                told.push(format!(
                    "Replica {} does not reach the clients, and does not lead: its TAP or its uplink is down.",
                    replica.id
                ));
            }
            if let Some(other) = replica.awaits_off() {
                told.push(format!(
                    "Replica {} hears nothing from replica {other}, and waits until that one is heard or known to be off. Pacemaker \
                     says so when it has fenced that host. If that host has no power, or you have ended replica {other} and \
                     made sure that it does not run: `plover confirm-off {other}`, on this host only.",
                    replica.id
                ));
            }
            if let Some(waits) = replica.text("waits_for").filter(|_| !self.all_answer()) {
                told.push(format!("Replica {} {waits}.", replica.id));
            }
            if replica.says("waits_to_be_added") {
                let waits = "belongs to no group yet. A new group begins when all of its replicas have been started; a \
                             new host of a group waits to be added: see `plover member --help`.";
                told.push(format!("Replica {} {waits}", replica.id));
            }
            if replica.is_drained() {
                let undrain = self.words("plover lab undrain", "plover undrain");
                let holds = match replica.role.as_str() {
                    "witness" | "recovering" => "and has no role that matters",
                    _ => "and keeps its role until another replica can take it over",
                };
                told.push(format!(
                    "Replica {} is drained (`{undrain}`), {holds}.",
                    replica.id
                ));
            } else if replica.says("leaving") {
                told.push(format!("Replica {} hands over, and ends then.", replica.id));
            }
        }
        let pairs = || self.replicas.iter().filter(|it| it.says("pair"));
        if pairs().any(ReplicaStatus::can_split) && !pairs().all(ReplicaStatus::can_split) {
            let words = "one has group.fencing in its file, and the other one has not: it must be the same on both, or one goes on \
                         without the other all the same";
            told.push(format!("Warning: of the two replicas {words}."));
        }
        if self.replicas.iter().any(ReplicaStatus::can_split) {
            told.push(format!("Warning: {SPLIT_WARNING}."));
        }
    }

    /// The words for a command: those of a lab, or those of a host.
    fn words<'a>(&self, in_lab: &'a str, on_hosts: &'a str) -> &'a str {
        if self.in_lab { in_lab } else { on_hosts }
    }

    /// Whether all members of the group are in it, and not only the one that was asked.
    fn is_whole(&self) -> bool {
        let mut members = self.replicas.iter().flat_map(|it| it.ids("members"));
        members.all(|id| self.replica(id).is_some())
    }

    fn all_answer(&self) -> bool {
        self.is_whole() && self.members().all(ReplicaStatus::answers)
    }

    /// The leader answers, and too few others do.
    fn why_cut_off(&self) -> Option<String> {
        let leader = self.leader().filter(|_| self.is_whole())?;
        let members = leader.ids("members");
        let answers = |id: &&u8| self.replica(**id).is_some_and(ReplicaStatus::answers);
        let count = members.iter().filter(answers).count();
        (members.len() > 2 && count * 2 <= members.len()).then(|| {
            format!(
                "Replica {} reaches no majority of its group: what the guest sends is held back, and where a majority is, \
                 another replica may lead.",
                leader.id
            )
        })
    }

    /// Why the guest is not protected, as its leader says.
    fn why_unprotected(&self) -> String {
        let Some(leader) = self.leader() else {
            return "no replica leads".into();
        };
        if leader.says("guest_off") {
            return "the guest is off".into();
        }
        let Some(why) = leader.text("unprotected_because") else {
            return match leader.copy_in_words() {
                Some(_) => "a copy to another replica is being made".into(),
                None => "no other replica is in sync yet".into(),
            };
        };
        why.into()
    }

    /// The change of the members that is under way: its step, and how far the copy is.
    pub fn change_in_words(&self) -> Option<String> {
        let change = self.leader()?.change()?;
        let text = |key: &str| change.get(key)?.as_str();
        let mut words = text("words")?.to_string();
        if let Some(step) = text("step") {
            words += &format!(": {step}");
        }
        let new = change.get("add").and_then(serde_json::Value::as_u64);
        let copies = self
            .replicas
            .iter()
            .filter_map(|replica| replica.more.get("copy"));
        let mut copies = copies.filter(|copy| new.is_some() && copy["to"].as_u64() == new);
        if let Some(copy) = copies.next() {
            let bytes = |key: &str| copy[key].as_u64().unwrap_or_default();
            let (behind, of) = (bytes("bytes_behind"), bytes("bytes").max(1));
            let percent = 100 - behind.min(of) * 100 / of;
            words += &format!("; it has {percent}% of {} MiB", of >> 20);
        }
        Some(words)
    }

    /// Why the group's wire version is not the newest that a replica speaks.
    fn version_in_words(&self) -> Option<String> {
        let versions = |it: &ReplicaStatus| it.more.get("version").cloned();
        let newest = |it: &serde_json::Value| it["newest"].as_u64();
        let version = self
            .replicas
            .iter()
            .filter(|replica| !replica.says("waits_to_be_added"))
            .filter_map(versions)
            .max_by_key(newest)?;
        let waits_for = version["waits_for"].as_array()?.iter();
        let why: Vec<_> = waits_for.filter_map(serde_json::Value::as_str).collect();
        let newest = newest(&version)?;
        let has = match version["group"].as_u64()? {
            0 => String::new(),
            group => format!(" and has {group}"),
        };
        (!why.is_empty()).then(|| {
            let why = why.join(", ");
            format!("The group waits for wire version {newest}{has}: {why}.")
        })
    }

    /// How the present leader took over.
    fn last_failover(&self) -> Option<String> {
        let leader = self.leader()?;
        let last = leader.more.get("last_failover")?;
        let us = |key: &str| last.get(key)?.as_u64();
        let ago = leader
            .more
            .get("mono_us")?
            .as_u64()?
            .saturating_sub(us("mono_us")?)
            / 1_000_000;
        let noticed = match (last.get("how")?.as_str()?, us("noticed_us")) {
            ("silence", Some(silence)) => {
                format!("noticed by a silence of {}", milliseconds(silence))
            }
            ("handed over", _) => "the lead was handed over".to_string(),
            ("stopped", _) => "the leader was told to stop".to_string(),
            _ => "noticed by the report of a death".to_string(),
        };
        Some(format!(
            "replica {} took over {ago} s ago: {noticed}, elected {} later, serving after {} more",
            leader.id,
            milliseconds(us("elected_us")?),
            milliseconds(us("serving_us")?)
        ))
    }

    /// Advice for the operator when no replica holds the guest; `None` while one does.
    fn after_a_loss(&self) -> Option<String> {
        let down = || self.members().filter(|replica| !replica.answers());
        // A replica that leads boots the guest, if it does not hold it yet.
        let goes_on = |it: &ReplicaStatus| it.holds_state() || it.role == "leader";
        if self.replicas.iter().any(goes_on)
            || down().count() == self.members().count()
            || !self.is_whole()
        {
            return None;
        }
        let lost = "No replica holds the guest's state.";
        let down: Vec<String> = down().map(|replica| replica.id.to_string()).collect();
        Some(if !down.is_empty() {
            format!(
                "{lost} Replica {} may: bring all back ({}).",
                down.join(" or "),
                self.words("`plover lab restart --replica ID`", "start their services")
            )
        } else if let Some(holder) = self.newest_disks() {
            format!(
                "{lost} Replica {holder} has the newest copy of its disks: {} boots the guest from it.",
                self.words(
                    "`plover lab bootstrap`",
                    "`plover bootstrap` on its host, which group.first_leader must name,"
                )
            )
        } else if self.had_disks() {
            format!(
                "{lost} No replica that was in sync last has a whole copy of its disks either: \
                 what the others have is older than what clients have seen."
            )
        } else {
            format!(
                "{lost} `{}` boots a new guest, without what the old one held.",
                self.words("plover lab bootstrap", "plover bootstrap")
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::last_error;
    use super::super::tests::{lab, said};
    use super::*;

    #[test]
    fn after_a_loss_the_newest_disks_are_named() {
        let lost = |id, isr: &[u8], index: u64| {
            let mut it = said(id, "witness", "1@r0", false);
            let remembered = serde_json::json!({"isr": isr, "generation": 16, "index": index});
            it.more.insert("last_in_sync".into(), remembered);
            it.more.insert("disks_whole".into(), true.into());
            it
        };
        let all = vec![lost(0, &[0, 1], 3), lost(1, &[1], 90), lost(2, &[0, 1], 3)];
        let told = lab(all.clone()).to_string();
        assert!(told.contains("Replica 1 has the newest copy"), "{told}");
        let mut spare = all.clone();
        for it in &mut spare {
            let members = serde_json::json!([0, 1, 2]);
            it.more.insert("members".into(), members);
        }
        spare.push(ReplicaStatus::mute(3, "down", None));
        let told = lab(spare).to_string();
        assert!(told.contains("Replica 1 has the newest copy"), "{told}");
        let mut two = all.clone();
        two[1] = ReplicaStatus::mute(1, "down", None);
        let told = lab(two).to_string();
        assert!(told.contains("Replica 1 may: bring all back"), "{told}");
        let mut alive = all.clone();
        alive[2].more.insert("holds_state".into(), true.into());
        assert!(!lab(alive).to_string().contains("No replica"));
        let mut torn = all;
        torn[1].more.insert("disks_whole".into(), false.into());
        let told = lab(torn).to_string();
        assert!(told.contains("older than what clients have seen"), "{told}");
        let bare = lab(vec![said(0, "witness", "1@r0", false)]).to_string();
        assert!(bare.contains("boots a new guest"), "{bare}");
    }

    #[test]
    fn what_one_replica_sees_is_not_taken_for_the_group() {
        let of_three = |id, role: &str| {
            let mut it = said(id, role, "1@r0", false);
            it.more
                .insert("members".into(), serde_json::json!([0, 1, 2]));
            it
        };
        let alone = lab(vec![of_three(0, "recovering")]).to_string();
        assert!(!alone.contains("No replica holds"), "{alone}");
        assert!(!alone.contains("no replica leads"), "{alone}");
        let mute = |id| ReplicaStatus::mute(id, "silent", None);
        let cut_off = lab(vec![of_three(0, "leader"), mute(1), mute(2)]).to_string();
        assert!(
            cut_off.contains("Replica 0 reaches no majority"),
            "{cut_off}"
        );
        let mut waits = of_three(1, "recovering");
        waits
            .more
            .insert("waits_for".into(), "waits for replica 2".into());
        let all = vec![of_three(0, "leader"), waits, of_three(2, "witness")];
        let linked = lab(all.clone()).to_string();
        assert!(
            !linked.contains("majority") && !linked.contains("waits for"),
            "{linked}"
        );
        let one_down = lab(vec![all[0].clone(), all[1].clone(), mute(2)]).to_string();
        assert!(
            one_down.contains("Replica 1 waits for replica 2."),
            "{one_down}"
        );
    }

    #[test]
    fn troubles_are_told_below_the_table() {
        let mut full = said(1, "witness", "1@r0", false);
        full.trouble = Some("cannot write the disk image /d: make room".into());
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        assert_eq!(last_error(&log), None);
        std::fs::write(&log, "INFO role\nplover: there is no disk image /d\n").unwrap();
        let ended = ReplicaStatus {
            trouble: last_error(&log),
            ..ReplicaStatus::mute(2, "down", None)
        };
        let table = lab(vec![said(0, "leader", "1@r0", false), full, ended]).to_string();
        for line in [
            "Replica 1: cannot write the disk image /d: make room",
            "Replica 2: there is no disk image /d",
        ] {
            assert!(table.lines().any(|found| found == line), "{table}");
        }
        std::fs::write(&log, "plover: old\nINFO role\n").unwrap();
        assert_eq!(last_error(&log), None, "it ran on after that");
    }

    #[test]
    fn a_pause_and_a_reboot_of_the_operator_are_told() {
        let mut leader = said(0, "leader", "1@r0", true);
        assert!(!lab(vec![leader.clone()]).to_string().contains("paused"));
        leader.more.insert("guest_paused".into(), true.into());
        let table = lab(vec![leader.clone()]).to_string();
        let line = "The guest is paused by the operator until `plover lab unpause`.";
        assert!(table.lines().any(|found| found == line), "{table}");
        leader.more.insert("guest_reboots".into(), true.into());
        let table = lab(vec![leader]).to_string();
        assert!(
            table.contains("boots again when it has powered off"),
            "{table}"
        );
    }

    #[test]
    fn it_is_told_whether_the_secondary_rests_and_why() {
        let mut leader = said(0, "leader", "1@r0", true);
        leader
            .more
            .insert("secondary_rests".into(), serde_json::Value::Null);
        let table = lab(vec![leader.clone()]).to_string();
        assert!(!table.contains("usually"), "another policy: {table}");
        let rest = serde_json::json!({
            "now": false, "slots": 90, "usually": true, "trying": true,
            "running_per_s": 210, "early_percent": 97, "resting_per_s": null,
        });
        leader.more.insert("secondary_rests".into(), rest);
        let table = lab(vec![leader]).to_string();
        let line = "The secondary's guest usually rests: released where it runs 210 frames/s, 97% of them before \
                    the sync, where it rests not measured; the other is tried at present.";
        assert!(table.lines().any(|found| found == line), "{table}");
    }

    #[test]
    fn two_replicas_say_that_they_can_split() {
        let mut one = said(0, "leader", "1@r0", true);
        assert!(!lab(vec![one.clone()]).to_string().contains("Warning"));
        one.more.insert("can_split".into(), true.into());
        let table = lab(vec![one, said(1, "secondary", "1@r0", false)]).to_string();
        assert!(table.contains("Warning: two replicas without"), "{table}");
    }

    #[test]
    fn one_of_two_says_for_what_it_waits() {
        let mut one = said(0, "leader", "1@r0", true);
        one.more.insert("awaits_off".into(), 1.into());
        let table = lab(vec![one]).to_string();
        assert!(table.contains("`plover confirm-off 1`"), "{table}");
    }

    #[test]
    fn a_copy_is_told_in_bytes_and_percent() {
        let mut secondary = said(1, "secondary", "1@r0", false);
        let copy = serde_json::json!({
            "to": 2, "open": true, "bytes": 256 << 20, "bytes_behind": (64 << 20) + (1 << 19),
        });
        secondary.more.insert("copy".into(), copy);
        let table = lab(vec![secondary.clone()]).to_string();
        let told = "replica 2 has 74% of replica 1's 256 MiB: the warm copy lacks 64.5 MiB\n";
        assert!(table.contains(told), "{table}");
        let status = |secondary| planned(vec![secondary, said(2, "witness", "1@r0", false)]);
        assert!(!status(secondary.clone()).is_warm(2));
        secondary.more["copy"]["whole"] = true.into();
        let table = status(secondary.clone()).to_string();
        assert!(status(secondary).is_warm(2));
        let told = "replica 2 has a warm copy of replica 1's 256 MiB, and lacks 64.5 MiB of it\n";
        assert!(table.contains(told), "{table}");
    }

    fn planned(replicas: Vec<ReplicaStatus>) -> GroupStatus {
        GroupStatus::of("shop-db".into(), "hybrid".into(), replicas)
    }

    #[test]
    fn the_group_is_shown_with_its_name_and_its_last_failover() {
        let mut leader = said(1, "leader", "2@r1", true);
        let last = serde_json::json!({
            "how": "silence", "mono_us": 4_000_000, "noticed_us": 75_000, "elected_us": 11_200, "serving_us": 3_000,
        });
        leader.more.insert("last_failover".into(), last);
        leader.more.insert("mono_us".into(), 9_000_000.into());
        let table = planned(vec![leader.clone()]).to_string();
        assert!(
            table.starts_with("guest shop-db  protected  policy hybrid\n"),
            "{table}"
        );
        let told = "Last failover: replica 1 took over 5 s ago: noticed by a silence of 75.0 ms, elected 11.2 ms later, \
                    serving after 3.0 ms more.\n";
        assert!(table.contains(told), "{table}");
        leader.more["last_failover"]["how"] = "handed over".into();
        leader.more["last_failover"]["noticed_us"] = serde_json::Value::Null;
        let table = planned(vec![leader.clone()]).to_string();
        assert!(
            table.contains("5 s ago: the lead was handed over, elected 11.2 ms later"),
            "{table}"
        );
        leader.more["last_failover"]["how"] = "stopped".into();
        let table = planned(vec![leader]).to_string();
        assert!(
            table.contains("5 s ago: the leader was told to stop, elected 11.2 ms later"),
            "{table}"
        );
    }

    #[test]
    fn a_drained_host_and_a_silent_one_are_shown() {
        let silent = serde_json::json!({"id": 2, "silent": "it has not answered within a second"});
        let silent = ReplicaStatus::answered(&silent).unwrap();
        let mut drained = said(0, "witness", "2@r1", false);
        drained.more.insert("drained".into(), true.into());
        let all = vec![drained.clone(), said(1, "leader", "2@r1", false), silent];
        let table = planned(all).to_string();
        for line in [
            "Replica 0 is drained (`plover undrain`), and has no role that matters.",
            "Replica 2: it has not answered within a second",
            "Not protected: no other replica is in sync yet.",
        ] {
            assert!(table.lines().any(|found| found == line), "{table}");
        }
        assert!(table.contains("      2  silent"), "{table}");
        drained.role = "secondary".into();
        let table = planned(vec![drained]).to_string();
        assert!(
            table.contains("keeps its role until another replica can take it over"),
            "{table}"
        );
    }

    #[test]
    fn the_reason_is_told_for_a_guest_without_protection() {
        let mut leader = said(1, "leader", "2@r1", false);
        let why = "the copy of the guest to replica 2 failed: no room";
        leader.more.insert("unprotected_because".into(), why.into());
        let table = planned(vec![leader.clone()]).to_string();
        assert!(table.contains(&format!("Not protected: {why}.")), "{table}");
        leader.more.insert("guest_off".into(), true.into());
        let table = planned(vec![leader]).to_string();
        assert!(
            table.contains("The guest is off until `plover start`."),
            "{table}"
        );
        let none = planned(vec![said(1, "witness", "2@r1", false)]).to_string();
        assert!(none.contains("Not protected: no replica leads."), "{none}");
        assert!(
            none.contains("`plover bootstrap` boots a new guest"),
            "{none}"
        );
    }
}
