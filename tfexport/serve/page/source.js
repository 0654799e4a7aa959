// The pane of the text: a field to type in, and words shaded below what is typed.

const field = document.getElementById("source");
const mirror = document.getElementById("mirror");

/** Show no shades; the mirror makes the field as high as its text. */
export function clearShades() {
  mirror.textContent = `${field.value}\n`; // a last empty line counts, too
}

/** Shade words, given as {start, end, weight} in the order of the text. */
export function shade(words) {
  const parts = [];
  let from = 0;
  for (const { start, end, weight } of words) {
    const mark = document.createElement("mark");
    mark.textContent = field.value.slice(start, end);
    mark.style.setProperty("--weight", weight.toFixed(3));
    parts.push(field.value.slice(from, start), mark);
    from = end;
  }
  mirror.replaceChildren(...parts, `${field.value.slice(from)}\n`);
}
