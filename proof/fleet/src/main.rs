//! Many guests on many hosts, which are lost at random, by rack, and upgraded. Pacemaker's own scheduler places replicas, with the
//! rules of `plover fleet apply`; how long a group takes for what it does then are times that were measured (`guest.rs`).
//!
//! ```text
//!   losses, upgrades ──▶ pacemaker.rs: crm_simulate on a file ──▶ where replicas run ──▶ guest.rs: who leads, who is copied
//!                              ▲                                        │
//!                              └── attributes of replaced members ◀─────┴──▶ rules that must hold after each step
//! ```
//!
//! After each step the replicas that run are those of members whose host is there, and no others.

mod guest;
mod pacemaker;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use guest::{Guest, Sums};
use pacemaker::{GuestFile, Pacemaker, Place, host_name};
use plover_types::SplitMix64;
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::path::PathBuf;

/// Simulates a fleet of guests, and prints how available and protected they were.
#[derive(Debug, Parser)]
struct Options {
    /// The number of guests.
    #[arg(long, default_value_t = 200)]
    guests: usize,
    /// The number of hosts, in racks of equal size.
    #[arg(long, default_value_t = 20)]
    hosts: usize,
    /// The number of racks. Each member and spare host of a guest is in another one, if there are enough.
    #[arg(long, default_value_t = 5)]
    racks: usize,
    /// Spare hosts of each guest.
    #[arg(long, default_value_t = 2)]
    spares: usize,
    /// The memory of each guest, in MiB.
    #[arg(long, default_value_t = 4096)]
    mem_mib: u64,
    /// The memory that each host has for replicas, in MiB, so that a lost one is replaced only where there is room. 0: enough.
    #[arg(long, default_value_t = 0)]
    host_mem_mib: u64,
    /// How long to simulate.
    #[arg(long, default_value_t = 90)]
    days: u64,
    /// Days between two losses of one host, on average: 7 of 10 are back after 5 minutes, the others after a day.
    #[arg(long, default_value_t = 60)]
    host_days: u64,
    /// Days between two losses of one rack, on average. It is back after half an hour.
    #[arg(long, default_value_t = 180)]
    rack_days: u64,
    /// Days between two upgrades of all hosts, each of which takes 5 minutes.
    #[arg(long, default_value_t = 30)]
    upgrade_days: u64,
    /// `group.replace_after_s`; 0: no host is replaced.
    #[arg(long, default_value_t = 600)]
    replace_after_s: u64,
    /// Of all chance.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The program whose rules are used.
    #[arg(long, default_value = "target/release/plover")]
    plover: PathBuf,
}

const DAY_S: f64 = 86_400.0;
const REBOOT_S: f64 = 300.0;
const RACK_S: f64 = 1800.0;

/// An upgrade looks again after so long whether all guests are well.
const LOOK_AGAIN_S: f64 = 60.0;

/// The agents look every 10 s.
const MONITOR_S: u64 = 10;

/// What `plover fleet apply` counts for a replica beside the guest's memory, of 256 MiB or more.
const BESIDE_MIB: u64 = 256 + 192;

/// Of high availability by restart on shared storage, for comparison: from a host's loss until its guests are up elsewhere.
const RESTART_S: f64 = 120.0;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Lost {
        hosts: Vec<usize>,
        back_after_s: u64,
    },
    Back(Vec<usize>),
    Upgrade(usize),
    Upgraded(usize),
    /// The members of guests on a lost host, as guest and id, are replaced.
    Replace {
        host: usize,
        members: Vec<(usize, u8)>,
    },
    Copied(usize),
}

/// Events in the order of their times, in ms.
type Queue = BinaryHeap<Reverse<(u64, Event)>>;

struct World {
    options: Options,
    random: SplitMix64,
    pacemaker: Pacemaker,
    guests: Vec<Guest>,
    /// By host: how many losses keep it down.
    down: Vec<u32>,
    standby: Option<usize>,
    running: BTreeSet<Place>,
    queue: Queue,
    now_s: f64,
    /// Where guests run that are restarted by a cluster, and how long they were away.
    restarted: Vec<usize>,
    restart_s: f64,
    losses: usize,
}

