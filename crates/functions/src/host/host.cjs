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

function context() {
  const functionName = process.env.BERTH_FUNCTION ?? name;
  return contextOf(Math.random().toString(16).slice(2), functionName, { log: (...words) => console.log(...words) });
}

async function answer(handler, style, request) {
  const { method, url, headers, body } = request;
  if (style === 'json') return answerJson(handler, method, body.toString());
  if (style === 'azure3') {
    return whole(await callEarlier(handler, context(), { method, url, headers, params: {}, body: body.toString() }));
  }
  const asked = new URL(url, 'http://localhost');
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
