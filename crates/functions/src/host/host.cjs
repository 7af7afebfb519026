// Runs one JavaScript function: HTTP over a Unix socket in, the function, HTTP out.
//
// Arguments: the folder of the code, FILE, EXPORT, the path of the socket. The process ends when its standard input does.

const http = require('node:http');

const [folder, file, name, socket] = process.argv.slice(2);
const LARGEST = 64 << 20;

process.stdin.resume();
process.stdin.on('end', () => process.exit(0));
process.stdin.on('error', () => process.exit(0));
process.chdir(folder);

function resolved() {
  for (const ending of ['', '.js', '.cjs', '.mjs', '.json']) {
    const found = path.join(folder, file + ending);
    if (fs.existsSync(found) && fs.statSync(found).isFile()) return found;
  }
  throw new Error(`there is no ${file}.js, which spec.entrypoint names`);
}

async function handler() {
  const loaded = await import(pathToFileURL(resolved()).href);
  const found = loaded[name] ?? loaded.default?.[name] ?? loaded.default?.default?.[name];
  if (typeof found === 'function') return found;
  const http = registered.map((one) => one.metadata && one).filter(Boolean);
  if (http.length) return registration(http.find((one) => one.metadata.name === name) ?? http[0]);
  const names = Object.keys({ ...loaded, ...(typeof loaded.default === 'object' ? loaded.default : {}) });
  throw new Error(`${file} exports no function ${name}, which spec.entrypoint names; it exports ${names.join(', ') || 'nothing'}`);
}

// The handler that `app.http` was given, found where the library keeps it.
function registration({ callback }) {
  const wanted = (request, context) => callback(request, context);
  wanted.azure = true;
  return wanted;
}

// `json`: takes the parsed body. `azure`: (request, context). `azure3`: (context, request).
function styleOf(handler) {
  if (handler.azure) return 'azure';
  const text = Function.prototype.toString.call(handler);
  const first = /^(?:async\s*)?(?:function\s*\*?\s*[\w$]*\s*)?\(?\s*([\w$]*)/.exec(text)?.[1] ?? '';
  if (handler.length >= 2) return /^(context|ctx)$/.test(first) ? 'azure3' : 'azure';
  const asks = new RegExp(`\\b${first}\\s*\\.\\s*(json|text|arrayBuffer|formData|headers|query|params)\\b`);
  return /^(request|req)$/.test(first) && asks.test(text) ? 'azure' : 'json';
}

const json = (status, value) => ({
  status,
  headers: { 'content-type': 'application/json' },
  body: Buffer.from(JSON.stringify(value === undefined ? null : value, plain)),
});

// Typed arrays become lists.
function plain(_, value) {
  if (ArrayBuffer.isView(value) && !(value instanceof DataView)) return Array.from(value);
  return typeof value === 'bigint' ? value.toString() : value;
}

async function whole(value) {
  if (value === undefined || value === null) return { status: 204, headers: {}, body: Buffer.alloc(0) };
  const isResponse = typeof value.arrayBuffer === 'function' && value.headers;
  if (isResponse) {
    return { status: value.status, headers: Object.fromEntries(value.headers), body: Buffer.from(await value.arrayBuffer()) };
  }
  if (typeof value !== 'object' || Array.isArray(value)) return text(200, {}, value);
  const known = ['status', 'body', 'jsonBody', 'headers', 'cookies', 'statusCode', 'isRaw', 'enableContentNegotiation'];
  if (!Object.keys(value).every((key) => known.includes(key))) return json(200, value);
  const status = Number(value.status ?? value.statusCode ?? 200);
  const headers = value.headers instanceof Headers ? Object.fromEntries(value.headers) : { ...value.headers };
  if (value.jsonBody !== undefined) {
    const answer = json(status, value.jsonBody);
    return { ...answer, headers: { ...answer.headers, ...headers } };
  }
  return text(status, headers, value.body);
}

function text(status, headers, body) {
  if (body === undefined || body === null) return { status, headers, body: Buffer.alloc(0) };
  if (Buffer.isBuffer(body) || body instanceof Uint8Array) return { status, headers, body: Buffer.from(body) };
  if (typeof body === 'object') {
    const answer = json(status, body);
    return { ...answer, headers: { ...answer.headers, ...headers } };
  }
  return { status, headers: { 'content-type': 'text/plain; charset=utf-8', ...headers }, body: Buffer.from(String(body)) };
}

function context() {
  const log = (...words) => console.log(...words);
  for (const level of ['trace', 'debug', 'info', 'warn', 'error', 'verbose']) log[level] = log;
  return {
    invocationId: Math.random().toString(16).slice(2),
    functionName: process.env.BERTH_FUNCTION ?? name,
    log, trace: log, debug: log, info: log, warn: log, error: log,
    extraInputs: { get() {}, set() {} }, extraOutputs: { get() {}, set() {} },
    bindings: {}, options: {},
  };
}

async function answer(handler, style, request) {
  const { method, url, headers, body } = request;
  if (style === 'json') {
    if (method !== 'POST' && method !== 'PUT') return json(405, { error: 'this function takes a POST of JSON' });
    let value;
    try {
      value = body.length ? JSON.parse(body.toString()) : undefined;
    } catch (error) {
      return json(400, { error: `the body is not JSON: ${error.message}` });
    }
    return json(200, await handler(value));
  }
  const asked = new URL(url, 'http://localhost');
  if (style === 'azure3') {
    let parsed;
    try { parsed = JSON.parse(body.toString()); } catch { parsed = body.toString(); }
    const given = context();
    const req = { method, url: asked.href, headers, query: Object.fromEntries(asked.searchParams), params: {}, body: parsed, rawBody: body.toString() };
    given.req = req;
    const returned = await handler(given, req);
    return whole(given.res ?? returned);
  }
  const carries = method !== 'GET' && method !== 'HEAD';
  const given = new Request(asked.href, { method, headers, body: carries && body.length ? body : undefined });
  Object.defineProperty(given, 'query', { value: asked.searchParams });
  Object.defineProperty(given, 'params', { value: {} });
  return whole(await handler(given, context()));
}

function read(request) {
  return new Promise((resolve, reject) => {
    const pieces = [];
    let size = 0;
    request.on('data', (piece) => {
      size += piece.length;
      if (size > LARGEST) reject(new Error('the body is too large'));
      else pieces.push(piece);
    });
    request.on('end', () => resolve(Buffer.concat(pieces)));
    request.on('error', reject);
  });
}

async function main() {
  const found = await handler();
  const style = styleOf(found);
  const server = http.createServer(async (request, response) => {
    let answered;
    try {
      if (request.url === '/.berth/health') {
        answered = { status: 200, headers: {}, body: Buffer.from('ok') };
      } else {
        const { 'x-berth-url': url, connection, 'content-length': length, 'transfer-encoding': coding, host, ...headers } = request.headers;
        const body = await read(request);
        answered = await answer(found, style, { method: request.method, url: url ?? request.url, headers, body });
      }
    } catch (error) {
      console.error(error);
      answered = json(500, { error: `${error?.name ?? 'Error'}: ${error?.message ?? error}` });
    }
    response.writeHead(answered.status, { ...answered.headers, 'content-length': answered.body.length });
    response.end(answered.body);
  });
  server.keepAliveTimeout = 60_000;
  // The socket appears when everything is loaded.
  server.listen(`${socket}.new`, () => {
    fs.chmodSync(`${socket}.new`, 0o600);
    fs.renameSync(`${socket}.new`, socket);
  });
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
