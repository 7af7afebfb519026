// Small parts that several pages share.

import { h } from "./dom.js";
import { bytes, percent } from "./format.js";

// A sign beside each colour: colours alone do not tell states apart for everybody.
const SIGNS = {
  good: ["Available", "Ready", "Alive", "Synced", "True", "closed"],
  busy: ["Progressing", "Assigned", "Queued", "Fetching", "Preparing", "Loading", "Validating", "Joining", "Starting", "half-open", "Unknown"],
  warn: ["Degraded", "Draining", "Drained", "Leaving", "Detached", "Suspect", "Restarting", "Expected", "Retrying", "Paused", "Terminating", "Warning"],
  bad: ["Failed", "ScheduleFailed", "Lost", "Refused", "Stalled", "False", "open"],
};
const SIGN = { good: "✓", busy: "…", warn: "!", bad: "✕", calm: "·" };

function mood(state) {
  return Object.keys(SIGNS).find((mood) => SIGNS[mood].includes(state)) ?? "calm";
}

export function badge(state) {
  const as = mood(state);
  return h("span", { class: `badge ${as}` }, h("span", { "aria-hidden": "true" }, SIGN[as]), " ", state || "–");
}

/// A link to a model's page.
export function modelLink(deployment) {
  return h("a", { href: `#/model/${encodeURIComponent(deployment)}` }, deployment);
}

export function workerLink(worker) {
  return h("a", { href: `#/events?worker=${encodeURIComponent(worker)}` }, worker);
}

/// Figures in boxes: [["Label", "value", "detail"], …].
export function figures(list) {
  return h("dl", { class: "figures" }, list.map(([label, value, detail]) =>
    h("div", {}, h("dt", {}, label), h("dd", {}, value, detail ? h("small", {}, detail) : null))));
}

/// A table: columns are [title, class, cell(row)].
export function table(columns, rows, { caption, key, link, empty = "Nothing here." } = {}) {
  if (!rows.length) return h("p", { class: "quiet" }, empty);
  const head = h("tr", {}, columns.map(([title, style]) => h("th", { scope: "col", class: style }, title)));
  const body = rows.map((row) => h("tr", {
    "data-key": key?.(row),
    "data-link": link?.(row),
    tabindex: link ? "-1" : undefined,
  }, columns.map(([title, style, cell, name]) => h("td", { class: style, "data-title": typeof title === "string" ? title : name ?? "" }, cell(row)))));
  return h("div", { class: "scroll" }, h("table", {}, caption ? h("caption", {}, caption) : null,
    h("thead", {}, head), h("tbody", {}, body)));
}

const COLOURS = 8;

/// One of eight colours for each name; two share one only when all are taken. `names` are in the order in which they choose.
export function colours(names) {
  const chosen = new Map();
  let taken = new Set();
  for (const name of new Set(names)) {
    if (taken.size === COLOURS) taken = new Set();
    let sum = 7;
    for (const letter of name) sum = (sum * 31 + letter.codePointAt(0)) >>> 0;
    while (taken.has(sum % COLOURS)) sum += 1;
    taken.add(sum % COLOURS);
    chosen.set(name, sum % COLOURS);
  }
  return chosen;
}

/// A bar of parts [{name, size, title, style}], as wide as `total`.
export function bar(parts, total, label) {
  let x = 0;
  const shown = parts.map((part) => {
    const width = total > 0 ? (1000 * part.size) / total : 0;
    const one = h("rect", { x: x.toFixed(1), y: 0, width: Math.max(0, width - 1).toFixed(1), height: 20, class: part.style },
      h("title", {}, part.title));
    x += width;
    return one;
  });
  return h("svg", { class: "bar", viewBox: "0 0 1000 20", preserveAspectRatio: "none", role: "img", "aria-label": label },
    h("rect", { x: 0, y: 0, width: 1000, height: 20, class: "room" }), shown);
}

export function memoryText(memory) {
  const overhead = memory.overhead ? `, ${bytes(memory.overhead)} overhead of the process` : "";
  return `${bytes(memory.used)} of ${bytes(memory.total)} (${percent(memory.used, memory.total)})${overhead}`;
}

export function section(title, ...content) {
  return h("section", {}, h("h2", {}, title), content);
}
