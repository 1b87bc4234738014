// The playground: one chat request, its stream and its figures.

import { $, count, el, milliseconds, rate, text } from './dom.js';
import { apiKey, events, problem, session } from './api.js';

/// Maximum number of characters that are shown.
const MAX_SHOWN = 200_000;
let running = null;
let snapshot = () => null;

const headers = () => {
  const key = $('play-key').value.trim() || apiKey();
  return key ? { authorization: `Bearer ${key}` } : {};
};

/// Fills the list of models with those that the key may use.
export async function loadModels() {
  $('play-key-field').hidden = !session.keys_required;
  let names = [];
  try {
    // Without a key, the request would be refused, and be shown among the errors.
    const isPermitted = !session.keys_required || headers().authorization;
    const response = isPermitted ? await fetch('/v1/models', { headers: headers(), cache: 'no-store', credentials: 'omit' }) : null;
    if (response?.ok) names = (await response.json()).data.map((model) => model.id);
  } catch { /* The models of the snapshot remain. */ }
  if (!names.length) names = [...new Set((snapshot()?.backends ?? []).flatMap((one) => one.models))];
  const select = $('play-model');
  const chosen = select.value;
  select.replaceChildren(...names.slice(0, 1000).map((name) => {
    const option = el('option', '', name);
    option.value = name;
    return option;
  }));
  if (names.includes(chosen)) select.value = chosen;
}

function facts(items) {
  $('play-facts').replaceChildren(...items.filter(([, value]) => value !== null && value !== undefined).flatMap(([term, value]) => [el('dt', '', term), el('dd', '', String(value))]));
}

async function send() {
  if (running) return;
  const mine = new AbortController();
  running = mine;
  $('play-stop').disabled = false;
  $('play-send').disabled = true;
  const answer = $('answer');
  answer.replaceChildren();
  const shown = document.createTextNode('');
  answer.append(shown);
  facts([]);
  text($('play-state'), 'Waiting for the first token');
  const began = performance.now();
  const run = { first: null, last: null, pieces: 0, tokens: null, prompt: null, backend: null, id: null, finish: null };
  const figures = () => {
    const seconds = run.first === null ? 0 : (run.last - run.first) / 1000;
    const tokens = run.tokens ?? run.pieces;
    facts([
      ['First token', run.first === null ? null : milliseconds(run.first - began)],
      ['Output tokens', run.first === null ? null : `${count(tokens)}${run.tokens === null ? ' (pieces; the backend reports tokens at the end)' : ''}`],
      ['Tokens/s', seconds > 0 ? rate((tokens - 1) / seconds) : null],
      ['Prompt tokens', run.prompt],
      ['Total time', milliseconds((run.last ?? performance.now()) - began)],
      ['Ended', run.finish],
      ['Backend', run.backend],
      ['Request id', run.id],
    ]);
  };
  try {
    const response = await fetch('/v1/chat/completions', {
      method: 'POST', signal: mine.signal, cache: 'no-store', credentials: 'omit',
      headers: { 'content-type': 'application/json', ...headers() },
      body: JSON.stringify({
        model: $('play-model').value, stream: true, stream_options: { include_usage: true },
        max_tokens: Number($('play-max').value) || undefined,
        messages: [{ role: 'user', content: $('play-text').value }],
      }),
    });
    run.backend = response.headers.get('x-llmlb-backend');
    run.id = response.headers.get('x-request-id');
    if (!response.ok) throw new Error(await problem(response));
    await events(response, (data) => {
      if (data === '[DONE]' || !data) return;
      const event = JSON.parse(data);
      if (event.error) throw new Error(event.error.message ?? 'the backend reported an error');
      const choice = event.choices?.[0];
      const piece = choice?.delta?.content ?? choice?.delta?.reasoning_content ?? choice?.delta?.reasoning;
      if (event.usage) [run.prompt, run.tokens] = [event.usage.prompt_tokens, event.usage.completion_tokens];
      if (choice?.finish_reason) run.finish = choice.finish_reason;
      if (piece) {
        run.last = performance.now();
        run.first ??= run.last;
        run.pieces += 1;
        text($('play-state'), 'Streaming');
        if (shown.length < MAX_SHOWN) {
          const isAtEnd = answer.scrollHeight - answer.scrollTop - answer.clientHeight < 40;
          shown.appendData(piece);
          if (isAtEnd) answer.scrollTop = answer.scrollHeight;
        }
      }
      if (piece || event.usage) figures();
    });
    text($('play-state'), 'Complete');
  } catch (error) {
    text($('play-state'), mine.signal.aborted ? 'Stopped' : error.message);
  } finally {
    figures();
    running = null;
    const isStopFocused = document.activeElement === $('play-stop');
    $('play-send').disabled = false;
    $('play-stop').disabled = true;
    if (isStopFocused) $('play-send').focus();
  }
}

export function initPlayground(latest) {
  snapshot = latest;
  $('play').addEventListener('submit', (event) => {
    event.preventDefault();
    send();
  });
  $('play-text').addEventListener('keydown', (event) => {
    if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      $('play').requestSubmit();
    }
  });
  $('playground').addEventListener('keydown', (event) => {
    if (event.key === 'Escape') running?.abort();
  });
  $('play-stop').addEventListener('click', () => running?.abort());
  $('play-key').addEventListener('change', loadModels);
}
