// The panels besides the backends: figures, charts, requests, errors, billing, limits.

import { $, ago, className, copy, count, duration, el, keyed, milliseconds, plural, rate, row, text } from './dom.js';
import { spark, usage } from './charts.js';
import { remember } from './backends.js';

export function drawNow(now) {
  text($('t-flight'), count(now.in_flight));
  text($('t-waiting'), now.waiting ? `${now.waiting} waiting` : 'none waiting');
  text($('t-rate'), rate(now.requests_per_s));
  text($('t-total'), `${count(now.requests)} in ${duration(now.uptime_s)}`);
  text($('t-tokens'), rate(now.completion_tokens_per_s));
  text($('t-prompt'), `${rate(now.prompt_tokens_per_s)} prompt tokens/s`);
  spark($('t-spark'), remember('all', now.completion_tokens_per_s));
  const up = now.backends.filter((one) => one.state === 'up').length;
  className($('t-up'), `big ${up === now.backends.length && up ? 'ok' : up ? 'warn' : 'bad'}`);
  text($('t-up'), `${up} of ${now.backends.length}`);
  const states = ['down', 'ejected', 'drained'].map((state) => [state, now.backends.filter((one) => one.state === state).length]);
  text($('t-up-note'), states.filter(([, n]) => n).map(([state, n]) => `${n} ${state}`).join(', '));
  const [style, word, note] = billing(now.spool);
  className($('t-books'), `big ${style}`);
  text($('t-books'), word);
  text($('t-books-note'), note);
}

/// Returns the state of billing: its style, one word, and a note.
function billing(spool) {
  if (!spool) return ['', 'off', 'usage is not recorded'];
  if (spool.books === 'unbalanced') return ['bad', 'unbalanced', 'llmlb usage verify'];
  if (spool.lost) return ['bad', `${count(spool.lost)} lost`, 'records were lost'];
  if (spool.failed) return ['bad', `${count(spool.failed)} failed`, 'batches need attention'];
  if (spool.error) return ['warn', 'delayed', plural(spool.pending, 'batch', 'batches') + ' pending'];
  const pending = spool.pending ? `${plural(spool.pending, 'batch', 'batches')} pending` : 'nothing unbilled';
  return spool.books === 'balanced' ? ['ok', 'balanced', pending] : ['', 'no errors', `${pending}; books not checked yet`];
}

export function drawSpool({ spool, at: now }) {
  const [style, word, note] = billing(spool);
  className($('books'), '');
  $('books').replaceChildren(el('span', `chip ${style}`, word), ` ${note}`);
  $('resend').hidden = !spool?.failed;
  if (!spool) return $('spool').replaceChildren();
  const books = { balanced: 'balanced: each record is delivered, archived, pending or failed', unbalanced: 'unbalanced: run llmlb usage verify', unknown: 'not checked yet' };
  const facts = [
    ['Delivered to', spool.to ?? 'archive/ of the data directory'],
    ['Pending batches', count(spool.pending)],
    ['Failed batches', count(spool.failed), spool.failed > 0],
    ['Last delivery', ago(spool.last_delivery, now)],
    ['Records since start', count(spool.recorded)],
    ['Lost records', count(spool.lost), spool.lost > 0],
    ['Books', `${books[spool.books] ?? spool.books}${spool.books_at ? `, checked ${ago(spool.books_at, now)}` : ''}`, spool.books === 'unbalanced'],
  ];
  for (const error of [spool.books_problem, spool.error]) if (error) facts.push(['Problem', error, true]);
  const items = facts.flatMap(([term, value, isBad], at) => [{ tag: 'dt', key: `t${at}`, value: term }, { tag: 'dd', key: `d${at}`, value, isBad }]);
  keyed($('spool'), items, (one) => one.key, (one) => el(one.tag), (element, one) => {
    text(element, one.value);
    className(element, one.isBad ? 'bad' : '');
  });
}

let drawnUsage = '';
export function drawUsage({ usage: sums, spool, at }, isForced) {
  const unit = document.querySelector('input[name=unit]:checked').value;
  const key = `${sums?.as_of} ${unit} ${at.slice(0, 13)} ${sums?.hours.length}`;
  if (key === drawnUsage && !isForced) return;
  drawnUsage = key;
  const note = sums ? (sums.as_of ? `Recorded usage as of ${new Date(sums.as_of).toLocaleTimeString()}; hours in your time zone.` : 'The usage is being read.') : spool ? 'The usage is being read.' : 'Usage is not recorded (usage.enabled).';
  text($('usage-note'), note);
  usage($('chart-model'), sums?.hours ?? [], 'model', unit, at);
  usage($('chart-key'), sums?.hours ?? [], 'key', unit, at);
}

