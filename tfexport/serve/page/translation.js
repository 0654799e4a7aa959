// The pane of the translation: a text while it comes, then words that one can go to.

import { clearShades, shade } from "./source.js";

const pane = document.getElementById("translation");

/** Say whether what is shown is not the translation yet. */
export function setBusy(busy) {
  pane.ariaBusy = String(busy);
}

/** Show a text that is not complete, or of which nothing more is known. */
export function showText(text) {
  pane.textContent = text;
}

/** Show the segments of a sound, each behind the time at which it begins. */
export function showSegments(segments) {
  const parts = segments.flatMap(({ start, text }) => {
    const time = document.createElement("time");
    time.textContent = clock(start);
    return [time, `${text.trim()}\n`];
  });
  pane.replaceChildren(...parts);
}

function clock(seconds) {
  const whole = Math.floor(seconds);
  const [hours, minutes] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60];
  const rest = String(whole % 60).padStart(2, "0");
  return hours ? `${hours}:${String(minutes).padStart(2, "0")}:${rest}` : `${minutes}:${rest}`;
}

/**
 * Show a translation as words.
 *
 * `sentences` have `at`, their place in the text, and `from`, that of their source. `open` is
 * called with a sentence, one of its words and its element.
 */
export function showWords(text, sentences, open) {
  const parts = [];
  let from = 0;
  for (const sentence of sentences) {
    for (const word of sentence.words) {
      const start = sentence.at + word.start;
      const end = sentence.at + word.end;
      const element = wordElement(text.slice(start, end), sentence, word, open);
      element.tabIndex = parts.length > 1 ? -1 : 0; // one of them is a stop of the Tab key
      parts.push(text.slice(from, start), element);
      from = end;
    }
  }
  pane.replaceChildren(...parts, text.slice(from));
}

/** Give the focus to the word at a place of the text. */
export function focusWord(place) {
  const words = [...pane.querySelectorAll(".word")];
  goTo(words[Math.min(place, words.length - 1)]);
}

/** The number of a word's element among all words. */
export function numberOf(element) {
  return [...pane.querySelectorAll(".word")].indexOf(element);
}

function wordElement(text, sentence, word, open) {
  const element = document.createElement("span");
  element.className = "word";
  element.role = "button";
  element.ariaHasPopup = "listbox";
  element.ariaExpanded = "false";
  element.textContent = text;
  const show = () => shade(shades(sentence, word));
  const hide = () => element.ariaExpanded === "true" || clearShades(); // not while its list is open
  element.addEventListener("pointerenter", show);
  element.addEventListener("focus", show);
  element.addEventListener("pointerleave", hide);
  element.addEventListener("blur", hide);
  element.addEventListener("click", () => {
    goTo(element);
    open(sentence, word, element);
  });
  return element;
}

function shades(sentence, word) {
  return sentence.sourceWords.map(({ start, end }, i) => ({
    start: sentence.from + start,
    end: sentence.from + end,
    weight: word.weights[i],
  }));
}

function goTo(element) {
  if (!element) return;
  for (const other of pane.querySelectorAll('.word[tabindex="0"]')) other.tabIndex = -1;
  element.tabIndex = 0;
  element.focus();
}

pane.addEventListener("keydown", (event) => {
  const words = [...pane.querySelectorAll(".word")];
  const at = words.indexOf(document.activeElement);
  const forward = getComputedStyle(pane).direction === "rtl" ? "ArrowLeft" : "ArrowRight";
  const back = forward === "ArrowRight" ? "ArrowLeft" : "ArrowRight";
  const places = { [forward]: at + 1, [back]: at - 1, Home: 0, End: words.length - 1 };
  if (at < 0) return;
  if (event.key in places) goTo(words[places[event.key]]);
  else if (["Enter", " ", "ArrowDown"].includes(event.key)) words[at].click();
  else return;
  event.preventDefault();
});
