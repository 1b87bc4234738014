//! The division of this process's file descriptors: how many clients may hold, how many connections
//! to backends may hold, and a reserve that neither can take.
//!
//! The reserve is for the server itself. While clients hold every other descriptor, the next staging
//! entry, one batch and one connection to the receiver of usage records can still be opened. (L11)

use crate::config::{MOST_CONNECTIONS, Server};
use crate::sys;

/// The reserve is this part of the limit, within these bounds.
const RESERVED_PART: usize = 8;
const SMALLEST_RESERVE: usize = 32;
const LARGEST_RESERVE: usize = 256;
/// Limit that is assumed on systems that have none.
const ASSUMED_LIMIT: usize = 1 << 16;
/// Descriptors that are assumed to be open where the system does not show them.
const ASSUMED_OPEN: usize = 16;

/// Descriptors of one worker: the event loop (twice), its wake-up, the signal socket, the listener,
/// and a connection that is accepted only to be rejected.
const PER_WORKER: usize = 6;
/// The open staging entry, the one before it that is being sealed, and their directory.
const STAGING: usize = 4;
/// The exporter: two locks of four descriptors each, two journals, a batch, its directory, an entry,
/// the connection to the receiver, and a name lookup or the files of the trusted certificates.
const EXPORTER: usize = 18;
/// The demo's listeners, one for each backend.
const DEMO: usize = 3;
/// Probes that may be under way while requests hold every connection to a backend.
const PROBES: usize = 4;
/// Name lookups at a time are this part of the limit, within these bounds.
const LOOKUPS_PART: usize = 64;
const FEWEST_LOOKUPS: usize = 4;
const MOST_LOOKUPS: usize = 32;
/// A resolver reads a file, or has a socket, besides the one that it is asked through.
const PER_LOOKUP: usize = 2;
/// Connections from this machine that are accepted beyond the limit, so that `llmlb status` works
/// while clients hold all the others. Each may need a connection to a backend.
pub(crate) const EXTRA_LOCAL: usize = 4;

/// Clients may be given all descriptors outside the reserve but this part, which is left to
/// connections to backends.
const LEFT_TO_BACKENDS: usize = 8;
/// With fewer descriptors outside the reserve the server does not start.
const FEWEST_USABLE: usize = 8;
/// One address may hold this part of all connections.
const PER_ADDRESS_PART: usize = 4;

/// How many descriptors each user may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Division {
    /// Connections of clients.
    pub(crate) connections: usize,
    /// Connections of clients with one address.
    pub(crate) per_address: usize,
    /// Connections to backends, in use or idle.
    pub(crate) backend_connections: usize,
    /// Further ones for probes, if those are all in use.
    pub(crate) probes: usize,
    /// Name lookups at a time.
    pub(crate) lookups: usize,
}

/// What the division depends on.
#[derive(Clone, Copy, Debug)]
struct Facts {
    /// Maximum number of descriptors.
    limit: usize,
    /// Descriptors that are open before the first worker starts.
    open: usize,
    workers: usize,
    /// The backends run in this process, and so each connection to one has both its ends here.
    demo: bool,
    connections: Option<usize>,
    per_address: Option<usize>,
}

/// The limit of open files is lower than what the server itself needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooFew {
    pub(crate) limit: usize,
    pub(crate) needed: usize,
}

impl std::fmt::Display for TooFew {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { limit, needed } = self;
        write!(
            f,
            "the limit of open files is {limit}; with this configuration the server needs {needed}"
        )
    }
}

impl Division {
    /// Divides the descriptors of this process, of which the server holds what it has open now.
    pub(crate) fn of_this_process(server: &Server, demo: bool) -> Result<Self, TooFew> {
        let limit = sys::limits::max_open_files();
        let facts = Facts {
            limit: limit.map_or(ASSUMED_LIMIT, |limit| {
                usize::try_from(limit).unwrap_or(usize::MAX)
            }),
            open: sys::limits::open_files().unwrap_or(ASSUMED_OPEN),
            workers: server.workers,
            demo,
            connections: server.max_connections,
            per_address: server.max_connections_per_address,
        };
        let division = Self::new(&facts)?;
        if let Some(wanted) = server.max_connections
            && wanted > division.connections
        {
            tracing::warn!(
                "server.max_connections is {wanted}, but the limit of open files ({}) allows {}; \
                 raise it: ulimit -n {}, or LimitNOFILE= of the service",
                facts.limit,
                division.connections,
                wanted.saturating_mul(2).saturating_add(LARGEST_RESERVE),
            );
        }
        tracing::debug!(?facts, ?division, "descriptors divided");
        Ok(division)
    }

