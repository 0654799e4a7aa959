// Translate while typing, and draw the attention. The model is a bundle:
// tfexport onnx --checkpoint examples/de-en -o examples/web/model.bundle
//
// The engine is that of the npm package tfexport, which `make wasm` builds. With ?engine=onnxruntime
// behind the address it is onnxruntime-web, whose bundle needs --attention.

const BUNDLE = "model.bundle";
const MAX_LENGTH = 128;
const PAUSE = 200; // milliseconds without a key before a translation starts

const element = (id) => document.getElementById(id);
const status = (text, error = false) => {
  element("status").textContent = text;
  element("status").classList.toggle("error", error);
};

/** The engine of the package, with what the page shows. */
class TfexportTranslator {
  static async load(bundle) {
    const { Translator } = await import("tfexport");
    const megabytes = (bytes) => (bytes / 1e6).toFixed(1);
    const translator = await Translator.load(bundle, {
      onProgress: ({ loaded, total }) =>
        status(`Loading the model: ${megabytes(loaded)} of ${megabytes(total)} MB`),
    });
    return new TfexportTranslator(translator);
  }

  constructor(translator) {
    this.translator = translator;
    this.manifest = translator.manifest;
  }

  /** One text to its translation, the pieces of both sides, and the attention between them. */
  async translate(text) {
    const { translator } = this;
    const pieces = translator.pieces(text);
    const ids = pieces.map(({ id }) => id);
    const options = { beamSize: 1, maxLength: MAX_LENGTH, returnEndToken: true, returnScores: false };
    const { tokens: written, finished } = await translator.generate(ids, options);
    const tokens = finished ? written.slice(0, -1) : written;
    return {
      tokens,
      text: translator.decode(tokens),
      rows: [...tokens.map((id) => translator.decode([id])), ...(finished ? ["‹end›"] : [])],
      columns: pieces.map(({ piece }) => piece.replaceAll("▁", "·")),
      attention: await translator.attention(ids, written),
    };
  }
}

const ENGINES = {
  tfexport: () => TfexportTranslator,
  onnxruntime: async () => (await import("./onnxruntime.mjs")).OnnxruntimeTranslator,
};

/** The page's model, opened with the engine that the address names. */
export async function load() {
  const name = new URLSearchParams(location.search).get("engine") ?? "tfexport";
  if (!Object.hasOwn(ENGINES, name)) {
    throw new Error(`engine is ${name}; expected ${Object.keys(ENGINES).join(" or ")}`);
  }
  return (await ENGINES[name]()).load(BUNDLE, MAX_LENGTH);
}

/** The weight at (row, column), of one layer and head or the mean over either. */
function weightsOf({ data, dims: [layers, heads, rows, columns] }, layer, head) {
  const chosen = (count, choice) => (choice === "mean" ? [...Array(count).keys()] : [+choice]);
  const [useLayers, useHeads] = [chosen(layers, layer), chosen(heads, head)];
  return (row, column) => {
    let sum = 0;
    for (const l of useLayers) {
      for (const h of useHeads) sum += data[((l * heads + h) * rows + row) * columns + column];
    }
    return sum / (useLayers.length * useHeads.length);
  };
}

function cell(tag, text, title) {
  const node = document.createElement(tag);
  node.textContent = text;
  if (title) node.title = title;
  return node;
}

function draw({ rows, columns, attention }) {
  const weight = weightsOf(attention, element("layer").value, element("head").value);
  const head = document.createElement("thead");
  const line = head.insertRow();
  line.append(cell("th", ""), ...columns.map((name) => cell("th", name)));
  const body = document.createElement("tbody");
  rows.forEach((name, i) => {
    const row = body.insertRow();
    row.append(cell("th", name));
    columns.forEach((column, j) => {
      const value = weight(i, j);
      const square = cell("td", "", `${name} ← ${column}: ${value.toFixed(3)}`);
      square.style.background = `color-mix(in srgb, #0b4f9e ${(100 * value).toFixed(1)}%, #e9eef5)`;
      row.append(square);
    });
  });
  element("map").replaceChildren(head, body);
  element("attention").hidden = rows.length === 0;
}

function offer(select, count, start) {
  const names = ["mean", ...Array(count).keys()];
  select.replaceChildren(
    ...names.map((name) => new Option(name === "mean" ? "mean" : `${name + 1}`, name)),
  );
  select.value = start;
}

async function main() {
  const translator = await load();
  const { num_decoder_layers: layers, num_heads: heads } = translator.manifest.config;
  offer(element("layer"), layers, layers - 1);
  offer(element("head"), heads, "mean");
  status("Ready: type a sentence.");

  let shown = null; // what stands on the page
  let running = false;
  let timer = 0;

  async function update() {
    if (running) return; // the one that runs looks again when it is done
    running = true;
    try {
      while (shown?.source !== element("source").value) {
        const source = element("source").value;
        if (!source.trim()) {
          shown = { source };
          element("translation").textContent = "";
          element("attention").hidden = true;
          continue;
        }
        const start = performance.now();
        shown = { source, ...(await translator.translate(source)) };
        element("translation").textContent = shown.text;
        element("translation").dataset.tokens = shown.tokens.join(" ");
        draw(shown);
        status(`${shown.rows.length} pieces in ${(performance.now() - start).toFixed(0)} ms`);
      }
    } catch (error) {
      shown = { source: element("source").value };
      status(error.message, true);
    } finally {
      running = false;
    }
  }

  element("source").addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(update, PAUSE);
  });
  for (const id of ["layer", "head"]) {
    element(id).addEventListener("change", () => shown?.attention && draw(shown));
  }
  update(); // a browser may have kept the text of an earlier visit
}

main().catch((error) => {
  console.error(error);
  status(`The model could not be loaded: ${error.message}`, true);
});
