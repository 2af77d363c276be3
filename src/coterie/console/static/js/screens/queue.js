// One queue: its numbers, what is in it, who consumes it, and what can be done with it.

import { get, path } from "../api.js";
import { el, replace, show } from "../dom.js";
import { bytes, compact, count, duration, rate } from "../format.js";
import { badge, card, empty, facts, heading, loading, Tiles } from "../parts/blocks.js";
import { Chart } from "../parts/chart.js";
import { link } from "../router.js";
import { askToDelete, askToMove, askToPublish, askToPurge } from "./queue_actions.js";
import { Messages } from "./queue_messages.js";

const NUMBERS = { ready: "Ready", unacked: "Held", publish: "In", deliver: "Out", consumers: "Consumers", bytes: "Size", replicas: "Replicas" };
const KEPT = 240;

export function queue({ poll, parts: [vhost, name] }) {
  const tiles = new Tiles(NUMBERS, "Numbers");
  const badges = el("span", { class: "badges" });
  const depth = new Chart({ title: "Messages", format: compact, least: 2, series: [{ key: "ready", label: "ready" }, { key: "unacked", label: "held" }] });
  const speed = new Chart({ title: "Messages a second", format: rate, series: [{ key: "publish", label: "in" }, { key: "deliver", label: "out" }, { key: "ack", label: "acknowledged" }] });
  const rows = [];
  const place = () => ({ vhost, name });
  const button = (text, id, act, kind = "") => el("button", { class: `button ${kind}`.trim(), type: "button", id, disabled: true, on: { click: act } }, text);
  const changed = (fromFront = false) => {
    poll.now();
    if (fromFront) messages.from(1);
    else messages.load();
  };
  const actions = {
    publish: button("Publish", "publish", () => askToPublish(place(), () => changed()), "main-one"),
    move: button("Move", "move", () => askToMove(place(), ready, () => changed(true))),
    purge: button("Purge", "purge", () => askToPurge(place(), ready, () => changed(true)), "danger"),
    remove: button("Delete", "delete", () => askToDelete(place(), total), "danger"),
  };
  const why = show(el("p", { class: "why", id: "why" }), false);
  const messages = new Messages(vhost, name);
  const consumers = el("div", { class: "body" }, loading());
  const bindings = el("div", { class: "body" }, loading());
  const about = el("div", { class: "body" }, loading());
  const gone = show(el("section", { class: "card" }), false);
  let [ready, total] = [0, 0];

  get(path("queues", vhost, name, "bindings")).then(
    (found) => replace(bindings, bindingList(found)), (error) => replace(bindings, el("p", { class: "why" }, error.message)),
  );

  return {
    title: name,
    nodes: [
      el("nav", { class: "trail", "aria-label": "Where" }, el("a", { href: link("queues") }, "Queues"), ` › virtual host ${vhost}`),
      heading(name, badges, el("div", { class: "push" }, Object.values(actions))), why, gone, tiles.node,
      el("div", { class: "columns" }, depth.node, speed.node), messages.node,
      el("div", { class: "columns three" }, card("Consumers", consumers), card("Bindings", bindings), card("Definition", about)),
    ],
    address: () => [`/queues/${encodeURIComponent(vhost)}/${encodeURIComponent(name)}`, {}],
    shown(found, live) {
      [ready, total] = [found.messages_ready, found.messages];
      show(gone, false);
      const stats = found.message_stats;
      const now = { time: live.now, ready, unacked: found.messages_unacknowledged, publish: stats.publish_details.rate, deliver: stats.deliver_get_details.rate, ack: stats.ack_details.rate };
      rows.push(now);
      rows.splice(0, Math.max(0, rows.length - KEPT));
      depth.update(rows);
      speed.update(rows);
      tiles.set("ready", count(ready));
      tiles.set("unacked", count(found.messages_unacknowledged));
      tiles.set("publish", rate(now.publish));
      tiles.set("deliver", rate(now.deliver));
      tiles.set("consumers", count(found.consumers));
      tiles.set("bytes", bytes(found.message_bytes));
      tiles.set("replicas", found.home ? `at ${found.home}` : `${found.replicas} of ${found.replicas_wanted}`);
      replace(badges, badge(found.kind), badge(found.durable ? "durable" : "transient"), found.exclusive ? badge("exclusive", "mind") : null,
        found.policy ? badge(`policy ${found.policy}`, "accent") : null, found.replicas < found.replicas_wanted ? badge("not on every node", "mind") : null);
      replace(consumers, found.consumer_details.length || !found.lease_details.length ? consumerList(found.consumer_details) : null, leaseList(found.lease_details));
      replace(about, definition(found));
      permit(actions, why, found, live);
      messages.about(found.may.read && found.may.open, total, found.next_position, found.may.open ? "To look at them you need the permission to read the queue." : "The queue is exclusive to a connection, and so is what is in it.");
    },
    refused(error) {
      for (const each of Object.values(actions)) each.disabled = true;
      replace(show(gone, true), empty("This queue is not shown", error.message, el("a", { href: link("queues") }, "To all queues")));
      return true;
    },
  };
}

