/** The plan of a session in mode extend: a row of its sections, and an editor for one that is not heard yet. */

import { element, field, find } from "./widgets/element.js";
import { LayerButtons } from "./widgets/layer_buttons.js";
import { barsText, PlanView } from "./widgets/plan_view.js";

/**
 * @typedef {import("./widgets/plan_view.js").Section} Section
 * @typedef {import("./widgets/plan_view.js").SectionText} SectionText
 * @typedef {import("./widgets/plan_view.js").Choices} Choices
 * @typedef {SectionText & {start_s?: number, codes?: number[] | null}} Wanted start_s: where the server has told of it
 * @typedef {{session: string, sections: Wanted[]}} Kept what is not heard yet of a session's plan
 */

const LEAST_S = 0.1;
/** @type {{startS: number, index: number, barS: number, sections: Wanted[]}} */
const NOTHING_ASKED = { startS: -Infinity, index: 0, barS: 0, sections: [] };

/** @param {string} id @param {(string | number)[]} values @param {string | number} chosen */
function offer(id, values, chosen) {
  const all = values.includes(chosen) ? values : [...values, chosen];
  find(id).replaceChildren(...all.map((value) => new Option(String(value), String(value), false, value === chosen)));
}

/** Reports `edit` before a section is edited, and `change`, with the seq of the edit, after it. */
export class Plan extends EventTarget {
  view = new PlanView();
  /** As the server told of them last. @type {Section[]} */ #told = [];
  /** Their elements, by index. @type {Map<number, HTMLLIElement>} */ #items = new Map();
  /** Index of the section in the editor. @type {number | null} */ #edited = null;
  /** How many of the sections have begun to play. */ #begun = 0;
  #positionS = 0;
  /** Of the edit whose plan is awaited; 0: none. */ #seq = 0;
  /** The newest edit. */ #asked = NOTHING_ASKED;
  #session = "";
  /** As it was left by the newest edit; null: none was edited. @type {Kept | null} */ #kept = null;
  /** The same before that edit. @type {Kept | null} */ #before = null;
  /**
   * What is to come back, and which of it the server has refused; awaited: what was planned until it is planned anew.
   * @type {{kept: Kept, awaited: Section[], sendsLeft: number, refused: Wanted[]} | null}
   */
  #wish = null;
  /** Of what of it was sent last. @type {Wanted | null} */ #wished = null;

