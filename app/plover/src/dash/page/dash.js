// The page of `plover dash`: asks for /data once a second, and shows it.
"use strict";

const ASK_EVERY_MS = 1000;
const ANSWER_WITHIN_MS = 5000;
// An answer of the replicas takes up to three seconds when one of them hangs.
const STALE_AFTER_MS = 4000;
// The cluster is asked every two seconds. An answer takes up to three more when a replica of that host hangs.
const FLEET_STALE_AFTER_MS = 10000;
// Points further apart than this are not joined by a line.
const GAP_MS = 5000;

const $ = (id) => document.getElementById(id);

const page = {
  data: null, // the last answer
  received: 0, // when it came, on this browser's clock
  points: [],
  span: 300, // seconds that the charts show
  moment: 0, // the second before now that is looked at: 0 to -span
  hover: null, // the same, under the pointer
};

// ---- Asking

async function askAgainAndAgain() {
  await ask();
  setTimeout(askAgainAndAgain, ASK_EVERY_MS);
}

async function ask() {
  const after = page.points.length ? page.points[page.points.length - 1].n : 0;
  const query = `data?group=${chosen()}&after=${after}`;
  const asked = chosen();
  try {
    const answer = await fetch(query, { cache: "no-store", signal: AbortSignal.timeout(ANSWER_WITHIN_MS) });
    if (answer.status === 404 && asked !== 0) {
      location.hash = "";
    } else if (answer.ok) {
      take(await answer.json(), asked);
    }
  } catch {
    // `render` says for how long there has been no answer.
  }
  render();
}

function take(data, asked) {
  if (page.data && page.data.started_unix_ms !== data.started_unix_ms) {
    location.reload(); // another process, perhaps of another release
    return;
  }
  if (asked !== chosen()) return; // another group was chosen meanwhile
  page.data = data;
  page.received = performance.now();
  if (!data.group) return;
  const last = page.points.length ? page.points[page.points.length - 1].n : 0;
  page.points.push(...data.group.points.filter((point) => point.n > last));
  const oldest = data.now_unix_ms - 900_000;
  page.points = page.points.filter((point) => point.unix_ms >= oldest);
}

// The place of the chosen group in the list.
function chosen() {
  const place = Number(location.hash.slice(1));
  return Number.isInteger(place) && place > 0 ? place : 0;
}

// ---- Words

const sinceReceived = () => performance.now() - page.received;

function span(ms) {
  const s = Math.floor(ms / 1000);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
}

// As `plover status` writes it: cut, not rounded.
const milliseconds = (us) => `${Math.floor(us / 1000)}.${Math.floor((us % 1000) / 100)} ms`;
const whole = (n) => Math.round(n).toLocaleString("en-GB");

function bytes(n) {
  for (const [unit, size] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
    if (n >= size) return `${(n / size).toFixed(1)} ${unit}`;
  }
  return `${whole(n)} B`;
}

const clock = (unixMs) => new Date(unixMs).toLocaleTimeString("en-GB");
const capital = (word) => word.charAt(0).toUpperCase() + word.slice(1);

const STATES = {
  protected: ["✓", "Protected"],
  unprotected: ["▲", "Not protected"],
  unreplicated: ["–", "Unreplicated"],
  unknown: ["?", "Unknown"],
};

// ---- Elements

