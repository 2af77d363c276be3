// What is in a queue, by position. Looking changes nothing: no message is taken, none counts as delivered.

import { get, path } from "../api.js";
import { el, replace, show } from "../dom.js";
import { bytes, count, shortened } from "../format.js";
import { badge, empty, facts, loading } from "../parts/blocks.js";
import { Table } from "../parts/table.js";

const LIMIT = 20;
const PREVIEW = 2000;

export class Messages {
  constructor(vhost, name) {
    Object.assign(this, { vhost, name, opened: null, read: null });
    this.first = el("input", { type: "number", min: "1", value: "1", id: "first", inputmode: "numeric", "aria-label": "From position", on: { change: () => this.load() } });
    const button = (text, id, act) => el("button", { class: "button small", type: "button", id, on: { click: act } }, text);
    this.more = button("Further", "further", () => this.from(this.next));
    this.bar = el("div", { class: "bar" }, el("label", { class: "check" }, "From position", this.first), button("Oldest", "oldest", () => this.from(1)), button("Newest", "newest", () => this.from(Math.max(1, this.end - LIMIT))), this.more);
    this.first.style.width = "8rem";
    this.table = new Table({ label: "Messages", key: (row) => String(row.position), columns: [
      { title: "Position", number: true, cell: (row) => count(row.position) },
      { title: "Body", class: "name", cell: (row) => el("button", { class: "button small quiet mono body-of", type: "button", "aria-expanded": String(this.opened === row.position), on: { click: () => this.open(row) } }, preview(row)) },
      { title: "State", cell: (row) => el("span", { class: "badges" }, badge(row.state === "ready" ? "ready" : "held", row.state === "ready" ? "" : "accent"), row.redelivered ? badge("redelivered", "mind") : null) },
      { title: "Key", class: "wide", cell: (row) => el("span", { class: "mono" }, shortened(row.routing_key, 60)) },
      { title: "Size", number: true, cell: (row) => bytes(row.payload_bytes) },
    ] });
    this.state = el("div", {}, loading());
    this.node = el("section", { class: "card", "aria-label": "Messages", id: "messages" }, el("header", {}, el("h2", {}, "Messages"), this.bar), this.state, this.table.node);
    show(this.table.node, false);
  }

  // Of the queue: whether its messages may be read, how many there are, which position is the next, and why they may not.
  about(may, total, end, why) {
    this.end = end;
    if (this.total === 0 && total > 0 && this.read) this.load();
    this.total = total;
    if (this.read === may) return;
    this.read = may;
    show(this.bar, may);
    if (may) this.load();
    else replace(show(this.state, true), empty("Its messages are not shown", why));
  }

  from(position) {
    this.first.value = position;
    this.load();
  }

  async load() {
    if (!this.read) return;
    const first = Math.max(1, Math.floor(Number(this.first.value)) || 1);
    try {
      const found = await get(`${path("queues", this.vhost, this.name, "messages")}?first=${first}&limit=${LIMIT}&truncate=${PREVIEW}`);
      this.show(found);
    } catch (error) {
      show(this.table.node, false);
      replace(show(this.state, true), empty("They cannot be shown now", error.message));
    }
  }

  show(found) {
    this.next = found.next_first;
    this.end = found.next_position;
    this.more.disabled = this.next === null;
    const some = found.items.length > 0;
    show(this.state, !some);
    show(this.table.node, some);
    this.opened = null;
    if (some) this.table.update(found.items);
    else replace(this.state, this.first.value > 1 ? empty("Nothing from there on", "What is left, if anything, stands before that position.") : empty("No messages", "The queue is empty."));
  }

  open(row) {
    this.node.querySelector("tr.opened")?.remove();
    const rows = this.table.rows;
    for (const each of rows.values()) each.querySelector("[aria-expanded]").setAttribute("aria-expanded", "false");
    if (this.opened === row.position) {
      this.opened = null;
      return;
    }
    this.opened = row.position;
    const line = rows.get(String(row.position));
    line.querySelector("[aria-expanded]").setAttribute("aria-expanded", "true");
    line.after(el("tr", { class: "opened fade" }, el("td", { colspan: "5" }, this.detail(row))));
  }

  detail(row) {
    const body = el("pre", { class: "payload" }, pretty(row));
    const cut = row.payload_bytes > PREVIEW;
    const all = el("button", { class: "button small", type: "button", on: { click: async () => {
      const { items } = await get(`${path("queues", this.vhost, this.name, "messages")}?first=${row.position}&last=${row.position}`);
      if (items.length) body.textContent = pretty(items[0]);
      show(all, false);
    } } }, `Show all ${bytes(row.payload_bytes)}`);
    const { headers, ...properties } = row.properties ?? {};
    return el(
      "div", { class: "detail" },
      facts([
        ["Exchange", row.exchange || "the default exchange"], ["Key", el("span", { class: "mono" }, row.routing_key)],
        ...Object.entries(properties).map(([name, value]) => [name.replaceAll("_", " "), String(value)]),
        ...Object.entries(headers ?? {}).map(([name, value]) => [`header ${name}`, typeof value === "string" ? value : JSON.stringify(value)]),
        row.properties_error ? ["Properties", row.properties_error] : null,
        row.payload_encoding === "base64" ? ["Body", "not text: shown as base64"] : null,
      ]), body, show(all, cut),
    );
  }
}

function preview(row) {
  if (row.payload_bytes === 0) return "(empty)";
  return shortened(row.payload_encoding === "base64" ? `base64 ${row.payload}` : row.payload.replace(/\s+/g, " "), 90);
}

function pretty(row) {
  if (row.payload_encoding === "base64" || row.payload.length < 2 || row.payload_bytes > 200000) return row.payload;
  try {
    return JSON.stringify(JSON.parse(row.payload), null, 2);
  } catch {
    return row.payload;
  }
}
