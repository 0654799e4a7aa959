// Bundles of tfexport in a page: translate texts, or decode ids. The engine runs in a worker.

import { BundleError, httpReader, readBundle } from "./bundle.mjs";
import { CancelledError, Engine, EngineError } from "./engine.mjs";
import { beamHypotheses, greedyHypothesis, OptionError, resolveOptions, rulesOf } from "./search.mjs";
import { loadTokenizers, sourceTokens } from "./texts.mjs";

export { BundleError, CancelledError, EngineError, OptionError };

const MOST_THREADS = 16;
const USUAL_THREADS = 4; // beyond, sentences are too short to share out
const MOST_LOGITS = 2 ** 26; // of a step: rows, beams and words of the vocabulary

const isolated = () =>
  globalThis.crossOriginIsolated === true && typeof SharedArrayBuffer === "function";

function chooseThreads(threads) {
  const least = 1;
  if (threads === undefined) {
    if (!isolated()) return least;
    return Math.max(least, Math.min(USUAL_THREADS, navigator.hardwareConcurrency ?? least));
  }
  if (!Number.isInteger(threads) || threads < least || threads > MOST_THREADS) {
    throw new OptionError(`threads is ${threads}; expected an integer from 1 to ${MOST_THREADS}`);
  }
  if (threads > 1 && !isolated()) {
    throw new OptionError(
      `threads is ${threads}, and this page is not cross-origin isolated: serve it with the ` +
        "headers Cross-Origin-Opener-Policy: same-origin and Cross-Origin-Embedder-Policy: " +
        "require-corp, or leave threads out",
    );
  }
  return threads;
}

/** The loader and the engine that `make wasm` built; bundlers find files by such addresses. */
function builtFiles(threads) {
  return threads > 1
    ? [new URL("./dist/engine-threads.mjs", import.meta.url), new URL("./dist/engine-threads.wasm", import.meta.url)]
    : [new URL("./dist/engine.mjs", import.meta.url), new URL("./dist/engine.wasm", import.meta.url)];
}

async function fetchEngine(address, signal) {
  let problem;
  try {
    const response = await fetch(address, { signal });
    if (response.ok) return new Uint8Array(await response.arrayBuffer());
    problem = `status ${response.status}`;
  } catch (error) {
    if (signal?.aborted) throw signal.reason;
    problem = error.message;
  }
  throw new BundleError(`${address}: ${problem}. \`make wasm\` builds it.`);
}

const FAILURES = { EngineError, CancelledError };

/** The worker, and the calls that wait for it. */
class WorkerClient {
  constructor() {
    this.worker = new Worker(new URL("./worker.mjs", import.meta.url), { type: "module" });
    this.waiting = new Map();
    this.last = 0;
    this.flag = null; // in memory that is shared with the worker
    this.worker.onmessage = ({ data: { id, value, failure } }) => {
      const call = this.waiting.get(id);
      this.waiting.delete(id);
      if (!failure) return call?.resolve(value);
      call?.reject(new (FAILURES[failure.name] ?? EngineError)(failure.message));
    };
    this.worker.onerror = (event) => {
      event.preventDefault?.();
      this.fail(new EngineError(`the worker failed: ${event.message ?? "it could not be loaded"}`));
    };
  }

  async start({ transfer, ...given }) {
    const { flag, memory } = await this.call("start", given, undefined, transfer);
    if (memory) this.flag = new Int32Array(memory, flag, 1);
  }

  call(name, given, signal, transfer = []) {
    if (this.broken) return Promise.reject(this.broken);
    if (signal?.aborted) return Promise.reject(signal.reason);
    const id = ++this.last;
    return new Promise((resolve, reject) => {
      const abort = () => {
        if (this.flag) Atomics.store(this.flag, 0, id); // else what is running runs to its end
        this.waiting.delete(id);
        reject(signal.reason);
      };
      const done = (settle) => (value) => {
        signal?.removeEventListener("abort", abort);
        settle(value);
      };
      this.waiting.set(id, { resolve: done(resolve), reject: done(reject) });
      signal?.addEventListener("abort", abort, { once: true });
      this.worker.postMessage({ id, name, given }, transfer);
    });
  }

  fail(error) {
    this.broken = error;
    for (const { reject } of this.waiting.values()) reject(error);
    this.waiting.clear();
  }

  close() {
    this.worker.terminate();
    this.fail(new EngineError("the translator is closed"));
  }
}

/** The same calls in this thread, where there are no workers of a page, as in Node. */
class InlineClient {
  async start({ loader, wasmBinary, threads, config, table, weights }) {
    const { default: factory } = await import(/* @vite-ignore */ loader);
    this.engine = await Engine.start(factory, wasmBinary, threads);
    this.engine.load(config, table, weights);
  }

  async call(name, given, signal) {
    if (signal?.aborted) throw signal.reason;
    if (!this.engine) throw new EngineError("the translator is closed");
    return this.engine[name](given);
  }

  close() {
    this.engine = null;
  }
}

const emptyHypothesis = () => ({ tokens: [], score: 0, finished: true });