fn main() -> Result<()> {
    let options = Options::parse();
    ensure!(
        options.hosts % options.racks == 0 && options.racks >= 3,
        "--hosts must be a multiple of --racks, and there must be 3 racks or more"
    );
    ensure!(
        3 + options.spares <= options.racks,
        "--spares: a guest needs {} racks, and there are {}",
        3 + options.spares,
        options.racks
    );
    let mut world = World::new(options)?;
    world.run()?;
    world.report();
    Ok(())
}

impl World {
    fn new(options: Options) -> Result<Self> {
        let mut random = SplitMix64::new(options.seed);
        let a_rack = options.hosts / options.racks;
        let places: Vec<Vec<usize>> = (0..options.guests)
            .map(|_| {
                let mut racks: Vec<usize> = (0..options.racks).collect();
                for at in (1..racks.len()).rev() {
                    racks.swap(at, random.range(0, at as u64) as usize);
                }
                let host =
                    |rack: usize| rack * a_rack + random.range(0, a_rack as u64 - 1) as usize;
                racks
                    .into_iter()
                    .take(3 + options.spares)
                    .map(host)
                    .collect()
            })
            .collect();
        let files: Vec<GuestFile<'_>> = places
            .iter()
            .map(|it| GuestFile {
                members: &it[..3],
                spares: &it[3..],
                mem_mib: options.mem_mib,
            })
            .collect();
        let pacemaker = Pacemaker::new(&options.plover, options.hosts, &files)?;
        let running = pacemaker.running()?;
        let guests = places
            .iter()
            .map(|it| Guest::new(&it[..3], &it[3..], options.mem_mib as f64));
        let mut world = Self {
            random,
            pacemaker,
            guests: guests.collect(),
            down: vec![0; options.hosts],
            standby: None,
            running,
            queue: Queue::new(),
            now_s: 0.0,
            restarted: places.iter().map(|it| it[0]).collect(),
            restart_s: 0.0,
            losses: 0,
            options,
        };
        for host in 0..world.options.hosts {
            let is_full = world.options.host_mem_mib > 0 && world.room_mib(host) < 0;
            ensure!(
                !is_full,
                "--host-mem-mib: {} of the {} MiB are missing on a host, for its members alone",
                -world.room_mib(host),
                world.options.host_mem_mib
            );
        }
        world.check()?;
        for host in 0..world.options.hosts {
            world.plan_loss(vec![host]);
        }
        for rack in 0..world.options.racks {
            world.plan_loss((rack * a_rack..(rack + 1) * a_rack).collect());
        }
        world.after(world.options.upgrade_days as f64 * DAY_S, Event::Upgrade(0));
        Ok(world)
    }

    fn after(&mut self, s: f64, event: Event) {
        let at = ((self.now_s + s) * 1000.0) as u64;
        self.queue.push(Reverse((at, event)));
    }

    /// Draws when these hosts are lost next: exponentially, as if each moment were as likely.
    fn plan_loss(&mut self, hosts: Vec<usize>) {
        let is_rack = hosts.len() > 1;
        let days = if is_rack {
            self.options.rack_days
        } else {
            self.options.host_days
        };
        let chance = (self.random.range(1, 1 << 32) as f64) / (1u64 << 32) as f64;
        let in_s = -chance.ln() * days as f64 * DAY_S;
        let back_after_s = match (is_rack, self.random.range(1, 10)) {
            (true, _) => RACK_S,
            (false, 1..=7) => REBOOT_S,
            _ => DAY_S,
        };
        let back_after_s = back_after_s as u64;
        self.after(
            in_s,
            Event::Lost {
                hosts,
                back_after_s,
            },
        );
    }

    fn run(&mut self) -> Result<()> {
        let end_s = self.options.days as f64 * DAY_S;
        while let Some(Reverse((at, event))) = self.queue.pop() {
            let at_s = at as f64 / 1000.0;
            if at_s > end_s {
                break;
            }
            if (at_s / DAY_S) as u64 > (self.now_s / DAY_S) as u64 {
                eprintln!(
                    "day {:.0} of {}, {} losses",
                    at_s / DAY_S,
                    self.options.days,
                    self.losses
                );
            }
            self.now_s = at_s;
            let words = format!("day {:.2}, {event:?}", at_s / DAY_S);
            self.step(event).with_context(|| words)?;
        }
        self.guests.iter_mut().for_each(|guest| guest.end(end_s));
        Ok(())
    }

