"use strict";
// Draws the model that diagram.py made: only what is in sight, at most LIMIT arrows, and says what is left out.
window.addEventListener("error", (e) => { document.documentElement.dataset.error = `${e.message} (line ${e.lineno})`; });

const M = JSON.parse(document.getElementById("model").textContent);
const LIMIT = 1500;      // arrows drawn at a time: more are no picture
const MARGIN = 92;       // left of the time axis: names
const LANE = 17, AXIS = 26, MAP = 42;
const T = 0, NODE = 1, INC = 2, NUM = 3, KIND = 4, REST = 5;            // of an event
const FROM = 0, TO = 1, LEFT = 2, ARRIVED = 3, UNICAST = 4, AGAIN = 5, APP = 6;   // of an arrow

const CLASSES = [  // [name, what it says, on at first, does it cover this arrow / event?]
  ["mcast", "multicast", true], ["ucast", "unicast", true], ["again", "sent again", true],
  ["lost", "not seen to arrive", true], ["protocol", "bundles of protocols", true],
  ["deliver", "delivered", true], ["receive", "received", false], ["suspect", "suspected, trusted again", true],
  ["conn", "connection opened, closed", false], ["retention", "stable, discarded", false], ["ack", "acks", false],
  ["view", "views", true], ["fault", "faults", true], ["other", "other events", false],
];
const on = Object.fromEntries(CLASSES.map(([name, , first]) => [name, first]));
const shownRows = M.members.map(() => true);
const KIND_CLASS = {
  deliver: "deliver", receive: "receive", suspect: "suspect", unsuspect: "suspect", conn: "conn", ack: "ack",
  stable: "retention", discard: "retention", send: "", retransmit: "", view: "", fault: "", heal: "", crash: "",
  truncated: "", end: "",
};
const rowOf = Object.fromEntries(M.members.map((name, row) => [name, row]));
const markClass = (e) => (e[KIND] in KIND_CLASS ? KIND_CLASS[e[KIND]] : "other");
const sight = { t0: M.first, t1: M.last };
let hits = [];           // what the pointer can find: {d(x, y), tip, events, key}
let picked = null;       // the key of the picked bundle
let ringed = new Set(M.violations.flatMap((v) => v.events));
let labels = "";         // of the views: drawn over the arrows
let plot = { x: MARGIN, w: 100, y: 0, rows: [], rowHeight: 0, height: 0 };

// ---- small things

const esc = (text) => String(text).replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);
const el = (html) => { const t = document.createElement("template"); t.innerHTML = html.trim(); return t.content.firstChild; };
const many = (n, one, more) => `${n.toLocaleString("en")} ${n === 1 ? one : more}`;
const clamp = (v, low, high) => Math.max(low, Math.min(high, v));
const x = (t) => plot.x + ((t - sight.t0) / (sight.t1 - sight.t0)) * plot.w;
const timeAt = (px) => sight.t0 + ((px - plot.x) / plot.w) * (sight.t1 - sight.t0);
const r = (v) => Math.round(v * 10) / 10;
const hue = (i) => Math.round((i * 137.5 + 200) % 360);   // the golden angle: neighbours differ
const bandFill = (i, strong) => `hsl(${hue(i)} 60% var(${strong ? "--band-strong" : "--band-light"}))`;
const address = (e) => `${e[NODE]}#${e[INC]}`;
const keyOf = (e) => `${e[REST].sender}/${e[REST].conn ?? ""}/${e[REST].first}`;
const seconds = (s) => (s >= 1 ? `${s.toFixed(2)} s` : s >= 0.001 ? `${(s * 1e3).toFixed(1)} ms` : `${(s * 1e6).toFixed(0)} µs`);

function stamp(t) {
  const step = (sight.t1 - sight.t0) / 10;
  return t.toFixed(clamp(Math.ceil(-Math.log10(step)) + 1, 0, 6));
}

function say(e) {  // an event in one line
  const d = e[REST];
  const numbers = d.first === undefined ? (d.last === undefined ? "" : ` up to ${d.last}`)
    : d.last === undefined || d.first === d.last ? ` number ${d.first}` : ` numbers ${d.first} to ${d.last}`;
  const of = d.sender && d.sender !== address(e) ? ` of ${d.sender}` : "";
  const to = d.to ? ` to ${d.to}` : "";
  const list = Array.isArray(d.members) ? `: ${d.members.join(", ")}` : "";
  return `${address(e)} ${e[KIND]}${numbers}${of}${to}${d.conn === undefined ? "" : ` (connection ${d.conn})`}${list}`;
}