// What may not be done is no button that works, and it is said why.
function permit(actions, why, found, live) {
  const { may } = found;
  const reasons = [];
  const allow = (button, is, what) => {
    button.disabled = !is;
    if (!is && what) reasons.push(what);
  };
  const closed = live.closed || (live.blocked && `the broker is ${live.blocked}`);
  allow(actions.publish, may.publish && !closed, may.publish ? `publish (${closed})` : "publish (needs write on amq.default)");
  allow(actions.move, may.read && may.open && found.home === null, may.read ? null : "move (needs read)");
  allow(actions.purge, may.read && may.open, may.read ? null : "purge (needs read)");
  allow(actions.remove, may.configure && may.open, may.configure ? null : "delete (needs configure)");
  if (!may.open) reasons.push("move, purge, delete or look into it: it is exclusive to a connection");
  show(why, reasons.length > 0);
  why.textContent = reasons.length ? `${live.user} may not: ${reasons.join(", ")}.` : "";
}

function consumerList(found) {
  if (!found.length) return empty("Nobody consumes", "Messages wait here until somebody does.");
  return el("ul", { class: "members" }, found.map((each) => {
    const at = each.channel_details;
    const who = at ? `${at.user} from ${at.peer_host}:${at.peer_port}` : `a client of ${each.node ?? "another node"}`;
    const how = [each.ack_required ? "acknowledges" : "acknowledges nothing", each.prefetch_count ? `prefetch ${each.prefetch_count}` : null, each.activity_status !== "up" ? each.activity_status : null];
    return el("li", {}, el("b", { class: "mono" }, each.consumer_tag), el("span"), el("span"), el("div", { class: "about" }, `${who}; ${how.filter(Boolean).join(", ")}`));
  }));
}

// Readers of streams: how far each is behind, and whether it is still there.
function leaseList(found) {
  if (!found.length) return null;
  return el("ul", { class: "members", id: "leases" }, found.map((each) => el(
    "li", {}, el("b", { class: "mono" }, each.name), el("span"), el("span"),
    el("div", { class: "about" }, `a lease of ${each.user}; lag ${count(each.lag)}, holds ${count(each.count)}; unused for ${duration(each.idle * 1000)}`),
  )));
}

function bindingList(found) {
  return el("ul", { class: "members" }, found.map((each) => el(
    "li", {}, el("b", {}, each.source || "the default exchange"), el("span", { class: "mono" }, each.routing_key), el("span"),
    Object.keys(each.arguments).length ? el("div", { class: "about mono" }, JSON.stringify(each.arguments)) : null,
  )));
}

function definition(found) {
  const limits = Object.entries(found.effective_limits).map(([key, value]) => [key, String(value)]);
  const given = Object.entries(found.arguments).map(([key, value]) => [key, typeof value === "string" ? value : JSON.stringify(value)]);
  return facts([
    ["Type", `${found.type}, ${found.kind}`], ["Replicated", found.home ? `no, at home on ${found.home}` : found.replicas_wanted > 1 ? "on every node of the cluster" : "no, the node stands alone"],
    ["Policy", found.policy ?? "none"], found.operator_policy ? ["Operator policy", found.operator_policy] : null,
    ["Next position", count(found.next_position)], ["Redelivered", count(found.message_stats.redeliver)], ["Dead letters", count(found.counters.dead_lettered)],
    ...given, ...limits.filter(([key]) => !given.some(([name]) => name === `x-${key}`)),
  ]);
}
