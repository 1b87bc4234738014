//! Division of this process's file descriptors among client connections, backend connections and a
//! reserve that neither can use.
//!
//! The reserve is for the server itself. While clients hold every other descriptor, the server can
//! still open the next staging entry, one batch and one connection to the receiver (promise L11).

use crate::config::{MOST_CONNECTIONS, ServerConfig};
use crate::sys;

/// The reserve is one eighth of the descriptor limit, at least `MIN_RESERVE` and at most
/// `MAX_RESERVE`.
const RESERVED_PART: usize = 8;
const MIN_RESERVE: usize = 32;
const MAX_RESERVE: usize = 256;
/// Descriptor limit that is assumed on systems that have none, such as Windows.
const ASSUMED_LIMIT: usize = 1 << 16;
/// Number of open descriptors that is assumed if the system cannot list them.
const ASSUMED_OPEN: usize = 16;

/// Descriptors that one worker uses: the event loop (twice), its wake-up, the signal socket, the
/// listener, and a connection that is accepted only to be rejected.
const PER_WORKER: usize = 6;
/// Descriptors that staging uses: the open entry, the previous entry while it is sealed, their
/// directory, and one in reserve.
const STAGING: usize = 4;
/// Descriptors that the exporter uses: two locks of four descriptors each, two journals, a batch,
/// its directory, an entry, the connection to the receiver, two for a DNS lookup or the CA
/// certificates, and two in reserve.
const EXPORTER: usize = 18;
/// Descriptors that the demo uses: one listener for each of its backends.
const DEMO: usize = 3;
/// Number of probes that can connect while requests hold every backend connection. Without them a
/// busy server could not detect that a backend is down.
const PROBES: usize = 4;
/// Concurrent DNS lookups are limited to 1/64 of the descriptor limit, at least `MIN_LOOKUPS` and
/// at most `MAX_LOOKUPS`.
const LOOKUPS_PART: usize = 64;
const MIN_LOOKUPS: usize = 4;
const MAX_LOOKUPS: usize = 32;
/// Descriptors of one DNS lookup: the resolver's socket, and a file that it reads.
const PER_LOOKUP: usize = 2;
/// Connections from this machine that are accepted beyond `max_connections`, so that `llmlb status`
/// works while clients hold all the others. Each may need a backend connection.
pub(crate) const EXTRA_LOCAL: usize = 4;

/// Backend connections get at least one eighth (1/`LEFT_TO_BACKENDS`) of the descriptors that the
/// server does not reserve for itself, even if `server.max_connections` is larger. Otherwise
/// clients could connect, but no request could reach a backend.
const LEFT_TO_BACKENDS: usize = 8;
/// Minimum number of descriptors for client and backend connections, beyond those that the server
/// reserves for itself. The server refuses to start with fewer.
const MIN_USABLE: usize = 8;
/// Part of all connections that one client address may use by default: a quarter
/// (1/`PER_ADDRESS_PART`).
const PER_ADDRESS_PART: usize = 4;

/// Result of the division of descriptors: the maximum number of connections and DNS lookups for
/// each purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Division {
    pub(crate) connections: usize,
    pub(crate) per_address: usize,
    /// Maximum number of backend connections, in use or idle.
    pub(crate) backend_connections: usize,
    /// Maximum number of additional backend connections, which only probes may open while all
    /// others are in use.
    pub(crate) probes: usize,
    pub(crate) lookups: usize,
}

/// Inputs of the division of descriptors: the system's limits and the settings.
#[derive(Clone, Copy, Debug)]
struct DivisionInputs {
    limit: usize,
    /// Number of descriptors that are open before the first worker starts. They count as the
    /// server's own.
    open: usize,
    workers: usize,
    /// True if the demo's backends run in this process, so that each backend connection needs two
    /// descriptors here.
    demo: bool,
    connections: Option<usize>,
    per_address: Option<usize>,
}

/// Error: the limit of open files is below what the server needs to start.
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
            "the limit of open files is {limit}; with this configuration the server needs at least {needed}"
        )
    }
}

impl Division {
    /// Divides the file descriptors of this process among client connections, backend connections and the
    /// server itself. Descriptors that are open now count as the server's own. Warns if
    /// `server.max_connections` exceeds what the limit allows.
    pub(crate) fn for_this_process(server: &ServerConfig, demo: bool) -> Result<Self, TooFew> {
        let limit = sys::limits::max_open_files();
        let inputs = DivisionInputs {
            limit: limit.map_or(ASSUMED_LIMIT, |limit| {
                usize::try_from(limit).unwrap_or(usize::MAX)
            }),
            open: sys::limits::open_files().unwrap_or(ASSUMED_OPEN),
            workers: server.workers,
            demo,
            connections: server.max_connections,
            per_address: server.max_connections_per_address,
        };
        let division = Self::new(&inputs)?;
        if let Some(wanted) = server.max_connections
            && wanted > division.connections
        {
            tracing::warn!(
                "server.max_connections is {wanted}, but the limit of open files ({}) allows {} connections; \
                 raise the limit: ulimit -n {}, or LimitNOFILE= of the service",
                inputs.limit,
                division.connections,
                wanted.saturating_mul(2).saturating_add(MAX_RESERVE),
            );
        }
        tracing::debug!(?inputs, ?division, "descriptors divided");
        Ok(division)
    }

