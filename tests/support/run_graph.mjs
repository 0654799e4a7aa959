// Run generate.onnx in Node: node run_graph.mjs PACKAGES GRAPH < feeds.json > sequences.json

import { createRequire } from "node:module";
import { json } from "node:stream/consumers";

const [packages, graph] = process.argv.slice(2);
const ort = createRequire(`${packages}/`)("onnxruntime-node");
const ARRAYS = {
  int64: (data) => BigInt64Array.from(data, BigInt),
  float32: (data) => Float32Array.from(data),
};
const feeds = {};
for (const [name, { type, dims, data }] of Object.entries(await json(process.stdin))) {
  feeds[name] = new ort.Tensor(type, ARRAYS[type](data), dims);
}
const session = await ort.InferenceSession.create(graph);
const { sequences } = await session.run(feeds);
const [rows, length] = sequences.dims;
const found = [...Array(rows).keys()].map((i) =>
  Array.from(sequences.data.slice(i * length, (i + 1) * length), Number),
);
console.log(JSON.stringify(found));
