//! One guest's group, as far as its availability goes: who holds the guest, who votes, and what is being copied.
//!
//! Times are in seconds, and measured: docs/measurements.md has the first three.

/// From a leader's death until another replica serves.
const FAILOVER_S: f64 = 0.23;

/// How long clients wait when a host is emptied.
const SWITCHOVER_S: f64 = 0.07;

/// Until a witness with a warm copy is in sync.
const WARM_JOIN_S: f64 = 1.0;

/// How fast a guest is copied to a replica that has nothing of it, in MiB a second.
const COLD_MIB_PER_S: f64 = 250.0;

/// `group.warm_mib_per_s`.
const WARM_MIB_PER_S: f64 = 64.0;

/// A guest whose holders were all lost boots from its disks.
const BOOT_S: f64 = 30.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    pub id: u8,
    pub host: usize,
}

/// A copy under way.
#[derive(Clone, Copy, Debug)]
struct Copy {
    to: usize,
    joins: bool,
    until: f64,
}

#[derive(Debug)]
pub struct Guest {
    pub members: Vec<Member>,
    /// Hosts that may take a place.
    pub spares: Vec<usize>,
    next_id: u8,
    mem_mib: f64,
    /// The hosts with the guest's state; the first one leads.
    holders: Vec<usize>,
    /// All of them were lost at once.
    is_lost: bool,
    warm: Option<usize>,
    copy: Option<Copy>,
    serves: bool,
    present: usize,
    last_s: f64,
    pub sums: Sums,
}

/// The account of a guest: times and counts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sums {
    pub unavailable_s: f64,
    /// One replica alone held the state.
    pub unprotected_s: f64,
    /// One more loss would have stopped the guest: just a majority was there.
    pub just_majority_s: f64,
    pub failovers: u64,
    pub switchovers: u64,
    /// Times that it had no majority.
    pub stops: u64,
    /// Times that all who held its state were lost at once: it boots from its disks.
    pub reboots: u64,
    pub replaced: u64,
    pub copied_mib: f64,
}

impl Guest {
    pub fn new(hosts: &[usize], spares: &[usize], mem_mib: f64) -> Self {
        let members = (0..)
            .zip(hosts)
            .map(|(id, host)| Member { id, host: *host });
        Self {
            members: members.collect(),
            spares: spares.to_vec(),
            next_id: (hosts.len() + spares.len()) as u8,
            mem_mib,
            holders: hosts[..2].to_vec(),
            is_lost: false,
            warm: hosts.get(2).copied(),
            copy: None,
            serves: true,
            present: hosts.len(),
            last_s: 0.0,
            sums: Sums::default(),
        }
    }

    pub fn member_at(&self, host: usize) -> Option<Member> {
        self.members.iter().copied().find(|it| it.host == host)
    }

    /// Whether all is as it should be.
    pub fn is_whole(&self) -> bool {
        let third = self.members.len() > 2 && self.warm.is_none();
        self.serves && self.holders.len() == 2 && self.present == self.members.len() && !third
    }

    fn account(&mut self, now: f64) {
        let past = now - std::mem::replace(&mut self.last_s, now);
        if !self.serves {
            self.sums.unavailable_s += past;
            return;
        }
        if self.holders.len() < 2 {
            self.sums.unprotected_s += past;
        }
        if self.present == self.members.len() / 2 + 1 {
            self.sums.just_majority_s += past;
        }
    }

    /// Goes on with the replicas that run now. Those that have ended were lost, unless it was `planned`.
    pub fn look(&mut self, now: f64, planned: bool, runs: impl Fn(usize) -> bool) {
        self.account(now);
        let here = |host: &usize| self.members.iter().any(|it| it.host == *host) && runs(*host);
        let present: Vec<usize> = self.members.iter().map(|it| it.host).filter(here).collect();
        let (warm, copy) = (self.warm.filter(here), self.copy.filter(|it| here(&it.to)));
        let left: Vec<usize> = self.holders.iter().copied().filter(here).collect();
        (self.warm, self.copy, self.present) = (warm, copy, present.len());
        let has_majority = present.len() > self.members.len() / 2;
        self.is_lost |= left.is_empty();
        if !has_majority || left.is_empty() {
            self.sums.stops += u64::from(std::mem::replace(&mut self.serves, false));
            return;
        }
        if self.is_lost {
            // Their disks are back.
            self.is_lost = false;
            self.sums.reboots += 1;
            self.sums.unavailable_s += BOOT_S;
        } else if self.serves && left[0] != self.holders[0] {
            let (count, gap_s) = match planned {
                true => (&mut self.sums.switchovers, SWITCHOVER_S),
                false => (&mut self.sums.failovers, FAILOVER_S),
            };
            *count += 1;
            self.sums.unavailable_s += gap_s;
        }
        self.serves = true;
        self.holders = left;
        let mut others = present
            .iter()
            .copied()
            .filter(|it| !self.holders.contains(it));
        let other = self.warm.or_else(|| others.next());
        let joins = self.holders.len() < 2;
        let is_wanted = joins || self.warm.is_none();
        if self.copy.is_some_and(|it| it.joins == joins) || !is_wanted {
            return;
        }
        self.copy = other.map(|to| {
            let is_warm = self.warm == Some(to);
            let takes_s = match (joins, is_warm) {
                (true, true) => WARM_JOIN_S,
                (true, false) => self.mem_mib / COLD_MIB_PER_S,
                (false, _) => self.mem_mib / WARM_MIB_PER_S,
            };
            if !is_warm {
                self.sums.copied_mib += self.mem_mib;
            }
            // A hand-over copies first.
            let takes_s = if planned && is_warm { 0.0 } else { takes_s };
            let until = now + takes_s;
            Copy { to, joins, until }
        });
    }

    /// When the copy under way is done.
    pub fn copied_at(&self) -> Option<f64> {
        self.copy.map(|it| it.until)
    }

    /// The copy is done.
    pub fn take_copy(&mut self, now: f64) {
        self.account(now);
        if let Some(copy) = self.copy.take_if(|it| it.until <= now) {
            if copy.joins {
                self.holders.push(copy.to);
                self.warm = None;
            } else {
                self.warm = Some(copy.to);
            }
        }
    }

    /// A host takes the place of a lost member. Returns its id.
    pub fn replace(&mut self, now: f64, old: u8, host: usize) -> u8 {
        self.account(now);
        let id = self.next_id;
        self.next_id += 1;
        self.members.retain(|it| it.id != old);
        self.members.push(Member { id, host });
        self.spares.retain(|it| *it != host);
        self.sums.replaced += 1;
        id
    }

    /// Whether it may be given another host: a group has 16 ids.
    pub fn has_ids(&self) -> bool {
        self.next_id < 16
    }

    /// Ends the account.
    pub fn end(&mut self, now: f64) {
        self.account(now);
    }

    pub fn has_majority(&self) -> bool {
        self.present > self.members.len() / 2
    }
}
