// Small pieces that many screens have.

import { el, say } from "../dom.js";

export const loading = () => el("p", { class: "loading", role: "status" }, "Loading…");

export const empty = (title, text, ...more) => el("div", { class: "empty" }, el("b", {}, title), text ? el("p", {}, text) : null, more);

export const badge = (text, kind = "") => el("span", { class: `badge ${kind}`.trim() }, text);

export const card = (title, ...content) => el("section", { class: "card", "aria-label": title }, el("header", {}, el("h2", {}, title)), content);

const pair = ([name, value]) => [el("dt", {}, name), el("dd", {}, value)];

export const facts = (pairs) => el("dl", { class: "facts" }, pairs.filter(Boolean).map(pair));

// The same side by side, each under its name.
export const spread = (pairs) => el("dl", { class: "facts" }, pairs.filter(Boolean).map((each) => el("div", {}, pair(each))));

// A row of numbers; each is an element that `set` changes.
export class Tiles {
  constructor(names, label) {
    this.values = new Map();
    this.node = el("dl", { class: "tiles card", "aria-label": label }, Object.entries(names).map(([key, name]) => {
      const value = el("dd", { data: { tile: key } }, "–");
      this.values.set(key, value);
      return el("div", {}, el("dt", {}, name), value);
    }));
  }

  set(key, text) {
    say(this.values.get(key), text);
  }
}

export function heading(title, ...more) {
  return el("header", { class: "title" }, el("h1", { tabindex: "-1" }, title), more);
}

// One of several panels at a time. Arrows go from tab to tab.
export function tabs(label, names, chosen, choose) {
  const buttons = Object.entries(names).map(([key, name]) =>
    el("button", { type: "button", role: "tab", data: { tab: key }, on: { click: () => pick(key, true) } }, name));
  const pick = (key, tell) => {
    for (const each of buttons) {
      const is = each.dataset.tab === key;
      each.setAttribute("aria-selected", is);
      each.tabIndex = is ? 0 : -1;
      if (is && tell) each.focus();
    }
    if (tell) choose(key);
  };
  const keydown = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const at = buttons.findIndex((each) => each.getAttribute("aria-selected") === "true");
    pick(buttons[(at + step + buttons.length) % buttons.length].dataset.tab, true);
  };
  pick(chosen, false);
  return el("div", { class: "tabs", role: "tablist", "aria-label": label, on: { keydown } }, buttons);
}
