// A table whose rows stay the same elements while their numbers change: the focus and the selection stay where they are.
// One row is in the order of Tab; arrows, Home and End go to the others.

import { el, say } from "../dom.js";

export class Table {
  // columns: {key, title, cell(row) -> text or element, number, sort, class}; `sorted`: {sort, reverse}, `onsort(sort)`.
  constructor({ label, columns, key, onsort }) {
    this.columns = columns;
    this.key = key;
    this.rows = new Map();
    this.heads = new Map();
    this.body = el("tbody", { on: { keydown: (event) => this.move(event), focusin: (event) => this.entered(event.target.closest("tr")) } });
    const head = columns.map((column) => {
      const title = column.sort ? el("button", { type: "button", on: { click: () => onsort(column.sort) } }, column.title) : column.title;
      const cell = el("th", { scope: "col", class: column.number ? "number" : null }, title);
      if (column.sort) this.heads.set(column.sort, cell);
      return cell;
    });
    this.node = el("div", { class: "table-wrap" }, el("table", { class: "stacks", "aria-label": label }, el("thead", {}, el("tr", {}, head)), this.body));
  }

  sorted(sort, reverse) {
    for (const [name, cell] of this.heads) {
      if (name === sort) cell.setAttribute("aria-sort", reverse ? "descending" : "ascending");
      else cell.removeAttribute("aria-sort");
    }
  }

  update(rows) {
    const before = this.rows;
    const focused = this.body.contains(document.activeElement) ? document.activeElement.closest("tr") : null;
    const at = focused ? items(focused).indexOf(document.activeElement) : -1;
    this.rows = new Map();
    const wanted = rows.map((row) => {
      const key = this.key(row);
      const node = before.get(key) ?? el("tr", {}, this.columns.map((column) => this.makeCell(column)));
      this.rows.set(key, node);
      this.columns.forEach((column, at) => put(node.children[at], column.cell(row)));
      return node;
    });
    const current = [...this.body.children];
    if (current.length !== wanted.length || wanted.some((node, at) => node !== current[at])) this.body.replaceChildren(...wanted);
    this.entered(this.body.contains(this.current) ? this.current : this.body.firstElementChild);
    // A row that was moved, or drawn anew, has lost the focus: it gets it back.
    if (at >= 0 && !this.body.contains(document.activeElement)) items(this.current)[at]?.focus();
  }

  makeCell(column) {
    const kind = [column.number ? "number" : "", column.class ?? ""].join(" ").trim();
    return el("td", { class: kind || null, data: { label: column.title } });
  }

  entered(row) {
    if (!row) return;
    this.current = row;
    for (const each of this.body.children) {
      for (const item of items(each)) item.tabIndex = each === row ? 0 : -1;
    }
  }

  move(event) {
    const row = event.target.closest("tr");
    const all = [...this.body.children].filter((each) => each.querySelector("a, button"));
    const at = all.indexOf(row);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: all.length - 1 }[event.key];
    if (to === undefined || !all[to]) return;
    event.preventDefault();
    all[to].querySelector("a, button").focus();
  }
}

const items = (row) => (row ? [...row.querySelectorAll("a, button")] : []);
const drawn = new WeakMap();

// What is there may have changed since it was drawn (its place in the order of Tab): it is compared as it was then.
function put(cell, content) {
  if (content instanceof Node) {
    if (drawn.get(cell)?.isEqualNode(content)) return;
    drawn.set(cell, content.cloneNode(true));
    cell.replaceChildren(content);
  } else say(cell, content ?? "");
}

export const zero = (value, text) => (value ? text : el("span", { class: "zero" }, text));
