// Logging in with a user of the broker.

import { logIn } from "../api.js";
import { field } from "../dialog.js";
import { el, replace, show } from "../dom.js";

export function showLogin(app, entered, why) {
  document.title = "Log in · Coterie";
  const name = el("input", { name: "name", autocomplete: "username", required: true, autocapitalize: "none", spellcheck: "false" });
  const password = el("input", { name: "password", type: "password", autocomplete: "current-password", required: true });
  const wrong = show(el("p", { class: "wrong", role: "alert" }, why), Boolean(why));
  const go = el("button", { class: "button main-one", type: "submit" }, "Log in");

  async function submit(event) {
    event.preventDefault();
    go.disabled = true;
    try {
      entered(await logIn(name.value, password.value));
    } catch (error) {
      wrong.textContent = error.message === "Login failed" ? "That is not the name and password of a user." : error.message;
      show(wrong, true);
      go.disabled = false;
      password.select();
    }
  }

  replace(app, el(
    "main", { class: "login", id: "main" },
    el(
      "form", { on: { submit } },
      el("div", { class: "brand" }, el("img", { src: "/static/icon.svg", alt: "" }), el("div", {}, el("b", {}, "Coterie"), el("span", {}, location.host))),
      el("h1", {}, "Log in"), wrong, field("User", name), field("Password", password), go,
      el("p", { class: "why" }, "A user of the broker with one of the tags management, policymaker, monitoring or administrator."),
    ),
  ));
  name.focus();
}
