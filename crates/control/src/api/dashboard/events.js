// What happened, the latest first.

import { get } from "./api.js";
import { h } from "./dom.js";
import { clock } from "./format.js";
import { live } from "./live.js";
import { badge, modelLink, table } from "./parts.js";

export const every = 2_000;
export const title = () => "Events";

export async function load(_place, signal) {
  // Where the stream is connected, everything is here already.
  return live.connected ? { items: live.events } : get("v1/events", { limit: 500 }, signal);
}

export function draw(page, { query }, go) {
  const { worker, warnings } = query;
  const wanted = page.items.filter((event) => (!worker || event.worker === worker) && (!warnings || event.severity === "Warning"));
  return [
    h("h1", {}, "Events ", live.connected ? h("span", { class: "badge good" }, "● live") : null),
    h("div", { class: "tools chips" },
      h("button", { type: "button", class: "chip", "aria-pressed": String(!warnings), onclick: () => go({ warnings: "" }) }, "All"),
      h("button", { type: "button", class: "chip", "aria-pressed": String(Boolean(warnings)), onclick: () => go({ warnings: "true" }) }, "Warnings"),
      worker ? h("button", { type: "button", class: "chip", "aria-pressed": "true", onclick: () => go({ worker: "" }) }, `only ${worker} ✕`) : null),
    list(wanted.toReversed()),
  ];
}

/// Events, the latest first.
export function list(events) {
  return table([
    ["Time", "time", (event) => h("time", { datetime: event.at, title: event.at }, clock(event.at))],
    ["Reason", "", (event) => [event.severity === "Warning" ? [badge("Warning"), " "] : null, event.reason]],
    ["Model", "", (event) => (event.deployment ? modelLink(event.deployment) : event.function ? `function/${event.function}` : "")],
    ["Worker", "", (event) => event.worker ?? ""],
    ["Message", "wide", (event) => event.message],
  ], events, { key: (event) => event.metadata.name, empty: "Nothing happened yet." });
}
