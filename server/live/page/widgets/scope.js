/** Waveform and level meter. */

const FALL_PER_S = 1.6;
const HOLD_MS = 900;

export class Scope {
  #samples = new Float32Array(2048);
  #levels = [0, 0];
  #holds = [
    { level: 0, atMs: 0 },
    { level: 0, atMs: 0 },
  ];
  #paintedMs = 0;

  /** @param {HTMLCanvasElement} screen @param {HTMLElement[]} meters */
  constructor(screen, meters) {
    this.screen = screen;
    this.context = /** @type {CanvasRenderingContext2D} */ (screen.getContext("2d"));
    this.meters = meters;
    new ResizeObserver(() => this.#resize()).observe(screen);
  }

  #resize() {
    const ratio = devicePixelRatio || 1;
    this.screen.width = Math.max(1, this.screen.clientWidth * ratio);
    this.screen.height = Math.max(1, this.screen.clientHeight * ratio);
  }

  /** @param {[number, number]} peaks of the last 50 ms */
  level(peaks) {
    peaks.forEach((peak, i) => {
      const level = peak <= 0.001 ? 0 : Math.min(1, 1 + (20 * Math.log10(peak)) / 60);
      this.#levels[i] = Math.max(this.#levels[i], level);
      if (level >= this.#holds[i].level) this.#holds[i] = { level, atMs: performance.now() };
    });
  }

  /** Draw one frame. @param {AnalyserNode | null} analyser @param {string} color */
  paint(analyser, color) {
    const now = performance.now();
    const elapsed = Math.min(0.1, (now - this.#paintedMs) / 1000);
    this.#paintedMs = now;
    this.meters.forEach((meter, i) => {
      const hold = this.#holds[i];
      if (now - hold.atMs > HOLD_MS) hold.level = Math.max(0, hold.level - FALL_PER_S * elapsed);
      meter.style.setProperty("--level", this.#levels[i].toFixed(3));
      meter.style.setProperty("--hold", hold.level.toFixed(3));
      this.#levels[i] = Math.max(0, this.#levels[i] - FALL_PER_S * elapsed);
    });
    this.#paintWave(analyser, color);
  }

  /** @param {AnalyserNode | null} analyser @param {string} color */
  #paintWave(analyser, color) {
    const { context, screen } = this;
    const { width, height } = screen;
    if (analyser) analyser.getFloatTimeDomainData(this.#samples);
    else this.#samples.fill(0);
    const begin = risingEdge(this.#samples);
    const count = this.#samples.length / 2;
    context.clearRect(0, 0, width, height);
    context.beginPath();
    for (let x = 0; x <= width; x += 2) {
      const sample = this.#samples[begin + Math.floor((x / width) * (count - 1))];
      // The line thins out towards both ends, so that the trigger's jumps are not seen.
      const edge = Math.sin((x / width) * Math.PI);
      context.lineTo(x, height / 2 - Math.tanh(sample * 2.2) * edge * height * 0.46);
    }
    context.lineWidth = 1.75 * (devicePixelRatio || 1);
    context.lineJoin = "round";
    context.strokeStyle = color;
    context.stroke();
  }
}

/** The first crossing of zero upwards in the first half: a wave stands still. @param {Float32Array} samples */
function risingEdge(samples) {
  for (let i = 1; i < samples.length / 2; i++) if (samples[i - 1] < 0 && samples[i] >= 0) return i;
  return 0;
}
