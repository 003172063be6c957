/** The microphone. */

const WORKLET = new URL("worklet.js", import.meta.url);

/**
 * Captures the microphone until the returned function is called.
 * @param {number} rateHz
 * @param {(pcm: Float32Array) => void} block
 */
export async function captureMicrophone(rateHz, block) {
  const audio = { echoCancellation: false, noiseSuppression: false, autoGainControl: false };
  const stream = await navigator.mediaDevices.getUserMedia({ audio });
  const context = new AudioContext({ sampleRate: rateHz, latencyHint: "interactive" });
  await context.audioWorklet.addModule(WORKLET);
  const node = new AudioWorkletNode(context, "tickrt-capture", { numberOfOutputs: 0 });
  node.port.onmessage = (event) => block(event.data);
  context.createMediaStreamSource(stream).connect(node);
  return () => {
    for (const track of stream.getTracks()) track.stop();
    context.close();
  };
}
