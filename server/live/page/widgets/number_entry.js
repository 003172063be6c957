/** A field for a value that is typed, over what shows it: there is one at a time. */

import { element } from "./element.js";

/**
 * @typedef {{label: string, text: string, isBegun: boolean, take: (text: string) => string}} Entry
 *   isBegun: its user goes on after `text`, which else is replaced
 *   take: uses what was typed, or says why it cannot be used
 */

/**
 * Let a value be typed; Enter takes it, Escape and another focus leave all as it was.
 * @param {HTMLElement} shown what shows the value
 * @param {HTMLElement} owner gets the focus afterwards
 * @param {Entry} entry
 */
export function enter(shown, owner, { label, text, isBegun, take }) {
  const input = /** @type {HTMLInputElement} */ (element("input", "entry"));
  const box = shown.getBoundingClientRect();
  input.setAttribute("aria-label", label);
  input.value = text;
  input.autocomplete = "off";
  input.inputMode = "decimal";
  input.style.left = `${box.left + box.width / 2}px`;
  input.style.top = `${box.top + box.height / 2}px`;
  const close = (/** @type {boolean} */ isDone) => {
    if (!input.isConnected) return;
    input.onblur = null;
    input.remove();
    if (isDone) owner.focus();
  };
  input.onblur = () => close(false);
  input.addEventListener("input", () => input.setCustomValidity(""));
  input.addEventListener("keydown", (event) => {
    event.stopPropagation();
    if (event.key === "Escape") close(true);
    if (event.key !== "Enter") return;
    const problem = take(input.value);
    input.setCustomValidity(problem);
    if (problem) input.reportValidity();
    else close(true);
  });
  document.body.append(input);
  input.focus();
  if (!isBegun) input.select();
}
