//! Upgrades of a cluster that is made up.

use super::*;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

const NODES: [&str; 4] = ["alpha", "beta", "gamma", "delta"];

const REPLICAS: [(&str, &str, &str); 6] = [
    ("shop", "alpha", "leader"),
    ("shop", "beta", "secondary"),
    ("shop", "gamma", "witness"),
    ("mail", "alpha", "leader"),
    ("mail", "gamma", "secondary"),
    ("mail", "delta", "witness"),
];

/// A cluster of four nodes with two guests, as it shows itself.
#[derive(Debug, Default)]
struct Fake {
    roles: RefCell<BTreeMap<(&'static str, String), &'static str>>,
    standby: RefCell<BTreeSet<String>>,
    done: RefCell<Vec<String>>,
    /// Replicas there do not end, the command fails there, or the new release does not start there.
    stays_on: Option<&'static str>,
    fails_on: Option<&'static str>,
    broken_on: Option<&'static str>,
    /// How many looks find a cluster that has just started and knows no node.
    starts_for: Cell<u32>,
    is_offline: Option<&'static str>,
}

impl Fake {
    fn new() -> Self {
        let fake = Self::default();
        for (guest, node, role) in REPLICAS {
            fake.roles.borrow_mut().insert((guest, node.into()), role);
        }
        fake
    }

    fn cib() -> String {
        let nodes = REPLICAS.iter().map(|(guest, node, _)| {
            let pair = format!("<nvpair name=\"plover-{guest}-member\" value=\"0, 948 MiB\"/>");
            format!("<node uname=\"{node}\">{pair}</node>")
        });
        format!("<cib>{}</cib>", nodes.collect::<String>())
    }

    fn shown(&self) -> String {
        let roles = self.roles.borrow();
        let of = |guest: &str| {
            roles
                .iter()
                .filter(move |it| it.0.0 == guest)
                .collect::<Vec<_>>()
        };
        let clone = |guest: &str| {
            let instance = |node: &str| {
                let blocked = self.stays_on == Some(node) && self.standby.borrow().contains(node);
                format!(
                    "<resource id=\"{guest}\" resource_agent=\"ocf:plover:guest\" blocked=\"{blocked}\"><node name=\"{node}\"/></resource>"
                )
            };
            let all: String = of(guest).iter().map(|it| instance(&it.0.1)).collect();
            let away = format!("<resource id=\"{guest}\" resource_agent=\"ocf:plover:guest\"/>");
            format!("<clone id=\"{guest}-clone\">{all}{away}</clone>")
        };
        let attributes = |node: &str| {
            let own = roles.iter().filter(|it| it.0.1 == node);
            let own: String = own
                .map(|((guest, _), role)| {
                    let protected = if of(guest).len() > 1 { "yes" } else { "no" };
                    format!(
                        "<attribute name=\"plover-{guest}\" value=\"{role}\"/><attribute name=\"plover-{guest}-protected\" value=\"{protected}\"/>"
                    )
                })
                .collect();
            format!("<node name=\"{node}\">{own}</node>")
        };
        let node = |node: &str| {
            let standby = self.standby.borrow().contains(node);
            let online = self.is_offline != Some(node);
            format!("<node name=\"{node}\" online=\"{online}\" standby=\"{standby}\"/>")
        };
        format!(
            "<pacemaker-result><nodes>{}</nodes><resources>{}{}</resources><node_attributes>{}</node_attributes></pacemaker-result>",
            NODES.map(node).concat(),
            clone("shop"),
            clone("mail"),
            NODES.map(attributes).concat()
        )
    }

    fn upgraded(&self, wanted: &[&str], anyway: bool) -> Result<(), String> {
        let wanted: Vec<String> = wanted.iter().map(|it| (*it).into()).collect();
        let patience = Patience {
            well: Duration::from_secs(60 * u64::from(self.starts_for.get())),
            within: Duration::ZERO,
            settled: Duration::ZERO,
        };
        let progress = Progress::silent(Arc::new(AtomicBool::new(false)));
        let result = run(self, &wanted, anyway, patience, &progress);
        result.map_err(|error| format!("{error:#}"))
    }
}

impl Hosts for Fake {
    fn look(&self) -> Result<(Nodes, FleetStatus)> {
        let shown = match self.starts_for.get() {
            0 => self.shown(),
            3.. => bail!("cibadmin failed: Transport endpoint is not connected"),
            _ => "<pacemaker-result><nodes/></pacemaker-result>".into(),
        };
        Ok((
            Nodes::of(&shown)?,
            FleetStatus::of(&shown, &Self::cib(), &[])?,
        ))
    }

