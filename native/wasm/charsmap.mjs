// SentencePiece's normalization, as a tokenizer.json holds it: at each place of a text the longest
// rule that matches. Source: Normalizer::NormalizePrefix and DecodePrecompiledCharsMap of
// SentencePiece; the trie is that of Darts-clone, darts.h. tfexport/runtime/text/charsmap.py is the
// same in Python.

const offsetOf = (unit) => (unit >>> 10) << ((unit & (1 << 9)) >> 6);

/** The rules of a precompiled_charsmap. */
export class Charsmap {
  /** @param base64 the value in the file */
  constructor(base64) {
    const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
    const view = new DataView(bytes.buffer);
    const size = bytes.length < 8 ? 0 : view.getUint32(0, true);
    if (size % 4 || size < 4 || 4 + size > bytes.length) throw new Error("the charsmap is damaged");
    this.units = Uint32Array.from({ length: size / 4 }, (_, i) => view.getUint32(4 + 4 * i, true));
    this.texts = bytes.subarray(4 + size);
    this.encoder = new TextEncoder();
    this.decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  }

  normalize(text) {
    const bytes = this.encoder.encode(text);
    const parts = [];
    let place = 0;
    let start = 0; // of what no rule has changed
    while (place < bytes.length) {
      const [length, replacement] = this.#longest(bytes, place);
      if (length) {
        parts.push(bytes.subarray(start, place), replacement);
        start = place + length;
      }
      place += length || 1 + countFollowing(bytes, place);
    }
    parts.push(bytes.subarray(start));
    return parts.map((part) => this.decoder.decode(part)).join("");
  }

  /** The number of bytes that the longest rule matches, and what it writes for them. */
  #longest(bytes, start) {
    let best = [0, null];
    let place = offsetOf(this.units[0]);
    for (let end = start; end < bytes.length; end++) {
      place ^= bytes[end];
      if (place >= this.units.length) return best;
      const unit = this.units[place];
      if ((unit & 0x800000ff) !== bytes[end]) return best;
      place ^= offsetOf(unit);
      if ((unit >>> 8) & 1 && place < this.units.length) {
        best = [end + 1 - start, this.#text(this.units[place] & 0x7fffffff)];
      }
    }
    return best;
  }

  #text(start) {
    const end = this.texts.indexOf(0, start);
    return this.texts.subarray(start, end < 0 ? undefined : end);
  }
}

/** How many bytes of the character follow the first. */
function countFollowing(bytes, place) {
  let count = 0;
  while ((bytes[place + count + 1] & 0xc0) === 0x80) count++;
  return count;
}