/** An open bundle. */
export class Translator {
  /**
   * Fetch a bundle and the engine, and pack the weights.
   *
   * @param source the bundle's address, or a function that gives one of its files by name
   * @param options see index.d.ts
   */
  static async load(source, options = {}) {
    const { onProgress, signal, fetchOptions, wasmBinary, tokenizers = {} } = options;
    const threads = chooseThreads(options.threads);
    const inWorker = typeof Worker === "function";
    const read =
      typeof source === "function" ? source : httpReader(source, { signal, init: fetchOptions });
    const [loader, wasm] = builtFiles(threads);
    const [bundle, binary] = await Promise.all([
      readBundle(read, onProgress),
      wasmBinary ?? fetchEngine(wasm, signal),
    ]);
    const texts = await loadTokenizers(bundle.manifest, bundle, tokenizers).catch((error) => {
      if (error instanceof BundleError) throw error;
      return error; // what needs no texts, ids, goes without
    });
    signal?.throwIfAborted();
    const client = inWorker ? new WorkerClient() : new InlineClient();
    try {
      const { config, table, weights } = bundle;
      await client.start({
        loader: loader.href, wasmBinary: binary, threads, config, table, weights,
        transfer: [weights.buffer],
      }); // prettier-ignore
    } catch (error) {
      client.close();
      throw error;
    }
    return new Translator(bundle.manifest, texts, client, threads);
  }

  constructor(manifest, texts, client, threads) {
    Object.assign(this, { manifest, threads });
    this.#texts = texts;
    this.#client = client;
  }

  #texts;
  #client;

  get #tokenizers() {
    if (this.#texts instanceof Error) throw this.#texts;
    return this.#texts;
  }

  /** The ids of a text as the encoder takes them; none for a blank one. */
  encode(text) {
    return this.pieces(text).map(({ id }) => id);
  }

  /** The ids of a text, each with the piece that it is. */
  pieces(text) {
    if (typeof text !== "string") throw new OptionError(`${JSON.stringify(text)} is no text`);
    if (/\p{Surrogate}/u.test(text)) throw new OptionError("a text has half of a character");
    return sourceTokens(this.manifest, this.#tokenizers.source, text);
  }

  /** The text of target ids. */
  decode(tokens) {
    const { target } = this.#tokenizers;
    return target.decode(tokens);
  }

  /** Translate one text, or several. */
  async translate(texts, options) {
    if (!Array.isArray(texts)) return (await this.translate([texts], options))[0];
    const found = await this.generate(texts.map((text) => this.encode(text)), options);
    return found.map(({ hypotheses }) => {
      const all = hypotheses.map((made) => ({ text: this.decode(made.tokens), ...made }));
      return { ...all[0], hypotheses: all };
    });
  }

  /** Decode one row of source ids, special tokens included, or several. */
  async generate(rows, options) {
    if (rows.length && typeof rows[0] === "number") return (await this.generate([rows], options))[0];
    const resolved = resolveOptions(this.manifest, options);
    rows.forEach((row, i) => this.#checkRow(row, i));
    const order = rows.map((_, i) => i).filter((i) => rows[i].length);
    order.sort((a, b) => rows[b].length - rows[a].length); // rows of a batch are about as long
    const words = resolved.beamSize * this.manifest.limits.target_vocab_size;
    const size = Math.max(1, Math.min(resolved.batchSize, Math.floor(MOST_LOGITS / words)));
    const found = rows.map(() => [emptyHypothesis()]);
    for (let at = 0; at < order.length; at += size) {
      const batch = order.slice(at, at + size);
      const made = await this.#decode(batch.map((i) => rows[i]), resolved); // prettier-ignore
      batch.forEach((i, place) => (found[i] = made[place]));
    }
    return found.map((hypotheses) => ({ ...hypotheses[0], hypotheses }));
  }

  #checkRow(row, number) {
    const { source_vocab_size: size, max_source_length: longest } = this.manifest.limits;
    const isId = (id) => Number.isInteger(id) && id >= 0 && id < size;
    if (!Array.isArray(row) || !row.every(isId)) {
      throw new OptionError(`row ${number} is no list of ids from 0 to ${size - 1}`);
    }
    if (longest !== null && row.length > longest) {
      throw new OptionError(`row ${number} has ${row.length} tokens; the model takes ${longest}`);
    }
  }

  async #decode(rows, options) {
    const { signal, greedy, maxLength: most, minLength: least } = options;
    let found;
    if (greedy) {
      const given = { rows, most, least, withScores: options.returnScores };
      const made = await this.#client.call("generate", given, signal);
      found = made.map((row) => [greedyHypothesis(row, options)]);
    } else {
      const given = { rows, rules: rulesOf(options, this.manifest) };
      const record = await this.#client.call("beam", given, signal);
      found = beamHypotheses(record, rows.length, options);
    }
    if (options.returnScores) return found;
    return found.map((row) => row.map((made) => ({ ...made, score: NaN })));
  }

  /**
   * The decoder's cross-attention of a row of source ids and the tokens that were written for it.
   *
   * @returns { data, dims: [L, H, T, S] }: row t of T is what the token tokens[t] was chosen by
   */
  async attention(source, tokens, { signal } = {}) {
    const { config, limits, special_ids: special } = this.manifest;
    this.#checkRow(source, 0);
    if (!source.length || !tokens.length) throw new OptionError("attention of no tokens");
    const most = limits.max_target_length;
    const isId = (id) => Number.isInteger(id) && id >= 0 && id < limits.target_vocab_size;
    if (!tokens.every(isId) || (most !== null && tokens.length > most)) {
      throw new OptionError(`the written tokens are no ids below ${limits.target_vocab_size}, or too many`);
    }
    const [layers, heads] = [config.num_decoder_layers, config.decoder_num_heads || config.num_heads];
    const inputs = [special.start ?? special.bos, ...tokens.slice(0, -1)];
    const given = { source, inputs, layers, heads };
    const data = await this.#client.call("attention", given, signal);
    return { data, dims: [layers, heads, tokens.length, source.length] };
  }

  /** End the worker; calls that wait for it fail. */
  close() {
    this.#client.close();
  }
}
