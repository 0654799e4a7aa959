// Runs where the browser handles sound: hands on what the microphone gives.

class Recorder extends AudioWorkletProcessor {
  constructor() {
    super();
    this.ended = false;
    this.port.onmessage = () => {
      this.ended = true;
      this.port.postMessage(null);
    };
  }

  process([channels]) {
    if (!this.ended && channels.length) this.port.postMessage(channels[0].slice());
    return !this.ended;
  }
}

registerProcessor("recorder", Recorder);
