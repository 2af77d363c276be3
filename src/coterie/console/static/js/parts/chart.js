// A line chart of the last minutes: drawn anew with each moment, as wide as its place.

import { el, replace, say, svg } from "../dom.js";
import { clock } from "../format.js";

const HEIGHT = 150;
const BOTTOM = 18;
const TOP = 8;

export class Chart {
  // series: [{key, label}]; at most four. `format` makes a number readable.
  constructor({ title, series, format, least = 1 }) {
    Object.assign(this, { title, series, format, least, rows: [], at: null });
    this.values = series.map((each, at) => el("b", { data: { series: each.key } }, "–"));
    const legend = el("ul", { class: "legend" }, series.map((each, at) =>
      el("li", {}, svg("svg", { "aria-hidden": "true", viewBox: "0 0 22 8" }, svg("line", { class: `line s${at}`, x1: 1, x2: 21, y1: 4, y2: 4 })), each.label, this.values[at])));
    this.picture = svg("svg", { role: "img", on: { pointermove: (event) => this.point(event), pointerleave: () => this.point(null) } });
    this.node = el("section", { class: "card chart", "aria-label": title }, el("header", {}, el("h2", {}, title), (this.when = el("span", { class: "faint" }))), el("div", { class: "body" }, legend, this.picture));
    new ResizeObserver(() => this.draw()).observe(this.picture);
  }

  update(rows) {
    this.rows = rows;
    this.draw();
  }

  draw() {
    const width = this.picture.clientWidth;
    if (!width) return;
    this.picture.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    if (this.rows.length < 2) {
      replace(this.picture, svg("text", { class: "wait", x: width / 2, y: HEIGHT / 2, "text-anchor": "middle" }, "waiting for the next samples"));
      this.tell();
      return;
    }
    const top = scale(Math.max(this.least, ...this.rows.flatMap((row) => this.series.map((each) => row[each.key] ?? 0))));
    const left = 7 + Math.max(...[top, top / 2].map((value) => this.format(value).length)) * 6.4;
    const [first, last] = [this.rows[0].time, this.rows.at(-1).time];
    const x = (time) => left + ((time - first) / (last - first || 1)) * (width - left - 4);
    const y = (value) => TOP + (1 - value / top) * (HEIGHT - TOP - BOTTOM);
    this.x = x;
    const grid = [0, top / 2, top].map((value) => [
      svg("line", { class: "grid", x1: left, x2: width, y1: y(value), y2: y(value) }),
      svg("text", { x: left - 7, y: y(value) + 4, "text-anchor": "end" }, this.format(value)),
    ]);
    const ends = [[first, "start"], [last, "end"]].map(([time, anchor]) => svg("text", { x: anchor === "start" ? left : width - 4, y: HEIGHT - 2, "text-anchor": anchor }, clock(time)));
    const lines = this.series.map((each, at) => svg("path", { class: `line s${at}`, d: path(this.rows, each.key, x, y) })).reverse();
    const whole = this.rows.every((row) => typeof row[this.series[0].key] === "number");
    const area = whole ? svg("path", { class: "area s0", d: `${path(this.rows, this.series[0].key, x, y)} L${x(last)},${y(0)} L${x(first)},${y(0)} Z` }) : null;
    this.cursor = svg("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
    replace(this.picture, grid, ends, area, lines, this.cursor);
    this.tell();
  }

  point(event) {
    if (event === null || this.rows.length < 2) this.at = null;
    else {
      const from = event.clientX - this.picture.getBoundingClientRect().left;
      this.at = this.rows.reduce((best, row) => (Math.abs(this.x(row.time) - from) < Math.abs(this.x(best.time) - from) ? row : best));
    }
    this.tell();
  }

  tell() {
    const row = this.at ?? this.rows.at(-1);
    this.series.forEach((each, at) => say(this.values[at], row ? this.format(row[each.key]) : "–"));
    say(this.when, this.at ? clock(this.at.time) : "");
    if (this.cursor) {
      this.cursor.setAttribute("visibility", this.at ? "visible" : "hidden");
      if (this.at) for (const end of ["x1", "x2"]) this.cursor.setAttribute(end, this.x(this.at.time));
    }
    if (row) this.picture.setAttribute("aria-label", `${this.title}: ${this.series.map((each) => `${each.label} ${this.format(row[each.key])}`).join(", ")}`);
  }
}

function path(rows, key, x, y) {
  let text = "";
  let pen = "M";
  for (const row of rows) {
    if (row[key] === null || row[key] === undefined) pen = "M";
    else {
      text += `${pen}${x(row.time).toFixed(1)},${y(row[key]).toFixed(1)}`;
      pen = "L";
    }
  }
  return text;
}

// The next round number.
function scale(most) {
  const power = 10 ** Math.floor(Math.log10(most));
  return [1, 2, 4, 6, 8, 10].map((each) => each * power).find((each) => each >= most);
}
