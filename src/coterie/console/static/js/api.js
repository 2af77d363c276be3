// Requests to the node: JSON both ways, with the token that proves that they come from this page.

let token = null;

export class Refused extends Error {
  constructor(status, reason) {
    super(reason);
    this.status = status;
  }
}

export const path = (...parts) => "/api/" + parts.map((part) => encodeURIComponent(part)).join("/");

export async function ask(method, url, body, options = {}) {
  const headers = { "X-Requested-With": "page", ...options.headers };
  if (token !== null && method !== "GET") headers["X-CSRF-Token"] = token;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let answer;
  try {
    answer = await fetch(url, {
      method, headers, body: body === undefined ? undefined : JSON.stringify(body),
      credentials: "same-origin", cache: "no-store", signal: options.signal,
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, "the node does not answer");
  }
  const text = await answer.text();
  let found = null;
  try {
    found = text ? JSON.parse(text) : null;
  } catch {
    throw new Refused(answer.status, `an answer that is no JSON (${answer.status})`);
  }
  if (answer.ok) return found;
  throw new Refused(answer.status, found?.reason ?? `the node answers ${answer.status}`);
}

export const get = (url, options) => ask("GET", url, undefined, options);

export async function resume() {
  return remember(await get("/api/session"));
}

export async function logIn(name, password) {
  return remember(await ask("POST", "/api/session", { name, password }));
}

export async function logInByToken(token) {
  return remember(await ask("POST", "/api/session", { token }));
}

export async function logOut() {
  await ask("DELETE", "/api/session");
  token = null;
}

function remember(session) {
  token = session.token;
  return session;
}
