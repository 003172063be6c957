/** The list of keys and gestures, loaded when it is first asked for. */

import { find } from "./widgets/element.js";

export async function showHelp() {
  if (!find("help")) {
    const response = await fetch(new URL("help.html", import.meta.url));
    const text = await response.text();
    if (!find("help")) document.body.insertAdjacentHTML("beforeend", text);
  }
  const help = /** @type {HTMLDialogElement} */ (find("help"));
  if (!help.open) help.showModal();
}
