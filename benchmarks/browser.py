"""The demo model in a page: python -m benchmarks.browser.

In a headless Chromium the engine in WebAssembly (`make wasm`) and onnxruntime-web decode the same
sentences with the same bundle, greedily, with one thread and with two. Each is opened in a fresh
browser: what it loads is counted by the server, and the first sentence is timed from the start of
loading. Then all sentences are decoded in batches of several sizes, and the fastest counts.
"""

import functools
import http.server
import json
import os
import threading
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any, ClassVar, NamedTuple

import click
import onnx

from benchmarks.startup import machine
from tests.support.browser import EXAMPLE, open_address

REPOSITORY = Path(__file__).parents[1]
BATCHES = (1, 8, 32)
RUNS, STARTS = 3, 3
LIMIT = 256  # tokens of a sentence
ENGINES = ("tfexport", "onnxruntime-web")
ONE_FILE = "generate-one.onnx"  # onnxruntime-web does not read weights.bin for a loop inside a loop
PAGE = """<!doctype html><title>benchmark</title><script type="importmap">
{"imports": {
  "onnxruntime-web": "/node_modules/onnxruntime-web/dist/ort.wasm.min.mjs",
  "@huggingface/tokenizers": "/node_modules/@huggingface/tokenizers/dist/tokenizers.min.mjs",
  "tfexport": "/node_modules/tfexport/index.mjs",
  "tfexport/": "/node_modules/tfexport/"
}}</script>"""
# Each gives window.opened = { translate(text), decode(rows) }, and the first sentence's time.
OPEN = {
    "tfexport": """
        const { Translator } = await import("tfexport");
        const translator = await Translator.load("bundle", { threads });
        const options = { beamSize: 1, maxLength: LIMIT, returnScores: false, batchSize: 4096 };
        return {
          encode: (text) => translator.encode(text),
          translate: (text) => translator.translate(text, options),
          decode: async (rows) =>
            (await translator.generate(rows, options)).map(({ tokens }) => tokens),
        };
    """,
    "onnxruntime-web": """
        const [ort, { loadTokenizers }] = await Promise.all([
          import("onnxruntime-web"), import("tfexport/texts.mjs"),
        ]);
        ort.env.wasm.numThreads = threads;
        const text = async (name) => (await fetch(`bundle/${name}`)).text();
        const manifest = JSON.parse(await text("manifest.json"));
        const [graph, { source, target }] = await Promise.all([
          fetch("generate-one.onnx").then((response) => response.arrayBuffer()),
          loadTokenizers(manifest, { text }),
        ]);
        const session = await ort.InferenceSession.create(new Uint8Array(graph), {
          executionProviders: ["wasm"], logSeverityLevel: 3,
        });
        const { bos, eos, pad } = manifest.special_ids;
        async function decode(rows) {
          const width = Math.max(...rows.map((row) => row.length));
          const dims = [rows.length, width];
          const ids = new BigInt64Array(rows.length * width).fill(BigInt(pad));
          const mask = new BigInt64Array(rows.length * width);
          rows.forEach((row, i) => row.forEach((id, j) => {
            ids[i * width + j] = BigInt(id);
            mask[i * width + j] = 1n;
          }));
          const { sequences } = await session.run({
            input_ids: new ort.Tensor("int64", ids, dims),
            attention_mask: new ort.Tensor("int64", mask, dims),
            max_length: new ort.Tensor("int64", [BigInt(LIMIT)], []),
          }, ["sequences"]);
          const length = sequences.dims[1];
          return rows.map((_, i) => {
            const row = Array.from(sequences.data.slice(i * length, (i + 1) * length), Number);
            return row.includes(eos) ? row.slice(0, row.indexOf(eos)) : row;
          });
        }
        const encode = (text) =>
          [bos, ...source.encode(text, { add_special_tokens: false }).ids, eos];
        return {
          encode, decode,
          translate: async (text) =>
            target.decode((await decode([encode(text)]))[0], { skip_special_tokens: true }),
        };
    """,
}
START = """
    const [threads, text, LIMIT, done] = arguments;
    const begun = performance.now();
    (async () => {
      window.opened = await (async () => { %s })();
      await window.opened.translate(text);
      return performance.now() - begun;
    })().then(done, (error) => done(String(error.stack ?? error)));
"""
RUN = """
    const [texts, sizes, runs, done] = arguments;
    (async () => {
      const { encode, decode } = window.opened;
      const rows = texts.map(encode);
      const order = rows.map((_, i) => i).sort((a, b) => rows[b].length - rows[a].length);
      const best = {};
      const tokens = [];
      for (let run = 0; run < runs; run++) {
        for (const size of sizes) {
          const begun = performance.now();
          for (let at = 0; at < order.length; at += size) {
            const batch = order.slice(at, at + size);
            const found = await decode(batch.map((i) => rows[i]));
            batch.forEach((i, place) => (tokens[i] = found[place]));
          }
          best[size] = Math.min(best[size] ?? Infinity, performance.now() - begun);
        }
      }
      return { best, tokens, rows };
    })().then(done, (error) => done(String(error.stack ?? error)));
"""


