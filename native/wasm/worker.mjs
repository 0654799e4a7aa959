// The worker that runs the engine, so that a page stays responsive: one call after another.

import { CancelledError, Engine } from "./engine.mjs";

let engine = null;

const calls = {
  async start({ loader, wasmBinary, threads, config, table, weights }) {
    const { default: factory } = await import(loader);
    engine = await Engine.start(factory, wasmBinary, threads);
    engine.load(config, table, weights);
    const shared = threads > 1;
    return { flag: engine.flag, memory: shared ? engine.memory.buffer : null };
  },
  generate: (given) => engine.generate(given),
  beam: (given) => engine.beam(given),
  attention: (given) => engine.attention(given),
};

/** A call until it is done, or until the flag names this call and no earlier one. */
async function run(id, name, given) {
  for (;;) {
    try {
      return await calls[name](given);
    } catch (error) {
      if (!(error instanceof CancelledError)) throw error;
      const flag = new Int32Array(engine.memory.buffer, engine.flag, 1);
      const named = Atomics.exchange(flag, 0, 0);
      if (named === id) throw error;
    }
  }
}

self.onmessage = async ({ data: { id, name, given } }) => {
  try {
    self.postMessage({ id, value: await run(id, name, given) });
  } catch (error) {
    self.postMessage({ id, failure: { name: error?.name, message: error?.message ?? `${error}` } });
  }
};
