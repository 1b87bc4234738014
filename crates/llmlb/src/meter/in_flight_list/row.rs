//! Row of the in-flight list: one request, or none, in a fixed number of words.
//!
//! | words | content |
//! |---|---|
//! | 0 | [`USED`] if the row has a request. Stored last when a request is listed, first when it is removed |
//! | 1, 2 | id of the usage record |
//! | 3 | section with the backend: 0 none, 1 the first, 2 the second |
//! | 4..12 | tokens, status, bytes and time of the first byte |
//! | 12 | number of the backend in this process, plus 1; 0 if there is none. Not used by a recovery |
//! | 16..72 | section: request id, path, API, key, team |
//! | 72..112 | section: model |
//! | 112..176, 176..240 | two sections: backend, its name of the model |
//! | 240..512 | section: the final usage record, while it is persisted |
//!
//! A section is a word with the length and a checksum of its bytes, then the bytes: texts, each
//! with its length in two bytes, or a record. The backend changes when a request fails over, so the
//! new one is written to the section that is not in use, and word 3 is stored afterwards. A kill
//! between two stores therefore leaves each section either complete or recognizably damaged.
//!
//! A server can be killed after a record was persisted and before its row is cleared. So the final
//! record is stored in the row first, and a recovery stages the same text again, which the spool
//! recognizes. A different record with the same id would be a conflict.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use uuid::Uuid;

use crate::backend_id::BackendId;
use crate::endpoint::Api;
use crate::meter::record::{Outcome, Record};
use crate::meter::usage::{MAX_TOKENS, TokenUsage, UsageSource};

pub(super) const ROW_WORDS: usize = 512;
pub(super) const ROW_BYTES: usize = ROW_WORDS * 8;

/// Value of a row's first word while the row has a request. Any other value marks a free row.
const USED: u64 = u64::from_ne_bytes(*b"inflight");

const STATE: usize = 0;
const ID: usize = 1;
const BACKEND_SECTION: usize = 3;
const PROMPT: usize = 4;
const COMPLETION: usize = 5;
const CACHED: usize = 6;
const REASONING: usize = 7;
const TOTAL: usize = 8;
/// Word of a row with several small values: origin of the token counts in bits 0 and 1, the stream
/// option in bit 2, the status in bits 16 to 31.
const FACTS: usize = 9;
const BYTES: usize = 10;
/// Word of a row with the milliseconds from the start of the request to the first byte of the
/// response, plus 1; 0 if the client has received no byte.
const FIRST_BYTE: usize = 11;
const SERVED_BY: usize = 12;
const IS_STREAM: u64 = 1 << 2;
const STATUS_SHIFT: u32 = 16;

const REQUEST: Range<usize> = 16..72;
const MODEL: Range<usize> = 72..112;
const BACKENDS: [Range<usize>; 2] = [112..176, 176..240];
const RECORD: Range<usize> = 240..512;
/// Bits of a section's first word that are its length.
const LENGTH_MASK: u64 = 0xffff_ffff;
/// Maximum number of bytes in a section of texts.
const MAX_TEXTS: usize = 63 * 8;

/// Properties of a request that are known when it is admitted, for its row in the in-flight list.
/// Texts that do not fit into the row are truncated.
#[derive(Clone, Copy, Debug)]
#[expect(
    clippy::struct_field_names,
    reason = "the name that records and logs use"
)]
pub(crate) struct Request<'a> {
    pub(crate) record_id: Uuid,
    /// At most 128 bytes.
    pub(crate) request_id: &'a str,
    /// At most 96 bytes.
    pub(crate) path: &'a str,
    pub(crate) api: Api,
    pub(crate) key: Option<&'a str>,
    pub(crate) team: Option<&'a str>,
}

/// Progress of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RequestState {
    /// Token counts so far, reported or estimated. If the server is killed, the recovered usage
    /// record has these counts.
    pub(crate) usage: TokenUsage,
    pub(crate) is_stream: bool,
    pub(crate) status: u16,
    pub(crate) bytes: u64,
    pub(crate) first_byte_ms: Option<u64>,
}

/// Request that was in flight when its server was killed, as its row describes it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct InterruptedRequest {
    record_id: Uuid,
    pub(super) request_id: String,
    path: String,
    api: Api,
    pub(super) key: Option<String>,
    team: Option<String>,
    pub(super) model: Option<String>,
    pub(super) backend: Option<String>,
    served_model: Option<String>,
    pub(super) state: RequestState,
    /// Final usage record, if the server was killed while it was persisted. The recovery stages
    /// this same text, so that the spool does not count the request twice.
    final_record: Option<String>,
}

