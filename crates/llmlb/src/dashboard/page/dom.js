// Elements and texts. All texts of the server are set as text, never as HTML: clients choose names of models.

export const $ = (id) => document.getElementById(id);

/// Creates an element with classes and children, which are elements or texts.
export function el(name, classes = '', ...children) {
  const element = document.createElement(name);
  if (classes) element.className = classes;
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/// Creates an SVG element with attributes and children.
export function svg(name, attributes = {}, ...children) {
  const element = document.createElementNS('http://www.w3.org/2000/svg', name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

/// Sets a text only if it changed, so that a selection and a screen reader are not disturbed.
export function text(element, value) {
  const shown = String(value ?? '');
  if (element.textContent !== shown) element.textContent = shown;
}

export function className(element, value) {
  if (element.className !== value) element.className = value;
}

/// Updates the children of a list by key. Elements are kept, and with them the focus.
export function keyed(parent, items, keyOf, create, update) {
  const old = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let next = parent.firstElementChild;
  for (const item of items) {
    const key = String(keyOf(item));
    let child = old.get(key);
    old.delete(key);
    if (!child) {
      child = create(item);
      child.dataset.key = key;
    }
    if (child === next) next = next.nextElementSibling;
    else parent.insertBefore(child, next);
    update(child, item);
  }
  for (const child of old.values()) {
    if (child.contains(document.activeElement)) (document.getElementById(parent.dataset.focus) ?? document.getElementById('main')).focus();
    child.remove();
  }
}

/// Creates a row of a table. On narrow screens each cell shows its column's name.
export function row(table, classes) {
  const heads = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
  const tr = el('tr');
  tr.setAttribute('role', 'row');
  classes.forEach((value, at) => {
    const td = el('td', value);
    td.setAttribute('role', 'cell');
    if (!value.includes('act')) td.dataset.label = heads[at];
    tr.append(td);
  });
  return tr;
}

let toastTimer;
/// Shows a message for some seconds.
export function toast(message) {
  text($('toast'), message);
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => text($('toast'), ''), 8000);
}

/// Asks for confirmation. Returns true if the user agrees.
export function confirm(title, message, action) {
  const dialog = $('confirm');
  text($('confirm-title'), title);
  text($('confirm-text'), message);
  text($('confirm-yes'), action);
  dialog.returnValue = '';
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener('close', () => resolve(dialog.returnValue === 'yes'), { once: true });
  });
}

/// Copies a text. Browsers offer the clipboard only to https and localhost, so there is a second way.
export async function copy(value, message) {
  try {
    await navigator.clipboard.writeText(value);
  } catch {
    const area = el('textarea', 'hidden');
    area.value = value;
    const focused = document.activeElement;
    document.body.append(area);
    area.select();
    const done = document.execCommand('copy');
    area.remove();
    focused?.focus();
    if (!done) return toast(value);
  }
  toast(message);
}

const UNITS = [[1e12, 'T'], [1e9, 'G'], [1e6, 'M'], [1e3, 'k']];

/// Formats a count in at most about four characters.
export function count(value) {
  if (value === null || value === undefined) return '–';
  for (const [size, unit] of UNITS) {
    if (value >= size * (size === 1e3 ? 10 : 1)) return `${Number((value / size).toPrecision(3))} ${unit}`;
  }
  return String(Math.round(value));
}

export function rate(value) {
  if (value === null || value === undefined) return '–';
  return value >= 100 ? count(value) : value.toFixed(value >= 10 || value === 0 ? 0 : 1);
}

export function milliseconds(value) {
  if (value === null || value === undefined) return '–';
  if (value < 1000) return `${Math.round(value)} ms`;
  return duration(value / 1000);
}

export function duration(seconds) {
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

/// Formats a time by its distance from the server's time.
export function ago(time, now) {
  if (!time) return 'never';
  const seconds = Math.max(0, (Date.parse(now) - Date.parse(time)) / 1000);
  return seconds < 2 ? 'just now' : `${duration(Math.floor(seconds) < 10 ? Math.floor(seconds) : seconds).replace('.0', '')} ago`;
}

export const plural = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;
