// Where one is: #/queues?page=2. Names are percent-encoded, so that any name is one part of the path.

export function here() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  let parts = [];
  try {
    parts = path.split("/").filter(Boolean).map(decodeURIComponent);
  } catch {
    parts = ["nowhere"];
  }
  return { screen: parts[0] ?? "overview", parts: parts.slice(1), query: new URLSearchParams(query ?? "") };
}

export function link(screen, parts = [], query = {}) {
  const search = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== "" && value !== undefined && value !== null));
  const text = search.toString();
  return "#/" + [screen, ...parts].map(encodeURIComponent).join("/") + (text ? `?${text}` : "");
}

// The same screen with another query: a page, an order, a word. It is no step of its own in the browser's history.
export function amend(query) {
  history.replaceState(null, "", link(here().screen, here().parts, query));
}
