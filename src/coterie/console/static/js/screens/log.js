// What the node has logged lately, the newest first.

import { el, replace, show } from "../dom.js";
import { clock } from "../format.js";
import { badge, empty, heading, loading } from "../parts/blocks.js";

const LINES = 300;
const KINDS = { warning: "mind", error: "bad", critical: "bad", debug: "" };

export function log({ poll }) {
  let name = "";
  let drawn = "";
  let waiting = 0;
  const level = el("select", { "aria-label": "Level", id: "level", on: { change: () => poll.now() } }, ["debug", "info", "warning", "error"].map((each) => el("option", { value: each, selected: each === "info" }, each === "debug" ? "everything" : `${each} and graver`)));
  const search = el("input", { type: "search", id: "search", placeholder: "Search the log", "aria-label": "Search the log", on: { input: () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      name = search.value.trim();
      poll.now();
    }, 250);
  } } });
  const lines = el("ol", { class: "log", id: "log" });
  const state = el("div", {}, loading());
  return {
    title: "Log",
    nodes: [heading("Log"), el("div", { class: "bar" }, el("div", { class: "search" }, search), level), el("section", { class: "card", "aria-label": "Log" }, state, lines)],
    address: () => ["/log", { level: level.value, limit: LINES, ...(name ? { name } : {}) }],
    shown({ items }) {
      const text = `${level.value} ${name} ${items.at(0)?.number} ${items.at(-1)?.number}`;
      if (text === drawn) return;
      drawn = text;
      show(state, !items.length);
      if (!items.length) replace(state, empty("Nothing was logged", name ? `No line that is kept has “${name}” in it.` : "Not at this level."));
      replace(lines, items.reverse().map(line));
    },
    refused: (error) => Boolean(replace(show(state, true), empty("This is not shown", error.message))),
  };
}

function line(each) {
  const facts = Object.entries(each.facts).map(([name, value]) => el("span", { class: "fact" }, ` ${name}=`, el("b", {}, value)));
  return el(
    "li", { data: { level: each.level } }, el("time", { datetime: new Date(each.time * 1000).toISOString() }, clock(each.time)),
    el("span", {}, badge(each.level, KINDS[each.level] ?? "")), el("span", { class: "what" }, each.event, facts, " ", el("span", { class: "where" }, each.logger)),
  );
}
