// The table of backends.

import { $, className, confirm, count, el, keyed, milliseconds, plural, rate, row, text, toast } from './dom.js';
import { act } from './api.js';
import { spark } from './charts.js';

const STATES = { up: ['up', '● up'], ejected: ['ejected', '▲ ejected'], down: ['down', '✕ down'], drained: ['', '❚❚ drained'] };
/// Number of seconds that a sparkline shows.
const HISTORY = 60;
/// A backend is marked as slow if its first byte takes so many times longer than the median, and this many milliseconds.
const [SLOW_FACTOR, SLOW_MS] = [2, 100];

const history = new Map();

/// Adds a value to the history of a name and returns it.
export function remember(name, value) {
  const values = history.get(name) ?? [];
  values.push(value || 0);
  if (values.length > HISTORY) values.shift();
  history.set(name, values);
  return values;
}

function median(values) {
  const sorted = values.filter((value) => value !== null).sort((a, b) => a - b);
  return sorted[Math.floor((sorted.length - 1) / 2)] ?? 0;
}

/// Returns the models that only this backend serves.
function onlyHere(backend, all) {
  const others = all.filter((one) => one !== backend && one.state !== 'down' && !one.drained);
  const elsewhere = new Set(others.flatMap((one) => one.models));
  return backend.models.filter((model) => !elsewhere.has(model));
}

export function drawBackends(snapshot) {
  const table = $('backends-table');
  const body = table.tBodies[0];
  const usual = median(snapshot.backends.map((one) => one.first_byte_ms));
  const names = new Set(snapshot.backends.map((one) => one.name));
  for (const name of history.keys()) if (name.startsWith('b:') && !names.has(name.slice(2))) history.delete(name);
  keyed(body, snapshot.backends, (one) => one.name, () => create(table), (tr, backend) => {
    const parts = tr.parts;
    text(parts.name, backend.name);
    text(parts.where, [backend.kind, backend.url].filter(Boolean).join(' · '));
    const [style, word] = STATES[backend.state] ?? ['', backend.state];
    className(parts.state, `chip ${style}`);
    text(parts.state, word);
    const isSlow = backend.first_byte_ms > SLOW_FACTOR * usual && backend.first_byte_ms - usual > SLOW_MS && snapshot.backends.length > 1;
    parts.slow.hidden = !isSlow;
    text(parts.error, backend.error);
    const limit = backend.max_concurrent;
    text(parts.flight, limit ? `${backend.in_flight} of ${limit}` : backend.in_flight);
    text(parts.waiting, backend.waiting ? `${backend.waiting} waiting` : '');
    parts.meter.hidden = !limit;
    if (limit) {
      parts.fill.style.width = `${Math.min(100, (100 * backend.in_flight) / limit)}%`;
      className(parts.fill, backend.in_flight >= limit ? 'warn' : '');
    }
    text(parts.first, milliseconds(backend.first_byte_ms));
    text(parts.tokens, rate(backend.tokens_per_s));
    spark(parts.spark, remember(`b:${backend.name}`, backend.tokens_per_s));
    text(parts.requests, count(backend.requests));
    text(parts.failed, backend.failed ? `${count(backend.failed)} failed` : '');
    drawModels(parts, backend.models);
    const isDrained = backend.drained;
    text(parts.action, isDrained ? 'Undrain' : 'Drain');
    parts.action.setAttribute('aria-label', `${isDrained ? 'Undrain' : 'Drain'} ${backend.name}`);
    parts.action.title = isDrained ? 'Send requests to this backend again' : 'Send no new requests to this backend; running requests finish';
    parts.action.onclick = () => drain(backend, snapshot.backends, parts.action);
  });
}

function create(table) {
  const tr = row(table, ['any wide', 'any wide', '', 'num', 'num', 'num', 'any', 'act']);
  const [name, state, flight, first, tokens, requests, models, action] = tr.cells;
  const parts = {
    name: el('div', 'name'), where: el('div', 'muted'),
    state: el('span', 'chip'), slow: el('span', 'chip warn', '▲ slow'), error: el('div', 'error-text'),
    flight: el('span'), waiting: el('div', 'muted'), fill: el('i'), meter: null,
    first: el('span'), tokens: el('span'), spark: el('div', 'spark'),
    requests: el('span'), failed: el('div', 'error-text'),
    models: el('div'), action: el('button', 'small'),
  };
  parts.meter = el('div', 'meter', parts.fill);
  parts.meter.setAttribute('aria-hidden', 'true');
  parts.slow.title = 'The first byte takes more than twice as long as at the median backend';
  parts.action.type = 'button';
  name.append(el('div', '', parts.name, parts.where));
  state.append(el('div', '', parts.state, ' ', parts.slow, parts.error));
  flight.append(el('div', '', parts.flight, parts.waiting, parts.meter));
  first.append(parts.first);
  tokens.append(el('div', '', parts.tokens, parts.spark));
  requests.append(el('div', '', parts.requests, parts.failed));
  models.append(parts.models);
  action.append(parts.action);
  tr.parts = parts;
  return tr;
}

/// Shows up to two models by name, and more in a list that the user opens.
function drawModels(parts, models) {
  const key = models.join('\n');
  if (parts.shown === key) return;
  parts.shown = key;
  if (models.length <= 2) {
    parts.models.replaceChildren(...(models.length ? models.map((model) => el('div', '', model)) : [el('span', 'muted', 'none')]));
    return;
  }
  const list = el('ul', '', ...models.map((model) => el('li', '', model)));
  parts.models.replaceChildren(el('details', '', el('summary', '', plural(models.length, 'model')), list));
}

async function drain(backend, all, button) {
  const name = backend.name;
  if (!backend.drained) {
    const only = onlyHere(backend, all);
    const shown = only.slice(0, 5).join(', ') + (only.length > 5 ? ` and ${only.length - 5} more` : '');
    if (only.length && !(await confirm(`Drain ${name}?`, `No other usable backend serves ${shown}. Requests for ${only.length === 1 ? 'this model' : 'these models'} fail while the backend is drained.`, 'Drain'))) return;
  }
  button.disabled = true;
  try {
    await act(backend.drained ? '/dashboard/undrain' : '/dashboard/drain', { backend: name });
    toast(backend.drained ? `${name} gets requests again.` : `${name} gets no new requests. Running requests finish.`);
  } catch (error) {
    toast(`${name}: ${error.message}`);
  } finally {
    button.disabled = false;
    button.focus();
  }
}
