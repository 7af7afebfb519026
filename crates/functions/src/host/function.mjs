// Entry of Azure Functions (Node.js, v4 model) over the function that spec.entrypoint names. Written by Berth.
import { app } from '@azure/functions';
import * as loaded from "$MODULE";

const handler = loaded["$FUNCTION"] ?? loaded.default?.["$FUNCTION"];

// A function that registered itself needs nothing more.
if (typeof handler === 'function') {
  const first = /^(?:async\s*)?(?:function\s*\*?\s*[\w$]*\s*)?\(?\s*([\w$]*)/.exec(handler.toString())?.[1] ?? '';
  const takesRequest = handler.length >= 2 || (/^(request|req)$/.test(first) && /\.\s*(json|text|headers|query)\b/.test(handler.toString()));
  app.http("$NAME", {
    methods: ['GET', 'POST'],
    authLevel: 'anonymous',
    handler: async (request, context) => {
      if (takesRequest) return handler(request, context);
      let body;
      try {
        body = await request.json();
      } catch (error) {
        return { status: 400, jsonBody: { error: `the body is not JSON: ${error.message}` } };
      }
      const value = await handler(body);
      return { jsonBody: value === undefined ? null : value };
    },
  });
}
