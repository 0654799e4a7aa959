// Requests to the server.

const KEY = "tfexport-key"; // of this tab's storage

/** A request that gave no result; `status` is 0 if there was no answer at all. */
export class Failure extends Error {
  constructor(message, status, wait = 0) {
    super(message);
    this.status = status;
    this.wait = wait; // seconds, if it may be repeated
  }
}

export function useKey(key) {
  sessionStorage.setItem(KEY, key);
}

async function ask(path, body, signal) {
  const form = body instanceof FormData; // whose type the browser says
  const headers = form ? {} : { "Content-Type": "application/json" };
  const key = sessionStorage.getItem(KEY);
  if (key) headers.Authorization = `Bearer ${key}`;
  const given = body ? { method: "POST", body: form ? body : JSON.stringify(body) } : {};
  let response;
  try {
    response = await fetch(path, { ...given, headers, signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failure("The server cannot be reached.", 0);
  }
  if (response.ok) return response;
  const text = await response.text();
  let message = text || response.statusText;
  try {
    const { error } = JSON.parse(text);
    message = error?.message ?? error ?? message;
  } catch {
    // Not of the server, but of something in front of it.
  }
  throw new Failure(message, response.status, Number(response.headers.get("Retry-After")));
}

/** The models of the server. */
export async function models() {
  return (await (await ask("v1/models")).json()).models;
}

/** The translation of one text: each piece as it comes, at last the whole. */
export async function* translate(text, { model, options }, signal) {
  const body = { texts: [text], model, options, divide: true, stream: true };
  const response = await ask("v1/translate", body, signal);
  for await (const event of events(response)) {
    if (event.error) throw new Failure(event.error, event.status);
    yield event;
    if (event.done) return;
  }
  throw new Failure("The connection was lost.", 0);
}

/** Several translations of one sentence that begin with the same tokens. */
export async function alternatives(sentence, prefix, { model, options }, signal) {
  const more = { return_alternatives: true, num_hypotheses: 5, target_prefix: [prefix] };
  const whole = { split_sentences: "none" };
  const body = { texts: [sentence], model, ...whole, options: { ...options, ...more } };
  const found = await (await ask("v1/translate", body, signal)).json();
  return found.translations[0].hypotheses;
}

/** What is said in a sound: its text, and with `times` its segments. */
export async function transcribe(file, { model, times, language, english }, signal) {
  const form = new FormData();
  form.append("file", file);
  form.append("model", model);
  form.append("response_format", times ? "verbose_json" : "json");
  if (language && !english) form.append("language", language);
  const path = english ? "v1/audio/translations" : "v1/audio/transcriptions";
  return (await ask(path, form, signal)).json();
}

/** The text that a model makes of a picture. */
export async function read(file, { model, options }, signal) {
  const bytes = new Uint8Array(await file.arrayBuffer());
  const letters = Array.from(bytes, (byte) => String.fromCharCode(byte)).join("");
  const found = await (await ask("v1/translate", { images: [btoa(letters)], model, options }, signal)).json();
  return found.translations[0].text;
}

/** For each sentence of a text its source, and the texts of its tokens on both sides. */
export async function pieces(text, tokens, { model, options }, signal) {
  const { source_language, target_language } = options;
  const body = { model, text, tokens, source_language, target_language, divide: true };
  return (await (await ask("v1/pieces", body, signal)).json()).sentences;
}

/** The server-sent events of a response, which are JSON here. */
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let waiting = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const parts = (waiting + value).split("\n\n");
      waiting = parts.pop();
      for (const part of parts) {
        if (part.startsWith("data: ")) yield JSON.parse(part.slice("data: ".length));
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
