//! Several guests on five hosts under Pacemaker: hosts are lost, emptied and upgraded, under load. Every acknowledged write of
//! each guest is there in the end, no connection was reset, and of the lab's own one replica sends at a time (`prove`).
//!
//! The short form does two of these things to two guests. The long one has five, and what happens to them is drawn: it runs for
//! `FLEET_MINUTES` (5), from the seed `FLEET_SEED` (2):
//! `FLEET_MINUTES=60 cargo test --release -p plover-lab-proof fleet_random:: -- --ignored --nocapture`

use anyhow::{Context, Result, bail, ensure};
use plover_lab::Fault;
use plover_lab::options::Options;
use plover_lab::status::GroupStatus;
use plover_lab_proof::beside::{Beside, HOSTS, Replacement};
use plover_lab_proof::cluster::{Cluster, NODES};
use plover_lab_proof::experiment::Experiment;
use plover_lab_proof::load::{Client, Pressure};
use plover_lab_proof::{overlay, program, prove_under};
use plover_types::SplitMix64;
use std::time::{Duration, Instant};
use time::OffsetDateTime;

/// How long guests may take until all is well again. Ten guests are emulated on the CPUs of one machine.
const WITHIN: Duration = Duration::from_secs(240);

struct Fleet<'a> {
    lab: &'a mut Experiment,
    cluster: Cluster,
    guests: Vec<Beside>,
    clients: Vec<Client>,
    replaced: usize,
    /// How long each replacement took, and whose it was.
    protected_in: Vec<(Duration, String)>,
}

/// Something that happens to a host.
#[derive(Clone, Copy, Debug)]
enum Event {
    LostAndBack,
    LostForGood,
    Emptied,
    /// All hosts are, by a command that is given on the next one.
    Upgraded,
}

#[test]
fn two_guests_outlive_a_host_that_is_lost_and_one_that_is_emptied() {
    with_guests("t-two", 2, |fleet| {
        // Both guests have members on both.
        fleet.happens(Event::LostForGood, 1)?;
        fleet.happens(Event::Emptied, 2)?;
        ensure!(
            fleet.replaced > 0,
            "no replica of the lost host was replaced"
        );
        Ok(2)
    });
}

#[test]
#[ignore = "takes minutes to hours: the command is at the head of this file"]
fn five_guests_outlive_what_happens_to_five_hosts() {
    let number = |name: &str, default: u64| {
        let told = std::env::var(name).ok();
        told.and_then(|it| it.parse().ok()).unwrap_or(default)
    };
    let span = Duration::from_secs(60 * number("FLEET_MINUTES", 5));
    let mut random = SplitMix64::new(number("FLEET_SEED", 2));
    with_guests("t-five", 5, |fleet| {
        let until = Instant::now() + span;
        let mut steps = 0;
        while Instant::now() < until {
            let host = random.range(0, u64::from(HOSTS) - 1) as u8;
            let event = match random.range(0, 9) {
                0..=3 => Event::LostAndBack,
                4..=5 => Event::LostForGood,
                6..=8 => Event::Emptied,
                _ => Event::Upgraded,
            };
            let happened = fleet.happens(event, host);
            happened.with_context(|| format!("step {steps}"))?;
            steps += 1;
        }
        Ok(steps)
    });
}

