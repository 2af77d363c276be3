// Exchanges at the left, what they are bound to at the right, and a thread for each binding, with its key.

import { el, replace, svg } from "../dom.js";
import { shortened } from "../format.js";
import { link } from "../router.js";
import { empty } from "./blocks.js";

const ROW = 46;
const BOX = 32;
const WIDTH = 760;
const SIDE = 230;

export function drawWiring(place, bindings, kinds, more) {
  if (!bindings.length) {
    replace(place, empty("No bindings here", "Every queue can be reached by its name through the default exchange; this picture shows the others."));
    return;
  }
  const left = new Map();
  const right = new Map();
  for (const each of bindings) {
    left.set(`${each.vhost}\n${each.source}`, { name: each.source, vhost: each.vhost, kind: kinds.get(`${each.vhost}\n${each.source}`) ?? "" });
    const to = `${each.vhost}\n${each.destination}`;
    right.set(`${each.destination_type}\n${to}`, { name: each.destination, vhost: each.vhost, type: each.destination_type, kind: kinds.get(to) ?? "" });
  }
  const rows = Math.max(left.size, right.size);
  const height = rows * ROW + 14;
  const spread = (map) => [...map.keys()].forEach((key, at) => (map.get(key).y = 7 + ((at + 0.5) / map.size) * rows * ROW));
  spread(left);
  spread(right);
  const threads = bindings.map((each) => {
    const from = left.get(`${each.vhost}\n${each.source}`);
    const to = right.get(`${each.destination_type}\n${each.vhost}\n${each.destination}`);
    const [x1, x2] = [SIDE, WIDTH - SIDE];
    const bend = (x2 - x1) / 2;
    const thread = svg("path", { class: "thread", d: `M${x1},${from.y} C${x1 + bend},${from.y} ${x2 - bend},${to.y} ${x2},${to.y}` });
    const key = each.routing_key || Object.keys(each.arguments).join(", ");
    const label = key ? svg("text", { class: "key", x: (x1 + x2) / 2, y: (from.y + to.y) / 2 + 4, "text-anchor": "middle" }, shortened(key, 24)) : null;
    return { from, to, parts: [thread, label].filter(Boolean) };
  });
  const light = (node) => {
    for (const { from, to, parts } of threads) {
      const on = node === null || from === node || to === node;
      for (const part of parts) part.classList.toggle("dim", !on);
      parts[0].classList.toggle("lit", on && node !== null);
    }
  };
  const box = (node, x, target, kind) => {
    const on = { pointerenter: () => light(node), pointerleave: () => light(null), focus: () => light(node), blur: () => light(null) };
    return svg(
      "a", { class: kind, href: target, on, "aria-label": `${kind} ${node.name} in vhost ${node.vhost}` },
      svg("title", {}, `${node.name} (vhost ${node.vhost})`),
      svg("rect", { class: "box", x, y: node.y - BOX / 2, width: SIDE - 2, height: BOX, rx: 8 }),
      svg("text", { x: x + 11, y: node.y + 4.5 }, shortened(node.name, kind === "exchange" ? 22 : 27)),
      kind === "exchange" ? svg("text", { class: "kind", x: x + SIDE - 12, y: node.y + 4, "text-anchor": "end" }, node.kind ?? "exchange") : null,
    );
  };
  const picture = svg(
    "svg", { viewBox: `0 0 ${WIDTH} ${height}`, "aria-label": `${bindings.length} bindings from ${left.size} exchanges`, role: "group" },
    threads.map((each) => each.parts[0]), threads.map((each) => each.parts[1] ?? null),
    [...left.values()].map((node) => box(node, 1, link("exchanges", [], { name: node.name }), "exchange")),
    [...right.values()].map((node) => {
      const target = node.type === "queue" ? link("queue", [node.vhost, node.name]) : link("exchanges", [], { name: node.name });
      return box(node, WIDTH - SIDE, target, node.type);
    }),
  );
  replace(place, el("div", { class: "body wiring" }, picture), more ? el("p", { class: "why body" }, more) : null);
}
