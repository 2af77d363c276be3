// An address that leads to nothing.

import { el } from "../dom.js";
import { empty, heading } from "../parts/blocks.js";

export const nowhere = () => ({
  title: "Nothing here",
  nodes: [heading("Nothing here"), el("section", { class: "card" }, empty("There is no such screen", "", el("a", { href: "#/" }, "To the overview")))],
});
