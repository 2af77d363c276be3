// The node and its cluster at a glance.

import { ask, path } from "../api.js";
import { dialog, field } from "../dialog.js";
import { el, replace, say, show, svg } from "../dom.js";
import { bytes, compact, count, duration, rate, seconds } from "../format.js";
import { notice } from "../notices.js";
import { badge, card, facts, heading, loading, spread, Tiles } from "../parts/blocks.js";
import { Chart } from "../parts/chart.js";
import { drawCluster, kindOf } from "../parts/cluster.js";

const NUMBERS = { ready: "Ready", unacked: "Held", publish: "Published", deliver: "Delivered", consumers: "Consumers", connections: "Connections" };

export function overview({ session, poll }) {
  const administrator = session.tags.includes("administrator");
  const whole = administrator || session.tags.includes("monitoring");
  const tiles = new Tiles(whole ? NUMBERS : Object.fromEntries(Object.entries(NUMBERS).filter(([key]) => !["publish", "deliver"].includes(key))), "Numbers");
  const state = el("span", { class: "badges", id: "state" });
  const charts = whole ? [
    new Chart({ title: "Messages a second", format: rate, series: [{ key: "publish", label: "published" }, { key: "deliver", label: "delivered" }, { key: "ack", label: "acknowledged" }, { key: "confirm", label: "confirmed" }] }),
    new Chart({ title: "Messages in queues", format: compact, least: 2, series: [{ key: "ready", label: "ready" }, { key: "unacked", label: "held" }] }),
    new Chart({ title: "Until a publish is confirmed", format: seconds, least: 0.001, series: [{ key: "confirm_mean", label: "mean" }, { key: "confirm_worst", label: "worst" }] }),
    new Chart({ title: "Disk and event loop", format: seconds, least: 0.001, series: [{ key: "sync_mean", label: "disk sync" }, { key: "sync_worst", label: "worst sync" }, { key: "lag_mean", label: "loop lag" }, { key: "lag_worst", label: "worst lag" }] }),
  ] : [];
  const picture = svg("svg", { role: "img", id: "cluster" });
  const members = el("ul", { class: "members", id: "members" });
  const about = el("div", {}, loading());
  const node = el("div", { class: "body spread" });
  const links = show(card("Links to other clusters", el("div", { class: "body" })), false);
  const drain = el("button", { class: "button small danger", type: "button", id: "drain", on: { click: () => askToDrain(session.node, poll) } }, "Drain this node");
  const clusterCard = card("Cluster", el("div", { class: "body cluster" }, picture));
  if (administrator) clusterCard.querySelector("header").append(show(drain, false));
  const memberCard = card("Members", el("div", { class: "body" }, members, about));
  const parts = whole ? [
    tiles.node, el("div", { class: "split" }, clusterCard, memberCard), el("div", { class: "columns" }, charts.map((each) => each.node)),
    card("This node", node), links,
  ] : [tiles.node, el("p", { class: "why" }, "These are the numbers of your own virtual hosts and connections. Rates, the cluster and the node are shown to users with the tag monitoring or administrator.")];

  return {
    title: "Overview",
    nodes: [heading("Overview", state), parts],
    live(live, moments) {
      const last = moments.rows.at(-1);
      for (const name of ["ready", "unacked", "consumers", "connections"]) tiles.set(name, compact(live.totals[name]));
      if (!whole) return;
      for (const name of ["publish", "deliver"]) tiles.set(name, last ? rate(last[name]) : "–");
      for (const each of charts) each.update(moments.rows);
      const cluster = live.cluster;
      replace(state, badge(cluster.state, cluster.state === "serving" ? "good" : "mind"), live.alarms.length ? badge(`alarm: ${live.alarms.join(", ")}`, "bad") : null);
      drawCluster(picture, cluster);
      replace(members, cluster.members.map((member) => memberRow(member, cluster, administrator, poll)));
      replace(about, cluster.clustered ? facts([
        ["View", el("span", { class: "mono" }, cluster.view)], ["Coordinator", cluster.coordinator ?? "–"],
        ["Voters", `${cluster.voters.join(", ") || "none"}${cluster.majority ? `; ${cluster.majority} are a majority` : ""}`],
        ["Log", `epoch ${count(cluster.epoch)}, event ${count(cluster.index)}`], ["Dispatch", cluster.dispatch],
        cluster.waits_for ? ["Waits for", cluster.waits_for] : null,
      ]) : el("p", { class: "why" }, "This node stands alone: it is no cluster."));
      show(drain, cluster.clustered && !["drained", "draining"].includes(cluster.state));
      replace(node, spread(nodeFacts(live)));
      show(links, Boolean(live.links?.length));
      if (live.links?.length) replace(links.querySelector(".body"), facts(live.links.map((each) => [each.to, `${each.state}${each.why ? ` (${each.why})` : ""}, ${count(each.behind)} behind, vhost ${each.vhost}`])));
    },
  };
}

function nodeFacts({ version, uptime, process, totals }) {
  const limit = process.memory_high ? ` of ${bytes(process.memory_high)}` : "";
  return [
    ["Version", version], ["Up for", duration(uptime)], ["Memory", bytes(process.memory)], ["Bodies in memory", `${bytes(process.resident)}${limit}`],
    ["In queues", bytes(totals.bytes)], ["Disk", process.durable ? `${bytes(process.disk_free)} free` : "none: nothing survives a restart"],
    ["Descriptors", `${count(process.descriptors)} of ${count(process.descriptors_max)}`], ["Channels", count(totals.channels)],
  ];
}

function memberRow(member, cluster, administrator, poll) {
  const heard = member.silence === null || member.silence === undefined ? null : `heard ${seconds(member.silence)} ago`;
  const disk = member.disk_index === null ? null : `on disk up to ${count(member.disk_index)}`;
  const forget = administrator && member.state === "lost" && member.voter
    ? el("button", { class: "button small danger", type: "button", on: { click: () => askToForget(member.name, poll) } }, "Forget") : null;
  return el(
    "li", { data: { name: member.name, state: member.state } }, el("b", {}, member.name),
    el("span", { class: "badges" }, badge(member.state, kindOf(member.state)), member.voter ? badge("voter") : null,
      member.name === cluster.coordinator ? badge("coordinator", "accent") : null, member.oldest && cluster.clustered ? badge("keeps time") : null, member.this ? badge("this node") : null),
    forget, el("div", { class: "about" }, [disk, heard].filter(Boolean).join(", ")),
  );
}

async function askToDrain(name, poll) {
  const typed = el("input", { name: "typed", autocomplete: "off", spellcheck: "false" });
  const done = await dialog({
    title: `Drain ${name}?`, danger: true, action: "Drain it",
    text: "Its clients are sent to other nodes, what they held goes back to the queues, the node gives up its vote and leaves the cluster. The process stays until it is stopped; restarted, it joins again.",
    fields: [field(`Type ${name} to go on`, typed)],
    act: () => {
      if (typed.value !== name) throw new Error(`That is not “${name}”.`);
      return ask("POST", path("cluster", "drain"));
    },
  });
  if (done) notice(`${name} is drained: it can be stopped.`);
  poll.now();
}

async function askToForget(name, poll) {
  const done = await dialog({
    title: `Forget ${name}?`, danger: true, action: "Forget it",
    text: "It votes no more. For a node that will not come back: if it does, it is updated and votes again.",
    act: () => ask("POST", path("cluster", "forget"), { name }),
  });
  if (done) notice(`${name} votes no more.`);
  poll.now();
}
