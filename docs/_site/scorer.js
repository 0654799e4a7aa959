// What the search puts first: answers and options, and what has changed last.
var Scorer = {
  score: ([page, , anchor, , score]) => {
    if (page === "changelog") return score - 40;
    if (page === "questions") return score + 25;
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
