// Users, what they may do, policies and virtual hosts: as lists. They are changed by `coterie users` and its likes.

import { el } from "../dom.js";
import { count } from "../format.js";
import { badge, heading, tabs } from "../parts/blocks.js";
import { List } from "../parts/list.js";
import { here, link } from "../router.js";

const mono = (text) => el("span", { class: "mono" }, text);
const pattern = (text) => (text ? mono(text) : el("span", { class: "zero" }, "nothing"));
const limits = (found) => Object.entries(found).map(([name, value]) => `${name} ${value}`).join(", ");

const LISTS = {
  users: { title: "Users", path: "/users", needs: [], key: (row) => row.name, columns: [
    { title: "User", class: "name", sort: "name", cell: (row) => el("b", {}, row.name) },
    { title: "Tags", cell: (row) => (row.tags.length ? el("span", { class: "badges" }, row.tags.map((tag) => badge(tag, tag === "administrator" ? "accent" : ""))) : el("span", { class: "zero" }, "AMQP only")) },
    { title: "Logs in", cell: (row) => (row.has_password ? "with a password" : "with a certificate") },
    { title: "Limits", class: "wide", cell: (row) => limits(row.limits) },
  ] },
  permissions: { title: "Permissions", path: "/permissions", needs: [], key: (row) => `${row.user}\n${row.vhost}`, columns: [
    { title: "User", class: "name", sort: "user", cell: (row) => el("b", {}, row.user) },
    { title: "Virtual host", sort: "vhost", cell: (row) => row.vhost },
    { title: "Configure", cell: (row) => pattern(row.configure) }, { title: "Write", cell: (row) => pattern(row.write) }, { title: "Read", cell: (row) => pattern(row.read) },
  ] },
  policies: { title: "Policies", path: "/policies", needs: ["policymaker"], key: (row) => `${row.vhost}\n${row.name}`, columns: [
    { title: "Policy", class: "name", sort: "name", cell: (row) => el("b", {}, row.name) },
    { title: "Virtual host", sort: "vhost", cell: (row) => row.vhost }, { title: "Pattern", cell: (row) => pattern(row.pattern) },
    { title: "Applies to", cell: (row) => row["apply-to"] }, { title: "Priority", number: true, sort: "priority", cell: (row) => count(row.priority) },
    { title: "Definition", class: "wide", cell: (row) => mono(JSON.stringify(row.definition)) },
  ] },
  vhosts: { title: "Virtual hosts", path: "/vhosts", needs: null, key: (row) => row.name, columns: [
    { title: "Virtual host", class: "name", sort: "name", cell: (row) => el("b", {}, row.name) },
    { title: "Queues", number: true, sort: "queues", cell: (row) => count(row.queues) }, { title: "Exchanges", number: true, sort: "exchanges", cell: (row) => count(row.exchanges) },
    { title: "Bindings", number: true, sort: "bindings", cell: (row) => count(row.bindings) }, { title: "Messages", number: true, sort: "messages", cell: (row) => count(row.messages) },
    { title: "Connections", number: true, sort: "connections", cell: (row) => count(row.connections) }, { title: "Limits", class: "wide", cell: (row) => limits(row.limits) },
  ] },
};

export function access({ poll, session }) {
  const allowed = ({ needs }) => needs === null || ["administrator", ...needs].some((tag) => session.tags.includes(tag));
  const shown = Object.fromEntries(Object.entries(LISTS).filter(([, list]) => allowed(list)));
  const chosen = Object.hasOwn(shown, here().parts[0] ?? "") ? here().parts[0] : Object.keys(shown)[0];
  const choose = (tab) => (location.hash = link("access", [tab]));
  const { title, path, key, columns } = shown[chosen];
  const list = new List({ poll, path, columns, key, label: title, things: title.toLowerCase() });
  const names = Object.fromEntries(Object.entries(shown).map(([name, each]) => [name, each.title]));
  return {
    title: "Access",
    nodes: [heading("Access"), tabs("Access", names, chosen, choose), list.nodes],
    address: () => list.address(),
    shown: (answer) => list.shown(answer),
    refused: (error) => list.refused(error),
  };
}
