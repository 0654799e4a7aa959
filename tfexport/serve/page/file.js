// The pane of a file, for models that take sound or pictures.

import { canRecord, readable, record } from "./sound.js";

const element = (id) => document.getElementById(id);
const names = new Intl.DisplayNames("en", { type: "language" });
let kind = "text"; // what the model takes: text, ids, audio or image
let speech = null; // the languages and tasks of a model that transcribes
let current = null;
let address = ""; // of the file, for its player or its picture
let recording = null;
let changed = () => {};
let report = () => {};

/** What the model takes, as the server lists it. */
export function inputKind() {
  return kind;
}

/** The file that was chosen or recorded; null without one. */
export function chosenFile() {
  return current;
}

/** What requests say of a sound. */
export function spoken() {
  return {
    times: Boolean(speech),
    language: element("spoken").value,
    english: element("english").checked,
  };
}

/** Show what a model takes; `change` is called for another file or choice, `fail` for a problem. */
export function offerFile(model, change, fail) {
  [changed, report] = [change, fail];
  if ((model.input ?? "text") !== kind) use(null);
  [kind, speech] = [model.input ?? "text", model.speech ?? null];
  const [hears, sees] = [kind === "audio", kind === "image"];
  element("file-pane").hidden = !(hears || sees);
  element("text-pane").hidden = hears || sees;
  element("hint").hidden = hears || sees;
  element("file-label").firstChild.textContent = hears ? "Sound " : "Picture ";
  element("file").accept = hears ? "audio/*,video/*" : "image/*";
  element("record").hidden = !(hears && canRecord());
  const languages = speech?.detects ? speech.languages : [];
  const choices = languages.map((code) => [nameOf(code), code]).sort(([a], [b]) => a.localeCompare(b));
  element("spoken").replaceChildren(
    new Option("found by the model", ""),
    ...choices.map(([name, code]) => new Option(name, code)),
  );
  element("spoken-choice").hidden = !languages.length;
  element("english").checked = false;
  element("english-choice").hidden = !speech?.tasks.includes("translate");
}

function nameOf(code) {
  try {
    return names.of(code) ?? code;
  } catch {
    return code; // a model's own
  }
}

/** Take a file, or none. */
function use(file) {
  current = file;
  URL.revokeObjectURL(address);
  address = file ? URL.createObjectURL(file) : "";
  const player = element("player");
  player.hidden = !(file && kind === "audio");
  if (player.hidden) player.removeAttribute("src");
  else player.src = address;
  const picture = element("picture");
  picture.hidden = !(file && kind === "image");
  if (picture.hidden) picture.removeAttribute("src");
  else picture.src = address;
}

async function take(file) {
  if (!file) return;
  use(kind === "audio" ? await readable(file) : file);
  changed();
}

async function startOrStop() {
  const button = element("record");
  button.disabled = true;
  try {
    if (recording) {
      const ending = recording;
      recording = null;
      const file = await ending.stop();
      if (file) await take(file);
      else report("Nothing was recorded.");
    } else {
      recording = await record();
      element("file").value = "";
      report("");
    }
  } catch (error) {
    recording = null;
    const denied = error.name === "NotAllowedError";
    report(denied ? "The browser does not let this page use the microphone." : `Recording failed: ${error.message}`);
  } finally {
    button.disabled = false;
    button.ariaPressed = String(Boolean(recording));
    button.textContent = recording ? "Stop" : "Record";
  }
}

element("file").addEventListener("change", () => take(element("file").files[0]));
element("record").addEventListener("click", startOrStop);
element("spoken").addEventListener("change", () => changed());
element("english").addEventListener("change", () => changed());
const pane = element("file-pane");
pane.addEventListener("dragover", (event) => event.preventDefault());
pane.addEventListener("drop", (event) => {
  event.preventDefault();
  element("file").value = "";
  take(event.dataTransfer.files[0]);
});
