// Draw with mouse, finger, pen or keys, and read what the model makes of it. The model is made by
// python examples/modules/digits/digits.py

import { Tokenizer } from "@huggingface/tokenizers";
import * as ort from "onnxruntime-web";
import { Drawing } from "./drawing.mjs";
import { rasterize } from "./pixels.mjs";

const EOS = 2; // as in digits.py
const MAX_LENGTH = 16n;
const PAUSE = 250; // milliseconds without a stroke before the model reads

const READY = "Ready: draw a formula.";

const element = (id) => document.getElementById(id);
const status = (text, error = false) => {
  element("status").textContent = text;
  element("status").classList.toggle("error", error);
};

async function fetchFile(name) {
  const response = await fetch(name);
  if (!response.ok) throw new Error(`${name}: ${response.status}`);
  return response;
}

export class Reader {
  static async load() {
    const [tokenizer, graph] = await Promise.all([
      fetchFile("model.tokenizer.json").then((file) => file.json()),
      fetchFile("model.onnx").then((file) => file.arrayBuffer()),
    ]);
    const session = await ort.InferenceSession.create(new Uint8Array(graph), {
      executionProviders: ["wasm"],
      logSeverityLevel: 3, // errors; of inputs that need not be fed it warns
    });
    return new Reader(new Tokenizer(tokenizer, {}), session);
  }

  constructor(tokenizer, session) {
    Object.assign(this, { tokenizer, session });
  }

  /** An image to the tokens and the text that it shows. */
  async read({ data, height, width }) {
    const { sequences } = await this.session.run({
      image: new ort.Tensor("float32", data, [1, 1, height, width]),
      max_length: new ort.Tensor("int64", [MAX_LENGTH], []),
    });
    const written = Array.from(sequences.data, Number);
    const end = written.indexOf(EOS);
    const tokens = end < 0 ? written : written.slice(0, end);
    const text = tokens.length
      ? this.tokenizer.decode(tokens, { skip_special_tokens: true })
      : "";
    return { tokens, text };
  }
}

/** Show the image that the model reads, pixel by pixel. */
function show({ data, height, width }) {
  const canvas = element("pixels");
  [canvas.width, canvas.height] = [width, height];
  const context = canvas.getContext("2d");
  const picture = context.createImageData(width, height);
  data.forEach((ink, i) => picture.data.set([0, 0, 0, Math.round(255 * ink)], 4 * i));
  context.putImageData(picture, 0, 0);
}

function empty() {
  element("text").textContent = "";
  delete element("text").dataset.tokens;
  element("pixels").width = 1;
}

let reader = null; // none until the model is loaded
let version = 0; // of the drawing
let timer = 0;

/** Read what is drawn now. */
async function read() {
  if (!reader) return; // it reads when it is loaded
  const mine = version;
  try {
    const image = rasterize(drawing.strokes);
    show(image);
    const start = performance.now();
    const { tokens, text } = await reader.read(image);
    if (mine !== version) return; // drawn on meanwhile
    element("text").textContent = text;
    element("text").dataset.tokens = tokens.join(" ");
    const time = (performance.now() - start).toFixed(0);
    status(text ? `Read in ${time} ms.` : "The model sees no formula here.");
  } catch (error) {
    if (mine !== version) return;
    empty();
    status(error.message, true);
  }
}

export const drawing = new Drawing(element("area"), () => {
  version++;
  const blank = !drawing.strokes.length;
  element("undo").disabled = element("clear").disabled = blank;
  clearTimeout(timer);
  if (blank) {
    empty();
    if (reader) status(READY);
  } else if (!drawing.drawing) timer = setTimeout(read, PAUSE);
});
element("undo").addEventListener("click", () => drawing.undo());
element("clear").addEventListener("click", () => drawing.clear());

try {
  reader = await Reader.load();
  status(READY);
  if (drawing.strokes.length) read();
} catch (error) {
  console.error(error);
  status(`The model could not be loaded: ${error.message}. digits.py makes it.`, true);
}
