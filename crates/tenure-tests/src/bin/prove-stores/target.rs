//! The store that `prove-stores` checks, together with the server that it starts for this store.

use std::net::SocketAddr;
use std::str::FromStr;

use tempfile::TempDir;
use tenure_tests::servers::{DynamoDbServer, EtcdServer, RedisServer};

/// Kind of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    Redis,
    Etcd,
    DynamoDb,
}

impl Kind {
    pub(crate) const ALL: [Self; 4] = [Self::File, Self::Redis, Self::Etcd, Self::DynamoDb];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Redis => "redis",
            Self::Etcd => "etcd",
            Self::DynamoDb => "dynamodb",
        }
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.name() == text)
            .ok_or_else(|| format!("{text} is not a store: file, redis, etcd, dynamodb"))
    }
}

/// Store of one kind with its server. Dropping the value kills the server.
pub(crate) enum Target {
    File(TempDir),
    Redis(RedisServer),
    Etcd(EtcdServer),
    DynamoDb(DynamoDbServer),
}

impl Target {
    /// Starts a server that loses no acknowledged write, even if it is killed. Exception: moto, the
    /// fake DynamoDB, keeps its data in memory and loses it when killed.
    pub(crate) fn start(kind: Kind) -> Option<Self> {
        Some(match kind {
            Kind::File => Self::File(tempfile::tempdir().ok()?),
            Kind::Redis => Self::Redis(RedisServer::start()?),
            Kind::Etcd => Self::Etcd(EtcdServer::start()?),
            Kind::DynamoDb => Self::DynamoDb(DynamoDbServer::start()?),
        })
    }

    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::File(_) => Kind::File,
            Self::Redis(_) => Kind::Redis,
            Self::Etcd(_) => Kind::Etcd,
            Self::DynamoDb(_) => Kind::DynamoDb,
        }
    }

    pub(crate) fn location(&self) -> String {
        match self {
            Self::File(dir) => dir.path().display().to_string(),
            Self::Redis(server) => server.url(),
            Self::Etcd(server) => server.url(),
            Self::DynamoDb(server) => server.url(),
        }
    }

    /// Returns the URL of the store with `address` in place of the server's own address, such as
    /// that of a proxy in front of it. `None` for lock files, which have no server.
    pub(crate) fn location_behind(&self, address: SocketAddr) -> Option<String> {
        let own = self.address()?.to_string();
        Some(self.location().replace(&own, &address.to_string()))
    }

    pub(crate) fn address(&self) -> Option<SocketAddr> {
        let port = match self {
            Self::File(_) => return None,
            Self::Redis(server) => server.port(),
            Self::Etcd(server) => server.port(),
            Self::DynamoDb(server) => server.port(),
        };
        Some(SocketAddr::from(([127, 0, 0, 1], port)))
    }

    /// Kills the server. False if this store has no server that keeps its data.
    pub(crate) fn kill(&mut self) -> bool {
        match self {
            Self::Redis(server) => server.kill9(),
            Self::Etcd(server) => server.kill9(),
            Self::File(_) | Self::DynamoDb(_) => return false,
        }
        true
    }

    /// Starts a killed server again, with its data.
    pub(crate) fn restart(&mut self) {
        match self {
            Self::Redis(server) => server.restart(),
            Self::Etcd(server) => server.restart(),
            Self::File(_) | Self::DynamoDb(_) => {}
        }
    }
}
