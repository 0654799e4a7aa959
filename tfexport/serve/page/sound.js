// Sounds: recorded by the microphone, and in a form that the server reads.

const RATE = 16000; // samples of a second, as models of speech take them
// What libsndfile reads is sent as it is; the rest is decoded by the browser, such as WebM and MP4.
const READ = /\.(wav|wave|flac|ogg|oga|opus|mp3|aiff?|aifc|au|caf|w64)$/i;

/** Whether this browser lets this page record: only pages of HTTPS, or of this machine, may. */
export function canRecord() {
  return Boolean(navigator.mediaDevices?.getUserMedia) && "audioWorklet" in AudioContext.prototype;
}

/** Begin to record; `stop` of what is promised gives a WAV file, or null without any sound. */
export async function record() {
  const stream = await navigator.mediaDevices.getUserMedia({ audio: true });
  const context = new AudioContext();
  const end = () => {
    for (const track of stream.getTracks()) track.stop();
    return context.close();
  };
  try {
    await context.audioWorklet.addModule(new URL("recorder.js", import.meta.url));
  } catch (error) {
    end();
    throw error;
  }
  const recorder = new AudioWorkletNode(context, "recorder", {
    channelCount: 1,
    channelCountMode: "explicit",
  });
  const parts = [];
  let ended;
  const all = new Promise((resolve) => (ended = resolve));
  recorder.port.onmessage = ({ data }) => (data ? parts.push(data) : ended());
  context.createMediaStreamSource(stream).connect(recorder);
  return {
    async stop() {
      recorder.port.postMessage("end");
      await all;
      await end();
      const samples = joined(parts);
      return samples.length ? wav(await resampled(samples, context.sampleRate)) : null;
    },
  };
}

/** A file as the server reads it. */
export async function readable(file) {
  if (READ.test(file.name)) return file;
  try {
    const context = new OfflineAudioContext(1, 1, RATE); // which changes the rate as well
    return wav(mixed(await context.decodeAudioData(await file.arrayBuffer())));
  } catch {
    return file; // of which the server says what it is
  }
}

function joined(parts) {
  const samples = new Float32Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    samples.set(part, at);
    at += part.length;
  }
  return samples;
}

async function resampled(samples, rate) {
  if (rate === RATE) return samples;
  const context = new OfflineAudioContext(1, Math.ceil((samples.length * RATE) / rate), RATE);
  const buffer = new AudioBuffer({ length: samples.length, sampleRate: rate });
  buffer.copyToChannel(samples, 0);
  const source = new AudioBufferSourceNode(context, { buffer });
  source.connect(context.destination);
  source.start();
  return (await context.startRendering()).getChannelData(0);
}

/** The mean of all channels, as the server makes it. */
function mixed(buffer) {
  const samples = new Float32Array(buffer.length);
  for (let channel = 0; channel < buffer.numberOfChannels; channel++) {
    const own = buffer.getChannelData(channel);
    for (let i = 0; i < own.length; i++) samples[i] += own[i] / buffer.numberOfChannels;
  }
  return samples;
}

/** A WAV file of one channel, with 16 bits a sample. */
function wav(samples) {
  const view = new DataView(new ArrayBuffer(44 + 2 * samples.length));
  const text = (at, letters) => [...letters].forEach((it, i) => view.setUint8(at + i, it.charCodeAt(0)));
  text(0, "RIFF");
  view.setUint32(4, view.byteLength - 8, true);
  text(8, "WAVEfmt ");
  view.setUint32(16, 16, true); // bytes of the format
  view.setUint16(20, 1, true); // integers
  view.setUint16(22, 1, true); // channels
  view.setUint32(24, RATE, true);
  view.setUint32(28, 2 * RATE, true); // bytes of a second
  view.setUint16(32, 2, true); // bytes of a sample
  view.setUint16(34, 16, true);
  text(36, "data");
  view.setUint32(40, 2 * samples.length, true);
  samples.forEach((value, i) => {
    view.setInt16(44 + 2 * i, Math.max(-32768, Math.min(32767, Math.round(value * 32768))), true);
  });
  return new File([view], "recorded.wav", { type: "audio/wav" });
}
