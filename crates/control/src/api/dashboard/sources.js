// Sources of deployments: the commit in force, the one that is refused and why.

import { get, post } from "./api.js";
import { h } from "./dom.js";
import { ago, clock, number } from "./format.js";
import { badge } from "./parts.js";

export const every = 3_000;
export const title = () => "Sources";

export function load(_place, signal) {
  return get("v1/sources", {}, signal);
}

export function draw(sources, _place, go) {
  return [
    h("h1", {}, "Sources"),
    sources.items.length ? sources.items.map((source) => shown(source, go))
      : h("p", { class: "quiet" }, "No source: what is served was declared by the API. `berth up FOLDER` and `berth registry` add sources."),
  ];
}

function shown({ metadata, spec, status }, go) {
  const facts = [
    ["Location", spec.location],
    ["In force", status.applied ? `${status.applied.slice(0, 12)}${status.appliedAt ? `, since ${clock(status.appliedAt)}` : ""}` : "nothing yet"],
    status.seen && status.seen !== status.applied ? ["Newest", status.seen.slice(0, 12)] : null,
    ["Deployments", `${number(status.deployments)}${status.disabled ? `, ${number(status.disabled)} without a replica` : ""}`],
    ["Read", `${ago(status.checkedAt)}${status.nextCheck ? `, next ${clock(status.nextCheck)}` : ""}`],
    ...Object.entries(status.details ?? {}),
  ].filter(Boolean);
  const does = (what) => async () => {
    await post(`v1/sources/${encodeURIComponent(metadata.name)}/${what}`).catch((error) => alert(error.message));
    go({});
  };
  return h("article", { "data-key": metadata.name },
    h("h2", {}, metadata.name, " ", badge(status.state)),
    h("p", { class: "quiet" }, spec.kind),
    status.refused ? h("p", { class: "notice bad" }, `Commit ${status.refused.commit.slice(0, 12)} is not followed: ${status.refused.outcome}.`) : null,
    status.problem ? h("pre", { class: "notice" }, status.problem) : null,
    (status.conflicts ?? []).map((conflict) => h("p", { class: "notice" }, conflict)),
    h("dl", { class: "facts" }, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))),
    (status.breakers ?? []).length ? h("ul", {}, status.breakers.map((breaker) => h("li", {}, breaker.dependency, " ", badge(breaker.state), ` ${breaker.failures} failures`))) : null,
    h("p", { class: "tools" },
      h("button", { type: "button", onclick: does("sync") }, "Read now"),
      h("button", { type: "button", onclick: does(status.paused ? "resume" : "pause") }, status.paused ? "Resume" : "Pause")));
}