/// Tokens of a request in flight, and the backend to which they belong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RowTokens {
    pub(super) backend: BackendId,
    pub(super) prompt: u64,
    pub(super) completion: u64,
}

impl InterruptedRequest {
    /// Id of the request's usage record.
    pub(super) fn id(&self) -> Uuid {
        self.record_id
    }

    /// Arrival of the request, in milliseconds since 1970.
    pub(super) fn time_ms(&self) -> u64 {
        time_ms(self.record_id)
    }

    /// Returns the usage record of the killed request: its final record if the row has one,
    /// otherwise one with the outcome `interrupted`.
    pub(super) fn record(&self, instance: &str) -> spool::Record {
        let final_record = self.final_record.as_deref();
        let final_record = final_record.and_then(|json| spool::Record::parse(json).ok());
        if let Some(record) = final_record.filter(|record| record.id() == self.record_id) {
            return record;
        }
        let state = &self.state;
        let record = Record {
            id: self.record_id,
            time_ms: time_ms(self.record_id),
            request_id: &self.request_id,
            key: self.key.as_deref(),
            team: self.team.as_deref(),
            model: self.model.as_deref(),
            served_model: self.served_model.as_deref(),
            backend: self.backend.as_deref(),
            api: self.api,
            path: &self.path,
            is_stream: state.is_stream,
            status: (state.status > 0).then_some(state.status),
            outcome: Outcome::Interrupted,
            reason: None,
            // The row of a killed request does not list failed attempts, so its record has none.
            attempts: &[],
            why: None,
            candidates: 0,
            queue_ms: 0,
            sent_ms: 0,
            usage: state.usage,
            // The row does not tell when the killed request ended. The record has the time to the
            // first byte instead, or 0.
            ms: state.first_byte_ms.unwrap_or(0),
            first_byte_ms: state.first_byte_ms,
            bytes: state.bytes,
            instance,
        };
        record.staged()
    }
}

/// Returns the milliseconds since 1970 that a UUID of version 7 contains: the arrival of the
/// request.
fn time_ms(id: Uuid) -> u64 {
    id.as_u64_pair().0 >> 16
}

pub(super) fn write_request(words: &[AtomicU64], request: &Request<'_>) {
    let (high, low) = request.record_id.as_u64_pair();
    words[ID].store(high, Ordering::Relaxed);
    words[ID + 1].store(low, Ordering::Relaxed);
    words[BACKEND_SECTION].store(0, Ordering::Relaxed);
    words[SERVED_BY].store(0, Ordering::Relaxed);
    words[MODEL.start].store(0, Ordering::Relaxed);
    words[RECORD.start].store(0, Ordering::Relaxed);
    write_state(words, &RequestState::default());
    let texts = [
        (request.request_id, 128),
        (request.path, 96),
        (request.api.name(), 32),
        (request.key.unwrap_or_default(), 64),
        (request.team.unwrap_or_default(), 64),
    ];
    write_section(&words[REQUEST], &texts);
    words[STATE].store(USED, Ordering::Release);
}

pub(super) fn write_model(words: &[AtomicU64], model: &str) {
    write_section(&words[MODEL], &[(model, 300)]);
}

pub(super) fn write_backend(words: &[AtomicU64], backend: &str, served_model: Option<&str>) {
    let next = match words[BACKEND_SECTION].load(Ordering::Relaxed) {
        1 => 1,
        _ => 0,
    };
    let texts = [(backend, 200), (served_model.unwrap_or_default(), 300)];
    write_section(&words[BACKENDS[next].clone()], &texts);
    words[BACKEND_SECTION].store(next as u64 + 1, Ordering::Release);
}

/// Writes the number of the backend to which the request's tokens belong.
pub(super) fn write_served_by(words: &[AtomicU64], backend: Option<BackendId>) {
    let number = backend.map_or(0, |backend| u64::from(backend.0) + 1);
    words[SERVED_BY].store(number, Ordering::Relaxed);
}

pub(super) fn write_state(words: &[AtomicU64], state: &RequestState) {
    let usage = &state.usage;
    let source = match usage.source {
        UsageSource::None => 0,
        UsageSource::Estimated => 1,
        UsageSource::Reported => 2,
    };
    let stream = if state.is_stream { IS_STREAM } else { 0 };
    let first_byte = state.first_byte_ms.map_or(0, |ms| ms.saturating_add(1));
    for (word, value) in [
        (PROMPT, usage.prompt),
        (COMPLETION, usage.completion),
        (CACHED, usage.cached),
        (REASONING, usage.reasoning),
        (TOTAL, usage.total),
        (BYTES, state.bytes),
        (FIRST_BYTE, first_byte),
        (
            FACTS,
            source | stream | u64::from(state.status) << STATUS_SHIFT,
        ),
    ] {
        words[word].store(value, Ordering::Relaxed);
    }
}

