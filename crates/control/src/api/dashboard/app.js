// The frame: which page is shown, when it is asked for again, keys, theme, token.
//
//   #/PAGE/PART?query ─▶ page.load(place) ─▶ page.draw(data, place) ─▶ patch
//        ▲                     │ 401: ask for a token      every page.every ms while the tab is looked at
//        └── go(place) ────────┘

import { Refused, hasToken, keepToken } from "./api.js";
import { h, patch } from "./dom.js";
import * as events from "./events.js";
import * as fleet from "./fleet.js";
import { listen, live } from "./live.js";
import * as model from "./model.js";
import * as models from "./models.js";
import * as sources from "./sources.js";

const PAGES = { fleet, models, model, events, sources };
const MENU = [["fleet", "Fleet"], ["models", "Models"], ["events", "Events"], ["sources", "Sources"]];
const $ = (id) => document.getElementById(id);

// Events come in bursts: one look afterwards shows all of them.
const SETTLES = 300;

let running = new AbortController();

/// The place in the address: #/model/iris?tab=x → {page, part, query}.
function place() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [page, part] = path.split("/");
  return {
    page: PAGES[page] ? page : "fleet",
    part: part ? decodeURIComponent(part) : "",
    query: Object.fromEntries(new URLSearchParams(query ?? "")),
  };
}

/// Changes parameters of the address; pages are numbered anew unless `offset` is among them.
function go(changes) {
  const at = place();
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries({ ...at.query, offset: "", ...changes })) {
    if (value !== "" && value !== undefined && value !== false) query.set(name, value);
  }
  const text = query.toString();
  const part = at.part ? `/${encodeURIComponent(at.part)}` : "";
  history.replaceState(null, "", `#/${at.page}${part}${text ? `?${text}` : ""}`);
  show();
}

async function show() {
  running.abort();
  const mine = (running = new AbortController());
  const at = place();
  const page = PAGES[at.page];
  document.title = `${page.title(at)} · Berth`;
  $("change-token").hidden = !hasToken();
  patch($("nav"), h("nav", { id: "nav", "aria-label": "Pages" }, MENU.map(([name, title]) =>
    h("a", { href: `#/${name}`, "aria-current": at.page === name || (name === "models" && at.page === "model") ? "page" : undefined }, title))));
  while (!mine.signal.aborted) {
    try {
      const data = await page.load(at, mine.signal);
      if (mine.signal.aborted) return;
      const fresh = h("main", { id: "main", tabindex: "-1", "data-key": at.page + "/" + at.part }, page.draw(data, at, go));
      patch($("main"), fresh);
      problem("");
    } catch (error) {
      if (mine.signal.aborted) return;
      if (error.status === 401) return askForToken(error.message);
      if (!(error instanceof Refused)) console.error(error);
      // A token that does not suffice is not asked for by itself: it may do on other pages.
      if (error.status === 403) $("change-token").hidden = false;
      problem(error.message);
    }
    await pause(page.every, mine.signal);
  }
}

/// Waits, and as long as nobody looks.
function pause(time, signal) {
  return new Promise((done) => {
    hurry = () => { if (!document.hidden) setTimeout(end, SETTLES); };
    const end = () => { document.removeEventListener("visibilitychange", check); clearTimeout(timer); done(); };
    const check = () => { if (!document.hidden) end(); };
    const timer = setTimeout(() => (document.hidden ? document.addEventListener("visibilitychange", check) : end()), time);
    signal.addEventListener("abort", end, { once: true });
  });
}

/// Says that what is shown is not of now, and why.
function problem(message) {
  $("problem").hidden = !message;
  $("problem").textContent = message ? `Shown as last known: ${message}` : "";
}

/// The state of the whole, beside the menu.
function health() {
  const { pulse, connected } = live;
  const well = connected && pulse && pulse.alive === pulse.nodes && pulse.leader;
  $("health").className = well ? "" : "bad";
  $("health").textContent = !connected ? "no live news"
    : pulse ? `${pulse.alive} of ${pulse.nodes} ${pulse.nodes === 1 ? "node" : "nodes"} alive, ${pulse.leader ?? "nobody"} leads` : "";
}

/// News: the state is shown at once, and after an event the page is asked for sooner.
let hurry = () => {};

function news(kind) {
  health();
  if (kind === "events") hurry();
}

function askForToken(refusal) {
  $("refusal").textContent = refusal;
  if (!$("token").open) $("token").showModal();
}

// === theme: as the system says, light, dark ===

const THEMES = { "": "◐ auto", light: "○ light", dark: "● dark" };

function theme(next) {
  const names = Object.keys(THEMES);
  const now = next ?? localStorage.getItem("berth-theme") ?? "";
  const known = names.includes(now) ? now : "";
  localStorage.setItem("berth-theme", known);
  document.documentElement.dataset.theme = known;
  $("theme").textContent = THEMES[known];
  $("theme").setAttribute("aria-label", `Colours: ${THEMES[known].slice(2)}`);
  return names[(names.indexOf(known) + 1) % names.length];
}

// === keys ===

function row(step) {
  const rows = [...document.querySelectorAll("tr[data-link]")];
  const at = rows.indexOf(document.activeElement);
  rows[Math.min(rows.length - 1, Math.max(0, at + step))]?.focus();
}

const KEYS = {
  j: () => row(1),
  k: () => row(-1),
  n: () => document.querySelector("[data-page=next]")?.click(),
  p: () => document.querySelector("[data-page=previous]")?.click(),
  d: () => theme(theme()),
  "?": () => $("keys").showModal(),
  "/": () => {
    if (place().page !== "models") location.hash = "#/models";
    else document.querySelector("input[type=search]")?.focus();
  },
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const field = event.target.closest("input, textarea, select");
  if (field) {
    if (event.key === "Escape") field.blur();
    return;
  }
  const menu = MENU[Number(event.key) - 1];
  if (menu) location.hash = `#/${menu[0]}`;
  else if (event.key === "Enter" && event.target.dataset?.link) location.hash = event.target.dataset.link;
  else if (KEYS[event.key]) KEYS[event.key]();
  else return;
  event.preventDefault();
});

$("theme").onclick = () => theme(theme());
$("change-token").onclick = () => askForToken("");
$("help").onclick = () => $("keys").showModal();
$("token").onclose = () => {
  const text = $("token-text").value.trim();
  $("token-text").value = "";
  if (text) keepToken(text);
  show();
};
addEventListener("hashchange", show);
theme();
show();
listen(news);
