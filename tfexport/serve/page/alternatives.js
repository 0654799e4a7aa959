// The list of ways to go on from a word of the translation.

import { clearShades } from "./source.js";

const list = document.getElementById("alternatives");
let owner = null; // the word that it belongs to
let controller = new AbortController();

/**
 * Open the list below a word.
 *
 * `find` gets a signal and promises the choices, as {text, selected, choose}.
 */
export async function openList(word, find) {
  closeList();
  controller = new AbortController();
  const { signal } = controller;
  owner = word;
  owner.ariaExpanded = "true";
  fill([note("…")]);
  list.focus();
  try {
    const choices = await find(signal);
    if (signal.aborted) return;
    fill(choices.map(option));
    (list.querySelector('[aria-selected="true"]') ?? list.firstChild)?.focus();
  } catch (error) {
    if (!signal.aborted) closeList(true);
    if (error.name !== "AbortError") throw error;
  }
}

/** Close the list, and stop its request; the focus may go back to its word. */
export function closeList(back = false) {
  controller.abort();
  if (!owner) return;
  owner.ariaExpanded = "false";
  clearShades();
  if (back) owner.focus();
  owner = null;
  list.hidden = true;
  list.replaceChildren();
}

function fill(items) {
  list.replaceChildren(...items);
  list.hidden = false;
  const field = list.offsetParent;
  const { left, bottom } = owner.getBoundingClientRect();
  const frame = field.getBoundingClientRect();
  const most = field.clientWidth - list.offsetWidth;
  list.style.left = `${Math.max(0, Math.min(left - frame.left, most))}px`;
  list.style.top = `${bottom - frame.top + 4}px`;
}

function note(text) {
  const item = document.createElement("li");
  item.className = "wait";
  item.role = "presentation";
  item.textContent = text;
  return item;
}

function option({ text, selected, choose }) {
  const item = document.createElement("li");
  item.role = "option";
  item.tabIndex = -1;
  item.ariaSelected = String(selected);
  item.textContent = text;
  item.addEventListener("click", () => {
    closeList(true);
    choose();
  });
  return item;
}

list.addEventListener("keydown", (event) => {
  const items = [...list.querySelectorAll('[role="option"]')];
  const at = items.indexOf(document.activeElement);
  const places = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: -1 };
  if (event.key in places) items.at(places[event.key] % items.length)?.focus();
  else if (event.key === "Enter" || event.key === " ") items[at]?.click();
  else if (event.key === "Escape") closeList(true);
  else if (event.key === "Tab") return closeList(true); // and on from the word
  else return;
  event.preventDefault();
});

document.addEventListener("pointerdown", (event) => {
  if (!list.contains(event.target) && !owner?.contains(event.target)) closeList();
});
