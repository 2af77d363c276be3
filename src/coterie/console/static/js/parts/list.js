// A list that the node searches, sorts and cuts into pages: only what is on the screen comes over the wire.

import { el, replace, say, show } from "../dom.js";
import { count, plural } from "../format.js";
import { amend, here } from "../router.js";
import { empty, loading } from "./blocks.js";
import { Table } from "./table.js";

const SIZE = 50;
const PATIENCE = 250;

export class List {
  // `path`: the list under /api; `columns` and `key` as for a table; `things`: what they are called.
  constructor({ poll, path, columns, key, label, things, sort = "", reverse = false, nothing, extra = {} }) {
    const query = here().query;
    Object.assign(this, { poll, path, things, nothing, extra, size: SIZE });
    this.page = Math.max(1, Number(query.get("page")) || 1);
    this.name = query.get("name") ?? "";
    this.sort = query.get("sort") ?? sort;
    this.reverse = query.has("sort") ? query.get("reverse") === "true" : reverse;
    this.table = new Table({ label, columns, key, onsort: (by) => this.order(by) });
    this.input = el("input", {
      type: "search", placeholder: `Search ${things}`, "aria-label": `Search ${things} by name`, value: this.name, id: "search",
      autocomplete: "off", spellcheck: "false", on: { input: () => this.typed() },
    });
    this.filters = el("div", { class: "bar" }, el("div", { class: "search" }, this.input));
    this.told = el("span", { role: "status" });
    this.before = el("button", { class: "button small", type: "button", on: { click: () => this.turn(-1) } }, "Previous");
    this.after = el("button", { class: "button small", type: "button", on: { click: () => this.turn(1) } }, "Next");
    this.pager = el("div", { class: "pager" }, this.told, el("nav", { class: "bar", "aria-label": "Pages" }, this.before, this.after));
    this.state = el("div", {}, loading());
    this.card = el("section", { class: "card", "aria-label": label }, this.state, this.table.node, this.pager);
    show(this.table.node, false);
    show(this.pager, false);
  }

  get nodes() {
    return [this.filters, this.card];
  }

  address() {
    const query = { page: this.page, page_size: this.size, ...this.extra };
    if (this.name) query.name = this.name;
    if (this.sort) Object.assign(query, { sort: this.sort, sort_reverse: this.reverse });
    return [this.path, query];
  }

  shown(answer) {
    if (this.page > answer.page_count) {
      this.page = answer.page_count;
      this.changed();
      return;
    }
    const some = answer.items.length > 0;
    this.table.sorted(this.sort, this.reverse);
    this.table.update(answer.items);
    show(this.table.node, some);
    show(this.pager, some);
    show(this.state, !some);
    if (!some) replace(this.state, this.name ? empty(`No ${this.things} match`, `Nothing here has “${this.name}” in its name.`) : this.nothing ?? empty(`No ${this.things}`));
    const first = (answer.page - 1) * this.size + 1;
    const last = first + answer.items.length - 1;
    const found = answer.filtered_count;
    const of = this.name ? `${plural(found, "match", "matches")} among ${count(answer.total_count)}` : plural(found, one(this.things), this.things);
    say(this.told, answer.page_count > 1 ? `${count(first)} to ${count(last)} of ${of}` : of);
    this.before.disabled = answer.page <= 1;
    this.after.disabled = answer.page >= answer.page_count;
    show(this.before.parentNode, answer.page_count > 1);
  }

  refused(error) {
    if (error.status === 400 && this.page > 1) {
      this.page = 1; // it got shorter meanwhile
      this.changed();
      return true;
    }
    show(this.table.node, false);
    show(this.pager, false);
    replace(show(this.state, true), empty("This is not shown", error.message));
    return true;
  }

  typed() {
    clearTimeout(this.waiting);
    this.waiting = setTimeout(() => {
      this.name = this.input.value.trim();
      this.page = 1;
      this.changed();
    }, PATIENCE);
  }

  order(by) {
    this.reverse = this.sort === by ? !this.reverse : by !== "name";
    this.sort = by;
    this.page = 1;
    this.changed();
  }

  turn(by) {
    this.page += by;
    this.changed();
    this.card.scrollIntoView({ block: "nearest" });
  }

  changed() {
    amend({ page: this.page > 1 ? this.page : "", name: this.name, sort: this.sort, reverse: this.sort ? this.reverse : "" });
    this.poll.now();
  }
}

const one = (things) => things.replace(/ies$/, "y").replace(/s$/, "");
