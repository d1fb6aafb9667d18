//! `plover dash` beside real replicas, in a real browser: its figures are those of `plover status`, and what does not answer
//! is shown as such. The same for the guests of a cluster, whose `crm_mon` and `cibadmin` are scripts here.

use anyhow::{Context, Result, ensure};
use plover_lab::options::Options;
use plover_lab::status::milliseconds;
use plover_lab::{Fault, Lab};
use plover_lab_proof::served::Served;
use plover_lab_proof::{kill_leader, plover, progress, prove_on, role, wait_for, wait_within};
use serde_json::Value;
use std::fs::{File, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const BROWSER: &str = "/usr/bin/chromium";

/// How long a browser may take to draw a page.
const DRAWS_WITHIN: Duration = Duration::from_secs(180);

/// A browser that draws the page, gives it some seconds of its own time, and prints what it has become into a file.
struct Browser {
    child: Child,
    profile: tempfile::TempDir,
    ends_by: Instant,
}

/// The file that the browser prints into, in the folder of its profile.
const PRINTED: &str = "printed.html";

impl Browser {
    fn start(url: &str) -> Result<Self> {
        let profile = tempfile::tempdir()?;
        let printed = File::create(profile.path().join(PRINTED))?;
        let child = Command::new(BROWSER)
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"])
            .args(["--virtual-time-budget=8000", "--timeout=60000"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg(url)
            .stdout(printed)
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Self {
            child,
            profile,
            ends_by: Instant::now() + DRAWS_WITHIN,
        })
    }

    /// Whether it has drawn the page, or never will in time.
    fn is_done(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_some() || Instant::now() >= self.ends_by)
    }

    /// The page, when it is drawn.
    fn page(mut self) -> Result<String> {
        let limit = self.ends_by.saturating_duration_since(Instant::now());
        let status = wait_within(&mut self.child, limit).context(BROWSER)?;
        ensure!(status.success(), "{BROWSER}: {status}");
        Ok(std::fs::read_to_string(self.profile.path().join(PRINTED))?)
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The text of a figure on a page.
fn shown<'a>(page: &'a str, figure: &str) -> Result<&'a str> {
    let mark = format!("data-figure=\"{figure}\">");
    let text = page
        .split_once(&mark)
        .and_then(|(_, rest)| rest.split('<').next());
    text.with_context(|| format!("no {figure} on the page:\n{page}"))
}

/// What `plover status --json` prints on the host of a replica; `None` while that does not answer.
fn status(lab: &Lab, id: u8) -> Option<Value> {
    let socket = lab.files(id).control_socket();
    let run_dir = socket.parent()?.to_str()?;
    let output = plover(&["status", "--json", "--run-dir", run_dir]);
    serde_json::from_slice(&output.stdout).ok()
}

fn data(dash: &Served) -> Result<Value> {
    Ok(serde_json::from_str(&dash.get("/data")?)?)
}

fn find(status: &Value, id: u8) -> &Value {
    let replicas = status["replicas"].as_array().into_iter().flatten();
    let mut replicas = replicas.filter(|replica| replica["id"] == id);
    replicas.next().unwrap_or(&Value::Null)
}

/// Draws the page while `plover status` is asked again and again. The figures of syncs change with their number only, so
/// those on the page must be those of the status with the same number. `false` if no status had that number.
fn compare(lab: &Lab, dash: &Served) -> Result<bool> {
    let leader = lab.find(&role("leader"))?;
    let mut browser = Browser::start(&dash.url())?;
    let mut asked = Vec::new();
    while !browser.is_done()? {
        asked.extend(status(lab, leader));
    }
    asked.extend(status(lab, leader));
    let page = browser.page()?;
    let number = shown(&page, "sync.count")?.replace(',', "");
    let count = |status: &Value| find(status, leader)["sync"]["count"].to_string();
    let Some(same) = asked.iter().find(|status| count(status) == number) else {
        return Ok(false);
    };
    let sync = &find(same, leader)["sync"];
    for key in ["pause_us_p50", "pause_us_p99", "slot_us_p50"] {
        let us = sync[key]
            .as_u64()
            .with_context(|| format!("{key} in {sync}"))?;
        ensure!(
            shown(&page, &format!("sync.{key}"))? == milliseconds(us),
            "{key}: {us}\n{page}"
        );
    }
    for key in ["dirty", "same", "divergent"] {
        let pages = sync[key].to_string();
        let told = shown(&page, &format!("sync.{key}"))?.replace(',', "");
        ensure!(told == pages, "{key}: {pages}, and {told}");
    }
    for id in lab.ids() {
        let is = find(same, id)["role"].as_str().context("a role")?;
        let told = shown(&page, &format!("role.{id}"))?;
        ensure!(
            told.eq_ignore_ascii_case(is),
            "replica {id}: {is}, and {told}"
        );
    }
    ensure!(shown(&page, "state")? == "✓ Protected", "{page}");
    Ok(true)
}

/// Draws the page and looks for what it must show.
fn page_has(dash: &Served, words: &[&str]) -> Result<()> {
    let page = Browser::start(&dash.url())?.page()?;
    for word in words {
        ensure!(page.contains(word), "no '{word}' on the page:\n{page}");
    }
    Ok(())
}

/// Whether pages can be drawn. Says so if not.
fn has_browser() -> bool {
    let has_browser = Path::new(BROWSER).exists();
    if !has_browser {
        // Not by a macro, whose output a passing test hides.
        let _ = std::io::stderr().write_all(
            b"\nTHE PAGE OF plover dash IS NOT DRAWN: there is no /usr/bin/chromium (package chromium)\n",
        );
    }
    has_browser
}

/// A guest that `alpha` runs, as `crm_mon` prints it, and its attributes.
fn instance(guest: &str, role: &str, protected: &str) -> (String, String) {
    let clone = format!(
        "<clone id=\"{guest}-clone\"><resource id=\"{guest}\" resource_agent=\"ocf:plover:guest\"><node name=\"alpha\"/>\
         </resource></clone>"
    );
    let attributes = format!(
        "<attribute name=\"plover-{guest}\" value=\"{role}\"/>\
         <attribute name=\"plover-{guest}-protected\" value=\"{protected}\"/>"
    );
    (clone, attributes)
}

#[test]
fn the_page_shows_all_guests_of_a_cluster() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let answer = folder.path().join("answer");
    let script = |name: &str, prints: &str| -> Result<()> {
        let script = folder.path().join(name);
        std::fs::write(&script, format!("#!/bin/sh\n{prints}\n"))?;
        Ok(std::fs::set_permissions(
            &script,
            Permissions::from_mode(0o755),
        )?)
    };
    script("crm_mon", &format!("exec cat {}", answer.display()))?;
    script("cibadmin", "echo '<cib/>'")?;
    let (clones, attributes): (String, String) = [
        instance("t-dash-archive", "leader", "yes"),
        instance("t-dash-mail", "leader", "no"),
        instance("t-dash-shop", "secondary", ""),
    ]
    .into_iter()
    .unzip();
    let cluster = format!(
        "<pacemaker-result><resources>{clones}</resources>\
         <node_attributes><node name=\"alpha\">{attributes}</node></node_attributes></pacemaker-result>"
    );
    std::fs::write(&answer, cluster)?;

    let (progress, has_browser) = (progress(), has_browser());
    let dash = Served::fleet(folder.path())?;
    wait_for(&progress, "the cluster's guests", || {
        let fleet = &data(&dash)?["fleet"];
        Ok(fleet["guests"].as_array().is_some_and(|all| all.len() == 3))
    })?;
    if has_browser {
        let page = Browser::start(&dash.url())?.page()?;
        let sum = "▲ 3 guests: 1 protected, 1 not protected, 1 without a leader";
        ensure!(shown(&page, "fleet")? == sum, "{page}");
        let places = ["shop", "mail", "archive"].map(|name| page.find(&format!(">t-dash-{name}<")));
        ensure!(
            places[0].is_some() && places.is_sorted(),
            "{places:?}: not the unwell ones first:\n{page}"
        );
    }

    std::fs::remove_file(&answer)?;
    wait_for(&progress, "the cluster is gone", || {
        let data = data(&dash)?;
        let known = data["fleet"]["guests"].as_array().map(Vec::len);
        Ok(data["fleet"]["trouble"].is_string() && known == Some(3))
    })?;
    if has_browser {
        let page = Browser::start(&dash.url())?.page()?;
        ensure!(shown(&page, "fleet")? == "? Unknown", "{page}");
        for word in ["The cluster does not answer", "? Was protected", "s old."] {
            ensure!(page.contains(word), "no '{word}' on the page:\n{page}");
        }
        ensure!(!page.contains("✓"), "something is shown as well:\n{page}");
    }
    Ok(())
}

