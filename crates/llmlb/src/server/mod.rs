//! Serving clients: worker threads accept connections, drive HTTP/1.1 and HTTP/2 on them, and take
//! each request through its stages.

pub(crate) mod admin;
pub(crate) mod backlog;
pub(crate) mod client_http;
pub(crate) mod client_io;
pub(crate) mod client_memory;
pub(crate) mod connections;
pub(crate) mod h2_answers;
pub(crate) mod h2_idle;
pub(crate) mod h2_unfinished;
pub(crate) mod protocol;
pub(crate) mod worker;