    /// Connections to backends that requests of one address may use at a time. A client of HTTP/1.1
    /// has one request on each connection, so it never meets this limit before the one on those.
    pub(crate) fn backend_connections_per_address(&self) -> usize {
        self.per_address
            .max(self.backend_connections / PER_ADDRESS_PART)
    }

    fn new(facts: &Facts) -> Result<Self, TooFew> {
        let lookups = (facts.limit / LOOKUPS_PART).clamp(FEWEST_LOOKUPS, MOST_LOOKUPS);
        let per_backend_connection = if facts.demo { 2 } else { 1 };
        let own = facts.open
            + facts.workers * PER_WORKER
            + STAGING
            + EXPORTER
            + PROBES
            + EXTRA_LOCAL * (1 + per_backend_connection)
            + lookups * PER_LOOKUP
            + if facts.demo { DEMO } else { 0 };
        let reserve = (facts.limit / RESERVED_PART).clamp(SMALLEST_RESERVE, LARGEST_RESERVE);
        let reserve = reserve.max(own);
        let usable = facts.limit.saturating_sub(reserve);
        if usable < FEWEST_USABLE {
            return Err(TooFew {
                limit: facts.limit,
                needed: reserve + FEWEST_USABLE,
            });
        }
        let connections = match facts.connections {
            Some(wanted) => wanted.min(usable - usable.div_ceil(LEFT_TO_BACKENDS)),
            // Every request may need a connection to a backend.
            None => (usable / (1 + per_backend_connection)).min(MOST_CONNECTIONS),
        };
        let per_address = facts.per_address.unwrap_or(connections / PER_ADDRESS_PART);
        Ok(Self {
            connections,
            per_address: per_address.max(1),
            backend_connections: (usable - connections) / per_backend_connection + EXTRA_LOCAL,
            probes: PROBES,
            lookups,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FACTS: Facts = Facts {
        limit: 1024,
        open: 14,
        workers: 2,
        demo: false,
        connections: None,
        per_address: None,
    };

    fn divided(facts: Facts) -> Division {
        Division::new(&facts).unwrap()
    }

    #[test]
    fn clients_get_half_of_what_the_reserve_leaves() {
        for (limit, connections) in [
            (1024, (1024 - 128) / 2),
            (2048, (2048 - 256) / 2),
            (65_536, (65_536 - 256) / 2),
            (usize::MAX, MOST_CONNECTIONS),
        ] {
            let division = divided(Facts { limit, ..FACTS });
            assert_eq!(division.connections, connections, "{limit}");
            assert_eq!(division.per_address, connections / 4, "{limit}");
            assert!(division.backend_connections >= connections, "{limit}");
        }
    }

    #[test]
    fn all_descriptors_together_never_exceed_the_limit() {
        for limit in (80..5000).step_by(7) {
            for workers in [1, 2, 16, 64] {
                for demo in [false, true] {
                    for connections in [None, Some(1), Some(100), Some(1_000_000)] {
                        let facts = Facts {
                            limit,
                            workers,
                            demo,
                            connections,
                            ..FACTS
                        };
                        let Ok(division) = Division::new(&facts) else {
                            continue;
                        };
                        let per_backend_connection = if demo { 2 } else { 1 };
                        let reserve = limit
                            - division.connections
                            - division.backend_connections * per_backend_connection;
                        let own = FACTS.open
                            + workers * PER_WORKER
                            + STAGING
                            + EXPORTER
                            + division.probes
                            + EXTRA_LOCAL
                            + division.lookups * PER_LOOKUP;
                        assert!(reserve >= own, "{facts:?}");
                        assert!(division.backend_connections > 0, "{facts:?}");
                        assert!(division.connections > 0, "{facts:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_limit_below_what_the_server_needs_is_an_error() {
        let error = Division::new(&Facts { limit: 64, ..FACTS }).unwrap_err();
        assert_eq!(error.limit, 64);
        let limit = error.needed;
        assert!(Division::new(&Facts { limit, ..FACTS }).is_ok());
    }

    #[test]
    fn settings_replace_the_derived_numbers_within_the_limit() {
        let connections = Some(10);
        let few = divided(Facts {
            connections,
            ..FACTS
        });
        assert_eq!((few.connections, few.per_address), (10, 2));
        let to_backends = few.backend_connections;
        assert_eq!(few.backend_connections_per_address(), to_backends / 4);
        let per_address = Some(500);
        let many = divided(Facts {
            connections: Some(10_000),
            per_address,
            ..FACTS
        });
        assert_eq!(many.connections, 784);
        assert_eq!(many.per_address, 500);
        assert_eq!(many.backend_connections_per_address(), 500);
        assert_eq!(many.backend_connections, 1024 - 128 - 784 + EXTRA_LOCAL);
    }
}
