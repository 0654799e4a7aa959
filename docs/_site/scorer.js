// What the search puts first: answers and options, and what has changed last.
// Sphinx puts this behind its own stop words; these stand in questions and say nothing either.
for (const word of ["can", "run", "use", "get", "set", "keep", "stop", "cost", "do", "how", "my"])
  stopwords.add(word);

// Words of a query, as Sphinx splits it, without letters that stand alone: n-gram is not n.
var splitQuery = (query) =>
  query.split(/[^\p{Letter}\p{Number}_\p{Emoji_Presentation}]+/gu).filter((term) => term.length > 1);

var Scorer = {
  score: ([page, , anchor, , score]) => {
    if (page === "changelog") return score - 40;
    if (page === "questions") return score + (anchor ? 30 : 25);
    // Options that several verbs have are looked up for translate.
    if (anchor.startsWith("#cmdoption-tfexport-translate")) return score + 32;
    if (anchor.startsWith("#cmdoption") || anchor.startsWith("#tfexport")) return score + 30;
    return score;
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