  /** @param {import("./connection.js").Connection} connection */
  constructor(connection) {
    super();
    this.connection = connection;
    this.codes = new LayerButtons(find("section-codes"), (written) => this.#sendCodes(written));
    find("plan").addEventListener("change", () => connection.restart());
    find("section").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#edit([this.#written()]);
    });
    find("section-insert").addEventListener("click", () => this.#edit([this.#written(), this.#section]));
    find("section-delete").addEventListener("click", () => {
      this.#edit([]);
      this.#close();
    });
    find("section-close").addEventListener("click", () => this.#close());
    find("section").addEventListener("keydown", (event) => event.key === "Escape" && this.#close());
  }

  /** Whether new sessions have a plan. */
  get isWanted() {
    return field("plan").checked;
  }

  set isWanted(isWanted) {
    field("plan").checked = isWanted;
  }

  /**
   * A session begins, or goes on.
   * @param {Choices | null} choices null: without a plan
   * @param {boolean} isEndless
   * @param {string} session
   */
  begin(choices, isEndless, session) {
    this.view.choices = choices;
    this.codes.begin(choices);
    if (session !== this.#session) this.#positionS = 0;
    this.#session = session;
    find("plan-field").hidden = !isEndless || (choices === null && this.isWanted);
    find("plan-header").textContent = "";
    this.#forgetEdit();
    this.#show([]);
  }

  /** @param {import("./connection.js").Message} message */
  show({ header, sections, seq }) {
    const { genre, bpm, key, mode, meter } = header;
    const texts = [genre, bpm && `${bpm} bpm`, [key?.toUpperCase(), mode].filter(Boolean).join(" "), meter];
    find("plan-header").textContent = texts.filter(Boolean).join(" · ");
    this.#told = sections;
    if (!sections.length) this.#forgetEdit(); // Something else is played.
    this.#compare(sections, seq ?? Infinity);
    this.#show(this.#withAsked);
    this.#fulfil();
  }

  /** Whether what is told has the newest edit: it may be older, or end where that begins. @param {Section[]} sections @param {number} seq */
  #compare(sections, seq) {
    const { startS, sections: asked } = this.#asked;
    const told = sections.filter((section) => section.start_s > startS - LEAST_S);
    if (!told.length || seq < this.#seq) return;
    const isMade = asked.every((section, i) => !told[i] || this.#areAlike(section, told[i]));
    if (isMade && this.#seq) find("section-note").textContent = "planned";
    if (isMade) this.#seq = 0;
    // It is planned anew for something else.
    else this.#forgetEdit();
  }

  /** What is told, and behind it what is asked for and not told of yet. @returns {Section[]} */
  get #withAsked() {
    const { startS, index, barS, sections } = this.#asked;
    const isBefore = (/** @type {Section} */ section) => section.start_s < startS - LEAST_S;
    const told = this.#seq ? this.#told.filter(isBefore) : this.#told;
    const numMade = this.#seq ? 0 : told.filter((section) => !isBefore(section)).length;
    let start_s = this.#seq ? startS : (told.at(-1)?.end_s ?? 0);
    const waiting = sections.slice(numMade).map((section, i) => {
      const end_s = start_s + barS * section.bars;
      const laid = { codes: null, ...section, index: index + numMade + i, start_s, end_s, isAsked: true };
      start_s = end_s;
      return laid;
    });
    return [...told, ...waiting];
  }

  #forgetEdit() {
    this.#asked = NOTHING_ASKED;
    this.#seq = 0;
  }

  /** The playhead is there. @param {number} positionS */
  follow(positionS) {
    this.#positionS = positionS;
    if (this.#countBegun() !== this.#begun) this.#mark();
  }

  /**
   * The server refused a message: where it was an edit, all is as it was. Returns whether others of what was to come
   * back are sent instead.
   * @param {number | null} seq
   */
  refused(seq) {
    if (!this.#seq || seq !== this.#seq) return false;
    this.#forgetEdit();
    find("section-note").textContent = "";
    this.#show(this.#told);
    if (this.#edited !== null) this.#fill();
    if (this.#wish && this.#wished) {
      this.#wish.refused.push(this.#wished);
      this.#fulfil();
      return this.#seq > 0;
    }
    this.#kept = this.#before;
    return false;
  }

  // What comes back.

  /** What history holds of it. */
  get kept() {
    return this.#kept;
  }

  /** The page was loaded again, with this. */
  set kept(kept) {
    this.#kept = kept;
  }

  /** To be called before another state is used: this one is left as it is now. */
  keep() {
    if (this.#kept && this.view.isShown) this.#kept = this.#future;
  }

  /**
   * Have sections that are not heard yet again, as they were, once they can be sent.
   * @param {Kept | null} kept
   * @param {boolean} isPlannedAnew for a prompt, tempo or key that was sent now
   */
  use(kept, isPlannedAnew) {
    this.#kept = kept;
    const awaited = isPlannedAnew ? this.#ahead : [];
    this.#wish = kept && { kept, awaited, sendsLeft: 2 * kept.sections.length, refused: [] };
    this.#fulfil();
  }

  /** The sections that are not heard yet. */
  get #ahead() {
    return this.view.sections.filter(({ start_s }) => start_s > this.#positionS);
  }

  /** What is not heard yet. @returns {Kept} */
  get #future() {
    const sections = this.#ahead.map(({ kind, layers, bars, codes, start_s, isAsked }) => {
      return { kind, layers, bars, codes, ...(isAsked ? {} : { start_s }) };
    });
    return { session: this.#session, sections };
  }

  /** Ask for the first section that is not as wished; those behind it follow. */
  #fulfil() {
    if (!this.#wish || !this.view.isShown) return;
    const { kept, awaited, refused } = this.#wish;
    const isAsItWas = awaited.every((one) =>
      this.view.sections.some((told) => told.start_s === one.start_s && this.#areAlike(told, one)),
    );
    if (awaited.length && isAsItWas) return;
    this.#wish.awaited = [];
    const isHere = kept.session === this.#session;
    const firstS = (isHere && kept.sections[0]?.start_s) || 0;
    const now = this.#ahead.filter(({ start_s }) => start_s > firstS - LEAST_S);
    if (!now.length) return;
    const wanted = kept.sections.filter(({ start_s }) => !isHere || start_s === undefined || start_s > now[0].start_s - LEAST_S);
    for (const [i, section] of wanted.entries()) {
      const told = now[i];
      if (!told) return; // It may be planned as it was.
      if (refused.includes(section)) continue;
      const isWritten = i === 0 || Boolean(now[i - 1].codes?.length);
      const isAlike = this.#areAlike(told, section);
      if (isAlike && (!section.codes?.length || String(section.codes) === String(told.codes))) continue;
      if (isAlike && (!told.codes?.length || !isWritten)) return; // Its codes are made only now.
      if (!this.#wish.sendsLeft--) break;
      this.#wished = section;
      const codes = isWritten && section.codes?.length ? section.codes : undefined;
      this.#send(told, [{ ...section, codes }, ...wanted.slice(i + 1)]);
      return;
    }
    this.#wish = null;
  }

  #countBegun() {
    return this.view.sections.filter((section) => section.start_s <= this.#positionS).length;
  }

  /** @param {Section[]} sections */
  #show(sections) {
    this.view.sections = sections;
    const indices = new Set(sections.map((section) => section.index));
    for (const [index, item] of this.#items) {
      if (indices.has(index)) continue;
      item.remove();
      this.#items.delete(index);
    }
    const row = find("sections");
    row.hidden = !sections.length;
    sections.forEach((section, i) => {
      const item = this.#item(section);
      // An element that is in its place keeps the focus.
      if (row.children[i] !== item) row.insertBefore(item, row.children[i]);
    });
    this.#mark();
    if (this.#edited !== null) this.codes.show(this.#section);
  }

  /** @param {Section} section */
  #item(section) {
    const item = this.#items.get(section.index) ?? this.#newItem(section.index);
    const texts = [section.kind, barsText(section.bars), section.layers.join(", ")];
    item.style.flexGrow = String(section.bars);
    [...item.querySelectorAll("b, i, small")].forEach((part, i) => (part.textContent = texts[i]));
    return item;
  }

  /** @param {number} index */
  #newItem(index) {
    const item = /** @type {HTMLLIElement} */ (element("li"));
    const button = /** @type {HTMLButtonElement} */ (element("button"));
    button.type = "button";
    button.setAttribute("aria-controls", "section");
    button.addEventListener("click", () => (this.#edited === index ? this.#close() : this.#open(index)));
    button.append(element("b"), " ", element("i"), " ", element("small"));
    item.append(button);
    this.#items.set(index, item);
    return item;
  }

  /** @param {number | null} index */
  #button(index) {
    return index === null ? null : (this.#items.get(index)?.querySelector("button") ?? null);
  }

  /** Show which section plays; those that have begun cannot be edited. */
  #mark() {
    this.#begun = this.#countBegun();
    this.view.sections.forEach(({ index }, i) => {
      const button = /** @type {HTMLButtonElement} */ (this.#button(index));
      button.disabled = i < this.#begun;
      button.ariaCurrent = i === this.#begun - 1 ? "true" : "false";
      button.ariaExpanded = String(index === this.#edited);
    });
    if (this.#edited !== null && (this.#button(this.#edited)?.disabled ?? true)) this.#close();
  }

  // The editor.

  get #section() {
    return /** @type {Section} */ (this.view.sections.find((section) => section.index === this.#edited));
  }

  /** Open the editor of a section that is not heard yet. @param {Section} section @param {string} [layer] where to begin */
  edit({ index }, layer = "") {
    if (this.#button(index)?.disabled ?? true) return;
    this.#open(index);
    const box = find("section-layers").querySelector(`input[value="${CSS.escape(layer)}"]`);
    if (box instanceof HTMLElement) box.focus();
  }

  /** @param {number} index */
  #open(index) {
    this.#edited = index;
    this.#fill();
    find("section-note").textContent = "";
    find("section").hidden = false;
    this.#mark();
    field("section-kind").focus();
    find("section").scrollIntoView({ block: "nearest" });
  }

  #close() {
    const button = this.#button(this.#edited);
    const hasFocus = find("section").contains(document.activeElement);
    this.#edited = null;
    find("section").hidden = true;
    if (button) button.ariaExpanded = "false";
    if (hasFocus) (button && !button.disabled ? button : find("stage")).focus();
  }

  #fill() {
    const { choices } = this.view;
    if (!choices) return;
    const { index, kind, layers, bars } = this.#section;
    find("section-name").textContent = `Section ${index + 1}`;
    offer("section-kind", choices.kinds, kind);
    offer("section-bars", choices.bars, bars);
    find("section-layers").replaceChildren(
      ...choices.layers.map((name) => {
        const [label, input] = [element("label"), /** @type {HTMLInputElement} */ (element("input"))];
        Object.assign(input, { type: "checkbox", name: "layer", value: name, checked: layers.includes(name) });
        label.append(input, element("span", "", name));
        return label;
      }),
    );
    this.codes.show(this.#section);
  }

  /** What the editor says. @returns {SectionText} */
  #written() {
    const checked = /** @type {NodeListOf<HTMLInputElement>} */ (find("section-layers").querySelectorAll(":checked"));
    return {
      kind: field("section-kind").value,
      layers: [...checked].map((input) => input.value),
      bars: Number(field("section-bars").value),
    };
  }

  /**
   * A section to be planned again: of the least length that it can have, if another one has cut it.
   * @param {SectionText} section
   * @returns {SectionText}
   */
  #whole({ kind, layers, bars }) {
    return { kind, layers, bars: this.view.choices?.bars.find((count) => count >= bars) ?? bars };
  }

  /** Whether sections read the same, also where another one has cut one of them. @param {SectionText} one @param {SectionText} other */
  #areAlike(one, other) {
    const texts = [one, other].map((section) => {
      const { kind, layers, bars } = this.#whole(section);
      return JSON.stringify([kind, [...layers].sort(), bars]);
    });
    return texts[0] === texts[1];
  }

  /** The edited section with other codes. @param {import("./widgets/layer_buttons.js").Written} written */
  #sendCodes({ layers, codes }) {
    this.#edit([{ ...this.#whole(this.#section), layers, codes }]);
    for (const box of find("section-layers").querySelectorAll("input")) box.checked = layers.includes(box.value);
  }

  /** Sections in place of the edited one; those after it stay. @param {Wanted[]} instead those with codes begin with them */
  #edit(instead) {
    const edited = this.#section;
    this.#wish = null;
    this.#kept = this.#before = this.#future;
    this.dispatchEvent(new Event("edit"));
    const later = this.view.sections.filter((section) => section.index > edited.index);
    this.#send(edited, [...instead, ...later.map((section) => this.#whole(section))]);
    this.#kept = this.#future;
    this.dispatchEvent(new CustomEvent("change", { detail: this.#seq }));
  }

  /**
   * Sections from one on, in place of all from there. Where the server has not told of that one, from the one before it on
   * that it knows.
   * @param {Section} from
   * @param {Wanted[]} sections
   */
  #send(from, sections) {
    const all = this.view.sections;
    let place = all.indexOf(from);
    while (all[place].isAsked && !(this.#seq && all[place].start_s === this.#asked.startS)) place--;
    const first = all[place];
    const between = all.slice(place, all.indexOf(from)).map((section, i) => ({
      ...this.#whole(section),
      ...(i || !section.codes?.length ? {} : { codes: section.codes }),
    }));
    const asked = [...between, ...sections];
    const codes = asked[0]?.codes;
    const texts = asked.map((section) => this.#whole(section));
    const barS = (first.end_s - first.start_s) / first.bars;
    this.#seq = this.connection.change("set_plan", { start_s: first.start_s, sections: texts, ...(codes?.length && { codes }) });
    const [, ...others] = texts;
    this.#asked = {
      startS: first.start_s,
      index: first.index,
      barS,
      sections: texts.length ? [{ ...texts[0], ...(codes?.length && { codes }) }, ...others] : [],
    };
    find("section-note").textContent = "sent";
    this.#show(this.#withAsked);
  }
}
