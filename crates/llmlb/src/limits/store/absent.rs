//! Stand-in for the store of a fleet in a build without Redis. No value of this type exists.

use std::future::Ready;
use std::io;
use std::sync::Arc;

use super::super::KeyStates;
use super::super::key_state::KeyState;
use super::{Decision, Question};
use crate::config::FleetConfig;

#[derive(Debug)]
pub(in super::super) enum LimitStore {}

impl LimitStore {
    pub(in super::super) fn start(
        _config: &FleetConfig,
        _instance: &str,
        _states: &Arc<KeyStates>,
    ) -> io::Result<Option<Self>> {
        Ok(None)
    }

    pub(in super::super) fn decide(
        &self,
        _state: &Arc<KeyState>,
        _question: Question,
    ) -> Ready<Option<Decision>> {
        match *self {}
    }

    pub(in super::super) fn servers(&self) -> u32 {
        match *self {}
    }

    pub(in super::super) fn is_reachable(&self) -> bool {
        match *self {}
    }

    pub(in super::super) fn finish(&self) {
        match *self {}
    }
}
