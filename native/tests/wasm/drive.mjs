// Calls of the package in Node, for test_wasm.py: { bundle, calls: [{ name, values }] } on stdin, and
// on stdout what each call gave, { value } or { failure: [class, message] }.

import { readFile } from "node:fs/promises";
import { json } from "node:stream/consumers";
import { Translator } from "../../wasm/index.mjs";
import { resolveOptions } from "../../wasm/search.mjs";

const wasm = new URL("../../wasm/dist/engine.wasm", import.meta.url);
const { bundle, calls } = await json(process.stdin);
const progress = [];
let translator;

const functions = {
  async load() {
    translator = await Translator.load(
      async (name) => new Uint8Array(await readFile(`${bundle}/${name}`)),
      { wasmBinary: await readFile(wasm), onProgress: (each) => progress.push(each) },
    );
    return progress;
  },
  resolve: async (manifest, options) => resolveOptions(manifest, options),
  async attention(...values) {
    const { data, dims } = await translator.attention(...values);
    return { data: Array.from(data), dims };
  },
};

async function run({ name, values = [] }) {
  try {
    const call = functions[name] ?? ((...given) => translator[name](...given));
    return { value: await call(...values) };
  } catch (error) {
    return { failure: [error.constructor.name, error.message] };
  }
}

const found = [];
for (const call of calls) found.push(await run(call));
process.stdout.write(JSON.stringify(found));