export function drawLive({ live, live_more: more }) {
  const table = $('live-table');
  table.hidden = live.length === 0;
  const shown = live.slice(0, 10);
  keyed(table.tBodies[0], shown, (one) => one.id, () => row(table, ['any wide', 'any wide', 'any', '', 'num', 'num']), (tr, one) => {
    const [id, model, backend, state, tokens, age] = tr.cells;
    if (!id.firstChild) id.append(el('div', '', el('code', 'small-text'), el('div', 'muted')));
    text(id.firstChild.firstChild, one.id);
    text(id.firstChild.lastChild, one.key);
    text(model, one.model ?? '–');
    text(backend, one.backend ?? '–');
    text(state, one.state);
    text(tokens, one.stream || one.tokens ? count(one.tokens) : '–');
    text(age, milliseconds(one.age_ms));
  });
  const rest = live.length - shown.length + (more || 0);
  text($('live-note'), live.length === 0 ? 'No requests are in flight.' : rest ? `Oldest first; ${count(rest)} more.` : '');
}

const SHOWN_ERRORS = 7;

export function drawErrors({ errors, at }) {
  const more = errors.length - SHOWN_ERRORS;
  text($('errors-note'), errors.length ? `Select an id to copy the command that explains it.${more > 0 ? ` ${more} older ones are not shown.` : ''}` : 'No request has failed since the start.');
  keyed($('errors-list'), errors.slice(0, SHOWN_ERRORS), (one) => one.id, createError, (li, one) => {
    const { status, code, where, when, id, message } = li.parts;
    text(status, one.status || one.outcome);
    className(status, `chip ${one.status >= 500 || !one.status ? 'bad' : 'warn'}`);
    text(code, one.code ?? (one.outcome === 'complete' ? 'response of the backend' : one.outcome));
    text(where, [one.model, one.backend, one.key && `key ${one.key}`].filter(Boolean).join(' · '));
    text(when, ago(one.at, at));
    when.title = one.at;
    text(id, one.id);
    id.setAttribute('aria-label', `Copy llmlb explain ${one.id}`);
    text(message, one.message);
    id.onclick = () => copy(`llmlb explain ${one.id}`, `Copied: llmlb explain ${one.id}`);
  });
}

function createError() {
  const parts = { status: el('span', 'chip'), code: el('strong'), where: el('span', 'muted'), when: el('span', 'muted'), id: el('button'), message: el('div', 'small-text') };
  parts.id.type = 'button';
  const li = el('li', '', el('div', 'line', parts.status, parts.code, parts.when), parts.message, el('div', 'line', parts.id, parts.where));
  li.parts = parts;
  return li;
}

const KINDS = {
  requests_per_minute: 'requests per minute', tokens_per_minute: 'tokens per minute', concurrency: 'concurrent requests',
  budget_day: 'tokens of the day', budget_month: 'tokens of the month',
};

export function drawLimits({ limits }) {
  const near = limits.slice(0, 10);
  text($('limits-note'), near.length ? '' : 'No API key has a limit, or no limit is in use.');
  keyed($('limits-list'), near, (one) => `${one.key} ${one.kind}`, () => {
    const fill = el('i');
    const meter = el('div', 'meter', fill);
    meter.setAttribute('aria-hidden', 'true');
    const li = el('li', '', el('div', 'line', el('span', '', el('span', 'name'), el('span', 'muted')), el('span')), meter);
    li.fill = fill;
    return li;
  }, (li, one) => {
    const share = one.limit ? Math.min(1, one.used / one.limit) : 1;
    const [what, figures] = li.firstChild.children;
    text(what.firstChild, one.key);
    text(what.lastChild, ` ${KINDS[one.kind] ?? one.kind}`);
    text(figures, `${count(one.used)} of ${count(one.limit)} (${Math.round(share * 100)} %)`);
    li.fill.style.width = `${share * 100}%`;
    className(li.fill, share >= 0.95 ? 'bad' : share >= 0.8 ? 'warn' : '');
  });
}