    /// Replicas lead elsewhere when theirs has ended.
    fn standby(&self, node: &str, is: bool) -> Result<()> {
        self.done.borrow_mut().push(format!("{node} {is}"));
        let mut roles = self.roles.borrow_mut();
        if is {
            self.standby.borrow_mut().insert(node.into());
            if self.stays_on == Some(node) {
                return Ok(());
            }
            for guest in ["shop", "mail"] {
                if roles.remove(&(guest, node.into())) == Some("leader") {
                    let next = roles
                        .iter_mut()
                        .find(|it| it.0.0 == guest && *it.1 == "secondary");
                    *next.unwrap().1 = "leader";
                }
            }
        } else if self.standby.borrow_mut().remove(node) && self.broken_on != Some(node) {
            let before = Fake::new().roles.into_inner();
            for (at, _) in before.into_iter().filter(|it| it.0.1 == node) {
                roles.entry(at).or_insert("secondary");
            }
        }
        Ok(())
    }

    fn upgrade(&self, node: &str) -> Result<()> {
        assert!(self.standby.borrow().contains(node));
        self.done.borrow_mut().push(format!("{node} upgraded"));
        ensure!(self.fails_on != Some(node), "apt-get ended with 100");
        Ok(())
    }

    fn pause(&self, _: &Progress) -> Result<()> {
        self.starts_for.set(self.starts_for.get().saturating_sub(1));
        Ok(())
    }
}

fn steps(nodes: &[&str]) -> Vec<String> {
    let of = |node: &&str| ["true", "upgraded", "false"].map(|step| format!("{node} {step}"));
    nodes.iter().flat_map(of).collect()
}

#[test]
fn all_hosts_are_upgraded_those_that_lead_most_last() {
    let fake = Fake::new();
    fake.upgraded(&[], false).unwrap();
    assert_eq!(
        *fake.done.borrow(),
        steps(&["beta", "delta", "gamma", "alpha"])
    );
    let fake = Fake::new();
    fake.upgraded(&["alpha", "gamma", "alpha"], false).unwrap();
    assert_eq!(*fake.done.borrow(), steps(&["alpha", "gamma"]));
}

#[test]
fn a_cluster_that_has_just_started_is_waited_for() {
    let fake = Fake::new();
    fake.starts_for.set(5);
    fake.upgraded(&["alpha"], false).unwrap();
    assert_eq!(*fake.done.borrow(), steps(&["alpha"]));
}

#[test]
fn it_stops_at_the_first_host_where_something_is_wrong() {
    let words = "the upgrade has stopped at delta; not touched: gamma, alpha: ";
    type Breaks = fn(&mut Fake);
    let cases: [(Breaks, &str, usize); 3] = [
        (
            |it| it.stays_on = Some("delta"),
            "its replica of mail does not end",
            5,
        ),
        (
            |it| it.fails_on = Some("delta"),
            "apt-get ended with 100",
            6,
        ),
        (
            |it| it.broken_on = Some("delta"),
            "not all is as before: mail: no replica on delta",
            6,
        ),
    ];
    for (breaks, why, count) in cases {
        let mut fake = Fake::new();
        breaks(&mut fake);
        let error = fake.upgraded(&[], false).unwrap_err();
        assert!(error.starts_with(words) && error.contains(why), "{error}");
        assert_eq!(fake.done.borrow().len(), count, "{error}");
        assert!(fake.standby.borrow().is_empty(), "{error}");
    }
}

#[test]
fn nothing_is_touched_unless_all_is_well() {
    let refused = |fake: &Fake, wanted: &[&str], why: &str| {
        let error = fake.upgraded(wanted, false).unwrap_err();
        assert!(error.contains(why), "{error}");
        assert!(fake.done.borrow().is_empty());
    };
    refused(
        &Fake::new(),
        &["omega"],
        "omega is no node that is online: those with replicas are alpha, beta",
    );
    let fake = Fake::new();
    fake.standby.borrow_mut().insert("gamma".into());
    refused(&fake, &[], "on standby: gamma (`crm node online`)");
    let fake = Fake {
        is_offline: Some("gamma"),
        ..Fake::new()
    };
    refused(&fake, &[], "no host was touched: offline: gamma");
    let fake = Fake::new();
    fake.roles.borrow_mut().remove(&("shop", "gamma".into()));
    refused(&fake, &[], "shop: no replica on gamma");
    let fake = Fake::new();
    fake.roles
        .borrow_mut()
        .insert(("shop", "beta".into()), "joining");
    refused(&fake, &["delta"], "shop: beta joining; with --anyway");
    fake.upgraded(&["delta"], true).unwrap();
    assert_eq!(*fake.done.borrow(), steps(&["delta"]));
}
