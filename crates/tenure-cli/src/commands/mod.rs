//! The verbs of `tenure` (`run`, `status`, `stop` and `completions`), each in a module of its own.

pub(crate) mod completions;
pub(crate) mod run;
pub(crate) mod status;
pub(crate) mod stop;