function set(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return node;
}
const h = (tag, attributes = {}, ...children) => set(document.createElement(tag), attributes, children);
const s = (tag, attributes = {}, ...children) =>
  set(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

const shown = new WeakMap();

// Replaces what is in a node if it has changed. A node that stays is not read aloud again.
function put(node, ...children) {
  const made = set(document.createElement("div"), {}, children);
  if (shown.get(node) === made.innerHTML) return;
  shown.set(node, made.innerHTML);
  // A link that has the keyboard keeps it.
  const focused = node.contains(document.activeElement) && document.activeElement.getAttribute("href");
  node.replaceChildren(...made.childNodes);
  if (focused) node.querySelector(`a[href="${focused}"]`)?.focus();
}

// Custom properties, which the content security policy allows a script to set, but not an attribute.
function vary(node, properties) {
  for (const [name, value] of Object.entries(properties)) node.style.setProperty(name, value);
  return node;
}

// ---- The page

function render() {
  renderAlarm();
  if (!page.data) return;
  const { fleet, group } = page.data;
  document.querySelector("main").hidden = false;
  $("fleet").hidden = fleet === null;
  $("group").hidden = group === null;
  if (fleet) renderFleet(fleet);
  if (group) renderGroup(group);
}

function renderGroup(group) {
  renderGroups();
  renderSummary(group);
  renderPicture(group);
  put($("sentences"), group.sentences.map((sentence) => h("li", {}, sentence)));
  renderFigures(group);
  renderHistory(group);
  renderFailovers(group);
  renderLog(group);
}

// The age of what is known of a group or of the fleet.
const ageOf = (it) => (it.age_ms === null ? null : it.age_ms + sinceReceived());
const isLost = () => !page.data || sinceReceived() > STALE_AFTER_MS;

function renderAlarm() {
  const group = page.data && page.data.group;
  // The upper right corner shows the age of the group, or without one, of the fleet.
  const first = page.data && (group ?? page.data.fleet);
  const known = first && ageOf(first);
  const shown = known === null ? `Nothing is known of the ${group ? "group" : "cluster"} yet.` : `What is shown here is ${span(known)} old.`;
  let what = null;
  let age = first ? shown : "";
  if (!first && performance.now() > STALE_AFTER_MS) {
    what = `No answer from plover dash at ${location.host} yet: it does not run, or the network is cut.`;
  } else if (first && isLost()) {
    what = `No answer from plover dash at ${location.host}.`;
    age = `That is so for ${span(sinceReceived())}. ${shown}`;
  } else if (group && group.trouble) {
    what = `The group does not answer: ${group.trouble}.`;
  } else if (group && known > STALE_AFTER_MS) {
    what = "The replica of this host is slow to answer.";
  }
  $("age").textContent = known === null ? "" : `as of ${span(known)} ago`;
  $("group").classList.toggle("stale", what !== null);
  alarm("alarm", what, age);
}

// The first part is read aloud when it appears, and not again while the seconds of the second one count on.
function alarm(id, what, age) {
  $(id).hidden = what === null;
  if ($(`${id}-what`).textContent !== (what ?? "")) $(`${id}-what`).textContent = what ?? "";
  $(`${id}-age`).textContent = age;
}

// ---- The fleet

// The states as `plover fleet status` writes them, and in a sentence.
const FLEET = {
  protected: [...STATES.protected, "protected"],
  unreplicated: [...STATES.unreplicated, "unreplicated"],
  "NOT PROTECTED": [...STATES.unprotected, "not protected"],
  "NO LEADER": ["✕", "No leader", "without a leader"],
};
const LOUD = ["NO LEADER", "NOT PROTECTED"];
const isLoud = (guest) => LOUD.includes(guest.state);

function renderFleet(fleet) {
  const age = ageOf(fleet);
  const shown = age === null ? "Nothing is known of its guests yet." : `What is shown here is ${span(age)} old.`;
  let what = null;
  if (fleet.trouble && !isLost()) what = `The cluster does not answer: ${fleet.trouble}.`;
  else if (age > FLEET_STALE_AFTER_MS && !isLost()) what = "The cluster is slow to answer.";
  const isCurrent = age !== null && what === null && !isLost();
  alarm("fleet-alarm", what, shown);
  $("fleet-age").textContent = age === null ? "" : `as of ${span(age)} ago`;
  $("fleet").classList.toggle("stale", !isCurrent);
  // Above a group the table scrolls, so that the group is not far below.
  $("fleet").classList.toggle("alone", page.data.group === null);
  const isWell = isCurrent && !fleet.guests.some(isLoud);
  const sign = isWell ? "✓" : isCurrent ? "▲" : "?";
  if (!page.data.group) document.title = `${sign} Fleet – Plover`;
  const words = isCurrent ? inAll(fleet.guests) : "Unknown";
  put($("fleet-state"), h("span", { class: isWell ? "" : "loud", "data-figure": "fleet" }, `${sign} ${words}`));
  renderGuests(fleet.guests, isCurrent);
}

function inAll(guests) {
  const counts = Object.entries(FLEET).map(([state, [, , words]]) => [guests.filter((guest) => guest.state === state).length, words]);
  const told = counts.filter(([count]) => count > 0).map(([count, words]) => `${count} ${words}`).join(", ");
  return `${guests.length} ${guests.length === 1 ? "guest" : "guests"}${told ? ": " : ""}${told}`;
}

function renderGuests(guests, isCurrent) {
  if (guests.length === 0) {
    const hint = !isCurrent ? null : h("p", { class: "empty" }, "The cluster has no guests: ", h("code", {}, "plover fleet apply DIR"), " gives it some.");
    put($("guests"), hint);
    return;
  }
  // Guests that need attention come first.
  const rank = (guest) => (isLoud(guest) ? LOUD.indexOf(guest.state) : guest.troubles.length > 0 ? 2 : 3);
  const sorted = [...guests].sort((a, b) => rank(a) - rank(b) || a.guest.localeCompare(b.guest, "en", { numeric: true }));
  const head = ["Guest", "State", "Hosts", "Remarks"].map((name) => h("th", { scope: "col" }, name));
  const rows = sorted.map((guest) => {
    const [sign, word, words] = FLEET[guest.state];
    const state = isCurrent ? `${sign} ${word}` : `? Was ${words}`;
    const hosts = Object.entries(guest.hosts).map(([node, role]) => h("span", {}, `${node} `, h("small", {}, role)));
    return h("tr", {}, h("th", { scope: "row" }, nameOf(guest)),
      h("td", {}, h("span", { class: isCurrent && isLoud(guest) ? "loud" : "" }, state)),
      h("td", { class: "hosts" }, hosts.length ? hosts : "no replica runs"),
      h("td", { class: "remarks" }, guest.troubles.map((trouble) => h("p", {}, trouble))));
  });
  put($("guests"), h("table", {}, h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows)));
}

