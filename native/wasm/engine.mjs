// The engine's C interface (native/engine/abi.h) in WebAssembly, on typed arrays. Calls block, so a
// page makes them in a worker.
//
// Axes: B sources, T tokens, N candidates of a step, L layers, H heads, S source.

const VERSION = 10; // of the interface
const OK = 0;
const CANCELLED = 3;
const ERROR_BYTES = 4096;
const LEAST_PAGES = 256; // of memory at the start, 64 KiB each
const MOST_PAGES = 32768; // 2 GiB, beyond which an address would be a negative number in JavaScript
// Positions that a search is first given room for, and by how much more where that is too little:
// then it begins again, which gives the same tokens.
const FIRST_ROOM = 1024;
const GROWTH = 4;
const STOPS = ["early", "present", "next", "longest"];

/** The engine cannot do what it was asked for; the message says why. */
export class EngineError extends Error {
  name = "EngineError";
}

/** A call was ended by the flag. */
export class CancelledError extends EngineError {
  name = "CancelledError";
}

/** What one call puts into the engine's memory, freed at its end. */
class Arguments {
  constructor(module, memory) {
    Object.assign(this, { module, memory, taken: [] });
  }

  room(bytes) {
    const address = this.module._malloc(Math.max(1, bytes));
    if (!address) throw new EngineError("out of memory");
    this.taken.push(address);
    return address;
  }

  /** Values as they lie in memory now; it is another array once memory has grown. */
  view(Type, address, count) {
    return new Type(this.memory.buffer, address, count);
  }

  array(Type, values) {
    const address = this.room(values.length * Type.BYTES_PER_ELEMENT);
    this.view(Type, address, values.length).set(values);
    return address;
  }

  ints(values) {
    return this.array(Int32Array, values);
  }

  text(value) {
    return this.array(Uint8Array, new TextEncoder().encode(`${value}\0`));
  }

  /** tfn_sources. */
  sources(rows) {
    const lengths = rows.map((row) => row.length);
    const ids = new Int32Array(lengths.reduce((all, length) => all + length, 0));
    let at = 0;
    for (const row of rows) {
      ids.set(row, at);
      at += row.length;
    }
    return this.ints([this.ints(ids), 0, this.ints(lengths), rows.length]);
  }

  read(Type, address, count) {
    return this.view(Type, address, count).slice();
  }

  free() {
    for (const address of this.taken) this.module._free(address);
  }
}

/** One model in the engine's memory. */
export class Engine {
  /**
   * Start the engine.
   *
   * @param factory of the loader that `make wasm` built
   * @param wasmBinary its bytes
   * @param threads more than one need shared memory
   */
  static async start(factory, wasmBinary, threads = 1) {
    const memory = new WebAssembly.Memory({
      initial: LEAST_PAGES,
      maximum: MOST_PAGES,
      shared: threads > 1,
    });
    const module = await factory({ wasmBinary, wasmMemory: memory, threads });
    if (module._tfn_version() !== VERSION) {
      throw new EngineError(`the engine has interface ${module._tfn_version()}; expected ${VERSION}`);
    }
    return new Engine(module, memory, threads);
  }

  constructor(module, memory, threads) {
    Object.assign(this, { module, memory, threads, model: 0, broken: "" });
    this.flag = module._malloc(4); // of the call that is to be ended; 0 for none
    new Int32Array(memory.buffer)[this.flag >> 2] = 0;
  }

  /** Run `call` with room for arguments; a failure becomes an error. */
  using(call) {
    if (this.broken) throw new EngineError(this.broken);
    const given = new Arguments(this.module, this.memory);
    try {
      return call(given);
    } catch (error) {
      if (error instanceof EngineError) throw error;
      this.broken = `the engine failed, and has to be loaded again: ${error?.message ?? error}`;
      throw new EngineError(this.broken);
    } finally {
      if (!this.broken) given.free();
    }
  }

  check(given, name, ...values) {
    const text = given.room(ERROR_BYTES);
    const failure = this.module[`_${name}`](...values, given.ints([text, ERROR_BYTES]));
    if (failure === OK) return;
    const bytes = given.read(Uint8Array, text, ERROR_BYTES);
    const message = new TextDecoder().decode(bytes.subarray(0, bytes.indexOf(0)));
    throw new (failure === CANCELLED ? CancelledError : EngineError)(message);
  }

  /**
   * Pack a model's weights.
   *
   * @param config lines of key=value
   * @param table [name, entry] of each parameter, as in weights.json
   * @param weights the bytes that it speaks of
   */
  load(config, table, weights) {
    this.using((given) => {
      // Not freed: embeddings are read where they lie.
      const file = this.module._malloc(weights.length);
      if (!file) throw new EngineError("out of memory: the weights do not fit");
      given.view(Uint8Array, file, weights.length).set(weights);
      const size = 56; // of tfn_tensor
      const tensors = given.room(size * table.length);
      table.forEach(([name, { offset, shape, strides, scales }], i) => {
        const text = given.text(name);
        const [rows, columns] = shape.length === 1 ? [1, shape[0]] : shape;
        const [rowStride, columnStride] = shape.length === 1 ? [shape[0], strides[0]] : strides;
        const view = new DataView(this.memory.buffer, tensors + size * i, size);
        const pointers = [text, file + offset, scales === undefined ? 0 : file + scales];
        pointers.forEach((pointer, place) => view.setUint32(4 * place, pointer, true));
        [rows, columns, rowStride, columnStride].forEach((number, place) => {
          view.setBigInt64(16 + 8 * place, BigInt(number), true);
        });
        view.setInt32(48, 0, true);
      });
      const handle = given.ints([0]);
      this.check(given, "tfn_model_new", given.text(config), tensors, table.length, this.threads,
                 0, handle); // prettier-ignore
      this.model = given.read(Int32Array, handle, 1)[0];
    });
  }

