/** Elements of the page. */

/** @param {string} tag @param {string} [className] @param {string} [text] */
export function element(tag, className = "", text = "") {
  const node = document.createElement(tag);
  node.className = className;
  node.textContent = text;
  return node;
}

/** The element with an id. @param {string} id */
export function find(id) {
  return /** @type {HTMLElement} */ (document.getElementById(id));
}

/** The input or select with an id. @param {string} id */
export function field(id) {
  return /** @type {HTMLInputElement} */ (document.getElementById(id));
}

/** All elements of a selector. @param {string} selector */
export function all(selector) {
  return /** @type {HTMLElement[]} */ ([...document.querySelectorAll(selector)]);
}
