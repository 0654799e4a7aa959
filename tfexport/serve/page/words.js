// Words of texts, where tokens stand in them, and which words attend to which.

const FARTHEST = 24; // characters from a token to the next, which the text may write otherwise

const segmenter = new Intl.Segmenter(undefined, { granularity: "word" });

/** The words of a text as {start, end}; punctuation belongs to the word that it touches. */
export function wordsOf(text) {
  const words = [];
  let open = null; // the word that the next segment may belong to
  for (const { segment, index, isWordLike } of segmenter.segment(text)) {
    const end = index + segment.length;
    if (!segment.trim()) {
      open = null;
    } else if (open && !(isWordLike && open.complete)) {
      open.end = end;
      open.complete ||= isWordLike;
    } else {
      open = { start: index, end, complete: isWordLike };
      words.push(open);
    }
  }
  return words.map(({ start, end }) => ({ start, end }));
}

/** Where pieces stand in a text, in order: {start, end} for each, or null if it does not hold it. */
export function place(pieces, text) {
  const lower = text.toLowerCase();
  const folded = lower.length === text.length;
  let from = 0;
  return pieces.map((piece) => {
    const wanted = piece.trim();
    if (!wanted) return null;
    let start = text.indexOf(wanted, from);
    if (start < 0 && folded) start = lower.indexOf(wanted.toLowerCase(), from);
    if (start < 0 || start - from > FARTHEST) return null;
    from = start + wanted.length;
    return { start, end: from };
  });
}

/** For each place the number of the word that it is in, or -1. */
function wordNumbers(places, words) {
  return places.map((at) =>
    at ? words.findIndex(({ start, end }) => at.start < end && at.end > start) : -1,
  );
}

/**
 * What is known of a sentence and its translation.
 *
 * `sourceWords` and `words` are {start, end}; a word of the translation also has `prefix`, the
 * tokens in front of it, and `weights`, its attention to each word of the source.
 */
export function sentenceOf({ text, tokens, attention }, { source, source_pieces, pieces }) {
  const sourceWords = wordsOf(source);
  const words = wordsOf(text);
  const columns = wordNumbers(place(source_pieces, source), sourceWords);
  const rows = wordNumbers(place(pieces, text), words);
  words.forEach((word, number) => {
    const first = rows.findIndex((row) => row >= number);
    word.prefix = tokens.slice(0, Math.max(first, 0));
    word.weights = weightsOf(rows.flatMap((row, i) => (row === number && attention?.[i] ? [i] : [])));
  });
  return { source, text, sourceWords, words };

  function weightsOf(own) {
    const weights = Array(sourceWords.length).fill(0);
    for (const row of own) {
      attention[row].forEach((weight, i) => {
        if (columns[i] >= 0) weights[columns[i]] += weight / own.length;
      });
    }
    return weights;
  }
}