// The guest's name: a link if its group is on this page.
function nameOf(guest) {
  const place = page.data.groups.findIndex((group) => group.name === guest.guest);
  if (place < 0) return guest.guest;
  return h("a", { href: `#${place}`, "aria-current": place === chosen() ? "page" : null }, guest.guest);
}

// ---- The group

function renderGroups() {
  const { groups } = page.data;
  document.querySelector("nav").hidden = groups.length < 2;
  const items = groups.map((group, place) => {
    const [sign, word] = STATES[group.state];
    const current = place === chosen() ? "page" : null;
    return h("li", {}, h("a", { href: `#${place}`, "aria-current": current }, `${sign} ${group.name} `, h("small", {}, word.toLowerCase())));
  });
  put($("groups"), items);
}

function renderSummary(group) {
  const state = isLost() ? "unknown" : group.state;
  const [sign, word] = STATES[state];
  document.title = `${sign} ${group.name} – Plover`;
  $("name").textContent = group.name;
  const loud = state === "unprotected" || state === "unknown";
  put($("state"), h("span", { class: loud ? "loud" : "", "data-figure": "state" }, `${sign} ${word}`));
  $("policy").textContent = group.status ? `policy ${group.status.policy}` : "";
}

const MUTE = { silent: "Silent", stopped: "Stopped", down: "Down" };
const truth = (value, yes, no) => (value === true ? yes : value === false ? no : "not said");

