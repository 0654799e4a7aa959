/** Bundles of tfexport in a page. docs/embedding/web.md describes all of it. */

/** A bundle, or a file of it, that cannot be read or run; the message says why. */
export class BundleError extends Error {}
/** The engine cannot do what it was asked for. */
export class EngineError extends Error {}
/** A call was ended while it ran. */
export class CancelledError extends EngineError {}
/** Options, texts or ids that cannot be used; the message names all of them. */
export class OptionError extends Error {}

export interface Progress {
  /** Bytes of all files so far. */
  loaded: number;
  /** Bytes of all files that are needed. */
  total: number;
  /** The file that the latest bytes are of. */
  file: string;
}

/** A file of a bundle by its name. */
export type ReadFile = (name: string) => Promise<Uint8Array | ReadableStream<Uint8Array>>;

export interface LoadOptions {
  /** Is called whenever bytes arrive. */
  onProgress?: (progress: Progress) => void;
  /**
   * Threads of every call, 1 to 16. More than one need a page that is cross-origin isolated. The
   * default is 1, or in such a page as many as the machine has, at most 4.
   */
  threads?: number;
  /** Ends loading. */
  signal?: AbortSignal;
  /** Of every fetch of the bundle's files, such as headers or a cache mode. */
  fetchOptions?: RequestInit;
  /** The bytes of the engine, where they are not fetched from the package. */
  wasmBinary?: Uint8Array;
  /** Classes of npm packages; what is missing is imported when a bundle needs it. */
  tokenizers?: {
    /** Of @huggingface/tokenizers, for a tokenizer.json. */
    Tokenizer?: new (tokenizer: object, config: object) => unknown;
    /** Of @sctg/sentencepiece-js, for a SentencePiece model. */
    SentencePieceProcessor?: new () => unknown;
  };
}

/** Options of decoding. Their meaning is in docs/decoding.md; a bundle may have other defaults. */
export interface DecodingOptions {
  /** 1 is greedy search. */
  beamSize?: number;
  numHypotheses?: number;
  lengthPenalty?: number;
  patience?: number;
  earlyStopping?: boolean;
  searchRules?: "tfexport" | "transformers";
  exhaustive?: boolean;
  renormalizeLogits?: boolean;
  /** false, where a bundle would sample by default: the engine does not. */
  sampling?: false;
  minLength?: number;
  /** Tokens of a row at most; 256 by default. */
  maxLength?: number;
  noRepeatNgramSize?: number;
  encoderNoRepeatNgramSize?: number;
  repetitionPenalty?: number;
  suppressTokens?: number[];
  suppressFirstTokens?: number[];
  suppressSequences?: number[][];
  firstToken?: number | null;
  lastToken?: number | null;
  endTokens?: number[];
  disableUnk?: boolean;
  returnEndToken?: boolean;
  /** false leaves scores out, as NaN; greedy search is then faster. */
  returnScores?: boolean;
  /** Rows that are decoded together; 32 by default. */
  batchSize?: number;
  /**
   * Ends the call: its promise fails at once. What the worker is at goes on to the next token in an
   * isolated page with several threads, else to the end of the batch.
   */
  signal?: AbortSignal;
}

export interface Hypothesis {
  tokens: number[];
  /** The sum of log-probabilities over length to the power of lengthPenalty. */
  score: number;
  /** Whether it ended with an end token, not at maxLength. */
  finished: boolean;
}

/** The best hypothesis, and all that were asked for, best first. */
export interface Generated extends Hypothesis {
  hypotheses: Hypothesis[];
}
export interface TextHypothesis extends Hypothesis {
  text: string;
}
export interface Translation extends TextHypothesis {
  hypotheses: TextHypothesis[];
}

export interface Attention {
  data: Float32Array;
  /** Layers, heads, written tokens, source tokens. */
  dims: [number, number, number, number];
}

export class Translator {
  private constructor();
  /**
   * Fetch a bundle and the engine.
   *
   * @param source address of the bundle's folder, or a function that gives its files
   * @throws BundleError, EngineError, OptionError
   */
  static load(source: string | URL | ReadFile, options?: LoadOptions): Promise<Translator>;
  /** The bundle's manifest.json. */
  readonly manifest: Record<string, any>;
  readonly threads: number;
  /** The ids of a text, special tokens included; none for a blank one. */
  encode(text: string): number[];
  /** The ids of a text, each with the piece of text that it is. */
  pieces(text: string): { id: number; piece: string }[];
  /** The text of target ids. */
  decode(tokens: number[]): string;
  translate(text: string, options?: DecodingOptions): Promise<Translation>;
  translate(texts: string[], options?: DecodingOptions): Promise<Translation[]>;
  /** Decode source ids, special tokens included. */
  generate(row: number[], options?: DecodingOptions): Promise<Generated>;
  generate(rows: number[][], options?: DecodingOptions): Promise<Generated[]>;
  /** The cross-attention of source ids and the tokens that were written for them. */
  attention(
    source: number[],
    tokens: number[],
    options?: { signal?: AbortSignal },
  ): Promise<Attention>;
  /** End the worker; calls that wait for it fail. */
  close(): void;
}
