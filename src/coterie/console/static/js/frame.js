// Around every screen: navigation, who is logged in, alarms; and the poll, which feeds what is on the screen.

import { logOut } from "./api.js";
import { el, replace, say, show } from "./dom.js";
import { clock, compact } from "./format.js";
import { notice } from "./notices.js";
import { Poll } from "./poll.js";
import { here, link } from "./router.js";
import { access } from "./screens/access.js";
import { connections } from "./screens/connections.js";
import { exchanges } from "./screens/exchanges.js";
import { log } from "./screens/log.js";
import { nowhere } from "./screens/nowhere.js";
import { overview } from "./screens/overview.js";
import { queue } from "./screens/queue.js";
import { queues } from "./screens/queues.js";
import { themeButton } from "./theme.js";

const SCREENS = { overview, queues, queue, exchanges, connections, log, access };
const NAMES = { overview: "Overview", queues: "Queues", exchanges: "Exchanges", connections: "Connections", log: "Log", access: "Access" };
const WATCHERS = ["monitoring", "administrator"];

export class Frame {
  constructor(app, session, left) {
    Object.assign(this, { app, session, left });
    this.poll = new Poll({ arrived: (live) => this.arrived(live), failed: (error, wanted) => this.failed(error, wanted) });
    this.counts = new Map();
    const watches = session.tags.some((tag) => WATCHERS.includes(tag));
    const shown = Object.keys(NAMES).filter((name) => name !== "log" || watches);
    this.links = new Map(shown.map((name) => {
      const number = el("span", { class: "count" });
      this.counts.set(name, number);
      return [name, el("a", { href: link(name === "overview" ? "" : name) }, NAMES[name], number)];
    }));
    const leave = el("button", { class: "button small", type: "button", id: "logout", on: { click: () => this.logOut() } }, "Log out");
    const who = el("div", { class: "who" }, "Logged in as ", el("b", {}, session.name));
    this.trouble = show(el("div", { class: "banner bad", role: "alert" }), false);
    this.alarm = show(el("div", { class: "banner mind", role: "alert", id: "alarm" }), false);
    this.main = el("main", { class: "main", id: "main" });
    this.node = el(
      "div", { class: "frame" },
      el(
        "header", { class: "side" },
        el("a", { class: "brand", href: "#/" }, el("img", { src: "/static/icon.svg", alt: "" }), el("div", {}, el("b", {}, "Coterie"), el("span", {}, session.node))),
        el("nav", { class: "nav", "aria-label": "Screens" }, [...this.links.values()]),
        el("div", { class: "foot" }, who, el("div", { class: "row" }, themeButton(), leave)),
      ),
      this.main,
    );
    this.routed = () => this.route();
    this.pressed = (event) => this.shortcut(event);
  }

  start() {
    replace(this.app, this.node);
    addEventListener("hashchange", this.routed);
    addEventListener("keydown", this.pressed);
    this.poll.start();
    this.route(true);
  }

  leave() {
    this.poll.stop();
    this.screen?.leave?.();
    removeEventListener("hashchange", this.routed);
    removeEventListener("keydown", this.pressed);
  }

  route(first = false) {
    const { screen, parts, query } = here();
    const make = SCREENS[screen] ?? nowhere;
    this.screen?.leave?.();
    const current = screen === "queue" ? "queues" : screen;
    for (const [name, node] of this.links) {
      if (name === current) {
        node.setAttribute("aria-current", "page");
        node.scrollIntoView({ block: "nearest", inline: "center" });
      }
      else node.removeAttribute("aria-current");
    }
    this.screen = make({ poll: this.poll, session: this.session, parts, query });
    this.main.dataset.screen = screen;
    replace(this.main, this.trouble, this.alarm, this.screen.nodes);
    document.title = `${this.screen.title} · ${this.session.node} · Coterie`;
    if (!first) {
      scrollTo(0, 0);
      this.main.querySelector("h1")?.focus();
    }
    if (this.last) this.screen.live?.(this.last, this.poll.moments); // until the answer comes
    const { address = () => ["", {}], shown = () => {} } = this.screen;
    this.poll.look(address, shown);
  }

  arrived(live) {
    this.session.tags = live.tags;
    this.last = live;
    show(this.trouble, false);
    this.node.classList.remove("stale");
    this.seen = live.now;
    const why = live.closed ? ["This node does not serve clients", live.closed] : live.alarms.length ? [`Alarm: ${live.alarms.join(", ")}`, `publishers are blocked, the broker is ${live.blocked}`] : null;
    show(this.alarm, why !== null);
    if (why && this.alarm.textContent !== `${why[0]}${why[1]}`) replace(this.alarm, el("b", {}, why[0]), el("span", {}, why[1]));
    for (const name of ["queues", "exchanges", "connections"]) say(this.counts.get(name), compact(live.totals[name]));
    this.screen.live?.(live, this.poll.moments);
  }

  failed(error, wanted) {
    if (error.status === 401) {
      this.left("The login is over: log in again.");
      return;
    }
    if (error.status !== 0 && error.status < 500 && this.screen.refused?.(error)) return;
    this.node.classList.toggle("stale", error.status === 0);
    const since = this.seen ? ` What is shown is of ${clock(this.seen)}.` : "";
    replace(show(this.trouble, true), el("b", {}, error.status === 0 ? "No answer" : "Refused"), el("span", {}, `${error.message}.${since} It is asked again.`));
  }

  async logOut() {
    try {
      await logOut();
    } catch (error) {
      if (error.status === 0) {
        notice(`Not logged out: ${error.message}`, true);
        return;
      }
    }
    this.left("");
  }

  shortcut(event) {
    const typing = event.target.closest?.("input, textarea, select, dialog");
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
      const search = document.getElementById("search");
      if (search) {
        event.preventDefault();
        search.focus();
      }
    }
  }
}