// A replica's part of the guest.
function guestOf(replica) {
  const more = replica.more;
  if (replica.role === "joining") return "gets a full copy";
  if (!more.holds_state) return more.keeps_copy_of === null ? "none" : `warm copy of replica ${more.keeps_copy_of}`;
  if (more.guest_off) return "off";
  if (more.guest_paused) return "paused";
  return more.guest_running ? "runs" : "stands still";
}

function renderPicture(group) {
  const replicas = group.status ? group.status.replicas : [];
  const picture = vary($("picture"), { "--hosts": replicas.length || 1 });
  const clients = h("div", { class: "clients", "aria-hidden": "true" }, "clients");
  put(picture, clients, replicas.map(drop), replicas.map((replica) => host(group, replica)), lanes(group, replicas));
  const taken = []; // the columns below which a lane is drawn already
  for (const lane of picture.querySelectorAll(".lane")) {
    const [from, to] = [Number(lane.dataset.from), Number(lane.dataset.to)];
    vary(lane, { "--from": from + 1, "--to": to + 2, "--span": to - from + 1 });
    lane.classList.toggle("deep", taken.some(([a, b]) => from < b && a < to));
    taken.push([from, to]);
  }
}

// A host's way to the clients. The same is in words in the host's box.
function drop(replica) {
  const up = replica.more.reaches_clients;
  if (MUTE[replica.role]) return h("div", { class: "drop unknown", "aria-hidden": "true" }, "?");
  if (replica.serving) return h("div", { class: "drop serves", "aria-hidden": "true" }, "serves");
  if (up === false) return h("div", { class: "drop lost", "aria-hidden": "true" }, "✕ uplink down");
  return h("div", { class: "drop", "aria-hidden": "true" });
}

