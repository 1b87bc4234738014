// Charts, drawn as SVG: stacked bars by hour with a legend and a table, and sparklines.

import { count, el, svg, text } from './dom.js';

const [HEIGHT, LEFT, BOTTOM, TOP] = [190, 44, 20, 8];
/// Number of colours; the last one is that of `other`.
const COLOURS = 12;

/// Returns a round number that is at least `value`.
function ceiling(value) {
  const power = 10 ** Math.floor(Math.log10(Math.max(value, 1)));
  return power * [1, 2, 4, 5, 10].find((factor) => factor * power >= value);
}

const amount = (sums, unit) => (unit === 'requests' ? sums.requests : sums.prompt + sums.completion) || 0;

/// Returns the sums of all hours by name, largest first; `other` is last.
function totals(hours, group, unit) {
  const sums = new Map();
  for (const hour of hours) {
    for (const [name, sum] of Object.entries(hour[group] ?? {})) {
      const total = sums.get(name) ?? { prompt: 0, completion: 0, requests: 0 };
      for (const field of Object.keys(total)) total[field] += sum[field] || 0;
      sums.set(name, total);
    }
  }
  const last = (name) => (name === 'other' ? 1 : 0);
  return [...sums].sort(([a, x], [b, y]) => last(a) - last(b) || amount(y, unit) - amount(x, unit) || a.localeCompare(b));
}

/// The last 24 hours up to the latest one; hours without usage are empty.
function lastDay(hours, now) {
  const byStart = new Map(hours.map((hour) => [Date.parse(hour.start), hour]));
  const latest = Math.floor(Date.parse(now) / 3.6e6) * 3.6e6;
  return Array.from({ length: 24 }, (_, at) => {
    const start = latest - (23 - at) * 3.6e6;
    return { start, ...byStart.get(start), at: start };
  });
}

const clock = (time) => new Date(time).toLocaleTimeString([], { hour: '2-digit', minute: '2-digit', hour12: false });

/// Draws the usage of one group, `model` or `key`, into an element.
export function usage(parent, hours, group, unit, now) {
  const sums = totals(hours, group, unit);
  const all = sums.reduce((sum, [, one]) => sum + amount(one, unit), 0);
  if (all === 0) {
    parent.replaceChildren(el('p', 'empty', 'No usage was recorded in this time.'));
    return;
  }
  const isOpen = parent.querySelector('details')?.open;
  const colour = (at, name) => (name === 'other' ? COLOURS : at % COLOURS);
  const bars = lastDay(hours, now);
  const heights = bars.map((hour) => sums.reduce((sum, [name]) => sum + amount(hour[group]?.[name] ?? {}, unit), 0));
  const top = ceiling(Math.max(...heights.map((height) => height || 0)));
  const scale = (HEIGHT - TOP - BOTTOM) / top;
  const width = Math.max(parent.clientWidth, 240);
  const step = (width - LEFT) / bars.length;
  const first = sums[0];
  const picture = svg('svg', {
    viewBox: `0 0 ${width} ${HEIGHT}`, class: 'chart', role: 'img',
    'aria-label': `${unit} per hour by ${group}; the largest is ${first[0]} with ${Math.round((100 * amount(first[1], unit)) / all)} %. The table has all figures.`,
  });
  for (const part of [0, 0.5, 1]) {
    const y = HEIGHT - BOTTOM - part * top * scale;
    picture.append(svg('line', { x1: LEFT, x2: width, y1: y, y2: y }), svg('text', { x: LEFT - 6, y: y + 4, 'text-anchor': 'end' }, count(part * top)));
  }
  bars.forEach((hour, at) => {
    const x = LEFT + at * step;
    const bar = svg('g', { class: 'hour' });
    bar.append(svg('rect', { class: 'hit', x, y: TOP, width: step, height: HEIGHT - TOP - BOTTOM }));
    let y = HEIGHT - BOTTOM;
    const parts = [];
    sums.forEach(([name], index) => {
      const value = amount(hour[group]?.[name] ?? {}, unit) || 0;
      if (value === 0) return;
      y -= value * scale;
      bar.append(svg('rect', { class: `c${colour(index, name)}`, x: x + step * 0.12, y, width: step * 0.76, height: Math.max(value * scale, 0.5) }));
      parts.push(`${name}: ${count(value)}`);
    });
    const title = svg('title');
    text(title, [`${clock(hour.at)}–${clock(hour.at + 3.6e6)}`, ...parts].join('\n'));
    bar.append(title);
    picture.append(bar);
    if (at % 6 === 0) picture.append(svg('text', { x: x + step / 2, y: HEIGHT - 5, 'text-anchor': 'middle' }, clock(hour.at)));
  });
  const legend = el('ul', 'legend');
  sums.forEach(([name, sum], at) => {
    const dot = svg('svg', { viewBox: '0 0 10 10', 'aria-hidden': 'true' }, svg('rect', { class: `c${colour(at, name)}`, width: 10, height: 10, rx: 2 }));
    const share = (100 * amount(sum, unit)) / all;
    legend.append(el('li', '', dot, el('span', '', name), el('span', '', count(amount(sum, unit))), el('span', 'muted', `${share < 1 ? '<1' : Math.round(share)} %`)));
  });
  const details = el('details', '', el('summary', '', 'Table'), el('div', 'scroll', table(group, sums)));
  details.lastChild.tabIndex = 0;
  details.open = isOpen ?? false;
  parent.replaceChildren(picture, legend, details);
}

function table(group, sums) {
  const head = el('tr');
  for (const [at, name] of [group === 'key' ? 'Key' : 'Model', 'Requests', 'Prompt tokens', 'Output tokens'].entries()) {
    const th = el('th', at ? 'num' : '', name);
    th.scope = 'col';
    head.append(th);
  }
  const body = el('tbody');
  for (const [name, sum] of sums) {
    const th = el('th', '', name);
    th.scope = 'row';
    const figures = [sum.requests, sum.prompt, sum.completion].map((value) => el('td', 'num', value.toLocaleString('en')));
    body.append(el('tr', '', th, ...figures));
  }
  return el('table', '', el('caption', 'hidden', `Usage of the last 24 hours by ${group}`), el('thead', '', head), body);
}

/// Draws a sparkline of the values.
export function spark(parent, values) {
  const top = Math.max(...values, 1);
  const step = 100 / Math.max(values.length - 1, 1);
  const points = values.map((value, at) => `${(at * step).toFixed(1)},${(29 - (27 * value) / top).toFixed(1)}`).join(' ');
  let picture = parent.firstElementChild;
  if (!picture) {
    picture = svg('svg', { viewBox: '0 0 100 30', preserveAspectRatio: 'none', 'aria-hidden': 'true' }, svg('path', { class: 'area' }), svg('path'));
    parent.append(picture);
  }
  picture.firstChild.setAttribute('d', `M0,30 L${points} L100,30 Z`);
  picture.lastChild.setAttribute('d', `M${points}`);
}
