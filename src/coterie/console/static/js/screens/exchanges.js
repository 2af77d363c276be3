// Exchanges and bindings: as lists, and as a picture.

import { get } from "../api.js";
import { el, replace } from "../dom.js";
import { plural } from "../format.js";
import { badge, heading, loading, tabs } from "../parts/blocks.js";
import { List } from "../parts/list.js";
import { drawWiring } from "../parts/wiring.js";
import { here, link } from "../router.js";

const DRAWN = 120;
const TABS = { list: "Exchanges", bindings: "Bindings", picture: "Picture" };

const EXCHANGES = [
  { title: "Exchange", class: "name", sort: "name", cell: (row) => el("span", {}, el("b", {}, row.name || "(the default exchange)"), " ", row.vhost !== "/" ? badge(row.vhost, "accent") : null) },
  { title: "Type", sort: "type", cell: (row) => row.type },
  { title: "Features", cell: (row) => el("span", { class: "badges" }, [row.durable ? "durable" : "transient", row.auto_delete ? "auto-delete" : null, row.internal ? "internal" : null].filter(Boolean).map((word) => badge(word))) },
  { title: "Policy", cell: (row) => row.policy ?? "" },
  { title: "Arguments", class: "wide", cell: (row) => (Object.keys(row.arguments).length ? el("span", { class: "mono" }, JSON.stringify(row.arguments)) : "") },
];
const BINDINGS = [
  { title: "From", sort: "source", class: "wide", cell: (row) => el("span", {}, row.source || "(the default exchange)", " ", row.vhost !== "/" ? badge(row.vhost, "accent") : null) },
  { title: "Key", sort: "routing_key", cell: (row) => el("span", { class: "mono" }, row.routing_key) },
  { title: "To", sort: "destination", class: "wide", cell: (row) => (row.destination_type === "queue" ? el("a", { href: link("queue", [row.vhost, row.destination]) }, row.destination) : el("span", {}, row.destination, " ", badge("exchange"))) },
  { title: "Arguments", class: "wide", cell: (row) => (Object.keys(row.arguments).length ? el("span", { class: "mono" }, JSON.stringify(row.arguments)) : "") },
];

export function exchanges({ poll }) {
  const chosen = Object.hasOwn(TABS, here().parts[0] ?? "") ? here().parts[0] : "list";
  const choose = (tab) => (location.hash = link("exchanges", tab === "list" ? [] : [tab]));
  const top = [heading("Exchanges"), tabs("Exchanges and bindings", TABS, chosen, choose)];
  if (chosen !== "picture") {
    const list = chosen === "list"
      ? new List({ poll, path: "/exchanges", columns: EXCHANGES, key: (row) => `${row.vhost}\n${row.name}`, label: "Exchanges", things: "exchanges" })
      : new List({ poll, path: "/bindings", columns: BINDINGS, key: (row) => JSON.stringify([row.vhost, row.source, row.destination_type, row.destination, row.properties_key]), label: "Bindings", things: "bindings", extra: { default: "false" } });
    return { title: "Exchanges", nodes: [...top, list.nodes], address: () => list.address(), shown: (answer) => list.shown(answer), refused: (error) => list.refused(error) };
  }
  const place = el("section", { class: "card", "aria-label": "Bindings as a picture", id: "wiring" }, loading());
  let kinds = new Map();
  let drawn = "";
  get("/api/exchanges?page=1&page_size=500&columns=name,vhost,type").then(({ items }) => {
    kinds = new Map(items.map((each) => [`${each.vhost}\n${each.name}`, each.type]));
    poll.now();
  }, () => {});
  return {
    title: "Exchanges",
    nodes: [...top, place],
    address: () => ["/bindings", { page: 1, page_size: DRAWN, default: "false" }],
    shown(answer) {
      const text = JSON.stringify([answer.items, kinds.size]);
      if (text === drawn) return; // so that the focus stays where it is
      drawn = text;
      drawWiring(place, answer.items, kinds, answer.filtered_count > DRAWN ? `The first ${DRAWN} of ${plural(answer.filtered_count, "binding")}.` : "");
    },
    refused: (error) => Boolean(replace(place, el("p", { class: "body" }, error.message))),
  };
}