function host(group, replica) {
  const heard = group.heard[replica.id];
  const title = h("h3", {}, h("span", {}, `Replica ${replica.id}`), h("span", {}, group.hosts[replica.id] ?? ""));
  if (MUTE[replica.role]) {
    const was = heard ? `was ${heard.role} ${span(heard.age_ms + sinceReceived())} ago` : "has never answered this page";
    const trouble = replica.trouble ? h("p", { class: "trouble" }, capital(replica.trouble)) : null;
    return h("article", { class: "host mute" }, title,
      h("p", { class: "role loud", "data-figure": `role.${replica.id}` }, MUTE[replica.role]), h("p", {}, was), trouble);
  }
  const more = replica.more;
  const leads = replica.id === group.leader;
  const rows = [
    ["In sync", inSync(group).includes(replica.id) ? "yes" : "no"],
    ["Guest", guestOf(replica)],
    ["Clients", replica.serving ? "served from here" : truth(more.reaches_clients, "reached", "NOT reached: the uplink is down")],
  ];
  if (more.copy) rows.push(["Copies to", copyWords(more.copy)]);
  if (more.drained) rows.push(["Drained", "takes no role"]);
  if (more.leaving) rows.push(["Leaving", "hands over, and ends"]);
  rows.push(["View", `${replica.view}@r${replica.view_leader}`]);
  return h("article", { class: leads ? "host leader" : "host" }, title,
    h("p", { class: "role", "data-figure": `role.${replica.id}` }, capital(replica.role)),
    h("dl", {}, rows.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
    replica.trouble ? h("p", { class: "trouble" }, capital(replica.trouble)) : null);
}

// The replicas that hold the guest's state, as the leader knows; without one, as the newest view does.
function inSync(group) {
  const { replicas } = group.status;
  const leader = replicas.find((replica) => replica.id === group.leader);
  const newest = [...replicas].sort((a, b) => (b.view ?? -1) - (a.view ?? -1))[0];
  return (leader ?? newest).isr;
}

function copyWords(copy) {
  const has = Math.floor(((copy.bytes - copy.bytes_behind) * 100) / Math.max(copy.bytes, 1));
  return `replica ${copy.to}: ${has}%, ${bytes(copy.bytes_behind)} behind${copy.open ? "" : ", takes nothing now"}`;
}

// The links between hosts: the leader and its secondary, and a copy and its target.
function lanes(group, replicas) {
  if (replicas.length > 5) return [];
  const place = (id) => replicas.findIndex((replica) => replica.id === id);
  const lane = (kind, from, to, text) => {
    const [a, b] = [place(from), place(to)];
    if (a < 0 || b < 0 || a === b) return null;
    const words = a < b ? `${text} ▶` : `◀ ${text}`;
    return h("div", { class: `lane ${kind}`, "aria-hidden": "true", "data-from": Math.min(a, b), "data-to": Math.max(a, b) }, words);
  };
  const secondary = replicas.find((replica) => replica.role === "secondary" && inSync(group).includes(replica.id));
  const last = page.points[page.points.length - 1];
  const sent = last && last.figures ? ` · ${bytes(last.figures.sent_bytes_per_s)}/s` : "";
  const made = replicas.filter((replica) => replica.more.copy).map((replica) => {
    const kind = replica.id === group.leader ? "copy that joins" : "warm copy";
    return lane("copy", replica.id, replica.more.copy.to, kind);
  });
  const step = group.leader !== null && secondary ? lane("step", group.leader, secondary.id, `inputs, pages${sent}`) : null;
  return [step, ...made];
}

function renderFigures(group) {
  const leader = group.status && group.status.replicas.find((replica) => replica.id === group.leader);
  if (!leader) {
    put($("figures"), h("div", { class: "empty" }, h("dt", {}, "No leader is known."), h("dd", {})));
    return;
  }
  const { sync, more } = leader;
  const outputs = more.outputs ?? {};
  const rows = [
    ["Syncs", "sync.count", whole(sync.count)],
    ["Pause, median", "sync.pause_us_p50", milliseconds(sync.pause_us_p50)],
    ["Pause, 99 %", "sync.pause_us_p99", milliseconds(sync.pause_us_p99 ?? 0)],
    ["Slot, median", "sync.slot_us_p50", milliseconds(sync.slot_us_p50)],
    ["Dirty pages", "sync.dirty", whole(sync.dirty)],
    ["Same on both", "sync.same", whole(sync.same)],
    ["Divergent", "sync.divergent", whole(sync.divergent)],
    ["Sent a sync", "sync.bytes", bytes(sync.bytes)],
    ["Output wait, median", "outputs.held_us_p50", milliseconds(outputs.held_us_p50 ?? 0)],
    ["Output wait, 99 %", "outputs.held_us_p99", milliseconds(outputs.held_us_p99 ?? 0)],
    ["Outputs held now", "held_outputs", whole(more.held_outputs ?? 0)],
    ["Oldest held", "outputs.oldest_us", milliseconds(outputs.oldest_us ?? 0)],
  ];
  put($("figures"), rows.map(([name, key, value]) => h("div", {}, h("dt", {}, name), h("dd", { "data-figure": key }, value))));
}

// ---- The last minutes

const figure = (key) => (point) => (point.figures ? point.figures[key] : undefined);
const MIB = 2 ** 20;

// The charts. `undefined`: there is no figure, and the line breaks. `null`: nothing ended in that second.
const CHARTS = [
  { title: "Frames/s", unit: "frames/s", words: whole, lines: [["inputs", figure("inputs_per_s")], ["outputs", figure("outputs_per_s")]] },
  { title: "Wait of outputs", unit: "ms", scale: 1000, words: milliseconds, lines: [["mean", figure("output_wait_us")]] },
  { title: "Pause", unit: "ms", scale: 1000, words: milliseconds, lines: [["mean", figure("pause_us")]] },
  { title: "Slot", unit: "ms", scale: 1000, words: milliseconds, lines: [["mean", figure("slot_us")]] },
  { title: "Pages a sync", unit: "pages", words: whole, lines: [["divergent", figure("divergent")], ["dirty", figure("dirty")]] },
  { title: "Copy behind", unit: "MiB", scale: MIB, words: bytes, lines: [["copy", (point) => point.copy_behind_bytes ?? undefined]] },
];

const WIDE = 1000;
const HIGH = 100;

function renderHistory(group) {
  const now = page.data.now_unix_ms + sinceReceived();
  const begin = now - page.span * 1000;
  const x = (unixMs) => ((unixMs - begin) / (page.span * 1000)) * WIDE;
  const points = page.points.filter((point) => point.unix_ms >= begin);
  const back = page.hover ?? page.moment;
  const at = now + back * 1000;
  const point = nearest(points, at);
  const failovers = group.failovers.filter((failover) => failover.unix_ms >= begin);
  const seen = { x, now, points, at, back, point, failovers };

  const ago = back === 0 ? "now" : `${span(-back * 1000)} ago`;
  $("when").textContent = back === 0 ? "now" : clock(at);
  $("moment").setAttribute("aria-valuetext", point ? `${ago}: ${STATES[point.state][1]}` : ago);

  put($("protection"), protection(seen));
  for (const mark of $("protection").querySelectorAll(".marks span")) {
    mark.style.left = `${mark.dataset.at}%`;
  }
  put($("charts"), CHARTS.map((chart) => draw(chart, seen)));
}

function nearest(points, at) {
  let best = null;
  for (const point of points) {
    if (!best || Math.abs(point.unix_ms - at) < Math.abs(best.unix_ms - at)) best = point;
  }
  return best && Math.abs(best.unix_ms - at) <= GAP_MS ? best : null;
}

// A strip: a thin line while the guest is protected, a thick one while it is not, and a frame while nothing is known.
function protection({ x, now, points, at, back, point, failovers }) {
  const runs = [];
  for (const [place, { state, unix_ms }] of points.entries()) {
    const next = points[place + 1];
    const limit = state === "unknown" ? now : unix_ms + GAP_MS;
    const end = Math.min(next ? next.unix_ms : now, limit);
    const last = runs[runs.length - 1];
    if (last && last.state === state && last.end === unix_ms) last.end = end;
    else runs.push({ state, begin: unix_ms, end });
  }
  const high = { protected: 16, unreplicated: 16, unprotected: 100, unknown: 60 };
  const rects = runs.map(({ state, begin, end }) =>
    s("rect", { class: `is-${state}`, x: x(begin), width: x(end) - x(begin), y: (HIGH - high[state]) / 2, height: high[state] }));
  const unprotected = runs.filter((run) => run.state === "unprotected").reduce((sum, run) => sum + run.end - run.begin, 0);
  const label = `Protection: not protected for ${span(unprotected)}, ${failovers.length} failovers in this span`;
  const cursor = back === 0 ? null : s("path", { class: "cursor", d: `M${x(at)} -20V${HIGH + 20}` });
  const word = point ? STATES[point.state][1].toLowerCase() : "unknown";
  const leads = point && point.leader !== null ? `replica ${point.leader} leads` : "no leader is known";
  return h("figure", {},
    h("figcaption", {}, h("b", {}, "Protection"), h("span", {}, h("b", {}, word)), h("span", {}, h("b", {}, leads))),
    h("div", { class: "marks", "aria-hidden": "true" }, failovers.map((it) => h("span", { "data-at": x(it.unix_ms) / 10 }, "▼"))),
    h("div", { class: "plot" }, s("svg", frame(label), rects, cursor)));
}

const frame = (label) => ({ role: "img", "aria-label": label, viewBox: `0 0 ${WIDE} ${HIGH}`, preserveAspectRatio: "none" });

function draw(chart, { x, points, at, back, point, failovers }) {
  const scale = chart.scale ?? 1;
  const values = chart.lines.map(([, read]) => points.map((it) => read(it)));
  const found = values.flat().filter((value) => value !== undefined && value !== null);
  const most = ceiling(Math.max(0, ...found) / scale) * scale;
  const y = (value) => HIGH - (value / most) * HIGH;
  const readouts = chart.lines.map(([name, read], place) => {
    const value = back === 0 ? newest(points, read) : point && read(point);
    const words = value === undefined || value === null ? "–" : chart.words(value);
    const sample = chart.lines.length > 1 ? line(place) : null;
    return h("span", {}, sample, chart.lines.length > 1 ? `${name} ` : "", h("b", {}, words));
  });
  const drawn = chart.lines.map(([, read], place) => curves(points, read, x, y, place));
  const range = found.length ? `between ${chart.words(Math.min(...found))} and ${chart.words(Math.max(...found))}` : "no figures";
  const svg = s("svg", frame(`${chart.title}: ${range} in this span`),
    found.length ? s("path", { class: "rule", d: `M0 0H${WIDE}M0 ${HIGH / 2}H${WIDE}` }) : null, drawn,
    failovers.map((it) => s("path", { class: "failover", d: `M${x(it.unix_ms)} 0V${HIGH}` })),
    back === 0 ? null : s("path", { class: "cursor", d: `M${x(at)} 0V${HIGH}` }));
  const top = found.length ? h("div", { class: "most", "aria-hidden": "true" }, `${(most / scale).toLocaleString("en-GB")} ${chart.unit}`) : null;
  const none = found.length ? null : h("div", { class: "none" }, "no figures in this span");
  return h("figure", {}, h("figcaption", {}, h("b", {}, chart.title), readouts),
    h("div", { class: "plot" }, svg, top, none),
    h("div", { class: "ends", "aria-hidden": "true" }, h("span", {}, `${page.span / 60} min ago`), h("span", {}, "now")));
}

// The newest figure of the last seconds, while a replica leads.
function newest(points, read) {
  if (!points.length || points[points.length - 1].leader === null) return undefined;
  const last = points.slice(-Math.ceil(GAP_MS / ASK_EVERY_MS)).map(read);
  return last.reverse().find((value) => value !== null && value !== undefined);
}

// The least of 1, 2 and 5 times a power of ten that is not below a number.
function ceiling(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value);
}