/// Writes the final record into the row. A record that is too long for the row is omitted; after a
/// kill, the record is then built from the rest of the row.
pub(super) fn write_record(words: &[AtomicU64], record: &spool::Record) {
    let json = record.json().as_bytes();
    if json.len() <= (RECORD.len() - 1) * 8 {
        write_bytes(&words[RECORD], json);
    }
}

pub(super) fn clear(words: &[AtomicU64]) {
    words[STATE].store(0, Ordering::Release);
}

fn write_section(words: &[AtomicU64], texts: &[(&str, usize)]) {
    let mut bytes = [0; MAX_TEXTS];
    let mut end = 0;
    for &(text, max) in texts {
        let text = truncate(text, max);
        let text_end = end + 2 + text.len();
        let Some(target) = bytes.get_mut(end..text_end) else {
            break; // The maximum lengths fit into every section.
        };
        let length = u16::try_from(text.len()).unwrap_or_default();
        target[..2].copy_from_slice(&length.to_le_bytes());
        target[2..].copy_from_slice(text.as_bytes());
        end = text_end;
    }
    write_bytes(words, &bytes[..end]);
}

fn write_bytes(words: &[AtomicU64], bytes: &[u8]) {
    let mut checksum = Checksum::default();
    for (word, eight) in words[1..].iter().zip(eights(bytes)) {
        checksum.add(eight);
        word.store(eight, Ordering::Relaxed);
    }
    words[0].store(checksum.head(bytes.len()), Ordering::Release);
}

/// Returns bytes as words; the last one is padded with zeros.
fn eights(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    let (eights, rest) = bytes.as_chunks::<8>();
    let last = (!rest.is_empty()).then(|| {
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        last
    });
    let words = eights.iter().copied().chain(last);
    words.map(u64::from_ne_bytes)
}

/// Checksum of a section: a multiplication for each word, which costs less than a CRC of short texts. It detects
/// a section that changed while it was read and damage by accident; nobody else may write the file.
#[derive(Clone, Copy, Debug, Default)]
struct Checksum(u64);

impl Checksum {
    /// An odd number with about as many ones as zeros, so that each bit of a word changes many bits of the sum.
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

    /// Returns the first word of a section with these bytes.
    fn head_of(bytes: &[u8]) -> u64 {
        let mut checksum = Self::default();
        eights(bytes).for_each(|eight| checksum.add(eight));
        checksum.head(bytes.len())
    }

    fn add(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(Self::FACTOR).rotate_left(29);
    }

    /// Returns the first word of a section: the length in its low half, the checksum in its high half.
    fn head(self, length: usize) -> u64 {
        let length = length as u64;
        (self.0 ^ length).wrapping_mul(Self::FACTOR) & !LENGTH_MASK | length
    }
}

fn truncate(text: &str, max: usize) -> &str {
    if text.len() <= max {
        return text;
    }
    let end = (0..=max).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or_default()]
}

/// Returns the id of the request in a row, while workers use the row.
pub(super) fn read_id(words: &[AtomicU64]) -> Option<Uuid> {
    if words[STATE].load(Ordering::Acquire) != USED {
        return None;
    }
    let [high, low] = [ID, ID + 1].map(|at| words[at].load(Ordering::Relaxed));
    Some(Uuid::from_u64_pair(high, low))
}

/// Returns the tokens of the request in a row, while workers use the row. `None` if no backend has the
/// request.
pub(super) fn read_tokens(words: &[AtomicU64]) -> Option<RowTokens> {
    if words[STATE].load(Ordering::Acquire) != USED {
        return None;
    }
    let backend = words[SERVED_BY].load(Ordering::Relaxed).checked_sub(1)?;
    let count = |at: usize| words[at].load(Ordering::Relaxed).min(MAX_TOKENS);
    Some(RowTokens {
        backend: BackendId(u32::try_from(backend).ok()?),
        prompt: count(PROMPT),
        completion: count(COMPLETION),
    })
}