    /// Returns the maximum number of backend connections that requests from one client address may
    /// use at a time. Without this limit an HTTP/2 client, which sends many requests on one
    /// connection, could use all backend connections.
    ///
    /// An HTTP/1.1 client reaches the limit on its client connections (`per_address`) first, since
    /// each of its connections carries one request at a time.
    pub(crate) fn backend_connections_per_address(&self) -> usize {
        self.per_address
            .max(self.backend_connections / PER_ADDRESS_PART)
    }

    fn new(inputs: &DivisionInputs) -> Result<Self, TooFew> {
        let lookups = (inputs.limit / LOOKUPS_PART).clamp(MIN_LOOKUPS, MAX_LOOKUPS);
        let per_backend_connection = if inputs.demo { 2 } else { 1 };
        let own = inputs.open
            + inputs.workers * PER_WORKER
            + STAGING
            + EXPORTER
            + PROBES
            + EXTRA_LOCAL * (1 + per_backend_connection)
            + lookups * PER_LOOKUP
            + if inputs.demo { DEMO } else { 0 };
        let reserve = (inputs.limit / RESERVED_PART).clamp(MIN_RESERVE, MAX_RESERVE);
        let reserve = reserve.max(own);
        let usable = inputs.limit.saturating_sub(reserve);
        if usable < MIN_USABLE {
            return Err(TooFew {
                limit: inputs.limit,
                needed: reserve + MIN_USABLE,
            });
        }
        let connections = match inputs.connections {
            Some(wanted) => wanted.min(usable - usable.div_ceil(LEFT_TO_BACKENDS)),
            // Without a setting, divide the descriptors equally: each client connection may need a
            // backend connection at the same time.
            None => (usable / (1 + per_backend_connection)).min(MOST_CONNECTIONS),
        };
        let per_address = inputs.per_address.unwrap_or(connections / PER_ADDRESS_PART);
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

    const INPUTS: DivisionInputs = DivisionInputs {
        limit: 1024,
        open: 14,
        workers: 2,
        demo: false,
        connections: None,
        per_address: None,
    };

    fn divided(inputs: DivisionInputs) -> Division {
        Division::new(&inputs).unwrap()
    }

    #[test]
    fn clients_get_half_of_the_descriptors_outside_the_reserve() {
        for (limit, connections) in [
            (1024, (1024 - 128) / 2),
            (2048, (2048 - 256) / 2),
            (65_536, (65_536 - 256) / 2),
            (usize::MAX, MOST_CONNECTIONS),
        ] {
            let division = divided(DivisionInputs { limit, ..INPUTS });
            assert_eq!(division.connections, connections, "{limit}");
            assert_eq!(division.per_address, connections / 4, "{limit}");
            assert!(division.backend_connections >= connections, "{limit}");
        }
    }

    #[test]
    fn sum_of_all_descriptors_never_exceeds_the_limit() {
        for limit in (80..5000).step_by(7) {
            for workers in [1, 2, 16, 64] {
                for demo in [false, true] {
                    for connections in [None, Some(1), Some(100), Some(1_000_000)] {
                        let inputs = DivisionInputs {
                            limit,
                            workers,
                            demo,
                            connections,
                            ..INPUTS
                        };
                        let Ok(division) = Division::new(&inputs) else {
                            continue;
                        };
                        let per_backend_connection = if demo { 2 } else { 1 };
                        let reserve = limit
                            - division.connections
                            - division.backend_connections * per_backend_connection;
                        let own = INPUTS.open
                            + workers * PER_WORKER
                            + STAGING
                            + EXPORTER
                            + division.probes
                            + EXTRA_LOCAL
                            + division.lookups * PER_LOOKUP;
                        assert!(reserve >= own, "{inputs:?}");
                        assert!(division.backend_connections > 0, "{inputs:?}");
                        assert!(division.connections > 0, "{inputs:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn division_fails_when_the_limit_is_below_what_the_server_needs() {
        let error = Division::new(&DivisionInputs {
            limit: 64,
            ..INPUTS
        })
        .unwrap_err();
        assert_eq!(error.limit, 64);
        let limit = error.needed;
        assert!(Division::new(&DivisionInputs { limit, ..INPUTS }).is_ok());
    }

    #[test]
    fn settings_override_the_derived_numbers_within_the_limit() {
        let connections = Some(10);
        let few = divided(DivisionInputs {
            connections,
            ..INPUTS
        });
        assert_eq!((few.connections, few.per_address), (10, 2));
        let to_backends = few.backend_connections;
        assert_eq!(few.backend_connections_per_address(), to_backends / 4);
        let per_address = Some(500);
        let many = divided(DivisionInputs {
            connections: Some(10_000),
            per_address,
            ..INPUTS
        });
        assert_eq!(many.connections, 784);
        assert_eq!(many.per_address, 500);
        assert_eq!(many.backend_connections_per_address(), 500);
        assert_eq!(many.backend_connections, 1024 - 128 - 784 + EXTRA_LOCAL);
    }
}
