// Elements without HTML: text is always text.

/** An element with properties and what is in it; `null` is left out. */
export function element(name, properties = {}, ...inside) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "class") made.className = value;
    else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...inside.flat().filter((one) => one !== null && one !== undefined && one !== false));
  return made;
}

/** One of the icons in the page. */
export function icon(name) {
  return by(`icon-${name}`).content.firstElementChild.cloneNode(true);
}

export const by = (id) => document.getElementById(id);

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

/** Bytes as `backplane devices` writes them. */
export function bytes(count) {
  let unit = 0;
  while (count >= 1024 && unit < UNITS.length - 1) {
    count /= 1024;
    unit += 1;
  }
  return unit === 0 ? `${count} B` : `${count.toFixed(1)} ${UNITS[unit]}`;
}

/** A number with as many places as people want to read. */
export function few(number) {
  return number >= 100 ? number.toFixed(0) : number >= 10 ? number.toFixed(1) : number.toFixed(2);
}

/** What was kept in the browser; `fallback` where nothing was, or it can't be read. */
export function kept(storage, key, fallback) {
  try {
    return JSON.parse(window[storage].getItem(key)) ?? fallback;
  } catch {
    return fallback;
  }
}

/** Keeps something, where the browser keeps anything. */
export function keep(storage, key, value) {
  try {
    if (value === null) window[storage].removeItem(key);
    else window[storage].setItem(key, JSON.stringify(value));
  } catch {
    // A browser that keeps nothing.
  }
}