function line(place) {
  return s("svg", { class: "sample", viewBox: "0 0 20 6", "aria-hidden": "true" },
    s("path", { class: ["first", "second"][place], d: "M0 3H20" }));
}

// A line for each stretch of figures without a gap.
function curves(points, read, x, y, place) {
  const stretches = [[]];
  let last = null;
  for (const point of points) {
    const value = read(point);
    if (value === undefined || (last && point.unix_ms - last.unix_ms > GAP_MS)) stretches.push([]);
    if (value !== undefined && value !== null) stretches[stretches.length - 1].push([x(point.unix_ms), y(value)]);
    last = point;
  }
  return stretches.filter((stretch) => stretch.length > 0).flatMap((stretch) => {
    const path = stretch.map(([px, py]) => `${px.toFixed(1)} ${py.toFixed(1)}`).join("L");
    const dot = stretch.length === 1 ? "h0.1" : "";
    const curve = s("path", { class: ["first", "second"][place], d: `M${path}${dot}` });
    if (place > 0) return [curve];
    const [begin, end] = [stretch[0][0], stretch[stretch.length - 1][0]];
    return [s("path", { class: "area", d: `M${begin.toFixed(1)} ${HIGH}L${path}L${end.toFixed(1)} ${HIGH}Z` }), curve];
  });
}

