// Light, dark, or what the system says: one button goes round.

import { el, say } from "./dom.js";

const KEY = "coterie-theme";
const NEXT = { system: "light", light: "dark", dark: "system" };
const NAMES = { system: "Auto", light: "Light", dark: "Dark" };
const root = document.documentElement;

export function themeButton() {
  const button = el("button", { class: "button small quiet", type: "button", id: "theme", on: { click: next } });
  const shown = () => root.dataset.theme ?? "system";

  function next() {
    const theme = NEXT[shown()];
    if (theme === "system") delete root.dataset.theme;
    else root.dataset.theme = theme;
    try {
      localStorage.setItem(KEY, theme);
    } catch {
      // It lasts as long as the page.
    }
    tell();
  }

  function tell() {
    say(button, `◐ ${NAMES[shown()]}`);
    button.setAttribute("aria-label", `Theme: ${NAMES[shown()]}. Change it`);
    button.title = "Theme: follow the system, light, dark";
  }

  tell();
  return button;
}
