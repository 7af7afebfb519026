// One model: figures, rollout, replicas, explanation, events, log, declaration.

import { allowed, get, pathOf, split } from "./api.js";
import { h } from "./dom.js";
import { ago, bytes, clock, millis, number, percent, rate, short } from "./format.js";
import { badge, figures, section, table } from "./parts.js";
import { chart, history, ranges } from "./charts.js";
import { list } from "./events.js";
import { lines, log } from "./log.js";
import { rollout } from "./rollout.js";
import { tryIt } from "./try.js";

// In these phases nothing asks for a reason.
const WELL = ["Available", "ScaledDown"];

export const every = 2_000;
export const title = ({ part }) => part;

export async function load({ part, query }, signal) {
  const path = pathOf(part);
  const [namespace, name] = split(part);
  // A role that is limited to a namespace, or to models, reaches the deployment and not all that is told of it elsewhere.
  const [deployment, page, explanation, events, past, said] = await Promise.all([
    get(path, {}, signal),
    allowed(get("v1/dashboard/models", { deployment: part }, signal)),
    get(`${path}/explain`, {}, signal),
    allowed(get(`v1/namespaces/${encodeURIComponent(namespace)}/events`, { deployment: name, limit: 50 }, signal)),
    allowed(history({ deployment: part }, query.range, signal)),
    log(path, signal),
  ]);
  return { deployment, row: page?.items[0], explanation, events, past, said };
}

export function draw({ deployment, row, explanation, events, past, said }, { part, query }, go) {
  const { metadata, status, spec } = deployment;
  return [
    h("p", { class: "path" }, h("a", { href: "#/models" }, "Models")),
    h("h1", {}, part, " ", badge(status.phase)),
    h("p", { class: "quiet" }, [
      row ? `format ${row.format}` : null,
      `declared by ${metadata.origin}`,
      `generation ${metadata.generation}`,
      metadata.deleting ? "being deleted" : null,
      ...Object.entries(metadata.labels ?? {}).map(([key, value]) => `${key}=${value}`),
    ].filter(Boolean).join(" · ")),
    WELL.includes(status.phase) ? null : status.conditions.filter((condition) => condition.status !== "True").map((condition) =>
      h("p", { class: "notice" }, h("b", {}, `${condition.type}: ${condition.reason}`), " ", condition.message)),
    figures([
      ["Replicas", `${status.replicas.ready} of ${status.replicas.desired}`, "ready"],
      ...(row ? [
        ["Requests", `${rate(row.requestsPerSecond)} /s`, `${number(row.requests)} since the start, ${number(row.inFlight)} in flight`],
        ["Latency", millis(row.latency?.p50), row.latency ? `p90 ${millis(row.latency.p90)}, p99 ${millis(row.latency.p99)}` : "no request in the last 10 s"],
        ["Errors", `${rate(row.failuresPerSecond)} /s`, `${number(row.failures)} since the start (${percent(row.failures, row.requests)})`],
        ["Misses", number(row.misses), "requests that found nothing ready"],
        ["Memory", bytes(row.memory), `last use ${ago(row.lastUsed)}`],
      ] : []),
    ]),
    past ? section("History", ranges(query, go), h("div", { class: "charts" },
      chart(past, "Requests per second", [["requestsPerSecond", "requests"], ["failuresPerSecond", "errors"], ["missesPerSecond", "misses"]], rate),
      chart(past, "Latency", [["p50", "p50"], ["p99", "p99"]], millis))) : null,
    section("Rollout", rollout(status)),
    section("Replicas", replicas(status)),
    section("Where it fits, and why", placement(explanation)),
    section("Events", events ? list(events.items.toReversed()) : h("p", { class: "quiet" }, "Not shown: events need a role on the whole namespace.")),
    section("Log", lines(said)),
    section("Try it", tryIt(part, spec)),
    section("Declaration", h("details", {}, h("summary", {}, "As it was written"), h("pre", {}, JSON.stringify(spec, null, 2)))),
  ];
}

function replicas(status) {
  return table([
    ["Worker", "", (replica) => replica.worker],
    ["Revision", "", (replica) => h("code", {}, short(replica.revision))],
    ["State", "", (replica) => [badge(replica.state), progress(replica.progress), replica.message ? h("small", { class: "reason" }, replica.message) : null, failure(replica.failure)]],
    ["Memory", "number", (replica) => `${bytes(replica.memory)}${replica.measured ? "" : " (predicted)"}`],
    ["Requests", "number", (replica) => (replica.requests === undefined ? "–" : number(replica.requests))],
    ["Last use", "number", (replica) => ago(replica.lastUsed)],
  ], status.replicaDetails ?? [], { key: (replica) => `${replica.revision}/${replica.worker}`, empty: "None is loaded." });
}

function progress(progress) {
  if (!progress) return null;
  return h("small", { class: "reason" }, progress.total ? `${bytes(progress.done)} of ${bytes(progress.total)}` : bytes(progress.done));
}

function failure(failure) {
  if (!failure) return null;
  return h("details", {}, h("summary", {}, `${failure.attempts} ${failure.attempts === 1 ? "attempt" : "attempts"}, last ${clock(failure.at)}${failure.retryAt ? `, next ${clock(failure.retryAt)}` : ""}`),
    h("pre", {}, [failure.message, failure.trace].filter(Boolean).join("\n\n")));
}

function placement(explanation) {
  return [
    h("p", {}, explanation.summary),
    h("p", { class: "quiet" }, `Needs ${bytes(explanation.need)} (${explanation.needFrom}).`),
    table([
      ["Worker", "", (worker) => worker.worker],
      ["Verdict", "", (worker) => h("span", { class: `verdict ${worker.verdict}` }, worker.verdict, worker.rank ? ` (rank ${worker.rank})` : "")],
      ["Free", "number", (worker) => `${bytes(worker.memory.free)} of ${bytes(worker.memory.total)}`],
      ["Why", "", (worker) => worker.message],
    ], explanation.workers ?? [], { key: (worker) => worker.worker, empty: "No worker is attached." }),
    explanation.evictions?.length ? h("ul", {}, explanation.evictions.map((one) =>
      h("li", {}, `${clock(one.at)}: ${short(one.revision)} left ${one.worker}${one.roomFor ? ` to make room for ${one.roomFor}` : ""}`))) : null,
  ];
}
