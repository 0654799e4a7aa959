// The choice of a model and of its languages.

const UNKNOWN = "und";
const HEADINGS = { text: ["Text", "Translation"], audio: ["Sound", "Text"], image: ["Picture", "Text"] };
const element = (id) => document.getElementById(id);
const names = new Intl.DisplayNames("en", { type: "language" });
let models = [];

/**
 * Offer the models of the server.
 *
 * `changed` is called when another choice is made, `chose` with a model that is chosen, at first too.
 */
export function offer(found, changed, chose) {
  models = found;
  element("model").replaceChildren(...models.map(({ name }) => new Option(name)));
  element("model-choice").hidden = models.length < 2;
  element("model").onchange = () => {
    offerLanguages();
    chose(models[element("model").selectedIndex]);
    changed();
  };
  for (const side of ["source", "target"]) {
    element(`${side}-language`).onchange = () => {
      mark(side, element(`${side}-language`).value);
      changed();
    };
  }
  offerLanguages();
  chose(models[element("model").selectedIndex]);
}

/** What requests say of model and languages. */
export function chosen() {
  const options = {};
  for (const side of ["source", "target"]) {
    const code = element(`${side}-language`).value;
    if (code && code !== UNKNOWN) options[`${side}_language`] = code;
  }
  return { model: element("model").value, options };
}

function offerLanguages() {
  const { languages: own, input = "text", speech } = models[element("model").selectedIndex];
  // Those of a model that transcribes are chosen beside its file.
  const languages = speech ? { source: [UNKNOWN], target: [UNKNOWN] } : own;
  const [plainSource, plainTarget] = HEADINGS[input] ?? HEADINGS.text;
  for (const side of ["source", "target"]) {
    const select = element(`${side}-language`);
    const codes = languages[side];
    select.replaceChildren(...codes.map((code) => new Option(nameOf(code), code)));
    select.hidden = codes.length < 2;
    const heading = element(`${side}-name`);
    const plain = side === "source" ? plainSource : plainTarget;
    const alone = codes.length === 1 && codes[0] !== UNKNOWN;
    (heading.querySelector("label") ?? heading).textContent = alone ? nameOf(codes[0]) : plain;
  }
  const [source, target] = [element("source-language"), element("target-language")];
  if (source.value === target.value) {
    target.selectedIndex = languages.target.findIndex((code) => code !== source.value);
    if (target.selectedIndex < 0) target.selectedIndex = 0;
  }
  mark("source", source.value);
  mark("target", target.value);
}

/** Say the language of a pane, which browsers choose fonts and voices by. */
function mark(side, code) {
  const pane = element(side === "source" ? "source" : "translation");
  pane.lang = code === UNKNOWN ? "" : localeOf(code);
}

function nameOf(code) {
  try {
    return names.of(localeOf(code)) ?? code;
  } catch {
    return code; // a model's own
  }
}

/** A model's code as a locale: NLLB's "deu_Latn" is "deu-Latn". */
function localeOf(code) {
  return code.replaceAll("_", "-");
}
