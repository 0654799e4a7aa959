// Options of decoding, a bundle's own defaults included, and the hypotheses of a beam's record. Names
// are those of tfexport's Python calls (docs/decoding.md) in JavaScript's spelling; what the engine
// does not do is refused by name.

const WIDEST = 1024;
const LONGEST = 2 ** 31 - 1;
const MOST_ENDS = 64; // end tokens of the engine

/** Options, or a text, that cannot be used; the message names all of them. */
export class OptionError extends Error {
  name = "OptionError";
}

const integers = (least, most) => (value) =>
  Number.isInteger(value) && value >= least && value <= most
    ? ""
    : `${shown(value)}, expected an integer from ${least} to ${most}`;
const reals = (low, high, inclusive = true) => (value) =>
  typeof value === "number" && (inclusive ? value >= low : value > low) && value <= high
    ? ""
    : `${shown(value)}, expected a number ${inclusive ? "from" : "above"} ${low} to ${high}`;
const boolean = (value) => (typeof value === "boolean" ? "" : `${shown(value)}, expected true or false`);
const isIds = (value) => Array.isArray(value) && value.every((id) => integers(0, LONGEST)(id) === "");
const ids = (value) => (isIds(value) ? "" : `${shown(value)}, expected a list of ids`);
const sequences = (value) =>
  Array.isArray(value) && value.every((each) => isIds(each) && each.length)
    ? ""
    : `${shown(value)}, expected lists of ids`;
const id = (value) => (value === null ? "" : integers(0, LONGEST)(value));
const rules = (value) =>
  ["tfexport", "transformers"].includes(value)
    ? ""
    : `${shown(value)}, expected "tfexport" or "transformers"`;
const shown = (value) => JSON.stringify(value) ?? String(value);

// Each option's default and check.
const OPTIONS = {
  beamSize: [1, integers(1, WIDEST)],
  numHypotheses: [1, integers(1, WIDEST)],
  lengthPenalty: [1, reals(-10, 10)],
  patience: [1, reals(0, 1e6, false)],
  earlyStopping: [true, boolean],
  searchRules: ["tfexport", rules],
  exhaustive: [false, boolean],
  renormalizeLogits: [false, boolean],
  sampling: [false, (value) => (value === false ? "" : "the engine does not sample")],
  minLength: [0, integers(0, LONGEST)],
  maxLength: [256, integers(1, LONGEST)],
  noRepeatNgramSize: [0, integers(0, LONGEST)],
  encoderNoRepeatNgramSize: [0, integers(0, LONGEST)],
  repetitionPenalty: [1, reals(1e-3, 1e3)],
  suppressTokens: [[], ids],
  suppressFirstTokens: [[], ids],
  suppressSequences: [[], sequences],
  firstToken: [null, id],
  lastToken: [null, id],
  endTokens: [[], ids],
  disableUnk: [false, boolean],
  returnEndToken: [false, boolean],
  returnScores: [true, boolean],
  batchSize: [32, integers(1, 4096)],
  signal: [null, () => ""], // an AbortSignal
};
const DEFAULTS = Object.fromEntries(Object.entries(OPTIONS).map(([name, [value]]) => [name, value]));
const NEEDS_BEAM = ["patience", "earlyStopping", "exhaustive", "renormalizeLogits"];
const OF_SAMPLING = ["temperature", "topK", "topP"]; // without effect where nothing is drawn

const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);
const camel = (name) => name.replace(/_(.)/g, (_, letter) => letter.toUpperCase());

/** A bundle's own defaults that count beside the options of a call; these override them. */
function ownDefaults(generation, given) {
  const own = {};
  for (const [name, value] of Object.entries(generation ?? {})) {
    if (!(camel(name) in given) && !OF_SAMPLING.includes(camel(name))) own[camel(name)] = value;
  }
  const value = (name) => given[name] ?? own[name] ?? DEFAULTS[name];
  const drop = (...names) => names.forEach((name) => delete own[name]);
  if (given.beamSize > 1) drop("sampling");
  if (given.patience !== undefined && given.patience !== DEFAULTS.patience) {
    drop("searchRules", "earlyStopping", "exhaustive", "renormalizeLogits");
  } else if (value("searchRules") === "tfexport") {
    drop("exhaustive", "renormalizeLogits");
  } else {
    drop("patience");
  }
  if (!(value("beamSize") > 1)) drop(...NEEDS_BEAM);
  if (given.earlyStopping === true) drop("exhaustive");
  if (!(value("numHypotheses") <= value("beamSize"))) drop("numHypotheses");
  if (value("minLength") > value("maxLength")) {
    drop("maxLength" in given ? "minLength" : "maxLength");
  }
  return own;
}