  /** Greedy search: { tokens, score } of each row, tokens with the end token. */
  generate({ rows, most, least, withScores }) {
    const room = Math.min(most, FIRST_ROOM);
    const found = this.#generate(rows, room, least, withScores);
    for (let larger = room; larger < most; ) {
      const cut = found.map((row, i) => (row.tokens.length === larger ? i : -1));
      const again = cut.filter((i) => i >= 0);
      if (!again.length) break;
      larger = Math.min(most, GROWTH * larger);
      const longer = this.#generate(again.map((i) => rows[i]), larger, least, withScores); // prettier-ignore
      longer.forEach((row, place) => (found[again[place]] = row));
    }
    return found;
  }

  #generate(rows, most, least, withScores) {
    return this.using((given) => {
      const sequences = given.room(4 * rows.length * most);
      const counts = given.room(4 * rows.length);
      const scores = withScores ? given.room(4 * rows.length) : 0;
      this.check(given, "tfn_generate", this.model, given.sources(rows), most, least, sequences,
                 counts, scores, given.room(4), 0, this.flag); // prettier-ignore
      const lengths = given.view(Int32Array, counts, rows.length);
      return Array.from(lengths, (length, i) => ({
        tokens: Array.from(given.view(Int32Array, sequences + 4 * i * most, length)),
        score: withScores ? given.view(Float32Array, scores, rows.length)[i] : NaN,
      }));
    });
  }

  /**
   * The best candidates of every step of a beam search.
   *
   * @param rules with the names of tfn_beam_rules
   * @returns { tokens, parents, logProbs } (T, B, N), steps (B,), and the numbers T and N
   */
  beam({ rows, rules }) {
    for (let room = Math.min(rules.most, FIRST_ROOM); ; ) {
      const found = this.#beam(rows, rules, room);
      if (found.T < room || room === rules.most) return found;
      room = Math.min(rules.most, GROWTH * room);
    }
  }

  #beam(rows, rules, room) {
    return this.using((given) => {
      const count = rows.length;
      const N = rules.beams * (1 + rules.ends.length);
      const places = room * count * N;
      const [tokens, parents] = [given.room(4 * places), given.room(4 * places)];
      const [logProbs, steps] = [given.room(8 * places), given.room(4 * count)];
      const record = given.ints([room, tokens, parents, logProbs, steps]);
      const made = given.ints([0]);
      this.check(given, "tfn_beam", this.model, given.sources(rows), this.#rules(given, rules),
                 record, made, this.flag); // prettier-ignore
      const [T] = given.read(Int32Array, made, 1);
      return {
        T,
        N,
        tokens: given.read(Int32Array, tokens, T * count * N),
        parents: given.read(Int32Array, parents, T * count * N),
        logProbs: given.read(Float64Array, logProbs, T * count * N),
        steps: given.read(Int32Array, steps, count),
      };
    });
  }

  /** tfn_beam_rules. */
  #rules(given, rules) {
    const lists = [
      rules.ends, rules.suppressed, rules.suppressedFirst, rules.sequences.flat(),
      rules.sequences.map((sequence) => sequence.length),
    ]; // prettier-ignore
    const pointers = lists.map((list) => [given.ints(list), list.length]);
    const address = given.room(104);
    const view = new DataView(this.memory.buffer, address, 104);
    [
      rules.beams, rules.enough, rules.most, STOPS.indexOf(rules.stop), rules.onLogProbs,
      rules.renormalize, rules.start, rules.first, rules.last, rules.minLength, rules.ngram,
      rules.sourceNgram,
    ].forEach((number, place) => view.setInt32(4 * place, Number(number), true)); // prettier-ignore
    view.setFloat64(48, rules.lengthPenalty, true);
    view.setFloat64(56, rules.repetitionPenalty, true);
    pointers.flat().forEach((number, place) => view.setInt32(64 + 4 * place, number, true));
    return address;
  }

  /**
   * The cross-attention of a decoder that is given the tokens of `inputs`.
   *
   * @returns Float32Array (L, H, T, S)
   */
  attention({ source, inputs, layers, heads }) {
    return this.using((given) => {
      const handle = given.ints([0]);
      this.check(given, "tfn_batch_new", this.model, handle);
      const [batch] = given.read(Int32Array, handle, 1);
      try {
        this.check(given, "tfn_batch_enter", batch, given.sources([source]));
        const count = layers * heads * inputs.length * source.length;
        const weights = given.array(Float32Array, new Float32Array(count));
        const wanted = given.ints([0, 0, 0, 0, weights, source.length]); // tfn_wanted
        this.check(given, "tfn_batch_step", batch, given.ints(inputs), inputs.length, wanted);
        return given.read(Float32Array, weights, count);
      } finally {
        this.module._tfn_batch_free(batch);
      }
    });
  }
}