    fn step(&mut self, event: Event) -> Result<()> {
        match event {
            Event::Lost {
                hosts,
                back_after_s,
            } => {
                self.losses += 1;
                let gone: Vec<usize> = hosts
                    .iter()
                    .copied()
                    .filter(|it| self.down[*it] == 0)
                    .collect();
                hosts.iter().for_each(|it| self.down[*it] += 1);
                self.plan_loss(hosts.clone());
                self.after(back_after_s as f64, Event::Back(hosts));
                self.restart_guests(&gone);
                // The groups know of it before Pacemaker does.
                self.look_at_guests(false);
                self.settle("--node-down", &gone)?;
                for host in gone {
                    self.expect_replacements(host);
                }
                Ok(())
            }
            Event::Back(hosts) => {
                hosts.iter().for_each(|it| self.down[*it] -= 1);
                let back: Vec<usize> = hosts.into_iter().filter(|it| self.down[*it] == 0).collect();
                self.settle("--node-up", &back)
            }
            Event::Upgrade(host) => {
                let is_well =
                    self.down.iter().all(|it| *it == 0) && self.guests.iter().all(Guest::is_whole);
                if !is_well {
                    self.after(LOOK_AGAIN_S, Event::Upgrade(host));
                    return Ok(());
                }
                self.standby = Some(host);
                self.after(REBOOT_S, Event::Upgraded(host));
                self.pacemaker.standby(host, true)?;
                self.take_places(true)
            }
            Event::Upgraded(host) => {
                self.standby = None;
                self.pacemaker.standby(host, false)?;
                self.take_places(false)?;
                match host + 1 {
                    next if next < self.options.hosts => self.after(0.0, Event::Upgrade(next)),
                    _ => self.after(self.options.upgrade_days as f64 * DAY_S, Event::Upgrade(0)),
                }
                Ok(())
            }
            Event::Replace { host, members } => self.replace(host, members),
            Event::Copied(guest) => {
                self.guests[guest].take_copy(self.now_s);
                self.look_at(guest, false);
                Ok(())
            }
        }
    }

    /// Tells Pacemaker that hosts are gone or back.
    fn settle(&mut self, event: &str, hosts: &[usize]) -> Result<()> {
        let events = hosts
            .iter()
            .map(|host| format!("{event}={}", host_name(*host)));
        self.pacemaker.settle(&events.collect::<Vec<_>>())?;
        self.take_places(false)
    }

    fn take_places(&mut self, planned: bool) -> Result<()> {
        self.running = self.pacemaker.running()?;
        self.check()?;
        self.look_at_guests(planned);
        Ok(())
    }

    fn is_there(&self, host: usize) -> bool {
        self.down[host] == 0 && self.standby != Some(host)
    }

    fn needs_mib(&self) -> u64 {
        self.options.mem_mib + BESIDE_MIB
    }

    /// The memory that members leave on a host, in MiB.
    fn room_mib(&self, host: usize) -> i64 {
        let members = self.guests.iter().flat_map(|it| &it.members);
        let here = members.filter(|it| it.host == host).count() as u64;
        self.options.host_mem_mib as i64 - (here * self.needs_mib()) as i64
    }

    fn has_room(&self, host: usize) -> bool {
        self.options.host_mem_mib == 0 || self.room_mib(host) >= self.needs_mib() as i64
    }

    /// The rule that holds after each step.
    fn check(&self) -> Result<()> {
        for (number, guest) in self.guests.iter().enumerate() {
            let wanted = guest.members.iter().map(|it| it.host);
            let wanted: BTreeSet<usize> = wanted.filter(|host| self.is_there(*host)).collect();
            let running = self.running.range((number, 0)..(number + 1, 0));
            let running: BTreeSet<usize> = running.map(|place| place.1).collect();
            ensure!(
                wanted == running,
                "guest {number}: its replicas run on {running:?}: {guest:?}"
            );
        }
        Ok(())
    }

    fn look_at_guests(&mut self, planned: bool) {
        (0..self.guests.len()).for_each(|guest| self.look_at(guest, planned));
    }

