// The calling conventions of JavaScript functions: their parameters, and the answer for the value that they return.
// Comes before host.cjs and function.mjs, in one file with them, so that a function answers the same on this machine and in Azure.

// `json`: takes the parsed body. `azure`: (request, context). `azure3`: (context, request).
function styleOf(handler) {
  if (handler.azure) return 'azure';
  const text = Function.prototype.toString.call(handler);
  // Of a function, a method or an arrow; then of an arrow without parentheses.
  const found = /^(?:async\s+)?(?:function\s*\*?\s*)?[\w$]*\s*\(\s*([\w$]*)|^(?:async\s+)?([\w$]+)\s*=>/.exec(text);
  const first = found?.[1] ?? found?.[2] ?? '';
  if (handler.length >= 2) return /^(context|ctx)$/.test(first) ? 'azure3' : 'azure';
  if (!/^(request|req)$/.test(first)) return 'json';
  const asks = new RegExp(`\\b${first}\\s*\\.\\s*(json|text|arrayBuffer|formData|headers|query|params)\\b`);
  return asks.test(text) ? 'azure' : 'json';
}

// Typed arrays become lists. Of an iterator, JSON would be an empty object.
function plain(_, value) {
  if (ArrayBuffer.isView(value) && !(value instanceof DataView)) return Array.from(value);
  if (typeof value?.next === 'function') throw new TypeError('the function returned an iterator, which is no JSON');
  return typeof value === 'bigint' ? value.toString() : value;
}

function json(status, value, headers) {
  const text = JSON.stringify(value === undefined ? null : value, plain);
  if (text === undefined) throw new TypeError(`the function returned a ${typeof value}, which is no JSON`);
  return { status, headers: { 'content-type': 'application/json', ...headers }, body: Buffer.from(text) };
}

function isResponse(value) {
  return typeof value?.arrayBuffer === 'function' && Boolean(value.headers);
}

// True for an object that describes an answer, as Azure's models take it.
function isDescription(value) {
  const known = ['status', 'body', 'jsonBody', 'headers', 'cookies', 'statusCode', 'isRaw', 'enableContentNegotiation'];
  return typeof value === 'object' && value !== null && !Array.isArray(value) && Object.keys(value).every((key) => known.includes(key));
}

// Status, headers and body for the value that a function written for Azure has returned.
async function whole(value) {
  if (value === undefined || value === null) return { status: 204, headers: {}, body: Buffer.alloc(0) };
  if (isResponse(value)) {
    return { status: value.status, headers: Object.fromEntries(value.headers), body: Buffer.from(await value.arrayBuffer()) };
  }
  if (typeof value !== 'object' || Array.isArray(value)) return written(200, {}, value);
  if (!isDescription(value)) return json(200, value);
  const status = Number(value.status ?? value.statusCode ?? 200);
  const headers = headersOf(value.headers ?? {});
  return value.jsonBody === undefined ? written(status, headers, value.body) : json(status, value.jsonBody, headers);
}

// In small letters: a header of the function replaces ours, whatever letters it is written in.
function headersOf(given) {
  const pairs = typeof given[Symbol.iterator] === 'function' ? [...given] : Object.entries(given);
  return Object.fromEntries(pairs.map(([name, value]) => [name.toLowerCase(), value]));
}

function written(status, headers, body) {
  if (body === undefined || body === null) return { status, headers, body: Buffer.alloc(0) };
  if (body instanceof Uint8Array) return { status, headers, body: Buffer.from(body) };
  if (typeof body === 'object') return json(status, body, headers);
  return { status, headers: { 'content-type': 'text/plain; charset=utf-8', ...headers }, body: Buffer.from(String(body)) };
}

// Calls a function that takes the parsed body: the answer.
async function answerJson(handler, method, body) {
  if (method !== 'POST' && method !== 'PUT') return json(405, { error: 'this function takes a POST of JSON' });
  let value;
  try {
    value = body.length ? JSON.parse(body) : undefined;
  } catch (error) {
    return json(400, { error: `the body is not JSON: ${error.message}` });
  }
  return json(200, await handler(value));
}

// The context of an invocation. `logger` has `log`, and perhaps the levels.
function contextOf(invocationId, functionName, logger) {
  const at = (level) => (...words) => (logger[level] ?? logger.log).apply(logger, words);
  const levels = Object.fromEntries(['trace', 'debug', 'info', 'warn', 'error'].map((level) => [level, at(level)]));
  return {
    invocationId, functionName, ...levels,
    log: Object.assign(at('log'), levels, { verbose: at('debug') }),
    extraInputs: { get() {}, set() {} }, extraOutputs: { get() {}, set() {} },
    bindings: {}, options: {},
  };
}

// Calls a function of the earlier model, (context, request): the value that it returns or leaves in context.res.
async function callEarlier(handler, context, { method, url, headers, params, body }) {
  const asked = new URL(url, 'http://localhost');
  let parsed;
  try { parsed = JSON.parse(body); } catch { parsed = body; }
  const req = { method, url: asked.href, headers, query: Object.fromEntries(asked.searchParams), params, body: parsed, rawBody: body };
  context.req = req;
  const returned = await handler(context, req);
  return context.res ?? returned;
}

