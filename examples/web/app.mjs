// Translate while typing, and draw the attention. The model is a bundle with attention:
// tfexport onnx --checkpoint examples/de-en -o examples/web/model.bundle --attention

import { Tokenizer } from "@huggingface/tokenizers";
import * as ort from "onnxruntime-web";
import { loadTokenizers } from "./texts.mjs";

const BUNDLE = "model.bundle";
const MAX_LENGTH = 128n;
const PAUSE = 200; // milliseconds without a key before a translation starts

const element = (id) => document.getElementById(id);
const status = (text, error = false) => {
  element("status").textContent = text;
  element("status").classList.toggle("error", error);
};

async function fetchFile(name) {
  const response = await fetch(`${BUNDLE}/${name}`);
  if (!response.ok) throw new Error(`${BUNDLE}/${name}: ${response.status}`);
  return response;
}

export class Translator {
  static async load() {
    const manifest = await (await fetchFile("manifest.json")).json();
    const read = async (name) => (await fetchFile(name)).text();
    const [{ source, target }, graph, weights] = await Promise.all([
      loadTokenizers(manifest, read, Tokenizer),
      fetchFile(manifest.graphs.generate).then((file) => file.arrayBuffer()),
      fetchFile("weights.bin").then((file) => file.arrayBuffer()),
    ]);
    const session = await ort.InferenceSession.create(new Uint8Array(graph), {
      executionProviders: ["wasm"],
      logSeverityLevel: 3, // errors; of inputs that need not be fed it warns
      externalData: [{ path: "weights.bin", data: new Uint8Array(weights) }],
    }).catch((error) => {
      if (!/external data/i.test(error.message)) throw error;
      throw new Error(
        "onnxruntime-web does not read the weights of a bundle without attention: " +
          `export it with --attention (${error.message})`,
      );
    });
    return new Translator(manifest, source, target, session);
  }

  constructor(manifest, source, target, session) {
    Object.assign(this, { manifest, source, target, session });
  }

  /** One text to its translation, the pieces of both sides, and the attention between them. */
  async translate(text) {
    const { special_ids: special, config, limits } = this.manifest;
    const pieces = this.source.encode(text, { add_special_tokens: false });
    const ids = [...pieces.ids];
    const names = [...pieces.tokens];
    if (config.add_source_bos) ids.unshift(special.bos), names.unshift("‹start›");
    if (config.add_source_eos) ids.push(special.eos), names.push("‹end›");
    if (limits.max_source_length !== null && ids.length > limits.max_source_length) {
      throw new Error("This text is too long for the model.");
    }
    const dims = [1, ids.length];
    const { sequences, cross_attentions: attention } = await this.session.run({
      input_ids: new ort.Tensor("int64", BigInt64Array.from(ids, BigInt), dims),
      attention_mask: new ort.Tensor("int64", new BigInt64Array(ids.length).fill(1n), dims),
      max_length: new ort.Tensor("int64", [MAX_LENGTH], []),
    });
    const written = Array.from(sequences.data, Number);
    const end = written.indexOf(special.eos);
    const tokens = end < 0 ? written : written.slice(0, end);
    return {
      tokens,
      text: tokens.length ? this.target.decode(tokens, { skip_special_tokens: true }) : "",
      rows: written.map((id) => (id === special.eos ? "‹end›" : this.target.decode([id]))),
      columns: names.map((name) => name.replaceAll("▁", "·")),
      attention,
    };
  }
}

/** The weight at (row, column), of one layer and head or the mean over either. */
function weightsOf({ data, dims: [, layers, heads, rows, columns] }, layer, head) {
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
  const translator = await Translator.load();
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