function whole(e) {  // an event with everything in it
  const rest = Object.entries(e[REST]).map(([k, v]) => `  ${k}: ${typeof v === "object" ? JSON.stringify(v) : v}`);
  return [`${e[T].toFixed(6)} s  ${address(e)}  event ${e[NUM]}`, `${e[KIND]}`, ...rest].join("\n");
}

// ---- the page around the picture

function frame() {
  const incs = M.lives.length, bad = M.violations.length;
  const verdict = bad ? `<span class="bad">${many(bad, "violation", "violations")}</span>` : `<span class="good">no violations</span>`;
  document.body.prepend(el(`<header><h1>${esc(M.title)}</h1><span class="facts">run ${esc(M.run)} · ${many(M.members.length, "member", "members")}, ${many(incs, "incarnation", "incarnations")} · ${many(M.total, "event", "events")} · ${seconds(M.end - M.begin)}</span>${verdict}</header>`));
  const tools = el(`<div id="tools">
    <button data-do="in" title="zoom in (+)">+</button><button data-do="out" title="zoom out (−)">−</button>
    <button data-do="back" title="to the left (←)">◀</button><button data-do="on" title="to the right (→)">▶</button>
    <button data-do="first" title="the range that the page opened with (Home)">start</button>
    <button data-do="all" title="the whole run (0)">whole run</button>
    <label>from <input type="number" id="from" step="any"></label><label>to <input type="number" id="to" step="any"> s</label>
    <button data-do="theme" title="dark or light">◐</button>
    <label>wheel: zoom · drag: move · click: details</label></div>`);
  const counts = count();
  const rows = CLASSES.filter(([name]) => counts[name]).map(([name, what]) =>
    `<li><label><input type="checkbox" data-class="${name}" ${on[name] ? "checked" : ""}>${legendKey(name)}<span>${what}</span><span class="much">${counts[name].toLocaleString("en")}</span></label></li>`);
  const names = M.members.map((name, row) => `<li><label><input type="checkbox" data-row="${row}" checked><span>${esc(name)}</span></label></li>`);
  const found = M.violations.map((v, i) => `<li data-found="${i}"><b>${esc(v.property)}</b> ${esc(v.text)}</li>`);
  const groups = M.memberships.slice(0, 24).map((names, i) => `<li><span class="swatch" style="background:${bandFill(i, true)}"></span>${esc(names)}</li>`);
  if (M.memberships.length > 24) groups.push(`<li class="hint">and ${M.memberships.length - 24} more</li>`);
  const side = el(`<aside>${found.length ? `<h2>Violations</h2><ul class="found">${found.join("")}</ul>` : ""}
    <h2>Picked</h2><div id="picked"><p class="hint">Click an arrow, a mark, a band or a fault.</p></div>
    <h2>Show</h2><ul class="filters">${rows.join("")}</ul>
    <h2>Members</h2><ul class="filters">${names.join("")}</ul>
    <h2>Signs</h2><ul class="signs">${signs()}</ul>
    ${groups.length ? `<h2>Views, by membership</h2><ul>${groups.join("")}</ul>` : ""}</aside>`);
  document.body.append(tools, el(`<main id="chart"></main>`), el(`<footer id="status"></footer>`), side, el(`<div id="tip" hidden></div>`));
  tools.addEventListener("click", (e) => { const what = e.target.dataset?.do; if (what) ACTIONS[what](); });
  tools.addEventListener("change", () => {
    const [t0, t1] = ["from", "to"].map((id) => parseFloat(document.getElementById(id).value));
    if (t1 > t0) look(t0, t1); else draw();
  });
  side.addEventListener("change", (e) => {
    const { class: name, row } = e.target.dataset;
    if (name) on[name] = e.target.checked;
    if (row !== undefined) shownRows[row] = e.target.checked;
    draw();
  });
  side.addEventListener("click", (e) => {
    const item = e.target.closest("[data-found]");
    if (item) showViolation(M.violations[item.dataset.found]);
  });
}

function count() {
  const counts = Object.fromEntries(CLASSES.map(([name]) => [name, 0]));
  for (const a of M.arrows) for (const name of arrowClasses(a)) counts[name]++;
  for (const e of M.events) { const name = markClass(e); if (name && e[NODE] in rowOf) counts[name]++; }
  counts.view = M.views.length;
  counts.fault = M.faults.length;
  return counts;
}

