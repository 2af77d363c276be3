// Numbers, sizes and times as people read them.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const count = (value) => (value === null || value === undefined ? "–" : whole.format(value));
export const compact = (value) => (value >= 100000 ? short.format(value) : whole.format(value));

export function rate(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0/s";
  return value < 10 ? `${value.toFixed(1)}/s` : `${compact(value)}/s`;
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  let left = value;
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (left < 1024 || unit === "GiB") return unit === "B" || left >= 100 ? `${left.toFixed(0)} ${unit}` : `${left.toFixed(1)} ${unit}`;
    left /= 1024;
  }
}

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  if (value < 0.001) return `${(value * 1e6).toFixed(0)} µs`;
  if (value < 1) return `${value < 0.01 ? (value * 1000).toFixed(1) : (value * 1000).toFixed(0)} ms`;
  return `${value.toFixed(1)} s`;
}

export function duration(milliseconds) {
  const all = Math.round(milliseconds / 1000);
  if (all < 60) return `${all} s`;
  if (all < 3600) return `${Math.floor(all / 60)} min ${all % 60} s`;
  if (all < 86400) return `${Math.floor(all / 3600)} h ${Math.floor((all % 3600) / 60)} min`;
  return `${Math.floor(all / 86400)} d ${Math.floor((all % 86400) / 3600)} h`;
}

const two = (number) => String(number).padStart(2, "0");

export function clock(wall) {
  const at = new Date(wall * 1000);
  return `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

export function day(milliseconds) {
  const at = new Date(milliseconds);
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${two(at.getHours())}:${two(at.getMinutes())}`;
}

export const plural = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;
export const shortened = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
