// Who is connected to this node, and by how many channels.

import { ask, path } from "../api.js";
import { dialog, field } from "../dialog.js";
import { el } from "../dom.js";
import { bytes, count, day } from "../format.js";
import { notice } from "../notices.js";
import { badge, empty, heading, tabs } from "../parts/blocks.js";
import { List } from "../parts/list.js";
import { zero } from "../parts/table.js";
import { here, link } from "../router.js";

const TABS = { connections: "Connections", channels: "Channels" };
const KINDS = { running: "good", blocked: "bad", blocking: "bad", flow: "mind" };

const columns = (poll, session) => [
  { title: "Client", class: "name", sort: "name", cell: (row) => el("span", {}, el("b", {}, row.user_provided_name ?? row.name), " ", el("span", { class: "faint" }, row.user_provided_name ? `${row.peer_host}:${row.peer_port}` : "")) },
  { title: "User", sort: "user", cell: (row) => el("span", {}, row.user, " ", row.vhost !== "/" ? badge(row.vhost, "accent") : null) },
  { title: "State", sort: "state", cell: (row) => badge(row.state, KINDS[row.state] ?? "") },
  { title: "Channels", sort: "channels", number: true, cell: (row) => count(row.channels) },
  { title: "From it", sort: "recv_oct_details.rate", number: true, cell: (row) => zero(row.recv_oct_details.rate, `${bytes(row.recv_oct_details.rate)}/s`) },
  { title: "To it", sort: "send_oct_details.rate", number: true, cell: (row) => zero(row.send_oct_details.rate, `${bytes(row.send_oct_details.rate)}/s`) },
  { title: "Since", sort: "connected_at", class: "gone short", cell: (row) => day(row.connected_at) },
  { title: "", cell: (row) => (session.tags.includes("administrator") || row.user === session.name ? el("button", { class: "button small danger", type: "button", "aria-label": `Close ${row.name}`, on: { click: () => askToClose(row, poll) } }, "Close") : "") },
];
const CHANNELS = [
  { title: "Channel", class: "name", sort: "name", cell: (row) => row.name },
  { title: "User", sort: "user", cell: (row) => row.user },
  { title: "Mode", cell: (row) => el("span", { class: "badges" }, row.confirm ? badge("confirms") : null, row.transactional ? badge("transactions") : null) },
  { title: "Consumers", sort: "consumer_count", number: true, cell: (row) => zero(row.consumer_count, count(row.consumer_count)) },
  { title: "Prefetch", sort: "prefetch_count", number: true, cell: (row) => (row.prefetch_count ? count(row.prefetch_count) : el("span", { class: "zero" }, "none")) },
  { title: "Held", sort: "messages_unacknowledged", number: true, cell: (row) => zero(row.messages_unacknowledged, count(row.messages_unacknowledged)) },
  { title: "Unconfirmed", sort: "messages_unconfirmed", number: true, cell: (row) => zero(row.messages_unconfirmed, count(row.messages_unconfirmed)) },
];

export function connections({ poll, session }) {
  const chosen = Object.hasOwn(TABS, here().parts[0] ?? "") ? here().parts[0] : "connections";
  const choose = (tab) => (location.hash = link("connections", tab === "connections" ? [] : [tab]));
  const nothing = empty(`No ${chosen}`, `No client is connected to ${session.node}. Clients of other nodes are on their own pages.`);
  const list = new List({ poll, path: `/${chosen}`, columns: chosen === "channels" ? CHANNELS : columns(poll, session), key: (row) => row.name, label: TABS[chosen], things: chosen, nothing });
  return {
    title: "Connections",
    nodes: [heading("Connections", el("span", { class: "faint" }, `of clients to ${session.node}`)), tabs("Clients", TABS, chosen, choose), list.nodes],
    address: () => list.address(),
    shown: (answer) => list.shown(answer),
    refused: (error) => list.refused(error),
  };
}

async function askToClose(row, poll) {
  const reason = el("input", { value: "Closed by an operator", maxlength: "200", autocomplete: "off" });
  const done = await dialog({
    title: "Close this connection?", danger: true, action: "Close it", text: row.name,
    fields: [field("What the client is told", reason)],
    act: () => ask("DELETE", path("connections", row.name), undefined, { headers: { "X-Reason": reason.value.replace(/[^\x20-\x7e]/g, "?") } }),
  });
  if (done) notice("The connection is closed.");
  poll.now();
}