function legendKey(name) {
  const arrow = (cls, head) => `<svg class="key" width="34" height="12"><line class="arrow ${cls}" x1="1" y1="6" x2="25" y2="6"/>${head ?? ""}</svg>`;
  const tri = (cls) => `<path class="head-${cls}" d="M25 2l8 4-8 4z"/>`;
  const glyph = (inner) => `<svg class="key" width="34" height="12">${inner}</svg>`;
  return {
    mcast: arrow("mcast", tri("mcast")), ucast: arrow("ucast", tri("ucast")), again: arrow("mcast again", tri("mcast")),
    lost: arrow("mcast lost", `<path class="cross" d="M23 2l8 8m0-8l-8 8"/>`), protocol: arrow("mcast protocol", tri("mcast")),
    deliver: glyph(`<circle class="mark mc" cx="12" cy="6" r="3"/><circle class="mark uc" cx="22" cy="6" r="3"/>`),
    suspect: glyph(`<path class="mark suspect" d="M12 1l5 5-5 5-5-5z"/><path class="mark unsuspect" d="M25 1l5 5-5 5-5-5z"/>`),
    view: glyph(`<rect x="2" y="1" width="30" height="10" fill="${bandFill(0, true)}"/>`),
    fault: glyph(`<rect class="fault-bar" x="2" y="1" width="30" height="10"/>`),
  }[name] ?? glyph(`<rect class="mark" x="13" y="2" width="7" height="7"/>`);
}

function signs() {
  const sign = (inner, text) => `<li><svg class="key" width="34" height="14">${inner}</svg> ${text}</li>`;
  return sign(`<path class="death" d="M11 2l10 10m0-10l-10 10"/>`, "crashed, or its trace ends")
    + sign(`<path class="left" d="M16 1v12"/>`, "stopped in good order")
    + sign(`<path class="birth" d="M11 2l10 5-10 5z"/>`, "an incarnation starts")
    + sign(`<circle class="ring" cx="16" cy="7" r="5"/>`, "proves a violation");
}

// ---- drawing

function arrowClasses(a) {  // everything that must be switched on for it
  const names = [a[UNICAST] ? "ucast" : "mcast"];
  if (a[AGAIN]) names.push("again");
  if (a[ARRIVED] < 0) names.push("lost");
  if (!a[APP]) names.push("protocol");
  return names;
}

function layout(svgHeight) {
  const rows = M.members.map((_, i) => i).filter((i) => shownRows[i]);
  const lanes = packFaults();
  const top = AXIS + lanes * LANE + 8;
  const room = svgHeight - top - MAP - 12;
  plot.rowHeight = clamp(room / Math.max(rows.length, 1), 54, 230);
  plot.y = top;
  plot.rows = M.members.map(() => null);
  rows.forEach((row, i) => { plot.rows[row] = top + (i + 0.5) * plot.rowHeight; });
  plot.bottom = top + rows.length * plot.rowHeight;
  plot.height = Math.max(svgHeight, plot.bottom + MAP + 12);
}

function packFaults() {  // bars that overlap get lanes of their own
  const ends = [];
  for (const f of M.faults) {
    f.lane = -1;
    if (!on.fault || f.kind === "quiet" || f.end < sight.t0 || f.start > sight.t1) continue;
    const from = Math.max(x(f.start), plot.x), to = Math.max(x(f.end), from + 7 * (f.kind.length + f.what.length + 3));
    let lane = ends.findIndex((end) => end < from);
    if (lane < 0) lane = ends.length < 7 ? ends.push(0) - 1 : 6;
    f.lane = lane;
    ends[lane] = to + 6;
  }
  return Math.max(ends.length, 1);
}

function draw() {
  const chart = document.getElementById("chart");
  const width = Math.max(chart.clientWidth, 300), height = Math.max(chart.clientHeight, 240);
  plot.w = width - MARGIN - 16;
  layout(height);
  hits = [];
  const parts = [defs(), axis(), faults(), bands(), lives()];
  const { svg: arrowSvg, note } = arrows();
  parts.push(arrowSvg, marks(note), `<g class="labels" clip-path="url(#inside)">${labels}</g>`, rings(), names(), overview());
  const svg = el(`<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${plot.height}">${parts.join("")}</svg>`);
  chart.replaceChildren(svg);
  document.getElementById("from").value = stamp(sight.t0);
  document.getElementById("to").value = stamp(sight.t1);
  status(note);
}