// ---- Failovers

const HOW = { silence: "its silence", reported: "a report of its death", "handed over": "it handed over", stopped: "it was told to stop" };

function renderFailovers(group) {
  if (group.failovers.length === 0) {
    put($("failovers"), h("p", { class: "empty" }, "None that a replica remembers."));
    return;
  }
  const newestFirst = [...group.failovers].reverse();
  const total = (it) => (it.noticed_us ?? 0) + it.elected_us + it.serving_us;
  const most = Math.max(...newestFirst.map(total));
  const columns = ["When", "Lead", "Noticed by", "Noticed", "+ elected", "+ serving", "= in all", "Protected again"];
  const head = columns.map((name, place) => h("th", { scope: "col", class: place > 2 && place < 7 ? "number" : null }, name));
  const rows = newestFirst.map((it) => {
    const cells = [
      [it.from === null ? `to replica ${it.by}` : `replica ${it.from} → ${it.by}`, null],
      [HOW[it.how] ?? it.how, null],
      [it.noticed_us === null ? "–" : milliseconds(it.noticed_us), "number"],
      [milliseconds(it.elected_us), "number"],
      [milliseconds(it.serving_us), "number"],
      [milliseconds(total(it)), "number"],
      [againProtected(it), null],
    ];
    return h("tr", {}, h("th", { scope: "row" }, when(it.unix_ms)),
      cells.map(([text, kind], place) => h("td", { class: kind, "data-label": columns[place + 1] }, text)),
      h("td", { class: "bar" }, bar(it, most)));
  });
  put($("failovers"), h("table", {}, h("thead", {}, h("tr", {}, head, h("td", { "aria-hidden": "true" }, "noticed, elected, serving"))), h("tbody", {}, rows)));
}