/// Reads a row of the in-flight list. Returns `None` if it has no request, or if its id or its
/// names are damaged.
pub(super) fn read(row: &[u8; ROW_BYTES]) -> Option<InterruptedRequest> {
    let word = |at: usize| -> u64 {
        let eight = row.as_chunks::<8>().0.get(at);
        eight.map_or(0, |eight| u64::from_ne_bytes(*eight))
    };
    if word(STATE) != USED {
        return None;
    }
    let record_id = Uuid::from_u64_pair(word(ID), word(ID + 1));
    if record_id.get_version_num() != 7 {
        return None;
    }
    let [request_id, path, api, key, team] = read_section(row, REQUEST)?;
    let model = read_section(row, MODEL).and_then(|[model]| given(model));
    let section = usize::try_from(word(BACKEND_SECTION)).ok()?.checked_sub(1);
    let section = section.and_then(|section| BACKENDS.get(section));
    let backend = section.and_then(|section| read_section(row, section.clone()));
    let [backend, served_model] = backend.unwrap_or_default();
    let facts = word(FACTS);
    Some(InterruptedRequest {
        record_id,
        request_id,
        path,
        api: Api::from_name(&api).unwrap_or(Api::Unknown),
        key: given(key).filter(|name| is_plain(name)),
        team: given(team).filter(|name| is_plain(name)),
        model,
        backend: given(backend),
        served_model: given(served_model),
        state: RequestState {
            usage: read_usage(word, facts & 0b11),
            is_stream: facts & IS_STREAM != 0,
            status: u16::try_from(facts >> STATUS_SHIFT)
                .ok()
                .filter(|status| *status < 1000)
                .unwrap_or(0),
            bytes: word(BYTES),
            first_byte_ms: word(FIRST_BYTE).checked_sub(1),
        },
        final_record: read_bytes(row, RECORD)
            .and_then(|json| str::from_utf8(json).ok())
            .filter(|json| !json.is_empty())
            .map(str::to_owned),
    })
}

/// Reads the token counts of a row. A kill between two stores leaves counts of different moments,
/// so the total is raised to at least the sum of its parts.
fn read_usage(word: impl Fn(usize) -> u64, source: u64) -> TokenUsage {
    let count = |at| word(at).min(MAX_TOKENS);
    let (prompt, completion) = (count(PROMPT), count(COMPLETION));
    TokenUsage {
        prompt,
        completion,
        cached: count(CACHED).min(prompt),
        reasoning: count(REASONING),
        total: count(TOTAL).max(prompt + completion),
        source: match source {
            1 => UsageSource::Estimated,
            2 => UsageSource::Reported,
            _ if prompt + completion > 0 => UsageSource::Estimated,
            _ => UsageSource::None,
        },
    }
}

/// True for a name of a key or team that needs no escapes in JSON, as all valid names do. A damaged
/// name would make the usage record invalid.
fn is_plain(name: &str) -> bool {
    let is_special = |letter: char| letter.is_control() || matches!(letter, '"' | '\\');
    !name.contains(is_special)
}

#[cfg(any(test, fuzzing))]
pub(super) fn repair(row: &mut [u8; ROW_BYTES]) {
    row[..8].copy_from_slice(&USED.to_ne_bytes());
    let [first, second] = BACKENDS;
    for section in [REQUEST, MODEL, first, second, RECORD] {
        let bytes = &mut row[section.start * 8..section.end * 8];
        let (head, bytes) = bytes.split_at_mut(8);
        let length = u16::from_le_bytes([head[0], head[1]]);
        let length = usize::from(length).min(bytes.len());
        head.copy_from_slice(&Checksum::head_of(&bytes[..length]).to_ne_bytes());
    }
}

fn given(text: String) -> Option<String> {
    Some(text).filter(|text| !text.is_empty())
}

/// Returns the bytes of a section of a row; `None` if their checksum shows that the section is
/// damaged.
fn read_bytes(row: &[u8; ROW_BYTES], words: Range<usize>) -> Option<&[u8]> {
    let section = row.get(words.start * 8..words.end * 8)?;
    let (head, bytes) = section.split_first_chunk::<8>()?;
    let head = u64::from_ne_bytes(*head);
    let bytes = bytes.get(..usize::try_from(head & LENGTH_MASK).ok()?)?;
    (Checksum::head_of(bytes) == head).then_some(bytes)
}

/// Returns the texts of a section of a row; `None` if the section is damaged.
fn read_section<const COUNT: usize>(
    row: &[u8; ROW_BYTES],
    words: Range<usize>,
) -> Option<[String; COUNT]> {
    let mut bytes = read_bytes(row, words)?;
    let mut texts = [const { String::new() }; COUNT];
    for text in &mut texts {
        let (length, rest) = bytes.split_first_chunk::<2>()?;
        let (content, rest) = rest.split_at_checked(u16::from_le_bytes(*length).into())?;
        str::from_utf8(content).ok()?.clone_into(text);
        bytes = rest;
    }
    Some(texts)
}