function defs() {
  return `<defs><pattern id="hatch" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
    <rect width="7" height="7" fill="var(--fault-area)" opacity=".35"/><line x1="0" y1="0" x2="0" y2="7" stroke="var(--fault)" stroke-width="2"/></pattern>
    <clipPath id="inside"><rect x="${plot.x}" y="0" width="${plot.w}" height="${plot.bottom}"/></clipPath>
    ${["mcast", "ucast"].map((c) => `<marker id="to-${c}" viewBox="0 0 8 8" refX="7.5" refY="4" markerWidth="7" markerHeight="7" orient="auto" markerUnits="userSpaceOnUse"><path class="head-${c}" d="M0 .8L8 4 0 7.2z"/></marker>`).join("")}</defs>`;
}

function axis() {
  const span = sight.t1 - sight.t0, rough = span / Math.max(plot.w / 110, 2);
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = unit * [1, 2, 5, 10].find((m) => m * unit >= rough);
  const digits = clamp(Math.ceil(-Math.log10(step) - 1e-9), 0, 7);
  let out = "";
  for (let i = Math.ceil(sight.t0 / step); i * step <= sight.t1; i++) {
    const px = r(x(i * step));
    if (px < plot.x + 18 || px > plot.x + plot.w - 8) continue;  // its label would be cut
    out += `<line x1="${px}" x2="${px}" y1="${AXIS - 6}" y2="${plot.bottom}"/><text x="${px}" y="14" text-anchor="middle">${(i * step).toFixed(digits)} s</text>`;
  }
  return `<g class="axis">${out}</g>`;
}

function faults() {
  if (!on.fault) return "";
  let areas = "", bars = "";
  for (const f of M.faults) {
    if (f.end < sight.t0 || f.start > sight.t1) continue;
    const a = clamp(x(f.start), plot.x, plot.x + plot.w), b = clamp(x(f.end), plot.x, plot.x + plot.w);
    const tip = `${f.kind}${f.what ? `: ${f.what}` : ""}\n${stamp(f.start)} s${f.end > f.start ? ` to ${stamp(f.end)} s (${seconds(f.end - f.start)})` : ""}`;
    if (f.end > f.start) {
      const ys = f.rows.length ? f.rows.map((row) => plot.rows[row]).filter((y) => y !== null).map((y) => [y - plot.rowHeight * 0.36, plot.rowHeight * 0.72]) : [[plot.y, plot.bottom - plot.y]];
      for (const [y, h] of ys) areas += `<rect class="fault-area" data-fault="${esc(f.kind)}" x="${r(a)}" y="${r(y)}" width="${r(Math.max(b - a, 1.5))}" height="${r(h)}"/>`;
    } else areas += `<line class="fault-moment" data-fault="${esc(f.kind)}" x1="${r(a)}" x2="${r(a)}" y1="${AXIS}" y2="${r(plot.bottom)}"/>`;
    if (f.kind === "quiet") {
      bars += `<text class="fault-text" x="${r(a + 4)}" y="${r(plot.bottom - 4)}">the faults are over</text>`;
      continue;
    }
    const y = AXIS + f.lane * LANE, w = Math.max(b - a, 4);
    bars += `<g class="fault" data-fault="${esc(f.kind)}"><rect class="fault-bar" x="${r(a)}" y="${y}" width="${r(w)}" height="${LANE - 4}" rx="2"/><text class="fault-text" x="${r(a + (w > 5 ? 4 : 7))}" y="${y + LANE - 7}">${esc(f.kind)}${f.what ? ` · ${esc(f.what.length > 44 ? f.what.slice(0, 43) + "…" : f.what)}` : ""}</text></g>`;
    hits.push({ d: (px, py) => (px >= a - 2 && px <= Math.max(b, a + 8) && py >= y && py <= y + LANE ? 1 : 99), tip, events: [f.event] });
  }
  return `<g class="faults" clip-path="url(#inside)">${areas}${bars}</g>`;
}