#[test]
fn the_page_shows_what_the_status_says() {
    let has_browser = has_browser();
    prove_on("t-dash", Options::default(), |lab, progress| {
        let dash = Served::start(lab, "dash")?;
        wait_for(progress, "protected, after some syncs", || {
            let group = &data(&dash)?["group"];
            let leader = group["leader"].as_u64().unwrap_or_default() as u8;
            let syncs = find(&group["status"], leader)["sync"]["count"].as_u64();
            Ok(group["state"] == "protected" && syncs > Some(3))
        })?;
        if has_browser {
            wait_for(progress, "a status with the page's syncs", || {
                compare(lab, &dash)
            })?;
        }

        let old = kill_leader(lab, progress)?;
        let leader = lab.find(&role("leader"))?;
        let last = |status: &Value| find(status, leader)["more"]["last_failover"].clone();
        wait_for(progress, "the failover is on the page's list", || {
            let group = &data(&dash)?["group"];
            let Some(newest) = group["failovers"].as_array().and_then(|all| all.last()) else {
                return Ok(false);
            };
            let said = status(lab, leader).context("the leader answers")?;
            let said = last(&said);
            let parts = ["how", "noticed_us", "elected_us", "serving_us"];
            Ok(newest["by"] == leader
                && newest["from"] == old
                && parts.iter().all(|part| newest[part] == said[part])
                && newest["protected_within_ms"].is_u64())
        })?;

        wait_for(progress, "the new leader's log is on the page", || {
            let data = data(&dash)?;
            let log = data["group"]["log"].as_array();
            let serves = |line: &Value| {
                line["id"] == leader && line["line"].to_string().contains("event=\\\"serving\\\"")
            };
            Ok(log.is_some_and(|log| log.iter().any(serves)))
        })?;

        let ids: Vec<_> = lab.ids().filter(|id| *id != old).collect();
        let still = ids
            .iter()
            .copied()
            .find(|id| *id != leader)
            .context("one more")?;
        lab.fault(Fault::Stop, still)?;
        wait_for(progress, "the replica that stands still is silent", || {
            let group = &data(&dash)?["group"];
            let age_ms = group["heard"][still.to_string()]["age_ms"].as_u64();
            Ok(find(&group["status"], still)["role"] == "silent" && age_ms > Some(1000))
        })?;
        if has_browser {
            page_has(&dash, &["Silent", "Not protected"])?;
        }

        lab.fault(Fault::Stop, leader)?;
        wait_for(progress, "the group is gone", || {
            let group = &data(&dash)?["group"];
            Ok(group["state"] == "unknown" && group["trouble"].is_string())
        })?;
        if has_browser {
            page_has(&dash, &["The group does not answer", "s old."])?;
        }
        let before = data(&dash)?["group"]["age_ms"].as_u64();
        let after = data(&dash)?["group"]["age_ms"].as_u64();
        ensure!(before.is_some() && before <= after, "{before:?}, {after:?}");
        lab.fault(Fault::Continue, leader)?;
        lab.fault(Fault::Continue, still)?;
        wait_for(progress, "the page shows the group again", || {
            Ok(data(&dash)?["group"]["trouble"].is_null())
        })
    });
}
