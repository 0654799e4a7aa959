// Strokes to the image that the model reads: rasterize of drawing.py, number by number. What is
// changed here is changed there; a test holds the pixels of both against each other.

const [HEIGHT, BODY, BORDER, PEN] = [32, 22, 8, 0.8];
const LEAST_BOX = 0.2;
const WIDEST = 512;

/**
 * The image of strokes.
 *
 * strokes: lists of points [x, y], x to the right and y down, in heights of the drawing area.
 * Gives { data: Float32Array of HEIGHT rows, height, width }, 0 paper and 1 ink.
 */
export function rasterize(strokes) {
  if (!strokes.length) throw new Error("Nothing is drawn.");
  const [left, top, right, bottom] = box(strokes.flat());
  const scale = BODY / Math.max(bottom - top, LEAST_BOX);
  const width = Math.ceil((right - left) * scale + 2 * BORDER);
  if (width > WIDEST) {
    throw new Error(`This row is too long for its height: ${width} of ${WIDEST} pixels.`);
  }
  const middle = (top + bottom) / 2;
  const image = { data: new Float32Array(HEIGHT * width), height: HEIGHT, width };
  for (const stroke of strokes) {
    const points = stroke.map(([x, y]) => [
      (x - left) * scale + BORDER,
      (y - middle) * scale + HEIGHT / 2,
    ]);
    if (points.length === 1) points.push(points[0]); // a dot
    for (let i = 1; i < points.length; i++) drawLine(image, points[i - 1], points[i]);
  }
  return image;
}

function box(points) {
  let [left, top, right, bottom] = [Infinity, Infinity, -Infinity, -Infinity];
  for (const [x, y] of points) {
    [left, right] = [Math.min(left, x), Math.max(right, x)];
    [top, bottom] = [Math.min(top, y), Math.max(bottom, y)];
  }
  return [left, top, right, bottom];
}

const clip = (value) => Math.min(Math.max(value, 0), 1);

/** Draw the line from a to b; only the pixels about it are looked at. */
function drawLine({ data, height, width }, [ax, ay], [bx, by]) {
  const x0 = Math.max(0, Math.floor(Math.min(ax, bx)) - 2);
  const x1 = Math.min(width, Math.ceil(Math.max(ax, bx)) + 2);
  const y0 = Math.max(0, Math.floor(Math.min(ay, by)) - 2);
  const y1 = Math.min(height, Math.ceil(Math.max(ay, by)) + 2);
  const [dx, dy] = [bx - ax, by - ay];
  const squared = Math.max(dx * dx + dy * dy, 1e-9);
  for (let row = y0; row < y1; row++) {
    for (let column = x0; column < x1; column++) {
      let [fromX, fromY] = [column + 0.5 - ax, row + 0.5 - ay];
      const along = clip((fromX * dx + fromY * dy) / squared);
      [fromX, fromY] = [fromX - along * dx, fromY - along * dy];
      const ink = clip(PEN + 1 - Math.sqrt(fromX * fromX + fromY * fromY));
      const at = row * width + column;
      data[at] = Math.max(data[at], ink);
    }
  }
}