function bands() {
  labels = "";
  if (!on.view) return "";
  let out = "";
  const h = 15;
  for (const v of M.views) {
    const y = plot.rows[v.row];
    if (y === null || v.end < sight.t0 || v.start > sight.t1) continue;
    const a = clamp(x(v.start), plot.x, plot.x + plot.w), b = clamp(x(v.end), plot.x, plot.x + plot.w);
    out += `<rect class="band" data-view="${esc(v.id)}" x="${r(a)}" y="${r(y - h / 2)}" width="${r(Math.max(b - a, 0.7))}" height="${h}" fill="${bandFill(v.colour)}"/>`;
    if (x(v.start) >= plot.x) out += `<line class="cut" x1="${r(a)}" x2="${r(a)}" y1="${r(y - h / 2)}" y2="${r(y + h / 2)}"/>`;
    const names = M.memberships[v.colour].split(" ").filter(Boolean);
    const text = `view ${v.id.split("@")[0]}: ${names.map((n) => n.replace(/#1$/, "")).join(" ")}`;
    if (b - a > text.length * 6 + 8) labels += `<text class="small halo" x="${r(a + 4)}" y="${r(y + h / 2 + 12)}">${esc(text)}</text>`;
    hits.push({ d: (px, py) => (px >= a && px <= b && Math.abs(py - y) <= h / 2 ? 6 : 99), tip: `view ${v.id}\n${names.join(", ")}\n${stamp(v.start)} s to ${stamp(v.end)} s`, events: [v.event] });
  }
  return `<g class="views" clip-path="url(#inside)">${out}</g>`;
}

function lives() {
  let out = "";
  M.members.forEach((name, row) => {
    const y = plot.rows[row];
    if (y !== null) out += `<line class="dead" x1="${plot.x}" x2="${plot.x + plot.w}" y1="${r(y)}" y2="${r(y)}"/>`;
  });
  for (const l of M.lives) {
    const y = plot.rows[l.row];
    if (y === null || l.end < sight.t0 || l.start > sight.t1) continue;
    const a = clamp(x(l.start), plot.x, plot.x + plot.w), b = clamp(x(l.end), plot.x, plot.x + plot.w);
    out += `<line class="life" data-member="${esc(M.members[l.row])}#${l.inc}" x1="${r(a)}" x2="${r(b)}" y1="${r(y)}" y2="${r(y)}"/>`;
    if (l.start >= sight.t0) out += `<path class="birth" d="M${r(a)} ${r(y - 7)}l10 7-10 7z"/><text class="small" x="${r(a)}" y="${r(y - 12)}">#${l.inc}</text>`;
    if (l.how && l.end <= sight.t1) out += l.how === "stop"
      ? `<path class="left" d="M${r(b)} ${r(y - 9)}v18"/>`
      : `<path class="death" data-how="${l.how}" d="M${r(b - 7)} ${r(y - 7)}l14 14m0-14l-14 14"/><text class="small" x="${r(b + 9)}" y="${r(y - 10)}">${l.how === "crash" ? "crashed" : "trace ends"}</text>`;
  }
  return `<g class="lives" clip-path="url(#inside)">${out}</g>`;
}

function arrows() {
  const groups = new Map();
  let inSight = 0;
  for (const a of M.arrows) {
    if (plot.rows[a[FROM]] === null || plot.rows[a[TO]] === null) continue;
    const t = M.events[a[LEFT]][T], u = a[ARRIVED] < 0 ? t : M.events[a[ARRIVED]][T];
    if (u < sight.t0 || t > sight.t1 || !arrowClasses(a).every((name) => on[name])) continue;
    inSight++;
    // Arrows that fall on each other become one: 3 pixels are what an eye tells apart.
    const key = `${a[FROM]},${a[TO]},${arrowClasses(a)},${Math.round(x(t) / 3)},${Math.round(x(u) / 3)}`;
    const group = groups.get(key);
    if (group) { group.n++; if (keyOf(M.events[a[LEFT]]) === picked) group.a = a; } else groups.set(key, { a, n: 1 });
  }
  let list = [...groups.values()];
  const skip = Math.ceil(list.length / LIMIT);
  let drawn = 0;
  if (skip > 1) list = list.filter((g, i) => i % skip === 0 || ringed.has(g.a[LEFT]) || keyOf(M.events[g.a[LEFT]]) === picked);
  let out = "";
  for (const { a, n } of list) { out += arrow(a, n); drawn += n; }
  const crowd = list.length > 600 ? " crowd" : "";
  return { svg: `<g class="arrows${crowd}" clip-path="url(#inside)">${out}</g>`, note: { inSight, drawn, lines: list.length } };
}

