// Texts to ids and back in JavaScript, for bundles with a tokenizer.json or a vocabulary of words,
// as that of PyTorch's translation tutorial. The page and the Node example share this file.

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
};

/** Words of a vocabulary, with the methods of Tokenizer that the examples use. */
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
    return shown.map((id) => this.words[id]).join(" ");
  }
}

/**
 * The tokenizers of a bundle, as { source, target }.
 *
 * @param manifest of the bundle
 * @param read gives the text of one of its files, by name
 * @param Tokenizer of @huggingface/tokenizers
 * @throws Error that says what the bundle holds that these examples do not know
 */
export async function loadTokenizers(manifest, read, Tokenizer) {
  const { special_ids: special, tokenizers, languages, module } = manifest;
  const hidden = new Set([special.pad, special.bos, special.eos, special.start]);
  const problems = [];
  if (languages?.source_place || languages?.target_place) {
    problems.push("its model is told languages by tokens, which this example does not add");
  }
  const inputs = module?.inputs.map(({ name }) => name).sort().join();
  if (module && !(module.padded && inputs === "attention_mask,input_ids")) {
    problems.push("its module takes other inputs than ids of any length with a mask");
  }

  async function load(side) {
    const entry = tokenizers[side];
    if (!entry) {
      return void problems.push(`it holds no ${side} tokenizer: export it with --tokenizer`);
    }
    if (!["tokenizers", "words", "vocabulary"].includes(entry.kind)) {
      return void problems.push(
        `its ${side} tokenizer, ${entry.file}, is of the kind ${entry.kind}; this example reads ` +
          "a tokenizer.json and vocabularies of words",
      );
    }
    const text = await read(entry.file);
    if (entry.kind === "tokenizers") return new Tokenizer(JSON.parse(text), {});
    const lines = () => text.replace(/\r\n?/g, "\n").replace(/\n$/, "").split("\n");
    const vocabulary =
      entry.kind === "vocabulary" ? JSON.parse(text) : { split: "whitespace", words: lines() };
    if (side === "source" && !Object.hasOwn(SPLITS, vocabulary.split)) {
      problems.push(
        `its source text is split as ${vocabulary.split}, which there is only in Python: export it ` +
          `with --source-split ${Object.keys(SPLITS).join(" or ")}`,
      );
    }
    return new WordTokenizer(vocabulary, special.unk, hidden);
  }

  const [source, target] = await Promise.all([load("source"), load("target")]);
  if (problems.length) throw new Error(`The bundle cannot be used here: ${problems.join("; ")}.`);
  return { source, target };
}
