// What the checks of the clients for Node share.
//
// After each check, every request that a client sent must have arrived at one backend, once, byte
// for byte, and without the client's key.

import assert from "node:assert/strict";

export const about = JSON.parse(process.argv[2]);
export const URL = about.url;
export const KEY = "key-of-the-client";
// What a backend says, unless told otherwise; and in how many tokens.
export const TEXT = 'Grüße, 世界 🌍.\n\ndata: [DONE] "usage" {} \\!';
export const TOKENS = 12;
// Ways in which an answer may come: as it is, cut anywhere, compressed, both.
export const WAYS = ["", "[ragged]", "[gzip]", "[gzip] [ragged]"];
// A file that looks like anything but a file.
export const BYTES = Buffer.concat([
    Buffer.from(Array.from({ length: 102_400 }, (_, at) => at % 256)),
    Buffer.from('\r\n--boundary\r\n{"model":"nobody"}\r\n\r\n\0\0'),
]);
// What a backend sends as a picture or a recording.
export const PICTURE = Buffer.from(Array.from({ length: 4096 }, (_, at) => at % 256));

// Headers that concern the client and the server alone.
export const KEYS = ["authorization", "x-api-key", "api-key", "x-goog-api-key"];
const BETWEEN_TWO = [...KEYS, "host", "connection", "accept-encoding", "content-length"];

const checks = [];
const sent = [];
const seen = Object.fromEntries(Object.keys(about.backends).map((name) => [name, 0]));

// Marks a check. `answeredHere`: how many requests the server itself answers. `maybeSentAgain`: a
// backend refuses what the server added to a request.
export function check(name, act, { answeredHere = 0, maybeSentAgain = false } = {}) {
    checks.push({ name, act, answeredHere, maybeSentAgain });
}

export async function run() {
    const chosen = checks.filter(({ name }) => name.includes(process.argv[3] ?? ""));
    const failed = [];
    for (const { name, act, answeredHere, maybeSentAgain } of chosen) {
        try {
            await act();
            await everythingArrived(answeredHere, maybeSentAgain);
            // Behind the last of these is where it hangs, if it does.
            console.log(`holds: ${name}`);
        } catch (error) {
            tell(name, error);
            failed.push(name);
            await received();
            sent.length = 0;
        }
    }
    if (failed.length > 0) {
        console.error(`${failed.length} of ${chosen.length} checks failed: ${failed.join(", ")}`);
        process.exit(1);
    }
    console.log(`all ${chosen.length} checks hold`);
}

// Says what failed, and where in the checks.
function tell(name, error) {
    console.error(`FAILED: ${name}: ${error}`);
    const places = (error.stack ?? "").matchAll(/\w+_(?!checks)\w+\.mjs:\d+/g);
    for (const [place] of places) {
        console.error(`  ${place}`);
    }
}

// The error of this very class that an act ends with.
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

// Acts so many times at once. What fails does not leave others behind that disturb the next check.
export async function together(count, act) {
    const acts = Array.from({ length: count }, (_, number) => act(number));
    const failed = (await Promise.allSettled(acts)).find(({ reason }) => reason);
    if (failed) {
        throw failed.reason;
    }
}

// Clients send with this, so that it is known what they send.
export async function rememberingFetch(url, init) {
    const request = new Request(url, init);
    if (!request.url.startsWith(URL)) {
        // `data:,` is how they find out what `fetch` can do.
        return fetch(request);
    }
    const body = Buffer.from(await request.clone().arrayBuffer());
    const { pathname, search } = new globalThis.URL(request.url);
    const headers = Object.fromEntries(request.headers);
    sent.push({ method: request.method, target: pathname + search, headers, body });
    return fetch(request);
}

async function ask(backend, what) {
    return (await fetch(`${about.backends[backend]}/mock/${what}`)).json();
}

// The requests that arrived since the last call.
async function received() {
    const news = [];
    for (const backend of Object.keys(seen)) {
        const arrived = await ask(backend, `requests?after=${seen[backend]}`);
        seen[backend] += arrived.length;
        for (const one of arrived) {
            news.push({ ...one, backend, body: Buffer.from(one.body, "hex") });
        }
    }
    return news;
}

// What a backend produced for the last request.
export async function produced(backend) {
    return (await ask(backend, "produced")).at(-1);
}

// Waits until a backend has noticed that nobody listens.
export async function untilBroken(backend) {
    const deadline = Date.now() + 30_000;
    while ((await produced(backend)).state !== "broken") {
        assert.ok(Date.now() < deadline, `${backend} goes on`);
        await new Promise((resolve) => setTimeout(resolve, 5));
    }
}

// Looks at what was sent since the last call, and says where it went.
export async function everythingArrived(answeredHere = 0, maybeSentAgain = false) {
    const news = await received();
    const rest = sent.splice(0).filter(
        ({ method, target }) => method !== "GET" || !target.startsWith("/v1/models"),
    );
    const matched = [];
    for (const one of news) {
        for (const [name, value] of one.headers) {
            assert.ok(!value.includes(KEY), `the client's key arrived at ${one.backend} in ${name}`);
        }
        const at = rest.findIndex((other) => isSame(other, one));
        if (at < 0 && maybeSentAgain && matched.some((other) => isSame(other, one))) {
            // What was added to it was refused; this is the request as it came.
            assert.ok(!one.body.includes("include_usage"));
            continue;
        }
        assert.ok(at >= 0, `nobody sent ${one.method} ${one.target} ${one.body} to ${one.backend}`);
        const arrived = Object.fromEntries(one.headers);
        for (const [name, value] of Object.entries(rest[at].headers)) {
            if (!BETWEEN_TWO.includes(name)) {
                assert.equal(arrived[name], value, name);
            }
        }
        matched.push(...rest.splice(at, 1));
    }
    assert.equal(rest.length, answeredHere, "requests that did not arrive");
    return news.map(({ backend }) => backend);
}

function isSame(sent, arrived) {
    if (sent.method !== arrived.method || sent.target !== arrived.target) {
        return false;
    }
    if (sent.body.equals(arrived.body)) {
        return true;
    }
    // The one thing that the server may add, where it can be added.
    const mayDiffer =
        sent.target.endsWith("/completions") && arrived.body.includes("include_usage");
    return mayDiffer && withoutOption(sent.body) === withoutOption(arrived.body);
}

function withoutOption(body) {
    const { stream_options, ...asked } = JSON.parse(body);
    const { include_usage, ...options } = stream_options ?? {};
    return JSON.stringify([asked, options]);
}
