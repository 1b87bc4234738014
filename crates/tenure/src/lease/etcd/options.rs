//! Addresses, credentials and TLS files of an etcd cluster, from the URL of the store.

use etcd_client::{Certificate, ConnectOptions, Identity, TlsOptions};

use super::super::url::StoreUrl;
use super::cluster::Member;
use crate::error::Error;

const DEFAULT_PORT: u16 = 2379;

pub(super) fn members(url: &StoreUrl) -> Vec<Member> {
    let scheme = if url.scheme == "etcds" {
        "https"
    } else {
        "http"
    };
    let addresses = url.address.split(',');
    addresses
        .map(|address| Member::new(format!("{scheme}://{}", with_port(address))))
        .collect()
}

/// Returns options of the etcd client with the credentials and the TLS files that the URL names.
pub(super) fn connect_options(url: &mut StoreUrl) -> Result<ConnectOptions, Error> {
    let mut options = ConnectOptions::new()
        .with_require_leader(true)
        .with_auto_token_refresh(true);
    match (&url.user, &url.password) {
        (Some(user), Some(password)) => options = options.with_user(user, password),
        (None, None) => {}
        _ => {
            return Err(url.bad(
                "a user needs a password, and a password a user: \
                 etcd://USER@HOST:PORT?password_file=PATH",
            ));
        }
    }
    let [cacert, cert, key] = ["cacert", "cert", "key"].map(|option| url.take(option));
    if url.scheme != "etcds" {
        return if cacert.or(cert).or(key).is_some() {
            Err(url.bad("`cacert`, `cert` and `key` need a URL that starts with etcds://"))
        } else {
            Ok(options)
        };
    }
    let mut tls = match cacert {
        Some(path) => TlsOptions::new().ca_certificate(Certificate::from_pem(read_file(&path)?)),
        None => TlsOptions::new().with_enabled_roots(),
    };
    match (cert, key) {
        (Some(cert), Some(key)) => {
            tls = tls.identity(Identity::from_pem(read_file(&cert)?, read_file(&key)?));
        }
        (None, None) => {}
        _ => return Err(url.bad("`cert` and `key` must be given together")),
    }
    Ok(options.with_tls(tls))
}

fn read_file(path: &str) -> Result<Vec<u8>, Error> {
    std::fs::read(path).map_err(|error| {
        let path = std::path::Path::new(path);
        Error::io("read the certificate or key file", path, error)
    })
}

/// Adds the default port to an address without one.
fn with_port(address: &str) -> String {
    let host_end = address.rfind(']').unwrap_or(0);
    if address[host_end..].contains(':') {
        address.to_owned()
    } else {
        format!("{address}:{DEFAULT_PORT}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_without_a_port_gets_the_default_port() {
        assert_eq!(with_port("db"), "db:2379");
        assert_eq!(with_port("db:1"), "db:1");
        assert_eq!(with_port("[::1]"), "[::1]:2379");
        assert_eq!(with_port("[::1]:1"), "[::1]:1");
    }
}
