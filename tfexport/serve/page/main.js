// Translates while one types.

import * as api from "./api.js";
import { closeList, openList } from "./alternatives.js";
import { chosenFile, inputKind, offerFile, spoken } from "./file.js";
import { chosen, offer } from "./languages.js";
import { clearShades } from "./source.js";
import { focusWord, numberOf, setBusy, showSegments, showText, showWords } from "./translation.js";
import { sentenceOf } from "./words.js";

const PAUSE = 250; // milliseconds without a key before a translation starts

const element = (id) => document.getElementById(id);
const source = element("source");
let timer = 0;
let running = new AbortController();
let attention = true; // whether the model gives it
let shown = { text: "", sentences: [] };

const options = () => (attention ? { return_attention: true } : {});

function request() {
  const { model, options: languages } = chosen();
  return { model, options: { ...languages, ...options() } };
}

/** Stop what runs, and translate again after a while. */
function changed(pause = PAUSE) {
  running.abort();
  clearTimeout(timer);
  closeList();
  clearShades();
  setBusy(true);
  running = new AbortController();
  const { signal } = running;
  timer = setTimeout(() => attempt(() => update(signal), () => changed(0)), pause);
}

/** Do something, and say why it failed; `again` repeats it, once there is a key or room for it. */
async function attempt(work, again) {
  try {
    await work();
    element("error").textContent = "";
  } catch (error) {
    if (error.name === "AbortError") return;
    setBusy(false);
    if (!(error instanceof api.Failure)) {
      element("error").textContent = "The page has failed; the browser's console says where.";
      throw error;
    }
    element("error").textContent = error.status === 401 ? "" : error.message;
    if (error.status === 401) askForKey(again);
    else if (error.wait && again) timer = setTimeout(again, 1000 * error.wait);
  }
}

function askForKey(again) {
  element("key-form").hidden = false;
  if (element("key").value) element("error").textContent = "The server does not know this key.";
  element("key").focus();
  element("key-form").onsubmit = (event) => {
    event.preventDefault();
    api.useKey(element("key").value);
    element("key-form").hidden = true;
    source.focus();
    again?.();
  };
}

/** Show the text of the chosen file, if there is one. */
async function updateFile(signal) {
  const file = chosenFile();
  showNothing(); // not that of another file
  if (file) {
    const { model, options: languages } = chosen();
    let text;
    if (inputKind() === "audio") {
      const found = await api.transcribe(file, { model, ...spoken() }, signal);
      text = found.text;
      if (found.segments) showSegments(found.segments);
      else showText(text);
    } else {
      text = await api.read(file, { model, options: languages }, signal);
      showText(text);
    }
    element("announcement").textContent = text;
  }
  setBusy(false);
}

async function update(signal) {
  if (["audio", "image"].includes(inputKind())) return updateFile(signal);
  const text = source.value;
  if (!text.trim()) {
    showNothing();
    setBusy(false);
    return;
  }
  let translation;
  try {
    translation = await translate(text, signal);
  } catch (error) {
    if (error.name !== "AbortError") showNothing(); // not that of another text, nor half of one
    throw error;
  }
  shown = { text: translation.text, sentences: [] };
  showText(shown.text);
  element("announcement").textContent = shown.text;
  shown.sentences = await sentencesOf(text, translation, signal);
  showWords(shown.text, shown.sentences, openWord);
  setBusy(false);
}

function showNothing() {
  shown = { text: "", sentences: [] };
  showText("");
  element("announcement").textContent = "";
}

/** Translate a text, and show it as it comes. */
async function translate(text, signal) {
  let sofar = "";
  try {
    for await (const event of api.translate(text, request(), signal)) {
      if (event.done) return event.translation;
      sofar += event.text;
      showText(sofar);
    }
  } catch (error) {
    if (!attention || error.status !== 422 || !error.message.includes("return_attention")) throw error;
    attention = false; // this model has none
    return translate(text, signal);
  }
}

/** The sentences of a translation, with their places in it and in the text. */
async function sentencesOf(text, translation, signal) {
  if (!translation.sentences && !translation.attention) return []; // which are not told apart then
  const made = translation.sentences ?? [translation];
  const known = await api.pieces(text, made.map(({ tokens }) => tokens), request(), signal);
  let [from, at] = [0, 0];
  return known.map((one, i) => {
    const sentence = sentenceOf(made[i], one);
    sentence.from = text.indexOf(sentence.source, from);
    sentence.at = translation.text.indexOf(sentence.text, at);
    from = sentence.from + sentence.source.length;
    at = sentence.at + sentence.text.length;
    return sentence;
  });
}

/** Offer what a sentence may say from a word on. */
function openWord(sentence, word, button) {
  const before = sentence.text.slice(0, word.start);
  const number = numberOf(button);
  attempt(() =>
    openList(button, async (signal) => {
      const found = await api.alternatives(sentence.source, word.prefix, request(), signal);
      return [...new Map(found.map((one) => [one.text, one])).values()].map((one) => ({
        text: one.text.startsWith(before) ? one.text.slice(before.length) : one.text,
        selected: one.text === sentence.text,
        choose: () => attempt(() => choose(sentence, one, number)),
      }));
    }),
  );
}

/** Put another translation in the place of a sentence's. */
async function choose(sentence, made, number) {
  const { signal } = running;
  const [known] = await api.pieces(sentence.source, [made.tokens], request(), signal);
  const longer = made.text.length - sentence.text.length;
  const text =
    shown.text.slice(0, sentence.at) +
    made.text +
    shown.text.slice(sentence.at + sentence.text.length);
  const sentences = shown.sentences.map((one) => {
    if (one === sentence) return { ...sentenceOf(made, known), from: one.from, at: one.at };
    return one.at > sentence.at ? { ...one, at: one.at + longer } : one;
  });
  shown = { text, sentences };
  showWords(text, sentences, openWord);
  element("announcement").textContent = made.text;
  focusWord(number);
}

function tryToBegin() {
  attempt(begin, tryToBegin);
}

async function begin() {
  offer(
    await api.models(),
    () => {
      attention = true;
      changed(0);
    },
    (model) => offerFile(model, () => changed(0), (problem) => (element("error").textContent = problem)),
  );
  source.addEventListener("input", () => changed());
  changed(0); // a browser may have kept the text of an earlier visit
}

source.addEventListener("input", clearShades);
clearShades();
tryToBegin();
