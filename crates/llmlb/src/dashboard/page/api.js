// Requests to the server. A page of another machine sends an API key for admins.

let key = null;
try {
  key = sessionStorage.getItem('llmlb-key');
} catch { /* The browser has no storage for this page. */ }

export const session = { csrf: null, who: null, keys: null };

export const apiKey = () => key;

export function signIn(value, keep) {
  key = value;
  try {
    if (keep) sessionStorage.setItem('llmlb-key', value);
    else sessionStorage.removeItem('llmlb-key');
  } catch { /* The key stays in memory. */ }
}

export function signOut() {
  signIn(null, false);
  session.csrf = null;
}

export class Denied extends Error {}

/// Returns the message of an error response.
export async function problem(response) {
  const body = await response.text().catch(() => '');
  try {
    return JSON.parse(body).error.message;
  } catch {
    return `The server responded ${response.status}.`;
  }
}

/// True if the server rejected a request because the user is not an operator, and not for another reason.
const asksForKey = (response) => response.headers.get('x-llmlb-error') === 'forbidden';

/// Sends a request. Throws `Denied` if the server does not admit this user.
export async function request(path, options = {}) {
  const headers = { ...options.headers };
  if (key) headers.authorization = `Bearer ${key}`;
  const response = await fetch(path, { cache: 'no-store', credentials: 'omit', redirect: 'error', ...options, headers });
  if (response.ok) return response;
  const why = await problem(response);
  if (asksForKey(response)) throw new Denied(key ? 'The server does not accept this key: it is not an API key for admins.' : 'From other machines, and through a proxy, the dashboard needs an API key for admins.');
  if (response.status === 401 || response.status === 403) throw new Denied(why);
  throw new Error(why);
}

/// Reads who this user is, and the token that actions need.
export async function open(signal) {
  Object.assign(session, await (await request('/dashboard/session', { signal })).json());
}

/// Performs an action. The token proves that this page sent the request.
export async function act(path, body) {
  const send = () => request(path, {
    method: 'POST',
    body: JSON.stringify(body),
    headers: { 'content-type': 'application/json', 'x-llmlb-csrf': session.csrf ?? '' },
  });
  const response = await send().catch(async (error) => {
    if (!(error instanceof Denied)) throw error;
    // The server may have restarted, which changes the token.
    const before = session.csrf;
    await open();
    if (session.csrf === before) throw error;
    return send();
  });
  return response.json();
}

/// Reads a stream of events and passes their data on. Ends when the stream ends.
export async function events(response, onData) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split('\n');
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith('data:')) onData(line.slice(5).trim());
    }
  }
}
