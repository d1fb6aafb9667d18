//! `plover dash`: a page that shows groups live, for a browser.
//!
//! ```text
//!   browser ── GET /      ──▶                ── {"op": "group"}, once a second ──▶ control.sock: plover replica
//!           ── GET /data  ──▶  plover dash  ◀── where all replicas stand ───────        │ asks the others
//!           ◀── JSON ────────               ── crm_mon, every two seconds, with --fleet ──▶ Pacemaker
//! ```
//!
//! The page is three files in this program, which fetch nothing but `/data` from where they came. Replicas are asked
//! once a second, however many browsers look, and what they say is kept for a quarter of an hour. The page orders
//! nothing: every request is a question for the status.

mod fleet;
mod group;
mod history;
#[cfg(test)]
mod tests;

use crate::at::RUN;
use crate::fleet::FleetStatus;
use crate::http::{self, Page, Request};
use crate::target;
use anyhow::{Context, Result};
use fleet::Fleet;
use group::Group;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How often the replicas are asked.
const ASK_EVERY: Duration = Duration::from_secs(1);

const HTML: &str = include_str!("page/index.html");
const CSS: &str = include_str!("page/dash.css");
const JS: &str = include_str!("page/dash.js");

/// The page may use its own files and nothing else, and no other page may show it in a frame or read its data.
const HEADERS: &[(&str, &str)] = &[
    (
        "Content-Security-Policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
];

/// Shows the groups, and with `with_fleet` all guests of the cluster, until the process is ended.
pub fn run(configs: &[PathBuf], with_fleet: bool, listen: SocketAddr) -> Result<ExitCode> {
    let groups = Group::all_of(&target::configurations(configs)?);
    for group in &groups {
        let group = Arc::clone(group);
        again_and_again(ASK_EVERY, move |_| group.look())?;
    }
    let fleet = with_fleet.then(Arc::<Fleet>::default);
    if let Some(fleet) = fleet.clone() {
        again_and_again(fleet::ASK_EVERY, move |now| {
            fleet.look(now, || FleetStatus::ask(Path::new(RUN)));
        })?;
    }
    let dash = Dash {
        groups,
        fleet,
        started_unix_ms: unix_ms(),
    };
    http::serve(listen, "the page is", "/", move |request| {
        dash.page(request)
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Starts a thread that does this, at most so often, until the process is ended.
fn again_and_again(every: Duration, act: impl Fn(Instant) + Send + 'static) -> Result<()> {
    let acting = move || {
        loop {
            let began = Instant::now();
            act(began);
            std::thread::sleep(every.saturating_sub(began.elapsed()));
        }
    };
    let thread = std::thread::Builder::new().name("asks".into());
    thread.spawn(acting).context("cannot start a thread")?;
    Ok(())
}

#[derive(Debug)]
struct Dash {
    groups: Vec<Arc<Group>>,
    fleet: Option<Arc<Fleet>>,
    started_unix_ms: u64,
}

impl Dash {
    fn page(&self, request: &Request) -> Page {
        let (path, query) = request.path_and_query();
        let page = match path {
            "/" => Page::ok("text/html; charset=utf-8", HTML.into()),
            "/dash.css" => Page::ok("text/css; charset=utf-8", CSS.into()),
            "/dash.js" => Page::ok("text/javascript; charset=utf-8", JS.into()),
            "/data" => match self.data(query) {
                Some(data) => Page::ok("application/json", data.to_string()),
                None => Page::text(
                    404,
                    "there is no such group: group is its place in the list, from 0\n",
                ),
            },
            _ => Page::text(404, "the page is at /, its data at /data\n"),
        };
        Page {
            headers: HEADERS,
            ..page
        }
    }

    /// The fleet, all groups in short, and the one that `group=` chooses in full, with the points of its history after
    /// `after=`. A host without replicas has no groups, and shows the fleet alone.
    fn data(&self, query: &str) -> Option<Value> {
        let number = |key: &str| {
            let fields = query.split('&').filter_map(|field| field.split_once('='));
            let mut values = fields.filter(|(name, _)| *name == key);
            values.next()?.1.parse::<u64>().ok()
        };
        let chosen = usize::try_from(number("group").unwrap_or(0)).ok()?;
        let now = Instant::now();
        let group = match self.groups.get(chosen) {
            Some(group) => group.in_full(now, number("after").unwrap_or(0)),
            None if self.groups.is_empty() && chosen == 0 => Value::Null,
            None => return None,
        };
        let groups: Vec<_> = self
            .groups
            .iter()
            .map(|group| group.in_short(now))
            .collect();
        Some(json!({
            "started_unix_ms": self.started_unix_ms,
            "now_unix_ms": unix_ms(),
            "fleet": self.fleet.as_ref().map(|fleet| fleet.to_json(now)),
            "groups": groups,
            "group": group,
        }))
    }
}

fn lock<T>(it: &Mutex<T>) -> MutexGuard<'_, T> {
    it.lock().unwrap_or_else(PoisonError::into_inner)
}

fn age_ms(then: Instant, now: Instant) -> u64 {
    now.saturating_duration_since(then).as_millis() as u64
}

fn unix_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |span| span.as_millis() as u64)
}
