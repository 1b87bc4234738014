// Harness of the checks of the clients for Node.
//
// After each check, every request that a client sent must have arrived at one backend, once, byte
// for byte, and without the client's key.

import assert from "node:assert/strict";

export const setup = JSON.parse(process.argv[2]);
export const URL = setup.url;
export const KEY = "key-of-the-client";
// Default text of a backend, and its number of tokens.
export const TEXT = 'Grüße, 世界 🌍.\n\ndata: [DONE] "usage" {} \\!';
export const TOKENS = 12;
// Forms of a response, requested in the prompt: plain, in small pieces, compressed, both.
export const FORMS = ["", "[ragged]", "[gzip]", "[gzip] [ragged]"];
// Content of a file that looks like parts of a form and JSON.
export const BYTES = Buffer.concat([
    Buffer.from(Array.from({ length: 102_400 }, (_, at) => at % 256)),
    Buffer.from('\r\n--boundary\r\n{"model":"unserved"}\r\n\r\n\0\0'),
]);
// Image or audio that a backend sends.
export const PICTURE = Buffer.from(Array.from({ length: 4096 }, (_, at) => at % 256));

// Headers that are not forwarded unchanged.
export const KEYS = ["authorization", "x-api-key", "api-key", "x-goog-api-key"];
const NOT_FORWARDED = [...KEYS, "host", "connection", "accept-encoding", "content-length"];

const checks = [];
const sent = [];
const counts = Object.fromEntries(Object.keys(setup.backends).map((name) => [name, 0]));

// Marks a check. `answeredHere`: number of requests that the server itself responds to.
// `mayBeRetried`: a backend rejects the option that the server adds to a request.
export function check(name, act, { answeredHere = 0, mayBeRetried = false } = {}) {
    checks.push({ name, act, answeredHere, mayBeRetried });
}

export async function run() {
    const chosen = checks.filter(({ name }) => name.includes(process.argv[3] ?? ""));
    const failed = [];
    for (const { name, act, answeredHere, mayBeRetried } of chosen) {
        try {
            await act();
            await everythingArrived(answeredHere, mayBeRetried);
            // The last line of the output shows which check hangs.
            console.log(`passed: ${name}`);
        } catch (error) {
            report(name, error);
            failed.push(name);
            await received();
            sent.length = 0;
        }
    }
    if (failed.length > 0) {
        console.error(`${failed.length} of ${chosen.length} checks failed: ${failed.join(", ")}`);
        process.exit(1);
    }
    console.log(`all ${chosen.length} checks passed`);
}

// Prints the error of a check and its lines in the checks.
function report(name, error) {
    console.error(`FAILED: ${name}: ${error}`);
    const lines = (error.stack ?? "").matchAll(/\w+_(?!checks)\w+\.mjs:\d+/g);
    for (const [line] of lines) {
        console.error(`  ${line}`);
    }
}

// Returns the error of an act, which must be of exactly this class.
export async function fails(kind, act) {
    let result;
    try {
        result = await act();
    } catch (error) {
        assert.equal(error.constructor.name, kind.name, `${error}`);
        return error;
    }
    assert.fail(`no ${kind.name} but ${JSON.stringify(result)}`);
}

// Runs this number of acts concurrently and waits for all of them, so that none disturbs the next check.
export async function together(count, act) {
    const acts = Array.from({ length: count }, (_, number) => act(number));
    const failed = (await Promise.allSettled(acts)).find(({ reason }) => reason);
    if (failed) {
        throw failed.reason;
    }
}

// `fetch` of the clients, which records every request.
export async function recordingFetch(url, init) {
    const request = new Request(url, init);
    if (!request.url.startsWith(URL)) {
        // Clients request `data:,` to detect features of `fetch`.
        return fetch(request);
    }
    const body = Buffer.from(await request.clone().arrayBuffer());
    const { pathname, search } = new globalThis.URL(request.url);
    const headers = Object.fromEntries(request.headers);
    sent.push({ method: request.method, target: pathname + search, headers, body });
    return fetch(request);
}

async function query(backend, resource) {
    return (await fetch(`${setup.backends[backend]}/mock/${resource}`)).json();
}

// Returns the requests that backends received since the last call.
async function received() {
    const arrivals = [];
    for (const backend of Object.keys(counts)) {
        const arrived = await query(backend, `requests?after=${counts[backend]}`);
        counts[backend] += arrived.length;
        for (const request of arrived) {
            arrivals.push({ ...request, backend, body: Buffer.from(request.body, "hex") });
        }
    }
    return arrivals;
}

// Returns the ledger entry of the last request of a backend.
export async function produced(backend) {
    return (await query(backend, "produced")).at(-1);
}

// Waits until a backend has noticed that its connection is closed.
export async function untilBroken(backend) {
    const deadline = Date.now() + 30_000;
    while ((await produced(backend)).state !== "broken") {
        assert.ok(Date.now() < deadline, `${backend} still sends`);
        await new Promise((resolve) => setTimeout(resolve, 5));
    }
}

// Checks that the requests sent since the last call arrived, and returns their backends.
export async function everythingArrived(answeredHere = 0, mayBeRetried = false) {
    const arrivals = await received();
    const rest = sent.splice(0).filter(
        ({ method, target }) => method !== "GET" || !target.startsWith("/v1/models"),
    );
    const matched = [];
    for (const request of arrivals) {
        for (const [name, value] of request.headers) {
            assert.ok(!value.includes(KEY), `the client's key arrived at ${request.backend} in ${name}`);
        }
        const at = rest.findIndex((other) => isSame(other, request));
        if (at < 0 && mayBeRetried && matched.some((other) => isSame(other, request))) {
            // The backend rejected the added option; this is the retry without it.
            assert.ok(!request.body.includes("include_usage"));
            continue;
        }
        assert.ok(at >= 0, `no client sent ${request.method} ${request.target} ${request.body} to ${request.backend}`);
        const arrived = Object.fromEntries(request.headers);
        for (const [name, value] of Object.entries(rest[at].headers)) {
            if (!NOT_FORWARDED.includes(name)) {
                assert.equal(arrived[name], value, name);
            }
        }
        matched.push(...rest.splice(at, 1));
    }
    assert.equal(rest.length, answeredHere, "requests that did not arrive");
    return arrivals.map(({ backend }) => backend);
}

function isSame(sent, arrived) {
    if (sent.method !== arrived.method || sent.target !== arrived.target) {
        return false;
    }
    if (sent.body.equals(arrived.body)) {
        return true;
    }
    // The server may add only the usage option, and only to these requests.
    const mayDiffer =
        sent.target.endsWith("/completions") && arrived.body.includes("include_usage");
    return mayDiffer && withoutOption(sent.body) === withoutOption(arrived.body);
}

function withoutOption(body) {
    const { stream_options, ...request } = JSON.parse(body);
    const { include_usage, ...options } = stream_options ?? {};
    return JSON.stringify([request, options]);
}
