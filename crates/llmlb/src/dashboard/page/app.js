// The dashboard: connects to the server, and draws each snapshot that it sends.

import * as api from './api.js';
import { $, text, toast } from './dom.js';
import { drawBackends } from './backends.js';
import { drawNow, drawUsage, drawLive, drawErrors, drawSpool, drawLimits } from './panels.js';
import { initKeys, loadKeys } from './keys.js';
import { initActions } from './actions.js';
import { initPlayground, loadModels } from './playground.js';

/// Time without an event after which the connection counts as lost.
const SILENCE_MS = 6000;
const MAX_PAUSE_S = 10;

let controller = null;
let watchdog = null;
let failures = 0;
let timer = null;
let latest = null;

function show(state, message) {
  document.body.dataset.state = state;
  text($('link'), message);
  $('retry').hidden = state !== 'lost';
}

function draw(snapshot) {
  latest = snapshot;
  $('content').hidden = false;
  $('login').hidden = true;
  const { instance, port } = snapshot;
  text($('instance'), instance?.includes(port) ? instance : `${instance || ''} port ${port}`);
  text($('about'), `llmlb ${snapshot.llmlb_version}, process ${snapshot.pid}. You are ${api.session.who === 'local' ? 'on this machine' : `signed in as ${api.session.who}`}.`);
  document.title = `${snapshot.in_flight} in flight · llmlb`;
  for (const part of [drawNow, drawBackends, drawUsage, drawLive, drawErrors, drawSpool, drawLimits]) part(snapshot);
}

async function connect() {
  clearTimeout(timer);
  controller?.abort();
  const mine = new AbortController();
  controller = mine;
  const alive = () => {
    clearTimeout(watchdog);
    watchdog = setTimeout(() => mine.abort(new Error('no data arrived')), SILENCE_MS);
  };
  try {
    alive();
    await api.open(mine.signal);
    $('logout').hidden = !api.apiKey();
    const response = await api.request('/dashboard/events', { signal: mine.signal });
    loadKeys();
    let isFirst = true;
    await api.events(response, (data) => {
      if (controller !== mine || !data) return;
      alive();
      failures = 0;
      const snapshot = JSON.parse(data);
      draw(snapshot);
      if (isFirst) loadModels();
      isFirst = false;
      show('live', snapshot.state === 'draining' ? 'Live; the server is draining' : 'Live');
    });
    throw new Error('the server closed the stream');
  } catch (error) {
    if (controller !== mine) return; // A newer connection replaced this one, or the page is hidden.
    clearTimeout(watchdog);
    if (error instanceof api.Denied) denied(error.message);
    else lost(mine.signal.aborted ? 'no data arrived' : error.message);
  }
}

function lost(why) {
  failures += 1;
  const pause = Math.min(2 ** (failures - 1), MAX_PAUSE_S);
  const since = latest ? `; figures of ${new Date(latest.at).toLocaleTimeString()}` : '';
  show('lost', `Not connected (${why})${since}`);
  timer = setTimeout(connect, pause * 1000);
}

function denied(why) {
  show('denied', 'Not signed in');
  text($('login-why'), why);
  api.signOut();
  $('logout').hidden = true;
  $('content').hidden = true;
  $('login').hidden = false;
  $('login-key').focus();
}

function pause() {
  clearTimeout(timer);
  clearTimeout(watchdog);
  const old = controller;
  controller = null;
  old?.abort();
  show('paused', 'Paused while hidden');
}

document.addEventListener('visibilitychange', () => (document.hidden ? pause() : $('login').hidden && connect()));
$('retry').addEventListener('click', connect);
$('logout').addEventListener('click', () => {
  api.signOut();
  connect();
});
$('login').addEventListener('submit', (event) => {
  event.preventDefault();
  api.signIn($('login-key').value.trim(), $('login-keep').checked);
  $('login-key').value = '';
  show('connecting', 'Connecting');
  connect();
});
for (const input of document.querySelectorAll('input[name=unit]')) {
  input.addEventListener('change', () => latest && drawUsage(latest, true));
}
new ResizeObserver(() => latest && drawUsage(latest, true)).observe($('content'));
addEventListener('unhandledrejection', (event) => toast(event.reason?.message ?? 'An error occurred.'));
initActions();
initKeys();
initPlayground(() => latest);
if (document.hidden) pause();
else connect();
