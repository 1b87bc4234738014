//! A store of any kind together with its server, so that the same checks can run on every kind of
//! store.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;
use tenure::{Claim, Key, Store};
use tenure_tests::Owner;
use tenure_tests::lease_storm::open_store;
#[cfg(feature = "dynamodb")]
use tenure_tests::servers::DynamoDbServer;
#[cfg(feature = "etcd")]
use tenure_tests::servers::EtcdServer;
#[cfg(feature = "redis")]
use tenure_tests::servers::RedisServer;

use crate::OWNER;

/// TTL of the leases in the checks. It is the smallest TTL that etcd accepts, and long enough that
/// a busy test machine does not miss a renewal.
pub(crate) const TTL: Duration = Duration::from_secs(2);

/// A store with its server. Dropping the value kills the server.
pub(crate) struct StoreUnderTest {
    pub(crate) server: Server,
}

pub(crate) enum Server {
    /// Lock files in a directory, without any server.
    Files(TempDir),
    #[cfg(feature = "redis")]
    Redis(RedisServer),
    #[cfg(feature = "etcd")]
    Etcd(EtcdServer),
    #[cfg(feature = "dynamodb")]
    DynamoDb(DynamoDbServer),
}

impl StoreUnderTest {
    /// Starts a second, independent store of the same kind.
    pub(crate) fn another(&self) -> Self {
        let server = match &self.server {
            Server::Files(_) => Some(Server::Files(tempfile::tempdir().unwrap())),
            #[cfg(feature = "redis")]
            Server::Redis(_) => RedisServer::start().map(Server::Redis),
            #[cfg(feature = "etcd")]
            Server::Etcd(_) => EtcdServer::start().map(Server::Etcd),
            #[cfg(feature = "dynamodb")]
            Server::DynamoDb(_) => DynamoDbServer::start().map(Server::DynamoDb),
        };
        Self {
            server: server.expect("a server of this kind is running already"),
        }
    }

    pub(crate) fn location(&self) -> String {
        match &self.server {
            Server::Files(dir) => dir.path().display().to_string(),
            #[cfg(feature = "redis")]
            Server::Redis(server) => server.url(),
            #[cfg(feature = "etcd")]
            Server::Etcd(server) => server.url(),
            #[cfg(feature = "dynamodb")]
            Server::DynamoDb(server) => server.url(),
        }
    }

    pub(crate) fn open(&self) -> Store {
        open_store(&self.location()).unwrap()
    }

    pub(crate) fn claim(&self, key: &str) -> Claim {
        self.open().claim(&name(key)).verb("test").ttl(TTL)
    }

    pub(crate) fn owner(&self, key: &str) -> Owner {
        let mut owner = self.start_owner(key, &[]);
        let answer = owner.answer();
        assert!(answer.starts_with("held "), "{answer}");
        owner
    }

    pub(crate) fn start_owner(&self, key: &str, options: &[&str]) -> Owner {
        let mut program = Command::new(OWNER);
        program.arg(format!("--ttl={}", TTL.as_millis()));
        program.args(options);
        Owner::start(program, Path::new(&self.location()), key)
    }

    /// Number of checks that run at the same time. Most checks only wait, so many can run together.
    /// moto needs so much CPU time for each request that with more checks some would exceed their
    /// time limits.
    pub(crate) fn parallel_checks(&self) -> usize {
        match self.server {
            #[cfg(feature = "dynamodb")]
            Server::DynamoDb(_) => 5,
            _ => 20,
        }
    }

    pub(crate) fn has_leases(&self) -> bool {
        !matches!(self.server, Server::Files(_))
    }

    /// True if the store has a server that keeps its data when it is killed.
    pub(crate) fn keeps_data(&self) -> bool {
        match &self.server {
            Server::Files(_) => false,
            #[cfg(feature = "redis")]
            Server::Redis(_) => true,
            #[cfg(feature = "etcd")]
            Server::Etcd(_) => true,
            #[cfg(feature = "dynamodb")]
            Server::DynamoDb(_) => false,
        }
    }

    pub(crate) fn restart(&mut self) {
        match &mut self.server {
            Server::Files(_) => {}
            #[cfg(feature = "redis")]
            Server::Redis(server) => server.restart(),
            #[cfg(feature = "etcd")]
            Server::Etcd(server) => server.restart(),
            #[cfg(feature = "dynamodb")]
            Server::DynamoDb(server) => server.restart(),
        }
    }

    /// Kills the server, if this store has one.
    pub(crate) fn kill(&mut self) {
        match &mut self.server {
            Server::Files(_) => {}
            #[cfg(feature = "redis")]
            Server::Redis(server) => server.kill9(),
            #[cfg(feature = "etcd")]
            Server::Etcd(server) => server.kill9(),
            #[cfg(feature = "dynamodb")]
            Server::DynamoDb(server) => server.kill9(),
        }
    }
}

pub(crate) fn name(key: &str) -> Key {
    Key::name(key).unwrap()
}
