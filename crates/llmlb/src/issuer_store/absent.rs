//! Stand-in for the store of issued ids in a build without the feature `redis`. No value of its
//! type can exist, so its methods are never called.

use std::future::Ready;
use std::io;
use std::sync::Arc;

use crate::balance::IssuerQueue;
use crate::config::FleetConfig;
use crate::issued_ids::{BackendKey, IdHash};

#[derive(Debug)]
pub(crate) enum IssuerStore {}

impl IssuerStore {
    pub(crate) fn start(
        _config: &FleetConfig,
        _queue: Arc<IssuerQueue>,
    ) -> io::Result<Option<Self>> {
        Ok(None)
    }

    pub(crate) fn find(&self, _id: IdHash) -> Ready<Option<BackendKey>> {
        match *self {}
    }

    pub(crate) fn finish(&self) {
        match *self {}
    }
}
