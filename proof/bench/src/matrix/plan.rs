//! The cells to measure, and their order.

use super::measure::Spans;
use super::workload::{ALL, METAL, Workload};
use crate::stock_colo;
use crate::variant::Variant;
use anyhow::{Result, bail};
use serde::Serialize;
use std::time::Duration;

/// A run. All of this is in its report.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Plan {
    /// How often everything is measured.
    pub rounds: u32,
    /// The warm-up under load, ms.
    pub warm_up_ms: u64,
    /// Time that counts, ms.
    pub span_ms: u64,
    /// Names of workloads, in the order of [`ALL`].
    pub workloads: Vec<&'static str>,
    /// Names of policies, some of them variants.
    pub policies: Vec<String>,
    /// Only cells that one of these selects are measured; all cells if there are none.
    pub only: Vec<Cells>,
    /// Further options of `plover lab up`.
    pub lab: Vec<String>,
    /// A lab that would not end within this time is not begun.
    #[serde(skip)]
    pub budget: Option<Duration>,
}

/// Cells by name: `WORKLOAD`, `/POLICY` or `WORKLOAD/POLICY`, where a policy may be a [`Variant`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Cells {
    workload: Option<String>,
    policy: Option<String>,
}

impl std::str::FromStr for Cells {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (workload, policy) = text.split_once('/').unwrap_or((text, ""));
        let part = |word: &str| (!word.is_empty()).then(|| word.to_owned());
        let cells = Self {
            workload: part(workload),
            policy: part(policy),
        };
        match cells.workload.is_none() && cells.policy.is_none() {
            true => Err("name a workload, or a policy after a slash".into()),
            false => Ok(cells),
        }
    }
}

impl Cells {
    fn hold(&self, workload: &str, policy: &str) -> bool {
        let fits = |wanted: &Option<String>, name| wanted.as_deref().is_none_or(|w| w == name);
        fits(&self.workload, workload) && fits(&self.policy, policy)
    }

    /// Whether all names exist.
    pub fn check(&self, policies: &[String]) -> Result<()> {
        let known: Vec<_> = ALL.iter().map(|workload| workload.name).collect();
        if let Some(name) = self
            .workload
            .as_deref()
            .filter(|name| !known.contains(name))
        {
            bail!(
                "there is no workload '{name}'; there are {}",
                known.join(", ")
            );
        }
        let Some(name) = &self.policy else {
            return Ok(());
        };
        let variant = Variant::parse(name)?;
        if !policies.iter().any(|policy| policy == variant.policy) {
            bail!(
                "there is no policy '{}'; there are {}",
                variant.policy,
                policies.join(", ")
            );
        }
        Ok(())
    }

    /// The policy, if it is a variant.
    pub fn variant(&self) -> Option<&str> {
        let policy = self.policy.as_deref()?;
        Variant::parse(policy)
            .is_ok_and(|v| v.is_other())
            .then_some(policy)
    }
}

/// One lab: a guest under a policy, and the workloads it is put under, one after the other.
#[derive(Clone, Debug)]
pub(crate) struct Turn {
    pub round: u32,
    pub guest: &'static str,
    pub policy: String,
    pub workloads: Vec<&'static Workload>,
}

impl Turn {
    /// The accelerator of its guest, if not what the lab chooses for a Linux.
    pub fn accel(&self) -> Option<&'static str> {
        (self.guest == METAL).then_some("kvm")
    }
}

impl Plan {
    /// How long each guest is loaded.
    pub fn spans(&self) -> Spans {
        Spans {
            warm_up_ms: self.warm_up_ms,
            span_ms: self.span_ms,
        }
    }

