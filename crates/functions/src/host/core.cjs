// The module `@azure/functions-core`, which Azure's host brings along: `app.http` of @azure/functions registers with it.
// Comes before convention.js and host.cjs, and before check.cjs, in one file with them.
// Source: the calls between azure-functions-nodejs-worker and @azure/functions 4 (types of @azure/functions-core).
'use strict';

const fs = require('node:fs');
const Module = require('node:module');
const path = require('node:path');
const { pathToFileURL } = require('node:url');

const registered = [];
let model = { name: '@azure/functions', version: '4.0.0' };

class Disposable {
  dispose() {}
}

const core = {
  version: '4.0.0',
  hostVersion: '4.0.0',
  workerConfig: { customerPackageJson: {} },
  registerFunction(metadata, callback) {
    registered.push({ metadata, callback });
    return new Disposable();
  },
  registerHook: () => new Disposable(),
  setProgrammingModel(given) {
    model = given;
  },
  getProgrammingModel: () => model,
  Disposable,
};
const load = Module._load;
Module._load = function (request, ...rest) {
  return request === '@azure/functions-core' ? core : load.call(this, request, ...rest);
};