function arrow(a, n) {
  const e = M.events[a[LEFT]], type = a[UNICAST] ? "ucast" : "mcast";
  const x1 = x(e[T]), y1 = plot.rows[a[FROM]], y2 = plot.rows[a[TO]];
  const dir = Math.sign(y2 - y1), lost = a[ARRIVED] < 0;
  const cls = `arrow ${arrowClasses(a).join(" ")}${keyOf(e) === picked ? " picked" : ""}`;
  let end, svg;
  const from = a[FROM] === a[TO] ? y1 - 10 : y1 + dir * 4;
  if (lost) {  // how far it got is not known: it ends soon, with a cross
    end = [x1 + 14, from + (y2 - from) * 0.3];
    svg = `<line class="${cls}" x1="${r(x1)}" y1="${r(from)}" x2="${r(end[0])}" y2="${r(end[1])}"/><path class="cross" d="M${r(end[0] - 3.5)} ${r(end[1] - 3.5)}l7 7m0-7l-7 7"/>`;
  } else {
    end = [x(M.events[a[ARRIVED]][T]), y2 - dir * 4];
    svg = `<line class="${cls}" x1="${r(x1)}" y1="${r(from)}" x2="${r(end[0])}" y2="${r(end[1])}" marker-end="url(#to-${type})"/>`;
  }
  if (n > 1) svg += `<text class="much" x="${r((x1 + end[0]) / 2 + 4)}" y="${r((from + end[1]) / 2)}">${n}</text>`;
  const what = `${a[AGAIN] ? "sent again: " : ""}${type === "mcast" ? "multicast" : "unicast"} number ${e[REST].first} of ${e[REST].sender ?? address(e)}`;
  const fate = lost ? `to ${M.members[a[TO]]}: not seen to arrive (lost, too late, or nobody was there)` : `to ${M.members[a[TO]]} in ${seconds(M.events[a[ARRIVED]][T] - e[T])}`;
  hits.push({
    d: (px, py) => distance(px, py, x1, from, end[0], end[1]) + 1.5,
    tip: `${what}\n${stamp(e[T])} s, ${fate}${e[REST].reason ? `\nbecause: ${e[REST].reason}` : ""}${n > 1 ? `\nand ${n - 1} more like it: zoom in` : ""}`,
    events: lost ? [a[LEFT]] : [a[LEFT], a[ARRIVED]], key: keyOf(e),
  });
  return svg;
}

function distance(px, py, x1, y1, x2, y2) {
  const l = (x2 - x1) ** 2 + (y2 - y1) ** 2;
  const k = l ? clamp(((px - x1) * (x2 - x1) + (py - y1) * (y2 - y1)) / l, 0, 1) : 0;
  return Math.hypot(px - x1 - k * (x2 - x1), py - y1 - k * (y2 - y1));
}

function marks(note) {
  let out = "";
  const taken = new Set();
  note.marks = note.marksDrawn = 0;
  for (let i = 0; i < M.events.length; i++) {
    const e = M.events[i];
    if (e[T] < sight.t0 || e[T] > sight.t1) continue;
    const name = markClass(e), row = rowOf[e[NODE]];
    if (!name || !on[name] || row === undefined || plot.rows[row] === null) continue;
    if (name === "deliver" && e[REST].app === false && !on.protocol) continue;
    note.marks++;
    const px = x(e[T]), y = plot.rows[row] + (name === "deliver" ? 0 : name === "suspect" ? -14 : 13);
    const place = `${row},${name},${Math.round(px / 2)}`;
    if (taken.has(place)) continue;
    taken.add(place);
    note.marksDrawn++;
    if (name === "deliver") out += `<circle class="mark ${e[REST].conn === undefined ? "mc" : "uc"}" cx="${r(px)}" cy="${r(y)}" r="2.4"/>`;
    else if (name === "suspect") out += `<path class="mark ${e[KIND]}" d="M${r(px)} ${r(y - 6)}l6 6-6 6-6-6z"/>`;
    else out += `<rect class="mark ${name}" x="${r(px - 3)}" y="${r(y - 3)}" width="6" height="6"/>`;
    hits.push({ d: (mx, my) => Math.hypot(mx - px, my - y), tip: `${say(e)}\n${stamp(e[T])} s`, events: [i], key: e[REST].first === undefined ? null : keyOf(e) });
  }
  return `<g class="marks" clip-path="url(#inside)">${out}</g>`;
}

function rings() {
  let out = "";
  for (const i of ringed) {
    const e = M.events[i], row = rowOf[e[NODE]];
    if (row === undefined || plot.rows[row] === null || e[T] < sight.t0 || e[T] > sight.t1) continue;
    out += `<circle class="ring" cx="${r(x(e[T]))}" cy="${r(plot.rows[row])}" r="9"/>`;
  }
  return `<g class="rings" clip-path="url(#inside)">${out}</g>`;
}

