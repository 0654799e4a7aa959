// SentencePiece models, by the npm package @sctg/sentencepiece-js, which is SentencePiece itself.

const ORDINARY = 1;
const UNKNOWN = 2; // SentencePiece.Type of sentencepiece_model.proto

/** The fields of a message of protocol buffers, as [number, value]: bytes, or a number. */
function* fieldsOf(bytes) {
  let at = 0;
  const number = () => {
    let value = 0;
    for (let factor = 1; ; factor *= 128) {
      const byte = bytes[at++];
      if (byte === undefined) throw new Error("the SentencePiece model is damaged");
      value += (byte & 127) * factor;
      if (byte < 128) return value;
    }
  };
  while (at < bytes.length) {
    const tag = number();
    const [field, type] = [Math.floor(tag / 8), tag & 7];
    if (type === 0) {
      yield [field, number()];
      continue;
    }
    const length = { 1: () => 8, 2: number, 5: () => 4 }[type]?.();
    if (length === undefined || at + length > bytes.length) {
      throw new Error("the file is no SentencePiece model");
    }
    yield [field, bytes.subarray(at, (at += length))];
  }
}

/** The pieces of a model in the order of their ids, as { text, type }. */
function piecesOf(bytes) {
  const decoder = new TextDecoder();
  const pieces = [];
  for (const [field, value] of fieldsOf(bytes)) {
    if (field !== 1) continue;
    const piece = { text: "", type: ORDINARY };
    for (const [part, content] of fieldsOf(value)) {
      if (part === 1) piece.text = decoder.decode(content);
      if (part === 3) piece.type = content;
    }
    pieces.push(piece);
  }
  return pieces;
}

/** A SentencePiece model: texts to ids or pieces, and back. */
export class SentencePieceTokenizer {
  /**
   * @param bytes of the .model file
   * @param Processor SentencePieceProcessor of @sctg/sentencepiece-js
   */
  static async open(bytes, Processor) {
    const processor = new Processor();
    let binary = "";
    for (const byte of bytes) binary += String.fromCharCode(byte);
    await processor.loadFromB64StringModel(btoa(binary));
    return new SentencePieceTokenizer(processor, piecesOf(bytes));
  }

  constructor(processor, pieces) {
    Object.assign(this, { processor, size: pieces.length });
    this.ids = new Map(pieces.map(({ text }, id) => [text, id]));
    this.unknown = pieces.findIndex(({ type }) => type === UNKNOWN);
    this.unknownPiece = pieces[this.unknown]?.text;
    this.unknownText = this.#decode([this.unknown]);
  }

  #decode(ids) {
    return ids.length ? this.processor.decodeIds(Int32Array.from(ids)) : "";
  }

  encode(text) {
    return { ids: [...this.processor.encodeIds(text)], tokens: this.pieces(text) };
  }

  pieces(text) {
    return [...this.processor.encodePieces(text)];
  }

  decode(ids) {
    return this.#decode(ids.filter((id) => id < this.size)); // one beyond would make a text empty
  }

  /** The text of pieces. What is no piece of the model stays as it is, as in SentencePiece. */
  join(pieces) {
    const ids = pieces.map((piece) => this.ids.get(piece) ?? this.unknown);
    const foreign = pieces.filter((piece, i) => ids[i] === this.unknown);
    const [first, ...others] = this.#decode(ids).split(this.unknownText);
    return others.reduce(
      (text, part, i) =>
        text + (foreign[i] === this.unknownPiece ? this.unknownText : foreign[i]) + part,
      first,
    );
  }
}
