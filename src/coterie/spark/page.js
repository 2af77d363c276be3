"use strict";
// The page is complete without this: it only lets a reader choose the other theme.
(() => {
  const root = document.documentElement, button = document.getElementById("theme");
  const dark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const name = () => { button.textContent = dark() ? "light" : "dark"; };
  const wanted = /theme=(light|dark)/.exec(location.hash);
  if (wanted) root.dataset.theme = wanted[1];
  button.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; name(); });
  button.hidden = false;
  name();
  root.dataset.ready = "true";
})();
