// Run generate.onnx in Node: node run_graph.mjs PACKAGES GRAPH < feeds.json > sequences.json

import { createRequire } from "node:module";
import { json } from "node:stream/consumers";

const [packages, graph] = process.argv.slice(2);
const ort = createRequire(`${packages}/`)("onnxruntime-node");
const { input_ids: ids, attention_mask: mask, max_length: limit } = await json(process.stdin);
const tensor = (rows) =>
  new ort.Tensor("int64", BigInt64Array.from(rows.flat(), BigInt), [rows.length, rows[0].length]);
const session = await ort.InferenceSession.create(graph);
const { sequences } = await session.run({
  input_ids: tensor(ids),
  attention_mask: tensor(mask),
  max_length: new ort.Tensor("int64", [BigInt(limit)], []),
});
const [rows, length] = sequences.dims;
const found = [...Array(rows).keys()].map((i) =>
  Array.from(sequences.data.slice(i * length, (i + 1) * length), Number),
);
console.log(JSON.stringify(found));
