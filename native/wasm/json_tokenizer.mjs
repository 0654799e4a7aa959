// A tokenizer.json, by the npm package @huggingface/tokenizers. Where that gives other ids than the
// library in Python, 0.2.0 against 0.23.3, its rules are replaced here.

import { Charsmap } from "./charsmap.mjs";

const WORD = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\p{Join_Control}";
// The package takes the letters of ASCII only for letters.
const WHITESPACE = {
  type: "Split",
  pattern: { Regex: `[${WORD}]+|[^${WORD}\\p{White_Space}]+` },
  behavior: "Removed",
  invert: true,
};

/** A rule of pre-tokenizing, in which Whitespace is written as a pattern. */
function withWords(rule) {
  if (rule?.type === "Whitespace") return WHITESPACE;
  if (!rule?.pretokenizers) return rule;
  return { ...rule, pretokenizers: rule.pretokenizers.map(withWords) };
}

const lowerCase = (text) => Array.from(text, (character) => character.toLowerCase()).join("");

/** Gives the rules of a normalizer of the package, which may be a sequence, their own methods. */
function replaceRules(normalizer) {
  for (const rule of normalizer?.normalizers ?? [normalizer]) {
    const { type, precompiled_charsmap: charsmap } = rule?.config ?? {};
    if (type === "Sequence") {
      replaceRules(rule);
    } else if (type === "Precompiled" && charsmap) {
      // The package's is Unicode's NFKC, and no model's own rules, such as those that fold case.
      const rules = new Charsmap(charsmap);
      rule.normalize = (text) => rules.normalize(text);
    } else if (type === "Lowercase" || (type === "BertNormalizer" && rule.config.lowercase)) {
      // A sigma at the end of a word is as any other.
      const normalize = rule.normalize.bind(rule);
      rule.normalize = (text) => normalize(lowerCase(text));
    }
  }
}

/** A tokenizer of the package, with the methods that are used here. */
export class JsonTokenizer {
  /**
   * @param values of the file
   * @param Tokenizer of @huggingface/tokenizers
   */
  constructor(values, Tokenizer) {
    const rules = { ...values, pre_tokenizer: withWords(values.pre_tokenizer) };
    const { unk_token } = values.model; // which the package reads of some models, not of WordLevel
    this.tokenizer = new Tokenizer(rules, { unk_token });
    replaceRules(this.tokenizer.normalizer);
  }

  encode(text) {
    return this.tokenizer.encode(text, { add_special_tokens: false });
  }

  decode(ids, { skipSpecial = true } = {}) {
    if (!ids.length) return ""; // which the package refuses
    return this.tokenizer.decode(ids, {
      skip_special_tokens: skipSpecial,
      clean_up_tokenization_spaces: false,
    });
  }
}