class Measured(NamedTuple):
    """One engine with a number of threads."""

    megabytes: dict[str, float]
    first: float  # milliseconds
    rates: dict[int, float]  # sentences a second by batch size
    tokens: list[list[int]]
    rows: list[list[int]]


class _Counting(http.server.SimpleHTTPRequestHandler):
    sent: ClassVar[Counter[str]] = Counter()

    def end_headers(self) -> None:
        self.send_header("Cross-Origin-Opener-Policy", "same-origin")
        self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
        super().end_headers()

    def copyfile(self, source: Any, outputfile: Any) -> None:
        content = source.read()
        self.sent["engine" if "/node_modules/" in self.path else "model"] += len(content)
        outputfile.write(content)

    def log_message(self, *args: Any) -> None:
        pass


def prepare(folder: Path, bundle: Path) -> None:
    """A folder to serve."""
    folder.mkdir(parents=True, exist_ok=True)
    links = {"bundle": bundle, "node_modules": EXAMPLE / "node_modules"}
    for name, target in links.items():
        if not (folder / name).exists():
            (folder / name).symlink_to(target.resolve())
    (folder / "index.html").write_text(PAGE, encoding="utf-8")
    onnx.save(onnx.load(str(bundle / "generate.onnx")), str(folder / ONE_FILE))


def call(page: Any, code: str, *values: Any) -> Any:
    """Run code in a page; an error there is one here."""
    found = page.execute_async_script(code, *values)
    if isinstance(found, str):
        raise click.ClickException(found)
    return found


def measure(address: str, engine: str, threads: int, texts: list[str]) -> Measured:
    """One engine, in browsers of its own."""
    firsts: list[float] = []
    for start in range(STARTS):
        _Counting.sent.clear()
        with open_address(address) as page:
            firsts.append(call(page, START % OPEN[engine], threads, texts[0], LIMIT))
            if start + 1 < STARTS:
                continue
            megabytes = {name: size / 1e6 for name, size in _Counting.sent.items()}
            found = call(page, RUN, texts, BATCHES, RUNS)
    rates = {int(size): 1e3 * len(texts) / time for size, time in found["best"].items()}
    return Measured(megabytes, median(firsts), rates, found["tokens"], found["rows"])


def natively(bundle: Path, rows: list[list[int]]) -> list[list[int]]:
    """The tokens of the native engine, with the arithmetic that WebAssembly has."""
    os.environ["TFEXPORT_NATIVE_INSTRUCTION_SET"] = "portable"
    from tfexport.runtime import Translator

    with Translator(bundle, engine="native", threads=1) as translator:
        found = translator.generate(rows, beam_size=1, max_length=LIMIT)
    return [list(result.hypotheses[0].tokens) for result in found]


@click.command()
@click.option("--bundle", type=Path, default=REPOSITORY / "examples" / "de-en.bundle")
@click.option("--sentences", default=100)
@click.option("--folder", type=Path, default=REPOSITORY / "build" / "bench" / "browser")
@click.option("--threads", multiple=True, type=int, default=(1, 2))
@click.option("--only", type=click.Choice(ENGINES), multiple=True, default=ENGINES)
@click.option("--json", "output", type=Path, help="Write the figures to this file, too.")
def main(
    bundle: Path,
    sentences: int,
    folder: Path,
    threads: tuple[int, ...],
    only: tuple[str, ...],
    output: Path | None,
) -> None:
    """Measure a bundle's greedy search in a page."""
    lines = (REPOSITORY / "examples" / "de-en" / "test.tsv").read_text(encoding="utf-8")
    texts = [line.partition("\t")[0] for line in lines.splitlines()[:sentences]]
    prepare(folder, bundle)
    handler = functools.partial(_Counting, directory=str(folder))
    found: dict[str, Measured] = {}
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/"
        for engine in only:
            for count in threads:
                found[f"{engine}, {count}"] = measure(address, engine, count, texts)
        server.shutdown()
    click.echo(machine())
    expected = natively(bundle, next(iter(found.values())).rows)
    report = {}
    for name, each in found.items():
        equal = sum(a == b for a, b in zip(each.tokens, expected, strict=True))
        rates = "  ".join(f"{size}: {rate:.0f}" for size, rate in each.rates.items())
        loaded = "  ".join(f"{part} {size:.2f} MB" for part, size in each.megabytes.items())
        click.echo(
            f"{name} threads: sentences a second by batch  {rates}; first after "
            f"{each.first:.0f} ms; {loaded}; {equal} of {len(expected)} as natively"
        )
        report[name] = {**each._asdict(), "equal": equal, "tokens": None, "rows": None}
    if output:
        output.write_text(json.dumps(report, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
