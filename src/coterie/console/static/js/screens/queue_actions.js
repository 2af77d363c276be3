// What can be done with a queue. Each asks first; what is refused says why.

import { ask, path } from "../api.js";
import { dialog, field } from "../dialog.js";
import { el } from "../dom.js";
import { count, plural } from "../format.js";
import { notice } from "../notices.js";

export async function askToPublish({ vhost, name }, changed) {
  const body = el("textarea", { name: "payload", autofocus: true, spellcheck: "false" });
  const type = el("input", { placeholder: "text/plain", autocomplete: "off" });
  const number = el("input", { type: "number", value: "1", min: "1", max: "1000", inputmode: "numeric" });
  const headers = el("textarea", { spellcheck: "false", placeholder: '{"x-source": "console"}' });
  const persistent = el("input", { type: "checkbox", checked: true });
  const done = await dialog({
    title: `Publish to ${name}`, action: "Publish",
    fields: [
      field("Body", body), el("div", { class: "pair" }, field("Content type", type), field("How many", number)),
      field("Headers", headers, "A JSON object, or nothing"), el("label", { class: "check" }, persistent, "Persistent: on disk before it is confirmed"),
    ],
    act: async () => {
      const properties = { delivery_mode: persistent.checked ? 2 : 1 };
      if (type.value) properties.content_type = type.value;
      if (headers.value.trim()) properties.headers = object(headers.value, "The headers");
      const wanted = Math.min(1000, Math.max(1, Number(number.value) || 1));
      for (let sent = 0; sent < wanted; sent += 1) {
        await ask("POST", path("exchanges", vhost, "amq.default", "publish"), { routing_key: name, payload: body.value, properties });
      }
      return wanted;
    },
  });
  if (done) notice(`${plural(done, "message")} published.`);
  changed();
}

export async function askToPurge({ vhost, name }, ready, changed) {
  const done = await dialog({
    title: `Purge ${name}?`, danger: true, action: "Purge it",
    text: `${plural(ready, "ready message")} will be gone for good. Those that consumers hold stay with them.`,
    act: () => ask("DELETE", path("queues", vhost, name, "contents")),
  });
  if (done) notice(`${name} is purged.`);
  changed();
}

export async function askToMove({ vhost, name }, ready, changed) {
  const to = el("input", { autofocus: true, autocomplete: "off", spellcheck: "false" });
  const number = el("input", { type: "number", min: "1", value: String(Math.max(1, ready)), inputmode: "numeric" });
  const done = await dialog({
    title: `Move messages of ${name}`, action: "Move them",
    text: "From its head to the tail of another queue of the same virtual host. Those that consumers hold stay.",
    fields: [field("To the queue", to), field("How many", number)],
    act: async () => {
      if (!to.value) throw new Error("Name the queue that they go to.");
      return (await ask("POST", path("queues", vhost, name, "move"), { destination: to.value, count: Number(number.value) || 0 })) ?? {};
    },
  });
  if (done) notice(`${plural(done.moved, "message")} moved to ${to.value}.`);
  changed();
}

export async function askToDelete({ vhost, name }, total) {
  const done = await dialog({
    title: `Delete ${name}?`, danger: true, action: "Delete it",
    text: `The queue, its bindings and ${count(total)} messages in it will be gone for good, on every node.`,
    act: () => ask("DELETE", path("queues", vhost, name)),
  });
  if (!done) return;
  notice(`${name} is deleted.`);
  location.hash = "#/queues";
}

function object(text, what) {
  let found = null;
  try {
    found = JSON.parse(text);
  } catch {
    throw new Error(`${what} are not JSON.`);
  }
  if (found === null || typeof found !== "object" || Array.isArray(found)) throw new Error(`${what} must be a JSON object.`);
  return found;
}