/// Lets things happen to so many guests, the lab's own and others beside it, and audits them. `script` returns how many.
fn with_guests(name: &str, guests: u8, script: impl FnOnce(&mut Fleet<'_>) -> Result<usize>) {
    let patient = overlay(
        "[group]\ntimeout_ms = 2000\ntimeout_min_ms = 2000\nhypervisor_timeout_ms = 4000\nreplace_after_s = 0\n\
         plaintext = true\n[guest]\naccel = \"tcg\"\n",
    );
    let options = Options {
        spare: 2,
        overlay: Some(patient.to_path_buf()),
        ..Options::default()
    };
    let light = Pressure {
        connections: 2,
        writes_per_second: 20,
    };
    prove_under(light, name, options, |lab| {
        let cluster = Cluster::start(lab.lab())?;
        let mut fleet = Fleet {
            lab,
            cluster,
            guests: Vec::new(),
            clients: Vec::new(),
            replaced: 0,
            protected_in: Vec::new(),
        };
        fleet.begin(light, guests - 1)?;
        let steps = script(&mut fleet)?;
        fleet.end(steps)
    });
}

impl Fleet<'_> {
    fn begin(&mut self, pressure: Pressure, beside: u8) -> Result<()> {
        let online = "Online: [ alpha beta delta epsilon gamma ]";
        self.wait("all nodes are online", |it| {
            Ok(it.shown(0).contains(online))
        })?;
        for number in 1..=beside {
            let guest = Beside::new(self.lab.lab(), &self.cluster, number)?;
            self.guests.push(guest);
        }
        self.cluster.run(
            0,
            &["crm", "configure", "property", "stonith-enabled=false"],
        )?;
        self.apply(0)?;
        self.wait_until_all_is_well()?;
        // Guests may still be booting.
        let until = Instant::now() + WITHIN;
        while self.clients.len() < self.guests.len() {
            let guest = &self.guests[self.clients.len()];
            let client = self.lab.lab().topology().client();
            match Client::start(Some(client), guest.service(), pressure) {
                Ok(client) => self.clients.push(client),
                Err(error) if Instant::now() > until => {
                    return Err(error.context(guest.name.clone()));
                }
                Err(_) => self.lab.progress().sleep(Duration::from_secs(1))?,
            }
        }
        Ok(())
    }

    /// Gives the cluster the guests as their files are now, on a host.
    fn apply(&self, host: u8) -> Result<()> {
        let folder = tempfile::tempdir()?;
        for guest in &self.guests {
            let file = folder.path().join(format!("{}.toml", guest.name));
            std::fs::write(file, guest.file_of_a_member()?)?;
        }
        let own = self.lab.lab().files(0).config();
        std::fs::copy(
            own,
            folder.path().join(format!("{}.toml", self.cluster.guest())),
        )?;
        let (plover, folder) = (program().to_string_lossy(), folder.path().to_string_lossy());
        let words = [&plover[..], "fleet", "apply", &folder];
        let said = self.cluster.run(host, &words)?;
        self.lab.progress().say(said);
        Ok(())
    }

    /// Something happens to a host, and all is well again.
    fn happens(&mut self, event: Event, host: u8) -> Result<()> {
        let elsewhere = (host + 1) % HOSTS;
        let node = NODES[usize::from(host)];
        let event = match event {
            // A group has 16 ids in all, and in an hour a guest may lose more members than that.
            Event::LostForGood if !self.guests.iter().all(Beside::has_an_id) => Event::LostAndBack,
            event => event,
        };
        match event {
            Event::LostAndBack => {
                self.say(format!("{node} is lost, and comes back"));
                self.lab.lab().fault(Fault::Kill, host)?;
                self.cluster.start_host(host)?;
            }
            Event::LostForGood => {
                self.say(format!("{node} is lost for good"));
                self.lab.lab().fault(Fault::Kill, host)?;
                let (begun, since) = (Instant::now(), OffsetDateTime::now_utc());
                self.wait("the guests of the lost host are whole without it", |it| {
                    Ok(it.guests.iter().all(Beside::is_whole))
                })?;
                let took = begun.elapsed().as_secs_f64();
                for guest in &mut self.guests {
                    self.replaced += guest.bring_up_to_date(&self.cluster)?;
                }
                self.say(format!("all guests are whole without it after {took:.1} s"));
                // The agents may not have written down yet who has left.
                self.wait("the cluster takes the new files", |it| {
                    Ok(it.apply(elsewhere).is_ok())
                })?;
                self.cluster.start_host(host)?;
                self.wait_until_all_is_well()?;
                self.wait("the new replicas have their copies", |it| {
                    let all = it.guests.iter().map(|guest| guest.replacement(since));
                    let all = all.collect::<Result<Vec<_>>>()?;
                    Ok(!all.contains(&Replacement::UnderWay))
                })?;
                for guest in &self.guests {
                    if let Replacement::Took(it) = guest.replacement(since)? {
                        self.protected_in.push((it, guest.name.clone()));
                    }
                }
            }
            Event::Emptied => {
                self.say(format!("{node} is emptied"));
                self.cluster
                    .run(elsewhere, &["crm", "node", "standby", node])?;
                self.wait("the host is empty", |it| {
                    let shown = it.shown(elsewhere);
                    let mut lines = shown.lines().filter(|line| line.contains("Started: ["));
                    Ok(shown.contains("Started: [")
                        && !shown.contains("Stopping")
                        && lines.all(|line| !line.contains(node)))
                })?;
                self.cluster
                    .run(elsewhere, &["crm", "node", "online", node])?;
            }
            Event::Upgraded => {
                self.say("all hosts are upgraded".into());
                // It may be the host that was lost before, and joins just now.
                let plover = program().to_string_lossy();
                let words = ["fleet", "upgrade", "--within-s", "240", "--", "true"];
                let words = [&[&plover[..]], &words[..]].concat();
                let said = self.cluster.run(elsewhere, &words);
                let said = said.with_context(|| self.shown(elsewhere))?;
                self.lab.progress().say(said);
            }
        }
        self.wait_until_all_is_well()
    }

    fn say(&self, words: String) {
        let counts = self.clients.iter().map(|it| it.counts().acked.to_string());
        let counts: Vec<String> = counts.collect();
        let progress = self.lab.progress();
        progress.say(format!("{words} (acknowledged: {})", counts.join(", ")));
    }

    /// What `crm_mon` shows on a host; nothing if it does not answer.
    fn shown(&self, host: u8) -> String {
        let shown = self.cluster.run(host, &["crm_mon", "-1", "-r", "-A"]);
        shown.unwrap_or_default()
    }

    fn wait(&mut self, what: &str, holds: impl Fn(&Self) -> Result<bool>) -> Result<()> {
        let deadline = Instant::now() + WITHIN;
        while !holds(self)? {
            for (client, guest) in self.clients.iter().zip(&self.guests) {
                let resets = client.counts().resets;
                ensure!(resets.is_empty(), "{}: {}", guest.name, resets.join("; "));
            }
            if Instant::now() > deadline {
                let told = self.guests.iter().filter_map(Beside::status);
                let told: String = told.map(|it| it.to_string()).collect();
                let shown = self.shown(0) + &self.shown(1);
                bail!(
                    "after {} s still not: {what}\n{told}\n{shown}",
                    WITHIN.as_secs()
                );
            }
            self.lab.progress().sleep(Duration::from_millis(300))?;
        }
        Ok(())
    }

    /// Every guest is protected and whole, and every host is as Pacemaker wants it.
    fn wait_until_all_is_well(&mut self) -> Result<()> {
        self.wait("all guests are whole", |it| {
            let own = it
                .lab
                .lab()
                .ids()
                .map(|id| GroupStatus::ask(&it.lab.lab().control(id)));
            let mut own = own.flatten();
            let own = own.find(|group| group.leader().is_some());
            let is_whole = own.is_some_and(|group| {
                let roles = ["leader", "secondary", "witness"];
                group.protected && roles.iter().all(|role| group.with_role(role).is_some())
            });
            Ok(is_whole && it.guests.iter().all(Beside::is_whole))
        })?;
        // The attributes are as old as the last monitor.
        self.wait("all guests are well, says the cluster", |it| {
            let run_dir = it.lab.lab().files(0).run_dir();
            let run_dir = run_dir.to_string_lossy();
            let plover = program().to_string_lossy();
            let words = [&plover[..], "fleet", "status", "--run-dir", &run_dir];
            let said = it.cluster.run(0, &words).unwrap_or_default();
            let rows: Vec<&str> = said.lines().skip(1).collect();
            let is_well = |row: &&str| {
                let roles = ["leader", "secondary", "witness"];
                row.contains("  protected  ") && roles.iter().all(|role| row.contains(role))
            };
            Ok(rows.len() == it.guests.len() + 1 && rows.iter().all(is_well))
        })
    }

    fn end(mut self, steps: usize) -> Result<()> {
        self.protected_in.sort();
        let in_words = |it: &(Duration, String)| format!("{} {:.1} s", it.1, it.0.as_secs_f64());
        let took: Vec<String> = self.protected_in.iter().map(in_words).collect();
        self.say(format!(
            "from the change of the members until the guest was whole: {}",
            took.join(", ")
        ));
        self.say(format!(
            "{steps} things have happened, {} replicas were replaced",
            self.replaced
        ));
        for (client, guest) in self.clients.into_iter().zip(&self.guests) {
            let gap = client.gap(0).silence_us / 1000;
            let audit = client.audit()?;
            let is_good = audit.acked > 0 && audit.lost == 0 && audit.resets.is_empty();
            let words = format!(
                "{}: {} acknowledged, {} lost, longest time without an answer {gap} ms",
                guest.name, audit.acked, audit.lost
            );
            self.lab.progress().say(&words);
            ensure!(is_good, "{words}: {audit:?}");
        }
        Ok(())
    }
}
