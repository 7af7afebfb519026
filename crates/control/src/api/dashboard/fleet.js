// Workers: memory as bars of models, processors, GPUs, and the busiest models.

import { get } from "./api.js";
import { h } from "./dom.js";
import { ago, bytes, millis, number, percent, rate } from "./format.js";
import { chart, history, ranges } from "./charts.js";
import { badge, bar, colours, figures, memoryText, modelLink, section, table } from "./parts.js";

// Workers with a chart of their own.
const CHARTED = 12;
// Models of a worker that its legend names.
const NAMED = 6;

export const every = 2_000;
export const title = () => "Fleet";

export async function load({ query }, signal) {
  const [nodes, memory, busiest, past] = await Promise.all([
    get("v1/nodes", {}, signal),
    get("v1/dashboard/memory", { largest: 24 }, signal),
    get("v1/dashboard/models", { sort: "requests", descending: true, limit: 10 }, signal),
    history({}, query.range, signal),
  ]);
  // Of a large fleet, the first few: each is a question of its own.
  const workers = memory.items.slice(0, CHARTED).map((one) => one.worker);
  const pasts = await Promise.all(workers.map(async (worker) => [worker, await history({ worker }, query.range, signal)]));
  return { past, pasts: new Map(pasts), nodes, memory: new Map(memory.items.map((one) => [one.worker, one])), busiest };
}

export function draw({ nodes, memory, busiest, past, pasts }, { query }, go) {
  const workers = [...memory.values()];
  const sum = (what) => workers.reduce((sum, one) => sum + what(one), 0);
  const used = sum((one) => one.memory.used), total = sum((one) => one.memory.total);
  const phases = Object.entries(busiest.phases);
  // The age at which models are evicted (LRU age): the oldest of the workers.
  const oldest = workers.map((one) => one.leavesFirst?.lastUsed).filter(Boolean).sort()[0];
  // Those that legends name first: they are told apart by colour.
  const names = (parts) => parts.map((part) => part.deployment).sort();
  const colour = colours([...names(workers.flatMap((one) => one.largest.slice(0, NAMED))), ...names(workers.flatMap((one) => one.largest))]);
  const loss = nodes.status.massLoss;
  return [
    h("h1", {}, "Fleet"),
    loss ? h("p", { class: "notice bad" }, `${loss.lost} of ${loss.known} workers were lost at once. Until ${loss.until} only models that requests wait for are placed elsewhere.`) : null,
    figures([
      ["Workers", number(workers.length), nodes.items.length === 1 ? "1 node" : `${number(nodes.items.length)} nodes`],
      ["Memory for models", bytes(used), `of ${bytes(total)} (${percent(used, total)})`],
      ["Models", number(busiest.total), phases.map(([phase, count]) => `${number(count)} ${phase}`).join(", ")],
      ["Requests", `${rate(latest(past, "requestsPerSecond"))} /s`, "of all models"],
      ["Misses", `${rate(latest(past, "missesPerSecond"))} /s`, "requests that found nothing ready"],
      ["LRU age", oldest ? ago(oldest) : "–", oldest ? "last use of the model that is evicted next" : "none may be evicted"],
      ["Leader", nodes.status.leader ?? "none", nodes.status.epoch ? `term ${nodes.status.epoch}` : ""],
    ]),
    section("History", ranges(query, go), h("div", { class: "charts" },
      chart(past, "Requests per second", [["requestsPerSecond", "requests"], ["failuresPerSecond", "errors"], ["missesPerSecond", "misses"]], rate),
      chart(past, "Latency", [["p50", "p50"], ["p99", "p99"]], millis))),
    section("Workers", nodes.items.map((node) => worker(node, memory.get(node.metadata.name), pasts.get(node.metadata.name), colour))),
    section("Busiest models", table([
      ["Model", "", (row) => modelLink(row.deployment)],
      ["State", "", (row) => badge(row.phase)],
      ["Requests/s", "number", (row) => rate(row.requestsPerSecond)],
      ["p50", "number", (row) => millis(row.latency?.p50)],
      ["p99", "number", (row) => millis(row.latency?.p99)],
      ["Memory", "number", (row) => bytes(row.memory)],
    ], busiest.items, { key: (row) => row.deployment, link: (row) => `#/model/${encodeURIComponent(row.deployment)}`, empty: "No deployment yet: berth apply -f model.yaml" })),
  ];
}

