// Elements, whose text is text: nothing of a model is ever read as markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** Returns an HTML element. */
export function html(name, attributes, ...children) {
  return fill(document.createElement(name), attributes, children);
}

/** Returns an SVG element. */
export function svg(name, attributes, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

/** Returns a text that fits into `count` characters. */
export function short(text, count) {
  return text.length <= count ? text : `${text.slice(0, count - 1)}…`;
}
