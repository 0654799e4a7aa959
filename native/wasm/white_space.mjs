// White space as Python's str.split and str.strip know it, which differs from JavaScript's \s.

const SPACE = "[\\t-\\r\\x1c- \\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000]";
const ONE = new RegExp(SPACE);
const BETWEEN = new RegExp(`${SPACE}+`);
const BEFORE = new RegExp(`^${SPACE}+`);

export const splitAtSpaces = (text) => text.split(BETWEEN).filter(Boolean);
export const stripStart = (text) => text.replace(BEFORE, "");
export const strip = (text) => stripEnd(stripStart(text));

/** Without a pattern, whose time would grow with the square of a run of spaces. */
export function stripEnd(text) {
  let end = text.length;
  while (end && ONE.test(text[end - 1])) end--;
  return text.slice(0, end);
}
