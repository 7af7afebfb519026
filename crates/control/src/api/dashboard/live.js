// Live news: one stream of server-sent events per tab. It is read with `fetch`, because a token goes in a header.

import { read, send } from "./api.js";

// Events that are kept here, the newest; the server keeps more.
const KEPT = 500;
// A piece that is larger is none of this server's.
const MOST = 4 << 20;
const AGAIN = 5_000;

export const live = { events: [], pulse: null, connected: false, last: null };

/// Reads news for as long as the tab lives; `changed(kind)` is called for each piece, and with "ended" when the stream ends.
export async function listen(changed) {
  for (;;) {
    try {
      const headers = live.last === null ? { "last-event-id": "0" } : { "last-event-id": live.last };
      const response = await send("v1/dashboard/stream", { headers });
      if (!response.ok) await read(response);
      live.connected = true;
      for await (const piece of pieces(response.body)) take(piece, changed);
    } catch (error) {
      live.problem = error;
    }
    live.connected = false;
    changed("ended");
    await new Promise((done) => setTimeout(done, AGAIN));
    // Another leader numbers events anew: those that are kept are asked for again.
    live.last = null;
    live.events = [];
  }
}

function take({ id, event, data }, changed) {
  if (id) live.last = id;
  if (event === "events") live.events = live.events.concat(JSON.parse(data)).slice(-KEPT);
  if (event === "pulse") live.pulse = JSON.parse(data);
  changed(event);
}

async function* pieces(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    if (rest.length > MOST) throw new Error("a piece of news is too large");
    const whole = rest.split("\n\n");
    rest = whole.pop();
    for (const text of whole) yield fields(text);
  }
}

function fields(text) {
  return Object.fromEntries(text.split("\n").map((line) => {
    const colon = line.indexOf(":");
    return [line.slice(0, colon), line.slice(colon + 1).trimStart()];
  }));
}
