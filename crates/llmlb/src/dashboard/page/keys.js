// API keys: the list, creation, revocation.

import { $, className, confirm, copy, el, keyed, row, text, toast } from './dom.js';
import { act, request, session } from './api.js';

export async function loadKeys() {
  let answer;
  try {
    answer = await (await request('/dashboard/keys')).json();
  } catch (error) {
    text($('keys-note'), error.message);
    return;
  }
  const { keys, required, more } = answer;
  $('key-first').hidden = required;
  const note = required ? 'Clients need a key.' : 'Clients need no key, because there is none.';
  text($('keys-note'), more ? `${note} ${more} more keys: llmlb key list` : note);
  const table = $('keys-table');
  table.hidden = keys.length === 0;
  keyed(table.tBodies[0], keys, (one) => one.name, () => create(table), (tr, one) => {
    const [name, team, models, rights, state] = tr.cells;
    text(name, one.name);
    text(team, one.team ?? '–');
    text(models, one.models ? one.models.join(', ') : 'all');
    text(rights, one.admin ? 'admin' : 'client');
    className(tr.chip, `chip ${one.state === 'active' ? 'ok' : ''}`);
    text(tr.chip, one.state);
    state.title = one.expires ? `expires ${one.expires}` : '';
    const canRevoke = one.source === 'keys.json' && one.state !== 'revoked';
    tr.button.hidden = !canRevoke;
    text(tr.where, one.source === 'keys.json' ? '' : 'in llmlb.toml');
    tr.button.setAttribute('aria-label', `Revoke ${one.name}`);
    tr.button.onclick = () => revoke(one.name);
  });
}

function create(table) {
  const tr = row(table, ['name any wide', 'any', 'any', '', '', 'act']);
  tr.chip = el('span', 'chip');
  tr.button = el('button', 'small', 'Revoke…');
  tr.button.type = 'button';
  tr.where = el('span', 'muted');
  tr.cells[4].append(tr.chip);
  tr.cells[5].append(tr.button, tr.where);
  return tr;
}

async function revoke(name) {
  const own = session.who === name ? ' It is the key of this session: you will be signed out.' : '';
  if (!(await confirm(`Revoke the key ${name}?`, `Clients that send it are rejected within a second. This cannot be undone.${own}`, 'Revoke'))) return;
  try {
    await act('/dashboard/keys/revoke', { name });
    toast(`Revoked the key ${name}.`);
    await loadKeys();
  } catch (error) {
    toast(error.message);
  }
}

const number = (id) => ($(id).value ? Number($(id).value) : null);

export function initKeys() {
  $('secret-copy').addEventListener('click', () => copy($('secret-text').textContent, 'Copied the secret.'));
  $('secret-done').addEventListener('click', () => {
    text($('secret-text'), '');
    $('secret').hidden = true;
    $('key-details').querySelector('summary').focus();
  });
  $('key-form').addEventListener('submit', async (event) => {
    event.preventDefault();
    const models = $('key-models').value.split(',').map((name) => name.trim()).filter(Boolean);
    const budget = number('key-budget');
    const wanted = {
      name: $('key-name').value.trim(), team: $('key-team').value.trim() || null, models: models.length ? models : null,
      requests_per_minute: number('key-rpm'), tokens_per_minute: number('key-tpm'), concurrency: number('key-concurrency'),
      budget_tokens: budget, per: budget ? $('key-per').value : null, admin: $('key-admin').checked,
    };
    try {
      const { secret } = await act('/dashboard/keys/create', wanted);
      text($('secret-for'), `Created the key ${wanted.name}.`);
      text($('secret-text'), secret);
      $('secret').hidden = false;
      $('key-form').reset();
      $('key-details').open = false;
      $('secret').focus();
      await loadKeys();
    } catch (error) {
      toast(error.message);
    }
  });
}
