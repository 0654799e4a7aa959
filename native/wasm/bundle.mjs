// A bundle over HTTP: its manifest, the weights by the names of their parameters, and the config in
// the engine's form. Everything is checked, since what a server sends may be stale or damaged.

const MANIFEST = "manifest.json";
const WEIGHTS = "weights.bin";
const TABLE = "weights.json";
const FORMAT = "tfexport-bundle";
const FORMAT_VERSION = 1;
const MOST_BYTES = 1 << 30; // of weights, which packed take as much again: addresses have 32 bits
const MOST_SMALL = 64 << 20; // of any other file
const MOST_WIDTH = 1 << 14; // of a layer
const MOST_SHARED = 64; // times that parameters may share the bytes of the file
const ALWAYS_SHARED = 16 << 20;

/** What is wrong with a bundle, or with how it was reached. */
export class BundleError extends Error {
  name = "BundleError";
}

// Values of config keys that the engine supports; null for any number. A key that is missing here
// comes from a newer tfexport, and the engine would ignore it.
const NUMBERS = [
  "d_model", "num_heads", "num_encoder_layers", "num_decoder_layers", "d_ff",
  "source_vocab_size", "target_vocab_size", "head_dim", "norm_eps", "max_positions",
  "relative_buckets", "relative_max_distance", "decoder_num_heads", "decoder_d_ff",
  "residual_scale", "mask_fill", "dropout", "first_position", "tie_embeddings", "tie_output",
  "pad_id", "bos_id", "eos_id", "unk_id", "start_id", "add_source_bos", "add_source_eos",
]; // prettier-ignore
const FLAGS = [
  "norm_bias", "encoder_final_norm", "decoder_final_norm", "attention_bias", "feed_forward_bias",
  "output_bias", "positions_every_layer", "scale_embeddings", "scale_target_embeddings",
  "share_encoder_layers", "share_decoder_layers", "gated_feed_forward", "scale_scores",
  "padding_has_position",
]; // prettier-ignore
const WORDS = {
  norm: ["layer", "annotated", "rms"],
  norm_placement: ["post", "pre", "res_post"],
  decoder_norm_placement: ["same", "post", "pre", "res_post"],
  activation: ["relu", "gelu", "gelu_tanh", "quick_gelu", "silu"],
  positions: ["sinusoidal", "sinusoidal_halves", "sinusoidal_t2t", "learned", "none"],
  source_embedding_norm: ["none", "tokens", "sum"],
  target_embedding_norm: ["none", "tokens", "sum"],
  relative_positions: ["none", "buckets", "buckets_every_layer", "shaw", "rotary"],
};
const KNOWN = {
  ...Object.fromEntries(NUMBERS.map((key) => [key, null])),
  ...Object.fromEntries(FLAGS.map((key) => [key, [true, false]])),
  ...WORDS,
};
const AS_THEY_ARE = [
  "d_model", "num_heads", "head_dim", "d_ff", "num_encoder_layers", "num_decoder_layers", "norm",
  "norm_eps", "norm_placement", "activation", "source_embedding_norm", "target_embedding_norm",
  "residual_scale", "norm_bias", "encoder_final_norm", "decoder_final_norm", "attention_bias",
  "feed_forward_bias", "output_bias", "positions_every_layer", "share_encoder_layers",
  "share_decoder_layers", "gated_feed_forward", "scale_scores", "relative_positions",
  "relative_buckets", "relative_max_distance",
]; // prettier-ignore

const isCount = (value, most = Number.MAX_SAFE_INTEGER) =>
  Number.isSafeInteger(value) && value >= 0 && value <= most;
const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

