// Short messages: what was done, what was refused and why. Read aloud, and gone by themselves unless something is wrong.

import { el } from "./dom.js";

const LASTING = 5000;

export function notice(text, bad = false) {
  const box = document.getElementById("notices");
  const close = () => node.remove();
  const node = el(
    "div", { class: `notice fade${bad ? " bad" : ""}` }, el("span", {}, text),
    el("button", { type: "button", "aria-label": "Dismiss", on: { click: close } }, "×"),
  );
  box.append(node);
  while (box.children.length > 4) box.firstChild.remove();
  if (!bad) setTimeout(close, LASTING);
}
