// One request a turn: how the node is, and beside it what is on the screen. None while nobody looks.

import { get } from "./api.js";
import { Moments } from "./moments.js";

const SLOWEST = 15;

export class Poll {
  constructor({ arrived, failed }) {
    this.arrived = arrived;
    this.failed = failed;
    this.moments = new Moments();
    this.interval = 5;
    this.failures = 0;
    this.turns = 0;
    this.running = false;
    this.wanted = null;
    document.addEventListener("visibilitychange", () => (document.hidden ? this.rest() : this.now()));
  }

  start() {
    this.running = true;
    this.now();
  }

  stop() {
    this.running = false;
    this.rest();
  }

  // `address` gives what to ask for beside the node: a path under /api and a query, or nothing.
  look(address, shown) {
    this.wanted = { address, shown };
    this.now();
  }

  rest() {
    clearTimeout(this.timer);
    this.asking?.abort();
    this.asking = null;
  }

  now() {
    this.rest();
    if (this.running && !document.hidden) this.turn();
  }

  async turn() {
    const asking = (this.asking = new AbortController());
    const wanted = this.wanted;
    const [path, query] = wanted?.address() ?? ["", {}];
    const search = new URLSearchParams({ since: this.moments.last, ...query });
    this.turns += 1;
    try {
      const answer = await get(`/api/live${path}?${search}`, { signal: asking.signal });
      if (this.asking !== asking) return;
      const live = answer.live ?? answer;
      this.moments.take(live);
      this.interval = live.interval;
      this.failures = 0;
      this.arrived(live);
      wanted?.shown(answer.shown, live);
    } catch (error) {
      if (error.name === "AbortError" || this.asking !== asking) return;
      this.failures += 1;
      this.failed(error, wanted);
      if (!this.running) return;
    }
    this.asking = null;
    const pause = Math.min(SLOWEST, Math.max(0.3, this.interval) * 2 ** Math.min(this.failures, 3));
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.now(), pause * 1000);
  }
}