/** A part of a config that the engine does not cover; empty if it covers everything. */
function uncovered(config) {
  for (const [key, value] of Object.entries(config)) {
    if (!Object.hasOwn(KNOWN, key)) return `it does not know the config key ${key}`;
    const values = KNOWN[key];
    const size = ["d_model", "num_heads"].includes(key);
    const number = value === null || ["number", "boolean"].includes(typeof value);
    const known =
      values === null
        ? key === "mask_fill" || (size ? isCount(value) && value > 0 : number)
        : values.includes(value);
    if (!known) return `it does not know ${key} ${JSON.stringify(value)}`;
  }
  const missing = Object.keys(KNOWN).filter((key) => !Object.hasOwn(config, key));
  return missing.length ? `the manifest's config has no ${missing.join(", ")}` : "";
}

/** Sizes that the addresses of WebAssembly leave room for. */
function tooLarge(config) {
  const { num_heads: heads, head_dim: dim, d_model: width } = config;
  const widths = {
    d_model: width,
    d_ff: config.d_ff,
    decoder_d_ff: config.decoder_d_ff,
    "num_heads times head_dim, in vectors": heads * 4 * Math.ceil(dim / 4),
    "decoder_num_heads": config.decoder_num_heads * 4,
  };
  const found = Object.entries(widths).find(([, size]) => !(size <= MOST_WIDTH));
  return found ? `its ${found[0]} is ${found[1]}; expected at most ${MOST_WIDTH}` : "";
}

/** Why the engine cannot run the model of a manifest, as sentences' ends; none if it can. */
function findProblems(manifest) {
  if (manifest.module) {
    return ["its model is a module of the user's own, in which no Transformer was recognised"];
  }
  const { config, special_ids: special, limits, files } = manifest;
  if (![config, special, limits, files].every(isObject)) return ["its manifest is incomplete"];
  const problems = [uncovered(config) || tooLarge(config)].filter(Boolean);
  if (manifest.quantization?.weights === "int4") problems.push("the engine reads no int4 weights");
  if (manifest.languages) {
    problems.push("its model is told languages by tokens, which are not added here");
  }
  for (const name of [WEIGHTS, TABLE]) {
    if (!files[name]?.size) problems.push(`it has no ${name}`);
  }
  if (files[WEIGHTS]?.size > MOST_BYTES) {
    problems.push(`its weights have ${files[WEIGHTS].size} bytes; expected at most ${MOST_BYTES}`);
  }
  for (const name of ["pad", "bos", "eos"]) {
    if (!isCount(special[name], 2 ** 31)) problems.push(`its ${name} is no id`);
  }
  for (const name of ["source_vocab_size", "target_vocab_size"]) {
    if (!isCount(limits[name], 2 ** 24)) problems.push(`its ${name} is no size`);
  }
  return problems;
}

/** The config in the form of the engine's config.h. */
function engineConfig({ config, limits, special_ids: special, generation = {} }) {
  const heads = config.decoder_num_heads || config.num_heads;
  const placement = config.decoder_norm_placement;
  const hasPositions = config.positions !== "none";
  const scale = (yes) => (yes ? Math.sqrt(config.d_model) : 1);
  const values = {
    ...Object.fromEntries(AS_THEY_ARE.map((key) => [key, config[key]])),
    memory_width: 0,
    decoder_num_heads: heads,
    decoder_head_dim: Math.floor((config.num_heads * config.head_dim) / heads),
    decoder_d_ff: config.decoder_d_ff || config.d_ff,
    decoder_norm_placement: placement === "same" ? config.norm_placement : placement,
    source_vocab_size: limits.source_vocab_size,
    target_vocab_size: limits.target_vocab_size,
    max_positions: hasPositions ? config.max_positions : 0,
    has_positions: hasPositions,
    source_scale: scale(config.scale_embeddings),
    target_scale: scale(config.scale_embeddings && config.scale_target_embeddings),
    unplaced_id: config.padding_has_position ? -1 : special.pad,
    pad_id: special.pad,
    start_id: special.start ?? special.bos,
    eos_id: special.eos,
    first_token: generation.first_token ?? -1,
    last_token: generation.last_token ?? -1,
    suppress_tokens: generation.suppress_tokens ?? [],
  };
  const spelt = (value) => (typeof value === "boolean" ? Number(value) : value);
  return Object.entries(values)
    .map(([key, value]) => `${key}=${spelt(value)}`) // a list is joined by commas
    .join("\n");
}

