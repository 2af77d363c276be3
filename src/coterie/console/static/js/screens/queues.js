// All queues: searched, sorted and cut into pages by the node.

import { ask, path } from "../api.js";
import { dialog, field } from "../dialog.js";
import { el } from "../dom.js";
import { bytes, count, rate } from "../format.js";
import { notice } from "../notices.js";
import { badge, empty, heading } from "../parts/blocks.js";
import { List } from "../parts/list.js";
import { zero } from "../parts/table.js";
import { link } from "../router.js";

const COLUMNS = [
  { title: "Queue", sort: "name", class: "name", cell: name },
  { title: "Ready", sort: "messages_ready", number: true, cell: (row) => zero(row.messages_ready, count(row.messages_ready)) },
  { title: "Held", sort: "messages_unacknowledged", number: true, cell: (row) => zero(row.messages_unacknowledged, count(row.messages_unacknowledged)) },
  { title: "In", sort: "message_stats.publish_details.rate", number: true, cell: (row) => speed(row, "publish") },
  { title: "Out", sort: "message_stats.deliver_get_details.rate", number: true, cell: (row) => speed(row, "deliver_get") },
  { title: "Consumers", sort: "consumers", number: true, cell: (row) => zero(row.consumers, count(row.consumers)) },
  { title: "Size", sort: "message_bytes", number: true, class: "gone", cell: (row) => zero(row.message_bytes, bytes(row.message_bytes)) },
  { title: "Replicas", sort: "replicas", number: true, cell: replicas },
  { title: "Owner", class: "gone", cell: (row) => row.owner ?? el("span", { class: "zero" }, "all") },
];

// Of a queue there is much more to tell: what a row shows is enough here.
const SHOWN = [
  "name", "vhost", "kind", "durable", "exclusive", "auto_delete", "policy", "messages_ready", "messages_unacknowledged", "consumers", "message_bytes",
  "replicas", "replicas_wanted", "home", "owner", "message_stats.publish_details", "message_stats.deliver_get_details",
].join(",");

function name(row) {
  const words = [
    row.kind !== "fifo" ? row.kind : null, row.durable ? null : "transient", row.exclusive ? "exclusive" : null,
    row.auto_delete ? "auto-delete" : null, row.policy ? `policy ${row.policy}` : null,
  ].filter(Boolean);
  return el("span", {}, el("a", { href: link("queue", [row.vhost, row.name]) }, row.name || "(no name)"), " ",
    el("span", { class: "badges" }, row.vhost !== "/" ? badge(row.vhost, "accent") : null, words.map((word) => badge(word))));
}

function speed(row, what) {
  const value = row.message_stats[`${what}_details`].rate;
  return zero(value, rate(value));
}

export function replicas(row) {
  if (row.replicas_wanted === 1) return el("span", { class: "zero" }, row.home ? "at home" : "1");
  return row.replicas >= row.replicas_wanted ? `${row.replicas} of ${row.replicas_wanted}` : badge(`${row.replicas} of ${row.replicas_wanted}`, "mind");
}

export function queues({ poll, session }) {
  const nothing = empty("No queues yet", "Clients declare them, or you do.");
  const list = new List({ poll, path: "/queues", columns: COLUMNS, key: (row) => `${row.vhost}\n${row.name}`, label: "Queues", things: "queues", nothing, extra: { columns: SHOWN } });
  const add = el("button", { class: "button", type: "button", id: "add", on: { click: () => declare(poll) } }, "New queue");
  const may = session.tags.length > 0;
  return {
    title: "Queues",
    nodes: [heading("Queues", may ? el("div", { class: "push" }, add) : null), list.nodes],
    address: () => list.address(),
    shown: (answer) => list.shown(answer),
    refused: (error) => list.refused(error),
  };
}

async function declare(poll) {
  const vhost = el("input", { value: "/", autocomplete: "off" });
  const name = el("input", { autofocus: true, autocomplete: "off", spellcheck: "false" });
  const durable = el("input", { type: "checkbox", checked: true });
  const more = el("textarea", { spellcheck: "false", placeholder: '{"x-max-length": 1000}' });
  const done = await dialog({
    title: "New queue", action: "Declare it",
    fields: [field("Name", name), field("Virtual host", vhost), el("label", { class: "check" }, durable, "Durable: it survives a restart"), field("Arguments", more, "A JSON object, or nothing")],
    act: () => {
      if (!name.value) throw new Error("A queue has a name.");
      return ask("PUT", path("queues", vhost.value, name.value), { durable: durable.checked, arguments: more.value.trim() ? JSON.parse(more.value) : {} });
    },
  });
  if (done) notice(`The queue ${name.value} is there.`);
  poll.now();
}
