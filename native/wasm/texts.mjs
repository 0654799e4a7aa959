// Texts to ids and back in JavaScript, for bundles with a tokenizer.json, a SentencePiece model or a
// vocabulary of words, as that of PyTorch's translation tutorial. It needs nothing else of this
// package: examples that decode with onnxruntime use it too.

// White space of Python's str.split, which differs from JavaScript's \s.
const SPACE = /[\t-\r\x1c- \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+/;
const splitAtSpaces = (text) => text.split(SPACE).filter(Boolean);

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

/** How many pieces a SentencePiece model has: the fields of number 1 of its protocol buffer. */
function countPieces(bytes) {
  let at = 0;
  const number = () => {
    let found = 0;
    for (let factor = 1; ; factor *= 128) {
      const byte = bytes[at++];
      if (byte === undefined) throw new Error("the SentencePiece model is damaged");
      found += (byte & 127) * factor;
      if (byte < 128) return found;
    }
  };
  let count = 0;
  while (at < bytes.length) {
    const tag = number();
    if ((tag & 7) !== 2) throw new Error("the file is no SentencePiece model");
    count += tag >> 3 === 1 ? 1 : 0;
    const length = number(); // which moves to its end
    at += length;
  }
  return count;
}

/** A SentencePiece model, with the methods of Tokenizer that are used here. */
class PieceTokenizer {
  constructor(processor, size) {
    Object.assign(this, { processor, size }); // ids beyond would make a text empty
  }

  static async open(bytes, Processor) {
    const processor = new Processor();
    let binary = "";
    for (const byte of bytes) binary += String.fromCharCode(byte);
    await processor.loadFromB64StringModel(btoa(binary));
    return new PieceTokenizer(processor, countPieces(bytes));
  }

  encode(text) {
    return { ids: [...this.processor.encodeIds(text)], tokens: [...this.processor.encodePieces(text)] };
  }

  decode(ids) {
    return this.processor.decodeIds(Int32Array.from(ids.filter((id) => id < this.size)));
  }
}

/** Words of a vocabulary, with the same methods. */
class WordTokenizer {
  constructor({ words, split }, unknown, hidden) {
    Object.assign(this, { words, split, unknown, hidden });
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

  decode(ids, { skip_special_tokens: skip = false } = {}) {
    const shown = ids.filter((id) => id < this.words.length && !(skip && this.hidden.has(id)));
    return shown.map((id) => this.words[id]).join(this.split === "characters" ? "" : " ");
  }
}

// What reads which kind, in npm packages that are loaded only for a bundle that needs them.
const PACKAGES = {
  tokenizers: ["Tokenizer", () => import("@huggingface/tokenizers"), "@huggingface/tokenizers"],
  sentencepiece: [
    "SentencePieceProcessor",
    () => import("@sctg/sentencepiece-js"),
    "@sctg/sentencepiece-js",
  ],
};
const KINDS = [...Object.keys(PACKAGES), "words", "vocabulary"];

async function classOf(kind, libraries) {
  const [name, load, npm] = PACKAGES[kind];
  if (libraries[name]) return libraries[name];
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
    } else if (!KINDS.includes(entry.kind)) {
      yield `its ${side} tokenizer, ${entry.file}, is of the kind ${entry.kind}; known here are a ` +
        "tokenizer.json, SentencePiece models and vocabularies of words";
    }
  }
}

function refuse(problems) {
  if (!problems.length) return;
  throw new Error(`The texts of the bundle cannot be used here: ${problems.join("; ")}.`);
}

/**
 * The tokenizers of a bundle, as { source, target }.
 *
 * @param manifest of the bundle
 * @param files gives one of its files by name: text(name), and bytes(name) for SentencePiece
 * @param libraries Tokenizer of @huggingface/tokenizers and SentencePieceProcessor of
 *   @sctg/sentencepiece-js; what is missing is imported
 * @throws Error that says what the bundle holds that is not known here
 */
export async function loadTokenizers(manifest, files, libraries = {}) {
  const { special_ids: special, tokenizers } = manifest;
  const hidden = new Set([special.pad, special.bos, special.eos, special.start]);
  const problems = [...problemsOf(manifest)];
  refuse(problems);

  async function open(side) {
    const { kind, file } = tokenizers[side];
    if (kind === "sentencepiece") {
      const [bytes, Processor] = [await files.bytes(file), await classOf(kind, libraries)];
      return PieceTokenizer.open(bytes, Processor);
    }
    const text = await files.text(file);
    if (kind === "tokenizers") {
      const Tokenizer = await classOf(kind, libraries);
      return new Tokenizer(JSON.parse(text), {});
    }
    const vocabulary =
      kind === "vocabulary" ? JSON.parse(text) : { split: "whitespace", words: linesOf(text) };
    if (side === "source" && !Object.hasOwn(SPLITS, vocabulary.split)) {
      problems.push(
        `its source text is split as ${vocabulary.split}, which there is only in Python: export it ` +
          `with --source-split ${Object.keys(SPLITS).join(" or ")}`,
      );
    }
    return new WordTokenizer(vocabulary, special.unk, hidden);
  }

  const [source, target] = await Promise.all([open("source"), open("target")]);
  refuse(problems);
  return { source, target };
}
