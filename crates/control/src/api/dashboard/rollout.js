// A rollout step by step, from the replicas of the wanted revision.

import { h } from "./dom.js";
import { short } from "./format.js";

const STEPS = ["Assigned", "Queued", "Fetching", "Preparing", "Loading", "Validating", "Ready"];

export function rollout(status) {
  const { wanted, serving } = status.revision;
  if (!wanted) return null;
  const mine = (status.replicaDetails ?? []).filter((replica) => replica.revision === wanted);
  const failed = mine.find((replica) => replica.state === "Failed") ?? (["Failed", "ScheduleFailed"].includes(status.phase) ? {} : undefined);
  // The farthest replica tells how far the revision is.
  const far = Math.max(-1, ...mine.map((replica) => STEPS.indexOf(replica.state)));
  const steps = [["Declared", true], ...STEPS.slice(2).map((step) => [step, far >= STEPS.indexOf(step)]), ["Serving", serving === wanted]];
  const at = failed ? -1 : steps.findIndex(([, done]) => !done);
  const idle = !mine.length && status.replicas.desired === 0;
  const canary = (status.conditions ?? []).find((condition) => condition.type === "Progressing" && condition.reason === "Canary");
  return h("div", {},
    h("ol", { class: "steps" }, steps.map(([step, done], number) =>
      h("li", { class: done ? "done" : number === at && !idle ? "now" : "", "aria-current": number === at && !idle ? "step" : undefined }, h("span", { "aria-hidden": "true" }, done ? "✓ " : number === at && !idle ? "… " : "○ "), step))),
    h("p", {}, canary && !failed ? canary.message : said(wanted, serving, failed, idle)));
}

function said(wanted, serving, failed, idle) {
  if (failed) {
    const stays = serving && serving !== wanted ? ` Revision ${short(serving)} goes on answering.` : "";
    return `Revision ${short(wanted)} ${failed.worker ? `failed on ${failed.worker}` : "cannot be served: the conditions above say why"}.${stays}`;
  }
  if (idle) return `Revision ${short(wanted)} is loaded when the next request comes.`;
  if (serving === wanted) return `Revision ${short(wanted)} answers all requests.`;
  return serving ? `Revision ${short(serving)} answers until ${short(wanted)} is ready.` : `Revision ${short(wanted)} is on its way.`;
}
