// Translate lines of stdin with a bundle.
//
//   npm ci --ignore-scripts
//   node translate.mjs de-en.bundle < input.txt           (--ids: print token ids instead of text)

import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import { Tokenizer } from "@huggingface/tokenizers";
import { SentencePieceProcessor } from "@sctg/sentencepiece-js";
import * as ort from "onnxruntime-node";
import { loadTokenizers, sourceTokens } from "../../native/wasm/texts.mjs";

const BATCH_SIZE = 32;
const MAX_LENGTH = 256n;

const [bundle, ...options] = process.argv.slice(2);
if (!bundle) {
  console.error("usage: node translate.mjs BUNDLE [--ids] < input.txt");
  process.exit(2);
}

const read = (name) => readFile(join(bundle, name), "utf8");
const files = { text: read, bytes: (name) => readFile(join(bundle, name)) };
const manifest = JSON.parse(await read("manifest.json"));
const { special_ids: special, limits } = manifest;
const { source, target } = await loadTokenizers(manifest, files, {
  Tokenizer,
  SentencePieceProcessor,
}).catch((error) => {
  console.error(`${bundle}: ${error.message}`);
  process.exit(1);
});
// 3: errors only. Of inputs that need not be fed, as return_scores, onnxruntime warns otherwise.
const session = await ort.InferenceSession.create(join(bundle, manifest.graphs.generate), {
  logSeverityLevel: 3,
});

/** Token ids of a text as the encoder sees them; none for a blank one. */
const encode = (line) => sourceTokens(manifest, source, line).map(({ id }) => id);

/** Rows of source ids to rows of target ids, in one call. */
async function generate(rows) {
  const longest = Math.max(1, ...rows.map((row) => row.length));
  const dims = [rows.length, longest];
  const ids = new BigInt64Array(rows.length * longest).fill(BigInt(special.pad));
  const mask = new BigInt64Array(rows.length * longest); // 1 = keep, from the lengths
  rows.forEach((row, i) => {
    row.forEach((id, j) => {
      ids[i * longest + j] = BigInt(id);
      mask[i * longest + j] = 1n;
    });
  });
  const { sequences } = await session.run(
    {
      input_ids: new ort.Tensor("int64", ids, dims),
      attention_mask: new ort.Tensor("int64", mask, dims),
      max_length: new ort.Tensor("int64", [MAX_LENGTH], []),
    },
    ["sequences"],
  );
  const [, length] = sequences.dims;
  return rows.map((row, i) => {
    if (row.length === 0) return [];
    const found = Array.from(sequences.data.slice(i * length, (i + 1) * length), Number);
    const end = found.indexOf(special.eos);
    return end < 0 ? found : found.slice(0, end);
  });
}

const lines = (await text(process.stdin)).split(/\r?\n/);
if (lines.at(-1) === "") lines.pop();
for (let start = 0; start < lines.length; start += BATCH_SIZE) {
  const rows = lines.slice(start, start + BATCH_SIZE).map(encode);
  const tooLong = rows.findIndex((row) => row.length > (limits.max_source_length ?? Infinity));
  if (tooLong >= 0) {
    const most = limits.max_source_length;
    console.error(`line ${start + tooLong + 1}: more than the ${most} tokens that the model takes`);
    process.exitCode = 1; // and not exit(), which may lose what is not yet written
    break;
  }
  for (const tokens of await generate(rows)) {
    console.log(options.includes("--ids") ? tokens.join(" ") : target.decode(tokens));
  }
}