function* contradictions(options, changed) {
  const transformers = options.searchRules === "transformers";
  if (options.numHypotheses > options.beamSize) yield "numHypotheses exceeds beamSize";
  if (options.minLength > options.maxLength) yield "minLength exceeds maxLength";
  if (options.beamSize === 1) {
    for (const name of NEEDS_BEAM) if (changed(name)) yield `${name} needs beamSize above 1`;
  }
  for (const name of ["exhaustive", "renormalizeLogits"]) {
    if (changed(name) && !transformers) yield `${name} needs searchRules "transformers"`;
  }
  if (changed("exhaustive") && options.earlyStopping) yield "exhaustive needs earlyStopping false";
  if (changed("patience")) {
    if (transformers) yield 'patience needs searchRules "tfexport"';
    if (!options.earlyStopping) yield "patience needs earlyStopping";
  }
}

function* foreignIds(options, size) {
  const lists = ["suppressTokens", "suppressFirstTokens", "endTokens"];
  const all = [
    ...lists.flatMap((name) => options[name].map((token) => [name, token])),
    ...options.suppressSequences.flat().map((token) => ["suppressSequences", token]),
    ...["firstToken", "lastToken"].map((name) => [name, options[name] ?? 0]),
  ];
  for (const [name, token] of all) {
    if (token >= size) yield `${name}: ${token} is no id of the vocabulary, which has ${size}`;
  }
}

/**
 * The options of a call, over a bundle's own defaults.
 *
 * @returns the options; `ends` are their end tokens, `greedy` says that the model's own search in one
 *   call is theirs
 * @throws OptionError that names everything that is wrong
 */
export function resolveOptions(manifest, given = {}) {
  const { special_ids: special, limits, generation } = manifest;
  const named = Object.fromEntries(
    Object.entries(given ?? {}).filter(([, value]) => value !== undefined),
  );
  const all = { ...ownDefaults(generation, named), ...named };
  const problems = [];
  const options = { ...DEFAULTS };
  for (const [name, value] of Object.entries(all)) {
    const problem = Object.hasOwn(OPTIONS, name) ? OPTIONS[name][1](value) : "is not known here";
    if (problem) problems.push(`${name}: ${problem}`);
    else options[name] = value;
  }
  const changed = (name) => !same(options[name], DEFAULTS[name]);
  problems.push(...contradictions(options, changed), ...foreignIds(options, limits.target_vocab_size));
  options.maxLength = Math.min(options.maxLength, limits.max_target_length ?? LONGEST);
  options.ends = options.endTokens.length ? [...new Set(options.endTokens)] : [special.eos];
  if (options.disableUnk) {
    if (special.unk === null) problems.push("disableUnk needs a model with an unk_id");
    else options.suppressTokens = [...new Set([...options.suppressTokens, special.unk])];
  }
  if (options.ends.length > MOST_ENDS) problems.push(`endTokens: more than ${MOST_ENDS}`);
  if (options.ends.includes(options.firstToken)) {
    problems.push("firstToken is an end token: every row is empty");
  }
  const inGraph = {
    suppressTokens: generation?.suppress_tokens ?? [],
    firstToken: generation?.first_token ?? null,
    lastToken: generation?.last_token ?? null,
  };
  const ascending = (value) => (Array.isArray(value) ? [...new Set(value)].sort((a, b) => a - b) : value);
  options.greedy =
    options.beamSize === 1 &&
    same(options.ends, [special.eos]) &&
    Object.entries(inGraph).every(([name, value]) => same(ascending(options[name]), ascending(value))) &&
    !["noRepeatNgramSize", "encoderNoRepeatNgramSize", "repetitionPenalty", "suppressFirstTokens",
      "suppressSequences"].some(changed); // prettier-ignore
  if (!options.greedy) {
    if (options.beamSize === 1 && options.searchRules === "transformers") {
      problems.push(
        "beamSize 1 with penalties or bans by the rules of transformers is not done here: " +
          'pass beamSize above 1, or searchRules "tfexport"',
      );
    }
    if (2 * options.beamSize > limits.target_vocab_size) {
      problems.push("beamSize exceeds half of the vocabulary");
    }
    if (options.firstToken !== null && options.maxLength < 2) {
      problems.push("maxLength has no room for a token behind firstToken");
    }
  }
  if (problems.length) throw new OptionError(`Decoding options: ${problems.join("; ")}.`);
  return options;
}

