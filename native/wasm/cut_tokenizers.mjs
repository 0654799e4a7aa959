// Tokenizers that find added tokens, such as </s> or <mask>, before they split the rest: tables of
// pieces, bytes, and merged words in lower case. The rules are those of tfexport/runtime/text.

import { strip, stripEnd, stripStart } from "./white_space.mjs";

const MARK = "▁"; // of a space, in SentencePiece's pieces

/** Finds tokens in texts: the leftmost first, and the longest of those that start there. */
class AddedTokens {
  constructor(tokens) {
    this.byContent = new Map(tokens.filter(({ content }) => content).map((it) => [it.content, it]));
    const longestFirst = [...this.byContent.keys()].sort((a, b) => b.length - a.length);
    const escaped = longestFirst.map((it) => it.replace(/[\\^$.*+?()[\]{}|/-]/g, "\\$&"));
    this.pattern = escaped.length ? new RegExp(`(${escaped.join("|")})`) : null;
    const special = tokens.filter((token) => token.special);
    this.hidden = new Set(special.map(({ id }) => id));
    this.special = new Set(special.map(({ content }) => content));
  }

  /** Parts of a text, each with the id of a token, or undefined for text between tokens. */
  cut(text) {
    const parts = (this.pattern ? text.split(this.pattern) : [text]).filter(Boolean);
    parts.forEach((part, i) => {
      const token = this.byContent.get(part);
      if (token) this.#stripAround(parts, i, token);
    });
    return parts.filter(Boolean).map((part) => [part, this.byContent.get(part)?.id]);
  }

  #stripAround(parts, i, token) {
    const left = parts[i - 1] ?? "";
    const right = parts[i + 1] ?? "";
    if (token.rstrip && right) parts[i + 1] = stripStart(right);
    if (token.lstrip && left) parts[i - 1] = stripEnd(left);
    if (token.single_word && left && !left.endsWith(" ")) {
      [parts[i - 1], parts[i]] = [left + token.content, ""];
    } else if (token.single_word && right && !right.startsWith(" ")) {
      [parts[i], parts[i + 1]] = ["", token.content + right];
    }
  }
}

// clean_up_tokenization_spaces of transformers, in this order.
const CLEANED = [
  [" .", "."], [" ?", "?"], [" !", "!"], [" ,", ","], [" ' ", "'"],
  [" n't", "n't"], [" 'm", "'m"], [" 's", "'s"], [" 've", "'ve"], [" 're", "'re"],
]; // prettier-ignore

class CutTokenizer {
  constructor(pieces, { unknown, added, clean_up: cleaned }) {
    Object.assign(this, { ids: new Map(pieces), unknown, cleaned, added: new AddedTokens(added) });
    this.contents = new Map(pieces.map(([piece, id]) => [id, piece]));
    for (const { id, content } of added) this.contents.set(id, content);
  }

  idOf(piece) {
    return this.ids.get(piece) ?? this.ids.get(this.unknown);
  }

  encode(text) {
    const tokens = [];
    const ids = [];
    for (const [part, id] of this.added.cut(text)) {
      for (const piece of id === undefined ? this.cut(part) : [part]) {
        tokens.push(piece);
        ids.push(id ?? this.added.byContent.get(piece)?.id ?? this.idOf(piece));
      }
    }
    return { ids, tokens };
  }

  decode(ids) {
    const shown = ids.filter((id) => id >= 0 && !this.added.hidden.has(id));
    const text = this.join(shown.map((id) => this.contents.get(id) ?? this.unknown));
    const replace = (all, [part, by]) => all.replaceAll(part, by);
    return this.cleaned ? CLEANED.reduce(replace, text) : text;
  }
}

/** SentencePiece models whose pieces have the ids of a table: Marian, M2M100, PLBart. */
export class PieceTokenizer extends CutTokenizer {
  /**
   * @param table the values of the file
   * @param openModel gives a SentencePieceTokenizer for the name of a file
   */
  static async open(table, openModel) {
    const encoder = await openModel(table.encode);
    const decoder = table.decode === table.encode ? encoder : await openModel(table.decode);
    return new PieceTokenizer(table, encoder, decoder);
  }

  constructor(table, encoder, decoder) {
    super(Object.entries(table.pieces), table);
    Object.assign(this, { table, encoder, decoder });
  }

  cut(text) {
    const end = this.table.prefix && text.startsWith(">>") ? text.indexOf("<<") + 2 : 0;
    return end > 1
      ? [text.slice(0, end), ...this.encoder.pieces(text.slice(end))]
      : this.encoder.pieces(text);
  }