function worker(node, memory, past, colour) {
  const { status, metadata } = node;
  const capacity = status.capacity;
  const facts = [
    status.leader ? "leads" : null,
    node.spec.cordon !== "open" ? node.spec.cordon : null,
    status.version ? `version ${status.version}` : null,
    status.address || null,
    [status.region, status.zone].filter(Boolean).join("/") || null,
    status.lastSeen ? `reported ${ago(status.lastSeen)}` : null,
  ].filter(Boolean);
  return h("article", { class: "worker", "data-key": metadata.name },
    h("h3", {}, metadata.name, " ", badge(status.state), status.health && status.health !== "Alive" ? [" ", badge(status.health)] : null),
    h("p", { class: "quiet" }, facts.join(" · ")),
    status.message ? h("p", { class: "notice" }, status.message) : null,
    memory ? models(memory, colour) : h("p", { class: "quiet" }, "Holds no models."),
    capacity ? h("dl", { class: "facts" },
      fact("Models", `${capacity.models.ready} ready of ${capacity.models.held}${capacity.models.max ? `, at most ${capacity.models.max}` : ""}`),
      fact("CPU", `${Math.round(capacity.cpus.usedPercent)} % of ${capacity.cpus.total} cores`),
      fact("Loads waiting", number(capacity.loadQueue)),
      fact("Requests", `${number(capacity.requestsPerMinute)} /min`)) : null,
    (capacity?.gpus ?? []).map(gpu),
    past ? h("div", { class: "charts" },
      chart(past, "Memory set aside", [["memory", "memory"]], bytes),
      chart(past, "CPU", [["cpuPercent", "CPU"]], (value) => `${Math.round(value)} %`)) : null,
    status.drain ? drain(status.drain) : null);
}

/// The newest point of a line.
function latest(past, name) {
  return past.lines.find((line) => line.name === name)?.points.at(-1) ?? 0;
}

function fact(name, value) {
  return h("div", {}, h("dt", {}, name), h("dd", {}, value));
}

function models(memory, colour) {
  const next = memory.leavesFirst;
  const parts = memory.largest.map((part) => ({
    size: part.memory,
    style: `c${colour.get(part.deployment)}`,
    title: `${part.deployment}: ${bytes(part.memory)}, ${part.state}`,
  }));
  if (memory.others) parts.push({ size: memory.othersMemory, style: "others", title: `${memory.others} others: ${bytes(memory.othersMemory)}` });
  const named = memory.largest.slice(0, NAMED);
  return h("div", {},
    h("p", { class: "measure" }, `Memory ${memoryText(memory.memory)}`,
      next ? [". When room is needed, ", modelLink(next.deployment), ` leaves first (last use: ${ago(next.lastUsed)}).`] : null),
    bar(parts, memory.memory.total, `Memory of ${memory.worker} by model`),
    h("ul", { class: "legend" },
      named.map((part) => h("li", {}, h("svg", { class: "key", viewBox: "0 0 10 10", "aria-hidden": "true" }, h("rect", { width: 10, height: 10, class: `c${colour.get(part.deployment)}` })), " ", modelLink(part.deployment), ` ${bytes(part.memory)}`)),
      memory.largest.length + memory.others > named.length ? h("li", { class: "quiet" }, `and ${number(memory.largest.length + memory.others - named.length)} more`) : null));
}

function gpu(gpu) {
  const busy = gpu.utilizationPercent === undefined ? "" : `, ${gpu.utilizationPercent} % busy`;
  return h("div", {},
    h("p", { class: "measure" }, `GPU ${gpu.kind}: ${bytes(gpu.used)} of ${bytes(gpu.memory)}${busy}${gpu.revision ? `, held by ${gpu.revision}` : ""}`),
    bar([{ size: gpu.used, style: "c4", title: `${bytes(gpu.used)} set aside` }], gpu.memory, `Memory of GPU ${gpu.id}`));
}

function drain(drain) {
  const steps = [...(drain.waitingFor ?? []), ...(drain.blocked ?? [])];
  return h("div", { class: "notice" }, `Draining: ${drain.left} replicas left.`,
    h("ul", {}, steps.map((step) => h("li", {}, `${step.revision}: ${step.message}`))));
}
