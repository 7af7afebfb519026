// The control API: JSON, errors in words, and a token where the server wants one.

const BASE = new URL("../", document.baseURI);
const KEPT = "berth-token";

/// An answer that is an error, with what the server says.
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export function keepToken(token) {
  sessionStorage.setItem(KEPT, token);
}

export function hasToken() {
  return sessionStorage.getItem(KEPT) !== null;
}

/// An answer, or null where the role does not reach so far: the rest is shown without it.
export async function allowed(answer) {
  try {
    return await answer;
  } catch (error) {
    if (error instanceof Refused && error.status === 403) return null;
    throw error;
  }
}

/// Sends a request; gives the response as it is, whatever its status.
export async function send(path, { method = "GET", body, headers = {}, signal } = {}) {
  const token = sessionStorage.getItem(KEPT);
  const given = token ? { ...headers, authorization: `Bearer ${token}` } : headers;
  try {
    return await fetch(new URL(path, BASE), { method, body, headers: given, signal, redirect: "error" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, `${location.host} does not answer`);
  }
}

/// JSON of a path. Parameters without a value are left out.
export async function get(path, parameters = {}, signal) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== undefined && value !== null && value !== "" && value !== false) query.set(name, value);
  }
  const text = query.toString();
  return read(await send(text ? `${path}?${text}` : path, { signal }));
}

export async function post(path, signal) {
  return read(await send(path, { method: "POST", signal }));
}

export async function read(response) {
  const text = await response.text();
  let json;
  try { json = JSON.parse(text); } catch { json = undefined; }
  if (response.ok && json !== undefined) return json;
  const message = json?.error?.message ?? json?.error ?? text.slice(0, 500);
  throw new Refused(response.status, typeof message === "string" && message ? message : `status ${response.status}`);
}

/// Path of a deployment from its written form, `NAME` or `NAMESPACE/NAME`.
export function pathOf(deployment) {
  const [namespace, name] = split(deployment);
  return `v1/namespaces/${encodeURIComponent(namespace)}/deployments/${encodeURIComponent(name)}`;
}

export function split(deployment) {
  const slash = deployment.indexOf("/");
  return slash < 0 ? ["default", deployment] : [deployment.slice(0, slash), deployment.slice(slash + 1)];
}
