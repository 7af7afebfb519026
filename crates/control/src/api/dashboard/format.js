// Numbers, sizes and times for people.

export function bytes(count) {
  if (count === undefined || count === null) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (count >= 1024 && unit < units.length - 1) { count /= 1024; unit += 1; }
  return `${count >= 100 || unit === 0 ? Math.round(count) : count.toFixed(1)} ${units[unit]}`;
}

export function number(count) {
  return (count ?? 0).toLocaleString("en", { maximumFractionDigits: 0 });
}

/// A rate: more digits where it is small, nothing where there is none.
export function rate(value) {
  if (!value) return "0";
  return value >= 100 ? number(value) : value >= 10 ? value.toFixed(1) : value.toFixed(2);
}

export function millis(value) {
  if (value === undefined || value === null) return "–";
  if (value >= 10_000) return `${(value / 1000).toFixed(1)} s`;
  return `${value >= 100 ? Math.round(value) : value >= 10 ? value.toFixed(1) : value.toFixed(2)} ms`;
}

export function percent(part, whole) {
  return whole > 0 ? `${Math.round((100 * part) / whole)} %` : "–";
}

/// How long ago, in one unit.
export function ago(timestamp, now = Date.now()) {
  if (!timestamp) return "never";
  const seconds = Math.max(0, (now - Date.parse(timestamp)) / 1000);
  for (const [unit, length] of [["d", 86_400], ["h", 3_600], ["min", 60]]) {
    if (seconds >= 2 * length) return `${Math.floor(seconds / length)} ${unit} ago`;
  }
  return seconds < 3 ? "now" : `${Math.floor(seconds)} s ago`;
}

/// The time of day, with the date where it is not today.
export function clock(timestamp) {
  const at = new Date(timestamp);
  const time = at.toTimeString().slice(0, 8);
  return at.toDateString() === new Date().toDateString() ? time : `${at.toISOString().slice(0, 10)} ${time}`;
}

/// The short form of a revision or commit: `iris@3f2a9c41d07b` → `3f2a9c41d07b`, a long hash → its first 12 characters.
export function short(revision) {
  const hash = (revision ?? "").slice((revision ?? "").lastIndexOf("@") + 1);
  return /^[0-9a-f]{16,}$/.test(hash) ? hash.slice(0, 12) : hash;
}
