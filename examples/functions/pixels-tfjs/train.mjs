// Trains a model of four pixels (are they bright on the left or on the right?) and saves it as the module `model.js`.
import '@tensorflow/tfjs-backend-cpu';
import * as tf from '@tensorflow/tfjs-core';
import { layers, sequential } from '@tensorflow/tfjs-layers';
import fs from 'node:fs';

const model = sequential({ layers: [layers.dense({ units: 2, inputShape: [4], activation: 'softmax' })] });
model.compile({ optimizer: tf.train.adam(0.2), loss: 'categoricalCrossentropy' });
const pixels = tf.tensor2d([[1, 1, 0, 0], [0, 0, 1, 1], [1, 0, 0, 0], [0, 0, 0, 1]]);
const sides = tf.tensor2d([[1, 0], [0, 1], [1, 0], [0, 1]]);
await model.fit(pixels, sides, { epochs: 40, verbose: 0 });
await model.save({
  save: async ({ modelTopology, weightSpecs, weightData }) => {
    const weights = Buffer.from(Array.isArray(weightData) ? weightData[0] : weightData).toString('base64');
    fs.writeFileSync('model.js', `export default ${JSON.stringify({ topology: modelTopology, specs: weightSpecs, weights })};\n`);
    return { modelArtifactsInfo: { dateSaved: new Date(0), modelTopologyType: 'JSON' } };
  },
});