function when(unixMs) {
  const today = new Date(page.data.now_unix_ms).toDateString() === new Date(unixMs).toDateString();
  return today ? clock(unixMs) : `${new Date(unixMs).toLocaleDateString("en-GB")} ${clock(unixMs)}`;
}

function againProtected(failover) {
  if (failover.protection_awaited) return "not yet";
  const ms = failover.protected_within_ms;
  return ms === null ? "not seen" : `within ${(ms / 1000).toFixed(1)} s`;
}

// The parts as steps: the higher, the nearer to service.
function bar(failover, most) {
  let x = 0;
  const parts = [[failover.noticed_us ?? 0, 30], [failover.elected_us, 65], [failover.serving_us, HIGH]];
  const rects = parts.map(([us, height]) => {
    const width = (us / most) * WIDE;
    const rect = s("rect", { x, width, y: HIGH - height, height });
    x += width;
    return rect;
  });
  return s("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, preserveAspectRatio: "none", "aria-hidden": "true" }, rects);
}

// ---- The log

// A line of a replica's log: time, level, sentence, event and other fields.
const LINE = /^(\S+Z) +(\w+) (.*?)(?: event="(\w+)")?( \w+=.*)?$/;

function renderLog(group) {
  const lines = [...group.log].reverse().map(({ id, line }) => {
    const [, at, level, sentence, event, fields] = LINE.exec(line) ?? [null, null, "", line];
    const loud = level === "ERROR" || level === "WARN";
    return h("li", {},
      h("time", {}, at ? when(Date.parse(at)) : ""), h("span", {}, `r${id}`),
      h("span", {}, loud ? h("b", {}, level === "WARN" ? "Warning: " : "Error: ") : null, sentence),
      h("code", {}, `${event ?? ""}${fields ?? ""}`));
  });
  put($("log"), lines.length ? lines : h("li", { class: "empty" }, "No replica has told its log yet."));
}

// ---- Hands

addEventListener("hashchange", () => {
  page.points = [];
  page.moment = Number(($("moment").value = 0));
  ask();
});
$("spans").addEventListener("change", (event) => {
  page.span = Number(event.target.value);
  page.moment = 0;
  $("moment").min = -page.span;
  $("moment").value = 0;
  render();
});
$("moment").addEventListener("input", (event) => {
  page.moment = Number(event.target.value);
  render();
});
for (const id of ["charts", "protection"]) {
  $(id).addEventListener("pointermove", (event) => {
    const plot = event.target.closest(".plot");
    if (!plot || event.pointerType === "touch") return;
    const { left, width } = plot.getBoundingClientRect();
    page.hover = Math.min(0, Math.round(((event.clientX - left) / width - 1) * page.span));
    render();
  });
  $(id).addEventListener("pointerleave", () => {
    page.hover = null;
    render();
  });
}

setInterval(render, ASK_EVERY_MS / 2);
askAgainAndAgain();
