// Logging in with a user of the broker, or with a token where there is an issuer.

import { get, logIn, logInByToken } from "../api.js";
import { field } from "../dialog.js";
import { el, replace, show } from "../dom.js";

export function showLogin(app, entered, why) {
  document.title = "Log in · Coterie";
  const name = el("input", { name: "name", autocomplete: "username", required: true, autocapitalize: "none", spellcheck: "false" });
  const password = el("input", { name: "password", type: "password", autocomplete: "current-password", required: true });
  const token = el("input", { name: "token", type: "password", autocomplete: "off", required: true, spellcheck: "false" });
  const wrong = show(el("p", { class: "wrong", role: "alert" }, why), Boolean(why));
  const go = el("button", { class: "button main-one", type: "submit" }, "Log in");
  const goByToken = el("button", { class: "button", type: "submit" }, "Log in with a token");

  const submit = (button, secret, act, failed) => async (event) => {
    event.preventDefault();
    button.disabled = true;
    try {
      entered(await act());
    } catch (error) {
      wrong.textContent = error.message === "Login failed" ? failed : error.message;
      show(wrong, true);
      button.disabled = false;
      secret.select();
    }
  };
  const byName = submit(go, password, () => logIn(name.value, password.value), "That is not the name and password of a user.");
  const byToken = submit(goByToken, token, () => logInByToken(token.value.trim()), "That token is not accepted here: the broker's log says why.");
  const issuer = el("span", {}, "the issuer");
  const hint = el("span", {}, "An access token (JWT) of ", issuer, ".");
  const tokens = show(el("form", { id: "by-token", on: { submit: byToken } }, field("Token", token, hint), goByToken), false);

  replace(app, el(
    "main", { class: "login", id: "main" },
    el(
      "form", { on: { submit: byName } },
      el("div", { class: "brand" }, el("img", { src: "/static/icon.svg", alt: "" }), el("div", {}, el("b", {}, "Coterie"), el("span", {}, location.host))),
      el("h1", {}, "Log in"), wrong, field("User", name), field("Password", password), go,
      el("p", { class: "why" }, "A user of the broker with one of the tags management, policymaker, monitoring or administrator."),
    ),
    tokens,
  ));
  name.focus();
  get("/api/auth").then((how) => {
    issuer.textContent = how.oauth_issuer;
    show(tokens, how.oauth_enabled);
  }, () => {});
}
