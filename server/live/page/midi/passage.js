/** What a session tells of its notes and bars: for the canvas, for changes at the bar, and for MIDI. */

import { SessionNotes } from "./notes.js";
import { PlacedNotes } from "./placed_notes.js";

/** Why there are no bars. */
export const NO_BEAT = "This session has no beat: name a tempo in a prompt, such as 124 bpm, or play by a plan.";

/** @typedef {import("../connection.js").Message} Message */
/** @typedef {{name: string, keys: number[], rows: number[], is_percussion: boolean}} Layer */

/** Reports `begin` when a session begins or goes on in a new epoch, `state` when the server has told where it is. */
export class Passage extends EventTarget {
  notes = new SessionNotes();
  placed = new PlacedNotes();
  /** @type {Layer[]} */ layers = [];
  isLoop = true;
  /** Whether the model plays notes of others. */ takesNotes = false;
  /** Whether its layers can be told apart. */ hasStems = false;
  /** The newest bar line. @type {import("./clock.js").BarLine | null} */ beat = null;
  position = { seconds: 0, sample: 0 };
  loopStartS = 0;

  /** @param {Message} ready @param {boolean} takesNotes */
  begin(ready, takesNotes) {
    this.notes.clear(ready.sample_rate_hz);
    this.placed.clear();
    this.beat = null;
    this.isLoop = ready.mode === "loop";
    this.takesNotes = takesNotes;
    this.hasStems = ready.stems;
    this.layers = ready.layers;
    this.dispatchEvent(new Event("begin"));
  }

  /** @param {Message} state @param {number} loopStartS where a loop begins on the canvas */
  state(state, loopStartS) {
    this.beat = state.beat;
    this.position = { seconds: state.canvas_position_s, sample: state.playhead_sample };
    this.loopStartS = loopStartS;
    this.placed.follow(this.position, this.notes, loopStartS);
    this.dispatchEvent(new Event("state"));
  }
}
