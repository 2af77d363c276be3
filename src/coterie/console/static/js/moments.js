// The charts' data: rows that came, one for each sample of the node, the oldest first.

const KEPT = 360;

export class Moments {
  constructor() {
    this.clear(null);
  }

  clear(node) {
    this.node = node;
    this.rows = [];
    this.last = 0;
  }

  take(live) {
    const history = live.history;
    const started = live.now - live.uptime / 1000;
    // Another node, or the same one started anew, counts its moments from the beginning.
    if (this.node !== live.node || Math.abs(started - this.started) > 2) this.clear(live.node);
    this.started = started;
    if (!history) return;
    for (const values of history.rows) {
      const row = Object.fromEntries(history.columns.map((name, at) => [name, values[at]]));
      if (row.number <= this.last) continue;
      this.rows.push(row);
      this.last = row.number;
    }
    this.rows.splice(0, Math.max(0, this.rows.length - KEPT));
  }
}