    /// Round by round, guest by guest, policy by policy. So a change of the machine's speed hits all
    /// policies of a guest alike, and a run that is stopped early has measured all of them.
    pub fn turns(&self) -> Vec<Turn> {
        let mut guests: Vec<_> = ALL.iter().map(|workload| workload.guest).collect();
        guests.dedup();
        let mut turns = Vec::new();
        for round in 1..=self.rounds {
            for guest in &guests {
                for policy in &self.policies {
                    let wanted = |workload: &&Workload| {
                        let cell = |cells: &Cells| cells.hold(workload.name, policy);
                        workload.guest == *guest
                            && self.workloads.contains(&workload.name)
                            && (self.only.is_empty() || self.only.iter().any(cell))
                    };
                    let workloads: Vec<_> = ALL.iter().filter(wanted).collect();
                    // A fresh start for each workload, so that the damage of one does not count against
                    // the next.
                    let at_once = match policy == stock_colo::NAME {
                        true => 1,
                        false => workloads.len().max(1),
                    };
                    turns.extend(workloads.chunks(at_once).map(|workloads| Turn {
                        round,
                        guest,
                        policy: policy.clone(),
                        workloads: workloads.to_vec(),
                    }));
                }
            }
        }
        turns
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub fn plan(only: &[&str]) -> Plan {
        Plan {
            rounds: 2,
            warm_up_ms: 1,
            span_ms: 1,
            workloads: vec!["redis", "redis-incr", "memcached"],
            policies: vec!["none".into(), "vsmr".into()],
            only: only.iter().map(|text| text.parse().unwrap()).collect(),
            lab: Vec::new(),
            budget: None,
        }
    }

    fn described(plan: &Plan) -> Vec<String> {
        let words = |turn: Turn| {
            let names: Vec<_> = turn.workloads.iter().map(|w| w.name).collect();
            format!("{} {} {}", turn.round, turn.policy, names.join("+"))
        };
        plan.turns().into_iter().map(words).collect()
    }

    #[test]
    fn policies_alternate() {
        assert_eq!(
            described(&plan(&[])),
            [
                "1 none redis+redis-incr",
                "1 vsmr redis+redis-incr",
                "1 none memcached",
                "1 vsmr memcached",
                "2 none redis+redis-incr",
                "2 vsmr redis+redis-incr",
                "2 none memcached",
                "2 vsmr memcached",
            ]
        );
    }

    #[test]
    fn stock_colo_begins_anew_for_each_workload() {
        let plan = Plan {
            rounds: 1,
            policies: vec![stock_colo::NAME.into()],
            ..plan(&["redis", "redis-incr"])
        };
        assert_eq!(
            described(&plan),
            ["1 qemu-colo redis", "1 qemu-colo redis-incr"]
        );
    }

    #[test]
    fn cells_are_chosen_by_name() {
        let chosen = described(&plan(&["redis/vsmr", "/none", "memcached"]));
        assert_eq!(
            chosen[..4],
            [
                "1 none redis+redis-incr",
                "1 vsmr redis",
                "1 none memcached",
                "1 vsmr memcached"
            ]
        );
        let variants = described(&Plan {
            policies: vec!["vsmr".into(), "vsmr+subpages=false".into()],
            ..plan(&["redis/vsmr", "redis/vsmr+subpages=false"])
        });
        assert_eq!(
            variants[..2],
            ["1 vsmr redis", "1 vsmr+subpages=false redis"],
            "side by side in a round"
        );
        assert!("/".parse::<Cells>().is_err());
        let policies = ["vsmr".to_owned()];
        let check = |text: &str| text.parse::<Cells>().unwrap().check(&policies);
        assert!(check("redis/vsmr").is_ok());
        assert!(check("redis/vsmr+slot_max_ms=20+subpages=false").is_ok());
        assert!(check("redis/vsmr+blocks").is_err());
        assert!(check("redis/vsrm+subpages=false").is_err());
        assert!(
            check("reddis")
                .unwrap_err()
                .to_string()
                .contains("redis-incr")
        );
        assert!(check("/vsrm").unwrap_err().to_string().contains("vsmr"));
    }
}
