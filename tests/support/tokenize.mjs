// node tokenize.mjs NODE_MODULES FOLDER < texts.json: what native/wasm/texts.mjs makes of texts with
// the tokenizers of a bundle, of which only the manifest and their files need be there. For each text
// it prints { ids, tokens, text }, with the text of the ids, or { error }.

import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import { loadTokenizers, sourceTokens } from "../../native/wasm/texts.mjs";

const [packages, folder] = process.argv.slice(2);
const require = createRequire(join(packages, "here.js"));
const { Tokenizer } = require("@huggingface/tokenizers");
const { SentencePieceProcessor } = require("@sctg/sentencepiece-js");
const files = {
  text: (name) => readFile(join(folder, name), "utf8"),
  bytes: (name) => readFile(join(folder, name)),
};
const manifest = JSON.parse(await files.text("manifest.json"));
const libraries = { Tokenizer, SentencePieceProcessor };
const { source, target } = await loadTokenizers(manifest, files, libraries);

function tokenize(line) {
  try {
    const tokens = sourceTokens(manifest, source, line);
    const ids = tokens.map(({ id }) => id);
    return { ids, tokens: tokens.map(({ piece }) => piece), text: target.decode(ids) };
  } catch (error) {
    return { error: error.message };
  }
}

console.log(JSON.stringify(JSON.parse(await text(process.stdin)).map(tokenize)));