    fn look_at(&mut self, number: usize, planned: bool) {
        let (running, down, now) = (&self.running, &self.down, self.now_s);
        let guest = &mut self.guests[number];
        let before = guest.copied_at();
        guest.look(now, planned, |host| {
            down[host] == 0 && running.contains(&(number, host))
        });
        let copied_at = guest.copied_at();
        if let Some(at) = copied_at.filter(|_| copied_at != before) {
            self.after(at - now + 0.001, Event::Copied(number));
        }
    }

    /// The agents of the leaders count from now on.
    fn expect_replacements(&mut self, host: usize) {
        if self.options.replace_after_s == 0 {
            return;
        }
        // One monitor gives a spare host the place, and the next one finds the replica there.
        let monitors_s = MONITOR_S + self.random.range(0, MONITOR_S);
        let after = self.options.replace_after_s + monitors_s;
        let guests = self.guests.iter().enumerate();
        let members = guests.filter_map(|(guest, it)| Some((guest, it.member_at(host)?.id)));
        let members = members.collect();
        self.after(after as f64, Event::Replace { host, members });
    }

    fn replace(&mut self, host: usize, members: Vec<(usize, u8)>) -> Result<()> {
        let (mut later, mut is_changed) = (Vec::new(), false);
        for (number, old) in members {
            let guest = &self.guests[number];
            let is_member = guest.members.iter().any(|it| it.id == old);
            if !is_member || self.down[host] == 0 || !guest.has_ids() {
                continue;
            }
            let mut spares = guest.spares.iter().copied();
            let new = spares.find(|it| self.is_there(*it) && self.has_room(*it));
            let Some(new) = new.filter(|_| guest.has_majority()) else {
                later.push((number, old));
                continue;
            };
            let id = self.guests[number].replace(self.now_s, old, new);
            // Its operator makes it a spare host once it is back.
            self.guests[number].spares.push(host);
            let place = format!("{id}, {} MiB", self.needs_mib());
            self.pacemaker.place(number, new, Some(&place))?;
            self.pacemaker.place(number, host, None)?;
            is_changed = true;
        }
        if !later.is_empty() {
            let members = later;
            self.after(MONITOR_S as f64, Event::Replace { host, members });
        }
        if is_changed {
            self.settle("", &[])?;
        }
        Ok(())
    }

    /// A cluster without replication starts the guests of lost hosts elsewhere.
    fn restart_guests(&mut self, gone: &[usize]) {
        let up: Vec<usize> = (0..self.options.hosts)
            .filter(|it| self.down[*it] == 0)
            .collect();
        for at in 0..self.restarted.len() {
            if gone.contains(&self.restarted[at]) && !up.is_empty() {
                self.restart_s += RESTART_S;
                self.restarted[at] = up[self.random.range(0, up.len() as u64 - 1) as usize];
            }
        }
    }

    fn report(&self) {
        let Options {
            guests,
            hosts,
            racks,
            days,
            ..
        } = self.options;
        let mut sums = Sums::default();
        for guest in &self.guests {
            let it = &guest.sums;
            sums.unavailable_s += it.unavailable_s;
            sums.unprotected_s += it.unprotected_s;
            sums.just_majority_s += it.just_majority_s;
            sums.failovers += it.failovers;
            sums.switchovers += it.switchovers;
            sums.stops += it.stops;
            sums.reboots += it.reboots;
            sums.replaced += it.replaced;
            sums.copied_mib += it.copied_mib;
        }
        let all_s = guests as f64 * days as f64 * DAY_S;
        let ppm = |s: f64| s / all_s * 1e6;
        println!(
            "{guests} guests on {hosts} hosts in {racks} racks, {days} days, {} losses of hosts and racks",
            self.losses
        );
        println!("| of the guests' time, in millionths | plover | restart in {RESTART_S} s |");
        println!("|---|---|---|");
        println!(
            "| unavailable | {:.2} | {:.2} |",
            ppm(sums.unavailable_s),
            ppm(self.restart_s)
        );
        println!(
            "| held by one replica alone | {:.2} | - |",
            ppm(sums.unprotected_s)
        );
        println!(
            "| just a majority there | {:.2} | - |",
            ppm(sums.just_majority_s)
        );
        println!(
            "{} failovers, {} switchovers, {} times without a majority, {} reboots from disks, {} hosts replaced, {:.0} GiB copied",
            sums.failovers,
            sums.switchovers,
            sums.stops,
            sums.reboots,
            sums.replaced,
            sums.copied_mib / 1024.0
        );
    }
}