  join(pieces) {
    const withSpaces = (text) => text.replaceAll(MARK, " ");
    if (this.table.joined === "text") return strip(withSpaces(pieces.join("")));
    const text = this.#joinByModel(pieces);
    return strip(this.table.behind_special ? withSpaces(text) : text);
  }

  /** By the model's rules; special tokens are written as their names. */
  #joinByModel(pieces) {
    let [text, pending] = ["", []];
    for (const piece of pieces) {
      if (this.added.special.has(piece)) {
        text += this.decoder.join(pending) + piece + this.table.behind_special;
        pending = [];
      } else {
        pending.push(piece);
      }
    }
    return text + this.decoder.join(pending);
  }
}

/** Bytes of UTF-8 as tokens: byT5. The piece of a byte is the character with the same number. */
export class ByteTokenizer extends CutTokenizer {
  constructor(table) {
    const pieces = Array.from({ length: 256 }, (_, byte) => [
      String.fromCharCode(byte),
      byte + table.first,
    ]);
    super(pieces, { ...table, unknown: "\0" });
    this.ownEnd = table.own_end;
  }

  cut(text) {
    return Array.from(new TextEncoder().encode(text), (byte) => String.fromCharCode(byte));
  }

  decode(ids) {
    return super.decode(ids.filter((id) => this.contents.has(id)));
  }

  join(pieces) {
    const encoder = new TextEncoder();
    const bytes = pieces.flatMap((piece) =>
      this.added.byContent.has(piece) ? [...encoder.encode(piece)] : [piece.charCodeAt(0)],
    );
    return decodeValid(bytes);
  }
}

/** The text of bytes of UTF-8; those that are none are omitted. */
function decodeValid(bytes) {
  const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  const REPLACEMENT = "\ufffd"; // what the decoder writes for them, and a character of its own
  const parts = [[]];
  for (const byte of bytes) {
    const part = parts.at(-1);
    part.push(byte);
    if (byte === 0xbd && part.at(-2) === 0xbf && part.at(-3) === 0xef) {
      part.splice(-3);
      parts.push([]);
    }
  }
  const texts = parts.map((part) => decoder.decode(Uint8Array.from(part)));
  return texts.map((text) => text.replaceAll(REPLACEMENT, "")).join(REPLACEMENT);
}

const [WORD_END, GOES_ON] = ["</w>", "@@"];
// White space of Unicode, without the separators U+001C to U+001F.
const SPACES = "\\t-\\r \\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";
const WORD = new RegExp(`[^${SPACES}]+\\n?`, "g");
const SEVERAL_SPACES = new RegExp(`[${SPACES}]{2,}`, "g");

/** Pieces of lower-case words; those that do not end a word end in @@: blenderbot-small. */
export class LowerBpeTokenizer extends CutTokenizer {
  constructor(table) {
    super(Object.entries(table.pieces), table);
    this.ranks = new Map(table.merges.map((pair, rank) => [JSON.stringify(pair), rank]));
  }

  idOf(piece) {
    return super.idOf(piece.toLowerCase());
  }

  cut(text) {
    return (text.match(WORD) ?? []).flatMap((word) => this.#split(word));
  }

  /** The pieces of a word between spaces, and of a line break after it. */
  #split(text) {
    const word = text
      .replace(/([.,!?()])/g, " $1")
      .replaceAll("'", " ' ")
      .replace(SEVERAL_SPACES, " ")
      .replaceAll("\n", " __newln__");
    const pieces = word.split(" ").flatMap((part) => {
      const letters = [...part.toLowerCase()];
      if (letters.length < 2) return letters;
      const merged = this.#merge([...letters.slice(0, -1), letters.at(-1) + WORD_END]);
      return merged.join(`${GOES_ON} `).slice(0, -WORD_END.length).split(" ");
    });
    return pieces.length ? pieces : [""];
  }

  /** Merges neighbours, all equal pairs at once, until no merge applies. */
  #merge(letters) {
    let word = letters;
    while (word.length > 1) {
      const pairs = word.slice(1).map((second, i) => JSON.stringify([word[i], second]));
      const rankOf = (pair) => this.ranks.get(pair) ?? Infinity;
      const best = pairs.reduce((least, pair) => (rankOf(pair) < rankOf(least) ? pair : least));
      if (rankOf(best) === Infinity) break;
      const merged = [];
      for (let i = 0; i < word.length; i++) {
        merged.push(pairs[i] === best ? word[i] + word[++i] : word[i]);
      }
      word = merged;
    }
    return word;
  }

  join(pieces) {
    return strip(pieces.join(" ").replaceAll(`${GOES_ON} `, ""));
  }
}
