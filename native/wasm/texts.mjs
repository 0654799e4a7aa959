// Texts to ids and back in JavaScript, for every kind of tokenizer that a bundle can have but those
// that need a Python library. It needs no other part of the engine: examples that decode with
// onnxruntime use it too.

import { ByteTokenizer, LowerBpeTokenizer, PieceTokenizer } from "./cut_tokenizers.mjs";
import { JsonTokenizer } from "./json_tokenizer.mjs";
import { SentencePieceTokenizer } from "./sentencepiece.mjs";
import { splitAtSpaces, strip } from "./white_space.mjs";

// torchtext's basic_english, in this order.
const REPLACEMENTS = [
  ["'", " '  "], ['"', ""], [".", " . "], ["<br />", " "], [",", " , "], ["(", " ( "],
  [")", " ) "], ["!", " ! "], ["?", " ? "], [";", " "], [":", " "],
]; // prettier-ignore
const SPLITS = {
  whitespace: splitAtSpaces,
  basic_english: (text) => {
    const replace = (all, [part, by]) => all.replaceAll(part, by);
    return splitAtSpaces(REPLACEMENTS.reduce(replace, text.toLowerCase()));
  },
  characters: (text) => [...text],
};

/** Words of a vocabulary. */
class WordTokenizer {
  constructor({ words, split }, { pad, bos, eos, start, unk: unknown }) {
    Object.assign(this, { words, split, unknown, hidden: new Set([pad, bos, eos, start]) });
    this.byWord = new Map(words.map((word, id) => [word, id]));
  }

  encode(text) {
    const tokens = SPLITS[this.split](text);
    const ids = tokens.map((word) => this.byWord.get(word) ?? this.unknown);
    const place = ids.findIndex((id) => id === undefined || id === null);
    if (place >= 0) {
      throw new Error(
        `“${tokens[place]}” is not in the vocabulary, and the model has no unk_id for it.`,
      );
    }
    return { ids, tokens };
  }

  decode(ids, { skipSpecial = true } = {}) {
    const isShown = (id) => id < this.words.length && !(skipSpecial && this.hidden.has(id));
    const shown = ids.filter(isShown);
    return shown.map((id) => this.words[id]).join(this.split === "characters" ? "" : " ");
  }
}

// Classes of npm packages, which are loaded only for a bundle that needs them.
const PACKAGES = {
  Tokenizer: [() => import("@huggingface/tokenizers"), "@huggingface/tokenizers"],
  SentencePieceProcessor: [() => import("@sctg/sentencepiece-js"), "@sctg/sentencepiece-js"],
};

async function classOf(name, libraries) {
  if (libraries[name]) return libraries[name];
  const [load, npm] = PACKAGES[name];
  try {
    return (await load())[name];
  } catch (error) {
    throw new Error(`the npm package ${npm} is needed, and cannot be loaded: ${error.message}`);
  }
}

function linesOf(text) {
  return text.replace(/\r\n?/g, "\n").replace(/\n$/, "").split("\n");
}

/** Why the bundle's texts cannot be read here, as far as its manifest tells. */
function* problemsOf({ languages, module, tokenizers }) {
  if (languages?.source_place || languages?.target_place) {
    yield "its model is told languages by tokens, which are not added here";
  }
  const inputs = module?.inputs.map(({ name }) => name).sort().join();
  if (module && !(module.padded && inputs === "attention_mask,input_ids")) {
    yield "its module takes other inputs than ids of any length with a mask";
  }
  for (const side of ["source", "target"]) {
    const entry = tokenizers?.[side];
    if (!entry) {
      yield `it holds no ${side} tokenizer: export it with --tokenizer`;
    } else if (!Object.hasOwn(KINDS, entry.kind)) {
      yield `its ${side} tokenizer, ${entry.file}, is of the kind ${entry.kind}, which there is ` +
        "only in Python";
    }
  }
}

function refuse(problems) {
  if (!problems.length) return;
  throw new Error(`The texts of the bundle cannot be used here: ${problems.join("; ")}.`);
}

// What reads the file of each kind. A reader gives texts, values of JSON and models of a bundle's
// files, and the classes of packages.
const KINDS = {
  tokenizers: async (file, reader) => {
    return new JsonTokenizer(await reader.values(file), await reader.classOf("Tokenizer"));
  },
  sentencepiece: (file, reader) => reader.model(file),
  pieces: async (file, reader) => PieceTokenizer.open(await reader.values(file), reader.model),
  bytes: async (file, reader) => new ByteTokenizer(await reader.values(file)),
  lower_bpe: async (file, reader) => new LowerBpeTokenizer(await reader.values(file)),
  words: async (file, reader) => {
    const words = linesOf(await reader.text(file));
    return new WordTokenizer({ split: "whitespace", words }, reader.special);
  },
  vocabulary: async (file, reader) => {
    return new WordTokenizer(await reader.values(file), reader.special);
  },
};

/**
 * The tokenizers of a bundle, as { source, target }: encode(text) gives { ids, tokens }, and
 * decode(ids) a text without special tokens, or with those of words and of a tokenizer.json for
 * { skipSpecial: false }.
 *
 * @param manifest of the bundle
 * @param files gives one of its files by name: text(name), and bytes(name) for SentencePiece
 * @param libraries Tokenizer of @huggingface/tokenizers and SentencePieceProcessor of
 *   @sctg/sentencepiece-js; what is missing is imported
 * @throws Error that says what the bundle holds that is not known here
 */
export async function loadTokenizers(manifest, files, libraries = {}) {
  const { special_ids: special, tokenizers } = manifest;
  refuse([...problemsOf(manifest)]);
  const models = new Map(); // by the names of their files: both sides may have one
  const reader = {
    special,
    text: (file) => files.text(file),
    values: async (file) => JSON.parse(await files.text(file)),
    classOf: (name) => classOf(name, libraries),
    model: (file) => {
      if (!models.has(file)) models.set(file, openModel(file));
      return models.get(file);
    },
  };

  async function openModel(file) {
    const Processor = await reader.classOf("SentencePieceProcessor");
    return SentencePieceTokenizer.open(await files.bytes(file), Processor);
  }

  const open = ({ kind, file }) => KINDS[kind](file, reader);
  const [source, target] = await Promise.all([open(tokenizers.source), open(tokenizers.target)]);
  if (source instanceof WordTokenizer && !Object.hasOwn(SPLITS, source.split)) {
    refuse([
      `its source text is split as ${source.split}, which there is only in Python: export it ` +
        `with --source-split ${Object.keys(SPLITS).join(" or ")}`,
    ]);
  }
  return { source, target };
}

/**
 * The tokens of a source text as the encoder takes them, as { id, piece }; none for a blank one.
 *
 * @param manifest of the bundle
 * @param tokenizer of the source
 * @throws Error for a text that no tokenizer takes
 */
export function sourceTokens({ special_ids: special, config }, tokenizer, text) {
  if (/\p{Surrogate}/u.test(text)) throw new Error("a text has half of a character");
  if (!strip(text)) return [];
  const { ids, tokens } = tokenizer.encode(text);
  const all = Array.from(ids, (id, i) => ({ id, piece: tokens[i] }));
  const end = config.add_source_eos ? special.eos : undefined;
  const ends = end !== undefined && tokenizer.ownEnd === end && all.at(-1)?.id === end;
  if (ends) all.pop(); // it is added below
  if (config.add_source_bos) all.unshift({ id: special.bos, piece: "‹start›" });
  if (config.add_source_eos) all.push({ id: special.eos, piece: "‹end›" });
  return all;
}
