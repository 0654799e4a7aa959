// A canvas to draw on with mouse, finger, pen or keys.

const PEN_WIDTH = 0.035; // as shown; in heights of the canvas
const [FAR, NEAR] = [0.08, 0.02]; // moved by an arrow key

/** Strokes on a canvas, each a list of points [x, y] in heights of the canvas. */
export class Drawing {
  strokes = [];
  drawing = false; // whether the last stroke may still grow
  pointer = null; // that draws
  pen = null; // where the keys' pen is, once a key was pressed

  /** changed is called without arguments when strokes have come, ended or gone. */
  constructor(canvas, changed) {
    Object.assign(this, { canvas, changed });
    canvas.addEventListener("pointerdown", (event) => this.#down(event));
    canvas.addEventListener("pointermove", (event) => this.#move(event));
    canvas.addEventListener("pointerup", (event) => this.#up(event));
    canvas.addEventListener("pointercancel", (event) => this.#up(event));
    canvas.addEventListener("keydown", (event) => this.#key(event));
    canvas.addEventListener("blur", () => this.#leave());
    new ResizeObserver(() => this.#show()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#show());
  }

  undo() {
    this.#end();
    this.strokes.pop();
    this.#update();
  }

  clear() {
    this.#end();
    this.strokes = [];
    this.#update();
  }

  #begin(point) {
    this.strokes.push([point]);
    this.drawing = true;
    this.#update();
  }

  #end() {
    [this.drawing, this.pointer] = [false, null];
  }

  #update() {
    this.changed();
    this.#show();
  }

  #place({ clientX, clientY }) {
    const { left, top, height } = this.canvas.getBoundingClientRect();
    return [(clientX - left) / height, (clientY - top) / height];
  }

  #down(event) {
    if (this.drawing || event.button > 0) return; // a second finger, or another button
    this.pen = null;
    this.pointer = event.pointerId;
    this.canvas.setPointerCapture(event.pointerId);
    this.#begin(this.#place(event));
  }

  #move(event) {
    if (event.pointerId !== this.pointer) return;
    const parts = event.getCoalescedEvents?.() ?? [];
    const points = (parts.length ? parts : [event]).map((part) => this.#place(part));
    this.strokes.at(-1).push(...points);
    this.#show();
  }

  #up(event) {
    if (event.pointerId !== this.pointer) return;
    this.#end();
    this.#update();
  }

  #leave() {
    if (!this.pen) return;
    this.pen = null;
    this.#end();
    this.#update();
  }

  #key(event) {
    if (this.pointer !== null) return;
    const far = event.shiftKey ? NEAR : FAR;
    const moves = { ArrowLeft: [-far, 0], ArrowRight: [far, 0], ArrowUp: [0, -far], ArrowDown: [0, far] };
    if (event.key in moves) this.#movePen(moves[event.key]);
    else if (event.key === " ") this.#turnPen();
    else if (event.key === "Delete") this.clear();
    else if (event.key === "z" && (event.ctrlKey || event.metaKey)) this.undo();
    else return;
    event.preventDefault();
  }

  #movePen([dx, dy]) {
    const { width, height } = this.canvas.getBoundingClientRect();
    const [x, y] = this.pen ?? [FAR, 0.5];
    const inside = (value, limit) => Math.min(Math.max(value, 0), limit);
    this.pen = [inside(x + dx, width / height), inside(y + dy, 1)];
    if (this.drawing) this.strokes.at(-1).push(this.pen);
    this.#show();
  }

  /** Put the pen down, or lift it. */
  #turnPen() {
    this.pen ??= [FAR, 0.5];
    if (!this.drawing) return this.#begin(this.pen);
    this.#end();
    this.#update();
  }

  #show() {
    const { canvas } = this;
    const { width, height } = canvas.getBoundingClientRect();
    const ratio = window.devicePixelRatio;
    [canvas.width, canvas.height] = [Math.round(width * ratio), Math.round(height * ratio)];
    const context = canvas.getContext("2d");
    context.scale(height * ratio, height * ratio);
    context.strokeStyle = context.fillStyle = getComputedStyle(canvas).color;
    [context.lineWidth, context.lineCap, context.lineJoin] = [PEN_WIDTH, "round", "round"];
    for (const [first, ...rest] of this.strokes) {
      context.beginPath();
      context.moveTo(...first);
      for (const point of rest.length ? rest : [first]) context.lineTo(...point);
      context.stroke();
    }
    if (this.pen) {
      context.beginPath();
      context.arc(...this.pen, this.drawing ? 0.04 : 0.025, 0, 2 * Math.PI);
      this.drawing ? context.fill() : (context.lineWidth /= 3, context.stroke());
    }
  }
}
