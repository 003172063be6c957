/** WAV files. */

/**
 * A WAV file of 32-bit floats: the samples as they were played.
 * @param {Float32Array[][]} blocks
 * @param {number} rateHz
 */
export function wavFile(blocks, rateHz) {
  const channels = blocks[0]?.length ?? 2;
  const samples = blocks.reduce((sum, planes) => sum + planes[0].length, 0);
  const bytes = samples * channels * 4;
  const view = new DataView(new ArrayBuffer(44 + bytes));
  const text = (/** @type {number} */ at, /** @type {string} */ letters) =>
    [...letters].forEach((letter, i) => view.setUint8(at + i, letter.charCodeAt(0)));
  text(0, "RIFF");
  view.setUint32(4, 36 + bytes, true);
  text(8, "WAVEfmt ");
  view.setUint32(16, 16, true);
  view.setUint16(20, 3, true); // IEEE float
  view.setUint16(22, channels, true);
  view.setUint32(24, rateHz, true);
  view.setUint32(28, rateHz * channels * 4, true);
  view.setUint16(32, channels * 4, true);
  view.setUint16(34, 32, true);
  text(36, "data");
  view.setUint32(40, bytes, true);
  let at = 44;
  for (const planes of blocks) {
    for (let i = 0; i < planes[0].length; i++) {
      for (const plane of planes) {
        view.setFloat32(at, plane[i], true);
        at += 4;
      }
    }
  }
  return new Blob([view.buffer], { type: "audio/wav" });
}