/** Finished hypotheses without which no sentence is done before its greatest length. */
function stoppingCount({ beamSize, numHypotheses, patience, earlyStopping, searchRules }) {
  if (!earlyStopping) return searchRules === "transformers" ? beamSize : numHypotheses;
  return Math.max(1, numHypotheses, Math.floor(beamSize * patience + 0.5));
}

function stopOf({ earlyStopping, searchRules, exhaustive, lengthPenalty }) {
  if (earlyStopping) return "early";
  const own = searchRules !== "transformers" || exhaustive;
  if (lengthPenalty > 0) return own ? "longest" : "present";
  return searchRules === "transformers" ? "present" : "next";
}

/** The rules of a beam as the engine takes them. */
export function rulesOf(options, { special_ids: special }) {
  return {
    beams: options.beamSize,
    enough: stoppingCount(options),
    most: options.maxLength,
    stop: stopOf(options),
    onLogProbs: options.searchRules === "transformers",
    renormalize: options.renormalizeLogits,
    start: special.start ?? special.bos,
    first: options.firstToken ?? -1,
    last: options.lastToken ?? -1,
    minLength: options.minLength,
    ngram: options.noRepeatNgramSize,
    sourceNgram: options.encoderNoRepeatNgramSize,
    lengthPenalty: options.lengthPenalty,
    repetitionPenalty: options.repetitionPenalty,
    ends: options.ends,
    suppressed: options.suppressTokens,
    suppressedFirst: options.suppressFirstTokens,
    sequences: options.suppressSequences,
  };
}

/** A sum that is rounded about once (Neumaier 1974). */
function exactSum(values) {
  let sum = 0;
  let lost = 0;
  for (const value of values) {
    const next = sum + value;
    lost += Math.abs(sum) >= Math.abs(value) ? sum - next + value : value - next + sum;
    sum = next;
  }
  return sum + lost;
}

const normalized = (total, length, penalty) => (length ? total / length ** penalty : 0);

/** The hypothesis of a row of greedy search, whose score is the mean of its tokens'. */
export function greedyHypothesis({ tokens, score }, options) {
  const finished = tokens.at(-1) === options.ends[0];
  const kept = finished && !options.returnEndToken ? tokens.slice(0, -1) : tokens;
  const { length } = tokens;
  return { tokens: kept, score: normalized(score * length, length, options.lengthPenalty), finished };
}

/**
 * The finished hypotheses of each sentence, best first.
 *
 * @param record of the engine, with `count` sentences
 */
export function beamHypotheses(record, count, options) {
  const { T, N, tokens, parents, logProbs, steps } = record;
  const { beamSize: width, maxLength } = options;
  const prefix = options.firstToken === null ? [] : [options.firstToken];
  const ends = new Set(options.ends);
  const place = (step, sentence, rank) => (step * count + sentence) * N + rank;

  /** Which candidate of a step is followed as the hypothesis of a number: those that do not end. */
  function followed(step, sentence) {
    const found = [];
    for (let rank = 0; rank < N && found.length < width; rank++) {
      if (!ends.has(tokens[place(step, sentence, rank)])) found.push(rank);
    }
    return found;
  }

  /** A candidate back to the start token; null if it is a placeholder. */
  function trace(sentence, last, lastRank, ways) {
    const found = [];
    const scores = [];
    let rank = lastRank;
    for (let step = last; ; step--) {
      const at = place(step, sentence, rank);
      found.push(tokens[at]);
      scores.push(logProbs[at]);
      if (!Number.isFinite(logProbs[at])) return null;
      if (step === 0) {
        if (parents[at] > 0) return null; // before the first step there is one hypothesis
        break;
      }
      rank = ways[step - 1][parents[at]];
    }
    const row = [...prefix, ...found.reverse()];
    const finished = ends.has(row.at(-1));
    const score = normalized(exactSum(scores.reverse()), row.length, options.lengthPenalty);
    const kept = finished && !options.returnEndToken ? row.slice(0, -1) : row;
    return { tokens: kept, score, finished };
  }

  return Array.from({ length: count }, (_, sentence) => {
    const found = [];
    const ways = [];
    for (let step = 0; step < Math.min(T, steps[sentence]); step++) {
      ways.push(followed(step, sentence));
      const longest = prefix.length + step + 1 >= maxLength;
      for (let rank = 0; rank < width; rank++) {
        if (!longest && !ends.has(tokens[place(step, sentence, rank)])) continue;
        const made = trace(sentence, step, rank, ways);
        if (made) found.push(made);
      }
    }
    found.sort((a, b) => b.score - a.score); // ties keep their order
    return found.slice(0, options.numHypotheses);
  });
}
