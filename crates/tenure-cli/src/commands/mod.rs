//! One verb per file.

pub(crate) mod completions;
pub(crate) mod run;
pub(crate) mod status;
pub(crate) mod stop;