function names() {
  let out = `<rect class="cover" x="0" y="0" width="${MARGIN - 2}" height="${r(plot.bottom)}"/><text class="small" x="10" y="14">time</text>`;
  if (on.fault && M.faults.length) out += `<text class="small" x="10" y="${AXIS + 10}">faults</text>`;
  M.members.forEach((name, row) => {
    if (plot.rows[row] !== null) out += `<g class="member" data-name="${esc(name)}"><text class="name" x="10" y="${r(plot.rows[row] + 4)}">${esc(name.length > 11 ? name.slice(0, 10) + "…" : name)}</text></g>`;
  });
  return `<g class="names">${out}</g>`;
}

function overview() {  // the whole run, and which part of it is in sight
  const y = plot.height - MAP, bins = new Array(120).fill(0), span = M.end - M.begin;
  const mx = (t) => plot.x + ((t - M.begin) / span) * plot.w;
  for (const e of M.events) bins[clamp(Math.floor(((e[T] - M.begin) / span) * 120), 0, 119)]++;
  const most = Math.max(...bins, 1);
  let out = `<rect class="map" x="${plot.x}" y="${y}" width="${plot.w}" height="${MAP - 8}"/>`;
  for (const f of M.faults) if (f.kind !== "quiet") out += `<rect class="map-fault" x="${r(mx(f.start))}" y="${y}" width="${r(Math.max(mx(f.end) - mx(f.start), 1.5))}" height="5"/>`;
  bins.forEach((n, i) => { const h = (n / most) * (MAP - 16); if (n) out += `<rect class="density" x="${r(plot.x + (i / 120) * plot.w)}" y="${r(y + MAP - 8 - h)}" width="${r(plot.w / 120 - 0.6)}" height="${r(h)}"/>`; });
  for (const i of ringed) out += `<rect class="map-alarm" x="${r(mx(M.events[i][T]) - 1)}" y="${y}" width="2" height="${MAP - 8}"/>`;
  const a = mx(Math.max(sight.t0, M.begin)), b = mx(Math.min(sight.t1, M.end));
  out += `<rect class="sight" x="${r(a)}" y="${y}" width="${r(Math.max(b - a, 3))}" height="${MAP - 8}"/><text class="small" x="10" y="${y + 20}">whole run</text>`;
  return `<g class="overview" data-y="${y}">${out}</g>`;
}

function status(note) {
  const said = [`${stamp(sight.t0)} s to ${stamp(sight.t1)} s`, `${many(note.inSight, "message", "messages")} in sight`];
  if (note.lines < note.inSight) said.push(`drawn as ${many(note.lines, "arrow", "arrows")}`);
  if (note.drawn < note.inSight) said.push(`${(note.inSight - note.drawn).toLocaleString("en")} left out: zoom in to see them`);
  if (note.marksDrawn < note.marks) said.push(`${(note.marks - note.marksDrawn).toLocaleString("en")} marks hidden behind others`);
  const off = CLASSES.filter(([name, what]) => !on[name] && document.querySelector(`[data-class=${name}]`)).map(([, what]) => what);
  if (off.length) said.push(`switched off: ${off.join("; ")}`);
  if (M.leftOut.length) said.push(`not in this page: ${M.leftOut.join("; ")}`);
  document.getElementById("status").textContent = said.join(" · ");
}

// ---- moving about

function look(t0, t1) {
  const least = Math.max((M.end - M.begin) * 1e-6, 1e-6);
  const pad = (M.end - M.begin) * 0.03;
  const span = clamp(t1 - t0, least, M.end - M.begin + 2 * pad);
  const middle = clamp((t0 + t1) / 2, M.begin - pad + span / 2, M.end + pad - span / 2);
  sight.t0 = middle - span / 2;
  sight.t1 = middle + span / 2;
  draw();
}
function zoom(by, at) {
  const t = at ?? (sight.t0 + sight.t1) / 2;
  look(t - (t - sight.t0) * by, t + (sight.t1 - t) * by);
}
const pan = (by) => { const d = (sight.t1 - sight.t0) * by; look(sight.t0 + d, sight.t1 + d); };
const ACTIONS = {
  in: () => zoom(0.5), out: () => zoom(2), back: () => pan(-0.4), on: () => pan(0.4),
  all: () => look(M.begin - 1e9, M.end + 1e9), first: () => look(M.first, M.last),
  theme: () => document.documentElement.classList.toggle("dark"),
};

