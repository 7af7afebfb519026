// A form made from a model's inputs; it sends one request and shows the answer.

import { pathOf, read, send, split } from "./api.js";
import { h } from "./dom.js";
import { millis } from "./format.js";
import { table } from "./parts.js";

// Values that an example is filled with; larger inputs are left to be pasted.
const MOST_EXAMPLE = 64;
// Length where a model leaves it open: that of a row whose length only the model knows, and people see what to change.
const OPEN = 4;
// What models without a card take.
const ROWS = { examples: [{ features: Array(OPEN).fill(0) }] };
const TEXTS = ["BYTES"], TRUTHS = ["BOOL"];

/// The section; what people type stays, because the page never changes the inside of it.
export function tryIt(deployment, spec) {
  const place = h("div", { "data-kept": true, "data-key": `try/${deployment}`, class: "try" });
  place.append(h("button", { type: "button", onclick: () => open(place, deployment) }, "Make a form from its inputs"));
  return [place, ownJson(spec)];
}

/// A request in the model's own JSON, for a shell. The page sends none: the gateway decides which of several deployments answers at a
/// path, so a right to infer with this one is not enough.
function ownJson({ endpoint, model }) {
  const schema = model?.card?.card?.interface?.input_schema ?? (model?.environment ? ROWS : null);
  if (!endpoint || !schema) return null;
  // Of a URL the path is meant.
  const path = endpoint.replace(/^\w+:\/\/[^/]*/, "");
  return h("details", {}, h("summary", {}, "In its own JSON, with curl"), h("pre", {}, command(path, made(schema, { left: MOST_EXAMPLE }))));
}

/// A document for a JSON schema: its example or default, else one with the fields that it requires. `budget` ends large ones.
function made(schema, budget) {
  if (!schema || budget.left-- <= 0) return null;
  const said = [schema.examples?.[0], schema.default, schema.const, schema.enum?.[0]].find((value) => value !== undefined);
  if (said !== undefined) return said;
  const type = [schema.type].flat()[0] ?? (schema.properties ? "object" : "");
  if (type === "object") return Object.fromEntries((schema.required ?? []).map((name) => [name, made(schema.properties?.[name], budget)]));
  if (type === "array") return Array.from({ length: Math.min(schema.minItems ?? 1, MOST_EXAMPLE) }, () => made(schema.items, budget));
  return { string: "text", number: 0, integer: 0, boolean: false }[type] ?? null;
}

async function open(place, deployment) {
  // The element in the page, not the one that it was made from.
  place = document.querySelector(".try") ?? place;
  place.replaceChildren(h("p", { class: "quiet" }, "Asking the model; a cold one is loaded first …"));
  try {
    const metadata = await read(await send(`${pathOf(deployment)}/try`));
    place.replaceChildren(form(deployment, metadata));
    place.querySelector("textarea")?.focus();
  } catch (error) {
    place.replaceChildren(h("p", { class: "notice bad" }, error.message),
      h("button", { type: "button", onclick: () => open(place, deployment) }, "Ask again"));
  }
}

function form(deployment, metadata) {
  const inputs = (metadata.inputs ?? []).map((input) => {
    const shape = input.shape.map((size, at) => (size >= 0 ? size : at === 0 ? 1 : OPEN));
    const field = h("textarea", { rows: 3, spellcheck: "false", name: input.name, "aria-describedby": `about-${input.name}` });
    field.value = example(input.datatype, shape);
    return { ...input, field };
  });
  const answer = h("div", { class: "answer", role: "status" });
  const button = h("button", { type: "submit" }, "Send");
  const submit = async (event) => {
    event.preventDefault();
    button.disabled = true;
    try {
      const request = { inputs: inputs.map(tensor) };
      const began = performance.now();
      const response = await read(await send(`${pathOf(deployment)}/try`, { method: "POST", body: JSON.stringify(request), headers: { "content-type": "application/json" } }));
      answer.replaceChildren(shown(response, performance.now() - began), curl(deployment, request));
    } catch (error) {
      answer.replaceChildren(h("p", { class: "notice bad" }, error.message));
    }
    button.disabled = false;
  };
  return h("form", { onsubmit: submit },
    inputs.length ? inputs.map((input) => h("label", {}, h("b", {}, input.name), " ",
      h("span", { class: "quiet", id: `about-${input.name}` }, `${input.datatype} [${input.shape.join(", ")}], as JSON; the outer list is the batch${input.shape.indexOf(-1, 1) > 0 ? ", and the other lengths of -1 are yours to say" : ""}`), input.field))
      : h("p", {}, "The model says nothing of its inputs."),
    h("p", {}, button), answer);
}

/// Zeros, false or a text in the shape, as JSON.
function example(datatype, shape) {
  if (shape.reduce((a, b) => a * b, 1) > MOST_EXAMPLE) return "";
  const value = TEXTS.includes(datatype) ? "text" : TRUTHS.includes(datatype) ? false : 0;
  return JSON.stringify(shape.reduceRight((inner, size) => Array.from({ length: size }, () => inner), value));
}

/// A tensor from nested lists: their lengths are its shape.
function tensor({ name, datatype, field }) {
  let values;
  try {
    values = JSON.parse(field.value);
  } catch (error) {
    throw new Error(`${name} is not JSON: ${error.message}`);
  }
  const shape = [];
  for (let inner = values; Array.isArray(inner); inner = inner[0]) shape.push(inner.length);
  return { name, datatype, shape, data: [values].flat(Infinity) };
}

function shown(response, took) {
  const limit = 200;
  return h("div", {},
    h("p", { class: "quiet" }, `Answered in ${millis(took)} by ${response.model_name}${response.model_version ? ` version ${response.model_version}` : ""}`),
    table([
      ["Output", "", (output) => output.name],
      ["Type", "", (output) => `${output.datatype} [${output.shape.join(", ")}]`],
      ["Values", "wide", (output) => h("code", {}, `${(output.data ?? []).slice(0, limit).map((value) => JSON.stringify(value)).join(", ")}${(output.data ?? []).length > limit ? " …" : ""}`)],
    ], response.outputs ?? [], { empty: "No output." }));
}

function curl(deployment, request) {
  const [namespace, name] = split(deployment);
  const path = `${namespace === "default" ? "" : `/namespaces/${encodeURIComponent(namespace)}`}/v2/models/${encodeURIComponent(name)}/infer`;
  return h("details", {}, h("summary", {}, "The same with curl"), h("pre", {}, command(path, request)));
}

function command(path, request) {
  const body = JSON.stringify(request).replaceAll("'", "'\\''");
  return `curl -H 'content-type: application/json' -d '${body}' GATEWAY${path}`;
}
