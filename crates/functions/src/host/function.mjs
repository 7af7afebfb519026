// Entry of Azure Functions (Node.js, v4 model) over the function that spec.entrypoint names. Written by Berth.
import { app } from '@azure/functions';
import * as loaded from "$MODULE";

const handler = loaded["$FUNCTION"] ?? loaded.default?.["$FUNCTION"] ?? loaded.default?.default?.["$FUNCTION"];

// The answer as the library takes it. Responses, streams and forms are its own; cookies, too.
async function answered(value) {
  const body = isDescription(value) ? value.body : undefined;
  const isData = typeof body !== 'object' || body === null || Array.isArray(body) || ArrayBuffer.isView(body);
  const isForm = !isData && (Symbol.asyncIterator in body || Object.prototype.toString.call(body) !== '[object Object]');
  if (isResponse(value) || isForm) return value;
  const answer = await whole(value);
  const kept = isDescription(value) ? { ...value, jsonBody: undefined } : {};
  // Some statuses, 204 for one, allow no body, not even an empty one.
  return { ...kept, ...answer, body: answer.body.length ? answer.body : undefined };
}

async function answer(style, request, context) {
  if (style === 'azure') return handler(request, context);
  const { method, url, params } = request;
  const body = await request.text();
  if (style === 'json') return answerJson(handler, method, body);
  const given = contextOf(context.invocationId, context.functionName, context);
  return callEarlier(handler, given, { method, url, headers: Object.fromEntries(request.headers), params, body });
}

// A function that registered itself needs nothing more.
if (typeof handler === 'function') {
  const style = styleOf(handler);
  app.http("$NAME", {
    methods: ['GET', 'POST', 'PUT', 'PATCH', 'DELETE', 'HEAD', 'OPTIONS'],
    authLevel: "$AUTH",
    handler: async (request, context) => answered(await answer(style, request, context)),
  });
}