function showViolation(v) {
  const nodes = v.events.filter((i) => M.events[i][NODE] in rowOf);
  const times = (nodes.length ? nodes : v.events).map((i) => M.events[i][T]);
  if (times.length) {
    const low = Math.min(...times), high = Math.max(...times), pad = Math.max((high - low) * 0.2, (M.last - M.first) * 0.1);
    look(low - pad, high + pad);
  }
  pick({ tip: `${v.property}: ${v.text}`, events: v.events, key: null });
}

function pick(hit) {
  picked = hit?.key ?? null;
  const panel = document.getElementById("picked");
  panel.replaceChildren();
  if (!hit) panel.append(el(`<p class="hint">Click an arrow, a mark, a band or a fault.</p>`));
  else {
    panel.append(el(`<p>${esc(hit.tip).replace(/\n/g, "<br>")}</p>`));
    const all = new Set(hit.events);
    if (hit.key) M.events.forEach((e, i) => { if (all.size < 40 && e[REST].first !== undefined && keyOf(e) === hit.key) all.add(i); });
    for (const i of [...all].sort((a, b) => a - b)) panel.append(el(`<pre>${esc(whole(M.events[i]))}</pre>`));
  }
  draw();
}

function nearest(e) {
  const box = document.querySelector("#chart svg").getBoundingClientRect();
  const px = e.clientX - box.left, py = e.clientY - box.top;
  let best = null, least = 8;
  if (px >= plot.x) for (const hit of hits) { const d = hit.d(px, py); if (d < least) { best = hit; least = d; } }
  return { hit: best, px, py };
}

function listen() {
  const chart = document.getElementById("chart"), tip = document.getElementById("tip");
  let drag = null;
  const inMap = (py) => py >= plot.height - MAP;
  const jump = (px) => { const t = M.begin + ((px - plot.x) / plot.w) * (M.end - M.begin), half = (sight.t1 - sight.t0) / 2; look(t - half, t + half); };
  chart.addEventListener("wheel", (e) => { e.preventDefault(); const { px } = nearest(e); if (e.shiftKey) pan(e.deltaY * 0.001); else zoom(Math.exp(clamp(e.deltaY, -120, 120) * 0.0025), timeAt(px)); }, { passive: false });
  chart.addEventListener("pointerdown", (e) => { const { px, py } = nearest(e); drag = { x: e.clientX, t0: sight.t0, t1: sight.t1, moved: false, map: inMap(py) }; if (drag.map) jump(px); });
  window.addEventListener("pointermove", (e) => {
    if (drag) {
      const dx = e.clientX - drag.x;
      if (Math.abs(dx) > 3) drag.moved = true;
      if (drag.map) jump(nearest(e).px);
      else if (drag.moved) { const d = (-dx / plot.w) * (drag.t1 - drag.t0); look(drag.t0 + d, drag.t1 + d); }
      tip.hidden = true;
      return;
    }
    const { hit } = chart.contains(e.target) ? nearest(e) : { hit: null };
    tip.hidden = !hit;
    if (hit) {
      tip.textContent = hit.tip;
      tip.style.left = `${Math.min(e.clientX + 14, innerWidth - tip.offsetWidth - 8)}px`;
      tip.style.top = `${Math.min(e.clientY + 16, innerHeight - tip.offsetHeight - 8)}px`;
    }
  });
  window.addEventListener("pointerup", (e) => { if (drag && !drag.moved && !drag.map) pick(nearest(e).hit); drag = null; });
  window.addEventListener("keydown", (e) => {
    if (e.target.tagName === "INPUT" && e.target.type === "number") return;
    const action = { "+": "in", "=": "in", "-": "out", ArrowLeft: "back", ArrowRight: "on", 0: "all", Home: "first" }[e.key];
    if (action) { ACTIONS[action](); e.preventDefault(); }
    if (e.key === "Escape") pick(null);
  });
  window.addEventListener("resize", draw);
}

// A link may say what to show: #from=0.5&to=0.9&theme=dark
const wanted = new URLSearchParams(location.hash.slice(1));
const dark = wanted.get("theme") ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
document.documentElement.classList.toggle("dark", dark === "dark");
frame();
listen();
look(parseFloat(wanted.get("from") ?? M.first), parseFloat(wanted.get("to") ?? M.last));
document.documentElement.dataset.ready = "true";
