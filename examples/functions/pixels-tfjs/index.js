// Classifies four pixels with the model that `train.mjs` has saved. Rollup bundles TensorFlow.js with it.
import '@tensorflow/tfjs-backend-cpu';
import * as tf from '@tensorflow/tfjs-core';
import { loadLayersModel } from '@tensorflow/tfjs-layers';
import saved from './model.js';

const weights = Uint8Array.from(Buffer.from(saved.weights, 'base64')).buffer;
const model = loadLayersModel({ load: async () => ({ modelTopology: saved.topology, weightSpecs: saved.specs, weightData: weights }) });

export async function handler(body) {
  const scores = (await model).predict(tf.tensor2d([body.pixels]));
  return { scores: await scores.data() };
}