/** Why one entry of the table does not fit in a file of `size` bytes; empty if it does. */
function tableProblem(entry, size) {
  if (!isObject(entry)) return "is no entry";
  const { dtype, offset, shape, strides, scales } = entry;
  const int8 = dtype === "int8";
  if (!int8 && dtype !== "float32") return `is of ${JSON.stringify(dtype)}, which is not known`;
  if (int8 !== (scales !== undefined)) return "int8 values need scales, and float32 values have none";
  const axes = [shape, strides].every((all) => Array.isArray(all) && all.every((n) => isCount(n)));
  if (!axes || ![1, 2].includes(shape.length) || shape.length !== strides.length) {
    return "has no shape and strides of one or two axes";
  }
  if (!isCount(offset) || (int8 && !isCount(scales))) return "has no offsets";
  const width = int8 ? 1 : 4;
  const values = shape.reduce((all, n) => all * n, 1);
  if (!values || values * width > size) return `has the shape ${shape}, in a file of ${size} bytes`;
  const last = shape.reduce((all, n, axis) => all + (n - 1) * strides[axis], 0);
  const ends = [offset + (last + 1) * width, int8 ? scales + 4 * shape[0] : 0];
  if (!(Math.max(...ends) <= size)) return `ends at byte ${Math.max(...ends)} of ${size}`;
  return (int8 ? scales : offset) % 4 ? "its float32 values are not aligned" : "";
}

/** The table of parameters, checked: [name, entry] of each. */
function readTable(text, size) {
  let table;
  try {
    table = JSON.parse(text);
  } catch (error) {
    throw new BundleError(`${TABLE}: not JSON: ${error.message}`);
  }
  if (!isObject(table)) throw new BundleError(`${TABLE}: no object of parameters`);
  const entries = Object.entries(table);
  const problems = [];
  let bytes = 0;
  for (const [name, entry] of entries) {
    if (!/^[\x20-\x7e]+$/.test(name)) problems.push(`${JSON.stringify(name)}: no parameter's name`);
    const problem = tableProblem(entry, size);
    if (problem) problems.push(`${name}: ${problem}`);
    else bytes += entry.shape.reduce((all, n) => all * n, entry.dtype === "int8" ? 1 : 4);
  }
  if (bytes > MOST_SHARED * size + ALWAYS_SHARED) {
    problems.push(`its parameters have ${bytes} bytes, which share a file of ${size}`);
  }
  if (problems.length) throw new BundleError(`${TABLE}: ${problems.slice(0, 10).join("; ")}`);
  return entries;
}

