//! A receiver of batches, and the way there.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use serde_json::Value;

use crate::mock::{self, Mock, Request};
use crate::support::Place;

/// What it knows.
#[derive(Default)]
struct Books {
    /// Batches by their key: what came again must be the same.
    batches: HashMap<String, Vec<u8>>,
    records: BTreeMap<String, Value>,
    /// Records that came in more than one batch.
    repeated: usize,
}

/// It takes every batch once, by its key.
pub(crate) struct Receiver {
    mock: Mock,
    books: Arc<Mutex<Books>>,
}

impl Receiver {
    pub(crate) fn start() -> Self {
        let books: Arc<Mutex<Books>> = Arc::default();
        let kept = Arc::clone(&books);
        let any = "127.0.0.1:0".parse().expect("an address");
        let mock = Mock::raw(any, move |request, stream| {
            kept.lock().expect("the books").take(request);
            mock::json(stream, 200, "{}");
        });
        Self { mock, books }
    }

    pub(crate) fn url(&self) -> String {
        format!("{}/usage", self.mock.url())
    }

    /// Delivers everything that lies in the data directory of a place.
    pub(crate) fn deliver(&self, place: &Place) {
        let outcome = place.run(&format!("usage deliver --now --to {}", self.url()));
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
    }

    /// Every record that came.
    pub(crate) fn records(&self) -> Vec<Value> {
        let books = self.books.lock().expect("the books");
        books.records.values().cloned().collect()
    }

    pub(crate) fn repeated(&self) -> usize {
        self.books.lock().expect("the books").repeated
    }
}

impl Books {
    fn take(&mut self, request: &Request) {
        let body: Value = serde_json::from_slice(&request.body).expect("a batch");
        let key = body["idempotency_key"].as_str().expect("a key").to_owned();
        let told = request.head.header("idempotency-key");
        assert_eq!(told.as_ref(), Some(&key));
        if let Some(before) = self.batches.get(&key) {
            assert!(*before == request.body, "{key} came with other bytes");
            return;
        }
        self.batches.insert(key, request.body.clone());
        for record in body["records"].as_array().expect("records") {
            let id = record["id"].as_str().expect("an id").to_owned();
            let before = self.records.insert(id, record.clone());
            self.repeated += usize::from(before.is_some());
        }
    }
}
