// All models: searched, filtered, sorted and cut into pages by the server, so that a hundred thousand are as quick as ten.

import { get } from "./api.js";
import { h } from "./dom.js";
import { ago, bytes, millis, number, rate } from "./format.js";
import { badge, modelLink, table } from "./parts.js";

export const every = 3_000;
export const title = () => "Models";

const ROWS = 50;
// Waits for the end of a word while somebody types.
const TYPING = 250;

export function load({ query }, signal) {
  const { search, phase, sort = "name", descending, offset, labels } = query;
  return get("v1/dashboard/models", { search, phase, sort, descending, offset, labelSelector: labels, limit: ROWS }, signal);
}

export function draw(page, { query }, go) {
  const column = (title, name, style, cell) => [heading(title, name, query, go), style, cell, title];
  const offset = page.offset;
  return [
    h("h1", {}, "Models"),
    h("div", { class: "tools" },
      h("input", { type: "search", placeholder: "Search names ( / )", "aria-label": "Search names", value: query.search ?? "", oninput: typed((text) => go({ search: text })) }),
      h("input", { type: "text", placeholder: "Labels: app=shop,!test", "aria-label": "Filter by labels", value: query.labels ?? "", oninput: typed((text) => go({ labels: text })) }),
      h("div", { class: "chips", role: "group", "aria-label": "State" },
        chip("All", "", Object.values(page.phases).reduce((a, b) => a + b, 0), query, go),
        Object.entries(page.phases).map(([phase, count]) => chip(phase, phase, count, query, go)))),
    table([
      column("Model", "name", "name", (row) => modelLink(row.deployment)),
      column("State", "phase", "", (row) => [badge(row.phase), row.message ? h("small", { class: "reason" }, row.message) : null]),
      column("Replicas", "ready", "number", (row) => `${row.ready} / ${row.desired}`),
      column("Memory", "memory", "number", (row) => (row.memory ? bytes(row.memory) : "–")),
      column("Requests/s", "requests", "number", (row) => rate(row.requestsPerSecond)),
      column("Errors/s", "failures", "number", (row) => rate(row.failuresPerSecond)),
      column("Misses", "misses", "number", (row) => number(row.misses)),
      column("p99", "latency", "number", (row) => millis(row.latency?.p99)),
      column("Last use", "lastUsed", "number", (row) => ago(row.lastUsed)),
    ], page.items, {
      key: (row) => row.deployment,
      link: (row) => `#/model/${encodeURIComponent(row.deployment)}`,
      empty: page.total ? "No model matches." : "No deployment yet: berth apply -f model.yaml",
    }),
    h("div", { class: "pages" },
      h("button", { type: "button", "data-page": "previous", disabled: offset === 0, onclick: () => go({ offset: Math.max(0, offset - ROWS) || "" }) }, "Previous"),
      h("span", {}, page.items.length ? `${number(offset + 1)} to ${number(offset + page.items.length)} of ${number(page.matching)}` : `${number(page.matching)} models`),
      h("button", { type: "button", "data-page": "next", disabled: offset + page.items.length >= page.matching, onclick: () => go({ offset: offset + ROWS }) }, "Next")),
    page.missing?.length ? h("p", { class: "notice" }, `Figures of ${page.missing.join(", ")} are missing: no answer in time.`) : null,
  ];
}

/// A column's title that sorts by it; a second click turns the order round.
function heading(title, name, query, go) {
  const sorted = (query.sort ?? "name") === name;
  const down = sorted && query.descending === "true";
  // Of figures the largest are looked for, of names the first.
  const first = name !== "name" && name !== "phase";
  const next = sorted ? !down : first;
  return h("button", { type: "button", class: "sort", "aria-pressed": String(sorted), onclick: () => go({ sort: name, descending: next ? "true" : "" }) },
    title, h("span", { "aria-hidden": "true" }, sorted ? (down ? " ▾" : " ▴") : ""));
}

function chip(text, phase, count, query, go) {
  const on = (query.phase ?? "") === phase;
  return h("button", { type: "button", class: "chip", "aria-pressed": String(on), onclick: () => go({ phase }) }, `${text} ${number(count)}`);
}

let waiting;

function typed(then) {
  return (event) => {
    const text = event.target.value.trim();
    clearTimeout(waiting);
    waiting = setTimeout(() => then(text), TYPING);
  };
}
