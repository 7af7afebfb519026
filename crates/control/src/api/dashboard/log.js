// The recent log of a model over all nodes: what it printed, and the steps of its workers with it. The latest first.

import { Refused, get } from "./api.js";
import { h } from "./dom.js";
import { clock } from "./format.js";
import { badge, table } from "./parts.js";

const LINES = 100;
const LEVELS = { WARN: "Warning", ERROR: "Failed" };

/// The log at a deployment's path. Who may see the model need not be allowed to read its log: then that is what is shown.
export async function log(path, signal) {
  try {
    return await get(`${path}/log`, { limit: LINES }, signal);
  } catch (error) {
    if (error instanceof Refused && error.status === 403) return { lines: [], refused: error.message };
    throw error;
  }
}

export function lines({ lines, missing, refused }) {
  if (refused) return h("p", { class: "quiet" }, refused);
  return [
    missing?.length ? h("p", { class: "notice" }, `Lines of ${missing.join(", ")} are missing: no answer in time.`) : null,
    h("div", { class: "lines", tabindex: "0", role: "region", "aria-label": "Log" }, table([
      ["Time", "time", (line) => h("time", { datetime: line.at, title: line.at }, clock(line.at))],
      ["Worker", "", (line) => line.node],
      ["Line", "wide", (line) => [LEVELS[line.level] ? [badge(LEVELS[line.level]), " "] : null, h("code", {}, line.text)]],
    ], lines.toReversed(), { key: (line) => `${line.node}/${line.number}`, empty: "No line yet." })),
  ];
}