/** A reader of the files below an address; gives their bytes as chunks. */
export function httpReader(url, { signal, init } = {}) {
  const base = new URL(String(url).replace(/\/*$/, "/"), globalThis.location?.href);
  return async (name) => {
    const address = new URL(name, base);
    let response;
    try {
      response = await fetch(address, { ...init, signal });
    } catch (error) {
      if (signal?.aborted) throw signal.reason;
      throw new BundleError(`${address}: cannot be fetched: ${error.message}`);
    }
    if (!response.ok) throw new BundleError(`${address}: status ${response.status}`);
    return response.body;
  };
}

async function* chunksOf(source) {
  if (source instanceof Uint8Array) return void (yield source);
  const reader = source.getReader(); // not every browser iterates over a stream
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield value;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

const hex = (bytes) =>
  Array.from(new Uint8Array(bytes), (byte) => byte.toString(16).padStart(2, "0")).join("");

/** A bundle that is being read. */
class Files {
  constructor(read, onProgress) {
    Object.assign(this, { read, onProgress, loaded: 0, total: 0, entries: {}, kept: new Map() });
    this.counted = new Set(); // names of files whose sizes are in the total
  }

  /** The text of the manifest, whose size nobody has said. */
  async manifest() {
    const chunks = [];
    let size = 0;
    for await (const chunk of chunksOf(await this.read(MANIFEST))) {
      size += chunk.length;
      if (size > MOST_SMALL) throw new BundleError(`${MANIFEST}: has more than ${MOST_SMALL} bytes`);
      chunks.push(chunk);
    }
    return new Blob(chunks).text();
  }

  /** One file, as large and with the digest that the manifest says. */
  async bytes(name) {
    const { size, sha256 } = this.entries[name] ?? {};
    if (!isCount(size, name === WEIGHTS ? MOST_BYTES : MOST_SMALL)) {
      throw new BundleError(`${name}: has no size in ${MANIFEST}, or one that is too large`);
    }
    this.count(name);
    const found = new Uint8Array(size);
    let at = 0;
    for await (const chunk of chunksOf(await this.read(name))) {
      if (at + chunk.length > size) throw new BundleError(`${name}: has more than ${size} bytes`);
      found.set(chunk, at);
      at += chunk.length;
      this.loaded += chunk.length;
      this.onProgress?.({ loaded: this.loaded, total: this.total, file: name });
    }
    if (at !== size) throw new BundleError(`${name}: has ${at} bytes; expected ${size}`);
    // Pages that are not served by https, or from this machine, have no crypto.subtle.
    if (crypto.subtle && hex(await crypto.subtle.digest("SHA-256", found)) !== sha256) {
      throw new BundleError(
        `${name}: is not what ${MANIFEST} was written for. Empty the caches between, and copy the ` +
          "bundle again",
      );
    }
    return found;
  }

  /** Adds a file's size to the total, once. */
  count(name) {
    if (!this.counted.has(name)) this.total += this.entries[name]?.size ?? 0;
    this.counted.add(name);
  }

  /** The same as text; both sides may have one tokenizer. */
  text(name) {
    return this.once(name).then((bytes) => new TextDecoder().decode(bytes));
  }

  once(name) {
    if (!this.kept.has(name)) this.kept.set(name, this.bytes(name));
    return this.kept.get(name);
  }
}

function parseManifest(text) {
  let manifest;
  try {
    manifest = JSON.parse(text);
  } catch (error) {
    throw new BundleError(`${MANIFEST}: not JSON: ${error.message}`);
  }
  if (manifest?.format !== FORMAT) throw new BundleError(`${MANIFEST}: not a bundle's`);
  if (manifest.format_version !== FORMAT_VERSION) {
    throw new BundleError(
      `${MANIFEST}: has format version ${manifest.format_version}; this reads ${FORMAT_VERSION}`,
    );
  }
  return manifest;
}

/**
 * Read what decoding needs of a bundle.
 *
 * @param read gives a file by its name, as a stream of bytes or a Uint8Array
 * @param onProgress is called with { loaded, total, file }, in bytes
 * @returns { manifest, config, table, weights, text, bytes }; the last two read a further file
 * @throws BundleError
 */
export async function readBundle(read, onProgress) {
  const files = new Files(read, onProgress);
  const manifest = parseManifest(await files.manifest());
  const problems = findProblems(manifest);
  if (problems.length) {
    throw new BundleError(
      `The engine cannot run this bundle: ${problems.join("; ")}. onnxruntime-web runs its graphs.`,
    );
  }
  files.entries = manifest.files;
  const tokenizers = Object.values(manifest.tokenizers ?? {}).map((entry) => entry?.file);
  const needed = new Set([WEIGHTS, TABLE, ...tokenizers]);
  for (const name of needed) files.count(name);
  const [weights, table] = await Promise.all([files.bytes(WEIGHTS), files.text(TABLE)]);
  return {
    manifest,
    config: engineConfig(manifest),
    table: readTable(table, weights.length),
    weights,
    text: (name) => files.text(name),
    bytes: (name) => files.once(name),
  };
}
