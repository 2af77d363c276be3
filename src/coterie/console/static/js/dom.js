// Elements, made of data: whatever a queue, a header or a body is called, it becomes text, never markup.

const SVG = "http://www.w3.org/2000/svg";

export function el(tag, properties = {}, ...children) {
  return fill(document.createElement(tag), properties, children);
}

export function svg(tag, properties = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), properties, children);
}

function fill(node, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "on") for (const [event, call] of Object.entries(value)) node.addEventListener(event, call);
    else if (name === "data") Object.assign(node.dataset, value);
    else if (name === "value") node.value = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

export function replace(node, ...children) {
  node.replaceChildren(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

// Text that is the same is left alone: what somebody has selected or listens to stays.
export function say(node, text) {
  const wanted = String(text);
  if (node.textContent !== wanted) node.textContent = wanted;
  return node;
}

export function show(node, is) {
  node.hidden = !is;
  return node;
}
