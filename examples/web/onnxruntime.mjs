// The other way to decode in a page: onnxruntime-web runs a bundle's graphs. The bundle is one with
// attention: tfexport onnx --checkpoint examples/de-en -o examples/web/model.bundle --attention

import * as ort from "onnxruntime-web";
import { loadTokenizers, sourceTokens } from "tfexport/texts.mjs";

/** A bundle's graphs in onnxruntime-web. */
export class OnnxruntimeTranslator {
  static async load(bundle, maxLength) {
    const fetchFile = async (name) => {
      const response = await fetch(`${bundle}/${name}`);
      if (!response.ok) throw new Error(`${bundle}/${name}: ${response.status}`);
      return response;
    };
    const manifest = await (await fetchFile("manifest.json")).json();
    const files = {
      text: async (name) => (await fetchFile(name)).text(),
      bytes: async (name) => new Uint8Array(await (await fetchFile(name)).arrayBuffer()),
    };
    const [{ source, target }, graph, weights] = await Promise.all([
      loadTokenizers(manifest, files),
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
    return new OnnxruntimeTranslator(manifest, { source, target }, session, maxLength);
  }

  constructor(manifest, { source, target }, session, maxLength) {
    Object.assign(this, { manifest, source, target, session, maxLength });
  }

  /** One text to its translation, the pieces of both sides, and the attention between them. */
  async translate(text) {
    const { special_ids: special, limits } = this.manifest;
    const pieces = sourceTokens(this.manifest, this.source, text);
    const ids = pieces.map(({ id }) => id);
    const names = pieces.map(({ piece }) => piece);
    if (limits.max_source_length !== null && ids.length > limits.max_source_length) {
      throw new Error("This text is too long for the model.");
    }
    const dims = [1, ids.length];
    const { sequences, cross_attentions: attention } = await this.session.run({
      input_ids: new ort.Tensor("int64", BigInt64Array.from(ids, BigInt), dims),
      attention_mask: new ort.Tensor("int64", new BigInt64Array(ids.length).fill(1n), dims),
      max_length: new ort.Tensor("int64", [BigInt(this.maxLength)], []),
    });
    const written = Array.from(sequences.data, Number);
    const end = written.indexOf(special.eos);
    const tokens = end < 0 ? written : written.slice(0, end);
    return {
      tokens,
      text: this.target.decode(tokens),
      rows: written.map((id) =>
        id === special.eos ? "‹end›" : this.target.decode([id], { skipSpecial: false }),
      ),
      columns: names.map((name) => name.replaceAll("▁", "·")),
      attention: attention && { data: attention.data, dims: attention.dims.slice(1) },
    };
  }
}
