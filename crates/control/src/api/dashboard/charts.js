// Lines over time as inline SVG: told apart by dashes as well as by colours, read out at the pointer or with the arrow keys.

import { get } from "./api.js";
import { h } from "./dom.js";

const WIDTH = 600, HEIGHT = 110, TOP = 8, BOTTOM = 4;
// A new point comes every ten seconds.
const FRESH = 9_000;

const kept = new Map();

/// History from the server, asked for again when there is a new point. `of`: { deployment }, { worker } or {}.
export async function history(of, range, signal) {
  const key = JSON.stringify([of, range]);
  const before = kept.get(key);
  if (before && Date.now() - before.at < FRESH) return before.data;
  const data = await get("v1/dashboard/history", { ...of, range }, signal);
  if (kept.size > 50) kept.clear();
  kept.set(key, { at: Date.now(), data });
  return data;
}

/// A chart of some lines of a history: lines are [name, title]; `format` writes values.
export function chart(data, title, lines, format) {
  const series = lines.map(([name, title], style) => ({ title, style, points: data.lines.find((line) => line.name === name)?.points ?? [] }));
  const count = Math.max(...series.map(({ points }) => points.length));
  const known = series.flatMap(({ points }) => points).filter((value) => value !== null);
  if (!known.length) return h("figure", { class: "chart" }, h("figcaption", {}, title), h("p", { class: "quiet" }, "No data yet."));
  const top = nice(Math.max(...known));
  const x = (at) => (count > 1 ? (WIDTH * at) / (count - 1) : WIDTH / 2);
  const y = (value) => HEIGHT - BOTTOM - ((HEIGHT - TOP - BOTTOM) * value) / top;
  const begin = Date.parse(data.end) - (count - 1) * data.stepMs;
  const readout = h("output", { "data-kept": true });
  const cursor = h("line", { class: "cursor", x1: -10, x2: -10, y1: 0, y2: HEIGHT });
  const read = (at) => {
    const values = series.map(({ title, points }) => `${title} ${points[at] === null || points[at] === undefined ? "–" : format(points[at])}`);
    document.querySelectorAll(`figure[data-key="${CSS.escape(key(data, title))}"]`).forEach((figure) => {
      figure.querySelector("output").textContent = `${time(begin + at * data.stepMs)}: ${values.join(", ")}`;
      const line = figure.querySelector(".cursor");
      line.setAttribute("x1", x(at));
      line.setAttribute("x2", x(at));
      figure.dataset.at = at;
    });
  };
  const move = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    read(Math.round(Math.min(1, Math.max(0, (event.clientX - box.left) / box.width)) * (count - 1)));
  };
  const step = (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by) return;
    event.preventDefault();
    const at = Number(event.currentTarget.closest("figure").dataset.at ?? count - 1);
    read(Math.min(count - 1, Math.max(0, at + by)));
  };
  return h("figure", { class: "chart", "data-key": key(data, title) },
    h("figcaption", {}, title, " ", h("span", { class: "quiet" }, `up to ${format(top)}`), " ", readout),
    h("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", tabindex: "0", "aria-label": said(title, series, format), onpointermove: move, onkeydown: step },
      [0, 0.5, 1].map((part) => h("line", { class: "grid", x1: 0, x2: WIDTH, y1: y(top * part), y2: y(top * part) })),
      series.map(({ style, points }) => h("path", { class: `line l${style}`, d: path(points, count, x, y) })),
      cursor),
    h("div", { class: "axis quiet" }, h("span", {}, time(begin)),
      h("span", {}, series.length > 1 ? series.map(({ title, style }) => h("span", { class: "named" },
        h("svg", { class: "sample", viewBox: "0 0 24 6", "aria-hidden": "true" }, h("line", { class: `line l${style}`, x1: 0, x2: 24, y1: 3, y2: 3 })), title)) : null),
      h("span", {}, time(Date.parse(data.end)))));
}

function key(data, title) {
  return `${data.of}/${data.stepMs}/${title}`;
}

/// The lines as a path; what is not known is a gap, a point alone a dot.
function path(points, count, x, y) {
  const missing = count - points.length;
  let drawn = "", pen = false;
  points.forEach((value, at) => {
    if (value === null) { pen = false; return; }
    const place = `${x(at + missing).toFixed(1)} ${y(value).toFixed(1)}`;
    drawn += pen ? `L${place}` : `M${place}h.1`;
    pen = true;
  });
  return drawn;
}

/// The next round number that is not less.
function nice(value) {
  if (value <= 0) return 1;
  const unit = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * unit).find((round) => round >= value);
}

function said(title, series, format) {
  const last = series.map(({ title, points }) => `${title} ${points.length && points.at(-1) !== null ? format(points.at(-1)) : "not known"}`);
  return `${title}, now: ${last.join(", ")}`;
}

function time(at) {
  return new Date(at).toTimeString().slice(0, 5);
}

/// Buttons for the hour and the day.
export function ranges(query, go) {
  const now = query.range ?? "hour";
  return h("div", { class: "chips", role: "group", "aria-label": "Time" }, [["hour", "Last hour"], ["day", "Last day"]].map(([range, title]) =>
    h("button", { type: "button", class: "chip", "aria-pressed": String(now === range), onclick: () => go({ range: range === "hour" ? "" : range }) }, title)));
}
