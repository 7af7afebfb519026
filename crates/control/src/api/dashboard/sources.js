// Sources of deployments: the commit in force, the one that is refused and why.

import { get, post } from "./api.js";
import { h } from "./dom.js";
import { ago, clock, number } from "./format.js";
import { badge } from "./parts.js";

// Roles that may read, pause and resume a source.
const OPERATE = ["operator", "admin"];

export const every = 3_000;
export const title = () => "Sources";

// The server's answer to the last button, if it refused.
let refusal = "";

export async function load(_place, signal) {
  const [sources, me] = await Promise.all([get("v1/sources", {}, signal), get("v1/whoami", {}, signal)]);
  return { sources, operates: operates(me.status) };
}

/// True if whoever looks may operate sources: their role holds everywhere, or nobody is asked.
function operates({ authenticated, grants }) {
  return !authenticated || grants.some(({ role, namespaces, models }) => OPERATE.includes(role) && !namespaces?.length && !models?.length);
}

export function draw({ sources, operates }, _place, go) {
  return [
    h("h1", {}, "Sources"),
    refusal ? h("p", { class: "notice bad", role: "alert" }, refusal) : null,
    sources.items.length ? sources.items.map((source) => shown(source, operates, go))
      : h("p", { class: "quiet" }, "No source: what is served was declared by the API. `berth up FOLDER` and `--source` add sources."),
  ];
}

function shown({ metadata, spec, status }, operates, go) {
  const facts = [
    ["Location", spec.location],
    ["In force", status.applied ? `${status.applied.slice(0, 12)}${status.appliedAt ? `, since ${clock(status.appliedAt)}` : ""}` : "nothing yet"],
    status.seen && status.seen !== status.applied ? ["Newest", status.seen.slice(0, 12)] : null,
    ["Deployments", `${number(status.deployments)}${status.disabled ? `, ${number(status.disabled)} without a replica` : ""}`],
    ["Read", `${ago(status.checkedAt)}${status.nextCheck ? `, next ${clock(status.nextCheck)}` : ""}`],
    ...Object.entries(status.details ?? {}),
  ].filter(Boolean);
  const does = (what) => async () => {
    refusal = "";
    await post(`v1/sources/${encodeURIComponent(metadata.name)}/${what}`).catch((error) => { refusal = error.message; });
    go({});
  };
  return h("article", { "data-key": metadata.name },
    h("h2", {}, metadata.name, " ", badge(status.state)),
    h("p", { class: "quiet" }, spec.kind),
    status.refused ? h("p", { class: "notice bad" }, `Commit ${status.refused.commit.slice(0, 12)} is not followed: ${status.refused.outcome}.`) : null,
    status.problem ? h("pre", { class: "notice" }, status.problem) : null,
    status.stuck?.count ? h("p", { class: "notice bad" }, `${number(status.stuck.count)} of its deployments ${status.stuck.count === 1 ? "does" : "do"} not get on: ${status.stuck.first.join(", ")}${status.stuck.count > status.stuck.first.length ? ", …" : ""}`) : null,
    (status.conflicts ?? []).map((conflict) => h("p", { class: "notice" }, conflict)),
    h("dl", { class: "facts" }, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))),
    (status.breakers ?? []).length ? h("ul", {}, status.breakers.map((breaker) => h("li", {}, breaker.dependency, " ", badge(breaker.state), ` ${breaker.failures} failures`))) : null,
    operates ? h("p", { class: "tools" },
      h("button", { type: "button", onclick: does("sync") }, "Read now"),
      h("button", { type: "button", onclick: does(status.paused ? "resume" : "pause") }, status.paused ? "Resume" : "Pause")) : null);
}
