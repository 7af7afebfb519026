// Loads an artifact as Microsoft's Node.js worker does, asks each HTTP function once through the invocation model of @azure/functions,
// and ends with 1 where Azure would refuse it.
//
// Arguments: the folder of the code, and the probe as JSON (empty: any answer will do).

const [folder, probe] = process.argv.slice(2);

function refuse(message) {
  console.error(`error: ${message}`);
  process.exit(1);
}

async function ask({ metadata, callback }, trigger) {
  const log = (level, ...words) => console.log(level, ...words);
  const http = {
    method: 'POST', url: `http://localhost/api/${metadata.bindings[trigger].route ?? metadata.name}`,
    headers: { 'content-type': 'application/json' }, params: {}, query: {}, body: { string: probe || '{}' }, identities: [],
  };
  const request = { inputData: [{ name: trigger, data: { http } }], triggerMetadata: {} };
  const asked = { invocationId: 'check', functionId: metadata.name, metadata, request, log };
  const invocation = model.getInvocationModel(asked);
  const { context, inputs } = await invocation.getArguments();
  let value;
  try {
    value = await invocation.invokeFunction(context, inputs, callback);
  } catch (error) {
    console.error(error);
    return [500, `${error?.name ?? 'Error'}: ${error?.message ?? error}`];
  }
  const response = await invocation.getResponse(context, value);
  const answered = response.returnValue?.http ?? response.outputData?.find((one) => one.data?.http)?.data.http;
  if (!answered) return [200, ''];
  const body = answered.body?.string ?? Buffer.from(answered.body?.bytes ?? '').toString();
  return [Number(answered.statusCode ?? answered.status ?? 200), body.slice(0, 300)];
}

function readJson(file) {
  return JSON.parse(fs.readFileSync(path.join(folder, file), 'utf8'));
}

// The beginning of every path, as Azure's host reads it; undefined where it cannot be read here: that host takes comments, too.
function routePrefix() {
  const prefix = process.env.AzureFunctionsJobHost__extensions__http__routePrefix;
  if (prefix !== undefined) return prefix;
  try {
    return readJson('host.json').extensions?.http?.routePrefix ?? 'api';
  } catch {
    return undefined;
  }
}

// False where a path is certainly another one: parameters may stand for anything.
function mayBe(path, wanted) {
  const at = path.indexOf('{');
  return at < 0 ? wanted === path.toLowerCase() : wanted.startsWith(path.slice(0, at).toLowerCase().replace(/\/$/, ''));
}

function trimmed(path) {
  return path.replace(/^\/+|\/+$/g, '');
}

// Refuses code that does not answer where Berth asks it: Azure's host would answer 404, as it does while it starts.
function checkRoutes(routes) {
  const prefix = routePrefix();
  if (prefix === undefined) return;
  const wanted = `api/${readJson('berth.json').name}`;
  const paths = routes.map((route) => trimmed(`${prefix}/${trimmed(route)}`));
  if (paths.some((path) => mayBe(path, wanted.toLowerCase()))) return;
  const found = paths.map((path) => `/${path}`).join(', ');
  refuse(`Berth asks the function at /${wanted}, and the code answers at ${found} only: give one of them that route, or rename the function`);
}

async function main() {
  process.chdir(folder);
  const entry = JSON.parse(fs.readFileSync(path.join(folder, 'package.json'), 'utf8')).main;
  try {
    await import(pathToFileURL(path.join(folder, entry)).href);
  } catch (error) {
    console.error(error);
    refuse(`Azure's worker cannot load the code: ${error?.name ?? 'Error'}: ${error?.message ?? error}`);
  }
  const routes = [];
  for (const one of registered) {
    const trigger = Object.keys(one.metadata.bindings).find((name) => one.metadata.bindings[name].type === 'httpTrigger');
    if (!trigger) continue;
    const [status, body] = await ask(one, trigger).catch((error) => refuse(`Azure's worker cannot take what ${one.metadata.name} returns: ${error.message}`));
    console.log(`${one.metadata.name} answers ${status} in @azure/functions: ${body}`);
    if (probe && (status < 200 || status > 299)) refuse(`${one.metadata.name} answers spec.probe with ${status} ${body}`);
    routes.push(one.metadata.bindings[trigger].route || one.metadata.name);
  }
  if (!routes.length) refuse('the code registers no function with an HTTP trigger');
  checkRoutes(routes);
  // Timers and servers of the code do not keep it.
  process.exit(0);
}

main().catch((error) => {
  console.error(error);
  refuse(error.message);
});
