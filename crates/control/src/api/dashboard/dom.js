// Elements from plain values, and updates in place.
//
// Everything that is not an element becomes a text node: a name or an error of a stranger cannot become markup. There is no
// other way into the page; the server's policy has the browser refuse one.

const SVG = new Set(["svg", "g", "rect", "path", "line", "polyline", "circle", "text", "title", "defs", "pattern"]);

/// An element: h("a", {href, class, onclick}, child, [children], "text").
export function h(tag, attributes, ...children) {
  const inSvg = SVG.has(tag);
  const element = inSvg
    ? document.createElementNS("http://www.w3.org/2000/svg", tag)
    : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) {
      element[name] = value;
      (element.listeners ??= []).push(name);
    } else if (name === "href" && !/^(#|\.\.?\/)/.test(value)) {
      // Links lead within this server only; `javascript:` is not among them.
      throw new Error(`not a link of the dashboard: ${value}`);
    } else {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
  element.append(...children.flat(Infinity).filter((child) => child !== undefined && child !== null && child !== false));
  return element;
}

/// Makes `old` look like `fresh` with as few changes as possible, so that focus, selection, scrolling and open details stay.
/// A child with a `data-key` is only ever matched with the one of the same key.
export function patch(old, fresh) {
  if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName || key(old) !== key(fresh)) {
    old.replaceWith(fresh);
    return fresh;
  }
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return old;
  }
  for (const { name } of [...old.attributes]) {
    // A person opened it.
    const theirs = name === "open" && old.nodeName === "DETAILS";
    if (!fresh.hasAttribute(name) && !theirs) old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  for (const name of old.listeners ?? []) old[name] = null;
  for (const name of fresh.listeners ?? []) old[name] = fresh[name];
  old.listeners = fresh.listeners;
  // Its content is its own from then on: a form that a person fills in.
  if (old.hasAttribute("data-kept")) return old;
  const before = [...old.childNodes], after = [...fresh.childNodes];
  after.forEach((child, at) => (at < before.length ? patch(before[at], child) : old.append(child)));
  before.slice(after.length).forEach((child) => child.remove());
  return old;
}

function key(node) {
  return node.nodeType === Node.ELEMENT_NODE ? node.getAttribute("data-key") : null;
}
