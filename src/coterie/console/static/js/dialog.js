// Dialogs: the browser's own element keeps the focus inside, closes on Escape, and gives the focus back.

import { el, show } from "./dom.js";

// Gives what `act` gave, or null if nothing was done. An action that is refused keeps the dialog open and says why.
export function dialog({ title, text, fields = [], action, danger = false, act }) {
  return new Promise((done) => {
    let result = null;
    const wrong = show(el("p", { class: "wrong", role: "alert" }), false);
    const go = el("button", { class: `button main-one${danger ? " danger" : ""}`, type: "submit" }, action);
    const cancel = el("button", { class: "button", type: "button", on: { click: () => box.close() } }, "Cancel");
    const form = el(
      "form", { method: "dialog", on: { submit } }, el("h2", { id: "dialog-title" }, title),
      text ? el("p", { class: "faint" }, text) : null, fields, wrong, el("div", { class: "actions" }, cancel, go),
    );
    const box = el("dialog", { "aria-labelledby": "dialog-title", on: { close: closed } }, form);

    async function submit(event) {
      event.preventDefault();
      go.disabled = true;
      show(wrong, false);
      try {
        result = (await act(form)) ?? true;
        box.close();
      } catch (error) {
        wrong.textContent = error.message;
        show(wrong, true);
      } finally {
        go.disabled = false;
      }
    }

    function closed() {
      box.remove();
      done(result);
    }

    document.body.append(box);
    box.showModal();
    // What cannot be undone is not under the first key that is pressed.
    (form.querySelector("[autofocus], input, textarea, select") ?? (danger ? cancel : go)).focus();
  });
}

export function field(label, input, hint) {
  return el("label", { class: "field" }, el("span", {}, label), input, hint ? el("small", {}, hint) : null);
}
