//! Leases in a table of Amazon DynamoDB, or a server with the same API.
//!
//! A key is one item. Every write to it has a condition, so that a late or repeated request never
//! changes the lease of another owner. Attributes of an item:
//!
//! | attribute | content |
//! |---|---|
//! | `key` | name of the key; partition key of the table |
//! | `token` | counter of tokens; stays when the lease is released |
//! | `owner` | owner id; absent if the key is free |
//! | `version` | random text, which each renewal changes |
//! | `ttl_ms` | TTL of the owner |
//! | `record` | lock record |
//! | `stop` | id of the owner that is asked to release the key; does not change the version |
//!
//! DynamoDB does not expire leases by itself. A lease whose `version` has not changed for one TTL
//! is expired (see `observation`). The next owner replaces exactly that version.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use aws_config::retry::RetryConfig;
use aws_config::{BehaviorVersion, Region};
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::{Credentials, ProvideCredentials};
use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_dynamodb::operation::update_item::UpdateItemOutput;
use aws_sdk_dynamodb::operation::update_item::builders::UpdateItemFluentBuilder;
use aws_sdk_dynamodb::primitives::Blob;
use aws_sdk_dynamodb::types::{AttributeValue, ReturnValue};
use aws_smithy_http_client::tls::{Provider, rustls_provider::CryptoMode};

use super::backend::{
    Attempt, Backend, Entry, Grant, LeaseId, MAX_LISTED, Renewed, StoreError, Waiter,
};
use super::bridge::{Bridge, describe_sources};
use super::observation::{Observations, Verdict};
use super::url::StoreUrl;
use super::{DEFAULT_TTL, MAX_TTL, MIN_TTL};
use crate::error::Error;
use crate::sys::clock;

/// Maximum time to find the region and the credentials. The slowest source is tried last: the
/// metadata service of an EC2 instance.
const CONFIGURE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of times that one request is sent while the service is busy.
const MAX_ATTEMPTS: u32 = 3;
/// Pause after the first response "busy"; further pauses grow. They are short, so that all attempts
/// fit into the limit of a call and the service's error is reported instead of a timeout.
const FIRST_BACKOFF: Duration = Duration::from_millis(20);
const MAX_BACKOFF: Duration = Duration::from_millis(100);
/// Maximum number of times that one claim starts again because another process changed the item
/// between this process's read and its conditional write.
const MAX_RACES: usize = 5;
/// Interval between two reads of a lease whose owner is alive. A waiting claim must notice a
/// release within one second.
const POLL: Duration = Duration::from_millis(400);
/// Maximum number of items that the service reads for one page of a list.
const PAGE: i32 = 1000;

type Item = HashMap<String, AttributeValue>;

/// Client of one DynamoDB table, whose items are the leases.
pub(super) struct DynamoDb {
    table: Arc<Table>,
    bridge: Bridge,
}

struct Table {
    client: Client,
    name: String,
    /// Region and endpoint.
    scope: Vec<(&'static str, String)>,
    /// AWS command that creates the table, for the error message about a missing table.
    create: String,
    observations: Observations,
}

impl DynamoDb {
    pub(super) fn connect(url: &StoreUrl) -> Result<Self, Error> {
        let mut url = url.clone();
        let [region, endpoint] = ["region", "endpoint"].map(|option| url.take(option));
        url.finish("`region`, `endpoint` and `password_file`")?;
        check(&url, region.as_deref(), endpoint.as_deref())?;
        let keys = match (&url.user, &url.password) {
            (Some(id), Some(secret)) => Some(Credentials::new(id, secret, None, None, "URL")),
            (None, None) => None,
            _ => {
                return Err(url.bad(
                    "an access key id needs its secret: \
                     dynamodb://ACCESS_KEY_ID@TABLE?password_file=PATH",
                ));
            }
        };
        let bridge = Bridge::start().map_err(|error| {
            url.bad(&format!(
                "cannot start the thread of the AWS client: {error}"
            ))
        })?;
        let (client, region, used_endpoint) = bridge
            .call(CONFIGURE_TIMEOUT, configure(region, endpoint.clone(), keys))
            .map_err(|error| url.bad(&error.why))?;
        let name = url.address;
        let mut scope = vec![("region", region.clone())];
        scope.extend(used_endpoint.map(|endpoint| ("endpoint", without_user(&endpoint))));
        let endpoint = endpoint.map_or_else(String::new, |url| format!(" --endpoint-url {url}"));
        let create = format!(
            "aws dynamodb create-table --table-name {name} --region {region}{endpoint} \
             --billing-mode PAY_PER_REQUEST \
             --attribute-definitions AttributeName=key,AttributeType=S \
             --key-schema AttributeName=key,KeyType=HASH"
        );
        let table = Arc::new(Table {
            client,
            name,
            scope,
            create,
            observations: Observations::default(),
        });
        Ok(Self { table, bridge })
    }

    fn call<T, F>(
        &self,
        limit: Duration,
        requests: impl FnOnce(Arc<Table>) -> F,
    ) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        self.bridge.call(limit, requests(Arc::clone(&self.table)))
    }

    /// Changes the item of a key on the condition that this owner has the lease. Returns `None` if
    /// another owner or no owner has it.
    fn update_if_owner(
        &self,
        key: &str,
        owner: &str,
        limit: Duration,
        update: impl FnOnce(UpdateItemFluentBuilder) -> UpdateItemFluentBuilder + Send + 'static,
    ) -> Result<Option<UpdateItemOutput>, StoreError> {
        let (key, owner) = (key.to_owned(), owner.to_owned());
        self.call(limit, |table| async move {
            let request = table
                .update(&key)
                .condition_expression("#owner = :owner")
                .expression_attribute_names("#owner", "owner")
                .expression_attribute_values(":owner", AttributeValue::S(owner));
            table.write(update(request)).await
        })
    }
}

impl Drop for DynamoDb {
    fn drop(&mut self) {
        if self.bridge.is_forked() {
            // In a forked child the client is leaked: closing the child's copies of the parent's
            // connections would end the parent's TLS sessions.
            std::mem::forget(Arc::clone(&self.table));
        }
    }
}

impl fmt::Debug for DynamoDb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DynamoDb")
            .field("table", &self.table.name)
            .finish_non_exhaustive()
    }
}

impl Backend for DynamoDb {
    fn scope(&self) -> Vec<(&'static str, String)> {
        self.table.scope.clone()
    }

    fn try_acquire(
        &self,
        id: &LeaseId,
        record: &[u8],
        limit: Duration,
    ) -> Result<Attempt, StoreError> {
        let (id, record) = (id.clone(), record.to_vec());
        self.call(limit, |table| async move {
            for _ in 0..MAX_RACES {
                if let Some(attempt) = table.acquire(&id, &record).await? {
                    return Ok(attempt);
                }
            }
            Err(StoreError::transient(
                "other processes changed the item of the key during each attempt to acquire it",
            ))
        })
    }

    fn renew(&self, id: &LeaseId, _grant: &Grant, limit: Duration) -> Result<Renewed, StoreError> {
        let renewed = self.update_if_owner(&id.key, &id.owner, limit, |request| {
            request
                .update_expression("SET #version = :version")
                .expression_attribute_names("#version", "version")
                .expression_attribute_values(":version", AttributeValue::S(random_version()))
                .return_values(ReturnValue::AllNew)
        })?;
        Ok(match renewed {
            None => Renewed::NotOwner,
            Some(output) => Renewed::Extended {
                stop_requested: output
                    .attributes()
                    .and_then(|item| text(item, "stop"))
                    .is_some_and(|stop| stop == id.owner),
            },
        })
    }

    fn write_record(
        &self,
        id: &LeaseId,
        record: &[u8],
        limit: Duration,
    ) -> Result<bool, StoreError> {
        let record = AttributeValue::B(Blob::new(record));
        self.update_if_owner(&id.key, &id.owner, limit, |request| {
            request
                .update_expression("SET #record = :record")
                .expression_attribute_names("#record", "record")
                .expression_attribute_values(":record", record)
        })
        .map(|written| written.is_some())
    }

    fn release(&self, id: &LeaseId, limit: Duration) -> Result<(), StoreError> {
        self.update_if_owner(&id.key, &id.owner, limit, |request| {
            request
                .update_expression("REMOVE #owner, #version, #ttl, #record, #stop")
                .expression_attribute_names("#version", "version")
                .expression_attribute_names("#ttl", "ttl_ms")
                .expression_attribute_names("#record", "record")
                .expression_attribute_names("#stop", "stop")
        })
        .map(|_| ())
    }

    fn read(&self, key: &str, limit: Duration) -> Result<Option<Entry>, StoreError> {
        let key = key.to_owned();
        self.call(limit, |table| async move {
            let item = table.get(&key).await?;
            Ok(item.as_ref().and_then(entry))
        })
    }

    fn list(&self, limit: Duration) -> Result<Vec<(String, Entry)>, StoreError> {
        let mut found = Vec::new();
        let mut start = None;
        loop {
            let from = start.take();
            let page = self.call(limit, |table| async move {
                table
                    .client
                    .scan()
                    .table_name(&table.name)
                    .consistent_read(true)
                    .limit(PAGE)
                    .set_exclusive_start_key(from)
                    .filter_expression("attribute_exists(#owner)")
                    .expression_attribute_names("#owner", "owner")
                    .send()
                    .await
                    .map_err(|error| table.to_store_error(&error))
            })?;
            found.extend(
                page.items()
                    .iter()
                    .filter_map(|item| Some((text(item, "key")?, entry(item)?))),
            );
            start = page.last_evaluated_key;
            if start.is_none() || found.len() >= MAX_LISTED {
                found.truncate(MAX_LISTED);
                return Ok(found);
            }
        }
    }

    fn request_stop(&self, key: &str, owner: &str, limit: Duration) -> Result<bool, StoreError> {
        self.update_if_owner(key, owner, limit, |request| {
            request
                .update_expression("SET #stop = :owner")
                .expression_attribute_names("#stop", "stop")
        })
        .map(|stored| stored.is_some())
    }

    fn waiter(&self, _key: &str, _limit: Duration) -> Result<Box<dyn Waiter>, StoreError> {
        Ok(Box::new(Poll))
    }
}

/// Waits by polling: DynamoDB sends no notifications, so the caller reads the item again after a
/// pause.
struct Poll;

impl Waiter for Poll {
    fn wait(&mut self, limit: Duration) -> Result<(), StoreError> {
        // A random jitter shortens the pause: processes that wait for the same key must not all
        // read its item at the same time.
        let jitter = Duration::from_millis(random() % 150);
        std::thread::sleep(limit.min(POLL.saturating_sub(jitter)));
        Ok(())
    }
}

impl Table {
    fn update(&self, key: &str) -> UpdateItemFluentBuilder {
        self.client
            .update_item()
            .table_name(&self.name)
            .key("key", AttributeValue::S(key.to_owned()))
    }

    async fn write(
        &self,
        request: UpdateItemFluentBuilder,
    ) -> Result<Option<UpdateItemOutput>, StoreError> {
        match request.send().await {
            Ok(output) => Ok(Some(output)),
            Err(SdkError::ServiceError(error))
                if error.err().is_conditional_check_failed_exception() =>
            {
                Ok(None)
            }
            Err(error) => Err(self.to_store_error(&error)),
        }
    }

    async fn get(&self, key: &str) -> Result<Option<Item>, StoreError> {
        self.client
            .get_item()
            .table_name(&self.name)
            .key("key", AttributeValue::S(key.to_owned()))
            .consistent_read(true)
            .send()
            .await
            .map(|output| output.item)
            .map_err(|error| self.to_store_error(&error))
    }

    /// Reads the item of a key, and makes this owner its owner if the key is free or the lease has
    /// expired. Returns `None` if another process changed the item between the read and the write,
    /// so the caller tries again.
    async fn acquire(&self, id: &LeaseId, record: &[u8]) -> Result<Option<Attempt>, StoreError> {
        let item = self.get(&id.key).await?.unwrap_or_default();
        let now = clock::boot_time();
        let Some(held) = entry(&item) else {
            self.observations.forget(&id.key);
            return self.take_over(id, record, &item).await;
        };
        if held.owner == id.owner {
            // The item names this owner already: an earlier attempt succeeded, but its response was
            // lost.
            return self.renew_own(id, held.token).await;
        }
        let version = text(&item, "version").unwrap_or_default();
        let ttl = ttl(&item);
        let verdict = self
            .observations
            .observe(&id.key, &held.owner, &version, ttl, now);
        match verdict {
            Verdict::Expired => self.take_over(id, record, &item).await,
            Verdict::Valid { expires_in } => Ok(Some(Attempt::Held(Entry {
                expires_in: Some(expires_in),
                ..held
            }))),
            Verdict::Unknown { expires_in } => Ok(Some(Attempt::Unproven {
                retry: retry(ttl, expires_in),
                entry: held,
            })),
        }
    }

    /// Writes this owner into the item, if the item is unchanged since it was read. Every
    /// acquisition changes the token, so a delayed request that expects an older token has no
    /// effect.
    async fn take_over(
        &self,
        id: &LeaseId,
        record: &[u8],
        read: &Item,
    ) -> Result<Option<Attempt>, StoreError> {
        let token = next_token(read)?;
        let mut request = self
            .update(&id.key)
            .update_expression(
                "SET #owner = :me, #token = :token, #version = :new, #ttl = :ttl, \
                 #record = :record REMOVE #stop",
            )
            .expression_attribute_names("#ttl", "ttl_ms")
            .expression_attribute_names("#record", "record")
            .expression_attribute_names("#stop", "stop")
            .expression_attribute_values(":me", AttributeValue::S(id.owner.clone()))
            .expression_attribute_values(":token", AttributeValue::N(token.to_string()))
            .expression_attribute_values(":new", AttributeValue::S(random_version()))
            .expression_attribute_values(":ttl", AttributeValue::N(id.ttl.as_millis().to_string()))
            .expression_attribute_values(":record", AttributeValue::B(Blob::new(record)));
        let mut condition = Vec::new();
        for name in ["owner", "token", "version"] {
            request = request.expression_attribute_names(format!("#{name}"), name);
            match read.get(name) {
                None => condition.push(format!("attribute_not_exists(#{name})")),
                Some(value) => {
                    condition.push(format!("#{name} = :read_{name}"));
                    request =
                        request.expression_attribute_values(format!(":read_{name}"), value.clone());
                }
            }
        }
        let request = request.condition_expression(condition.join(" AND "));
        let Some(_) = self.write(request).await? else {
            return Ok(None);
        };
        self.observations.forget(&id.key);
        Ok(Some(Attempt::Acquired(Grant { token, lease: 0 })))
    }

    async fn renew_own(&self, id: &LeaseId, token: u64) -> Result<Option<Attempt>, StoreError> {
        let request = self
            .update(&id.key)
            .condition_expression("#owner = :me")
            .update_expression("SET #version = :new")
            .expression_attribute_names("#owner", "owner")
            .expression_attribute_names("#version", "version")
            .expression_attribute_values(":me", AttributeValue::S(id.owner.clone()))
            .expression_attribute_values(":new", AttributeValue::S(random_version()));
        let renewed = self.write(request).await?;
        Ok(renewed.map(|_| Attempt::Acquired(Grant { token, lease: 0 })))
    }

    fn to_store_error<E>(&self, error: &SdkError<E>) -> StoreError
    where
        E: ProvideErrorMetadata + std::error::Error + Send + Sync + 'static,
    {
        let SdkError::ServiceError(service) = error else {
            let transient = matches!(
                error,
                SdkError::TimeoutError(_)
                    | SdkError::DispatchFailure(_)
                    | SdkError::ResponseError(_)
            );
            let why = describe_sources(error);
            return if transient {
                StoreError::transient(why)
            } else {
                StoreError::fatal(why)
            };
        };
        let code = service
            .err()
            .code()
            .unwrap_or("an AWS error without a code");
        let message = service.err().message().unwrap_or_default();
        let why = crate::text::sanitize_name(format!("{code}: {message}"));
        match code {
            "ResourceNotFoundException" => StoreError::fatal(format!(
                "the table {} does not exist; create it with\n{}",
                self.name, self.create
            )),
            "ValidationException" if message.contains("schema") => StoreError::fatal(format!(
                "the table {} has another key than `key`, a string, without a sort key; create \
                 another table with\n{}",
                self.name, self.create
            )),
            "ProvisionedThroughputExceededException"
            | "ThrottlingException"
            | "RequestLimitExceeded"
            | "TransactionConflictException"
            | "ReplicatedWriteConflictException"
            | "LimitExceededException" => StoreError::transient(why),
            _ if service.raw().status().is_server_error() => StoreError::transient(why),
            _ => StoreError::fatal(why),
        }
    }
}

/// Creates the client, with the region and the credentials that the URL or the environment gives.
/// Also returns the region and the endpoint in use, which identify the store.
async fn configure(
    region: Option<String>,
    endpoint: Option<String>,
    keys: Option<Credentials>,
) -> Result<(Client, String, Option<String>), StoreError> {
    let http = aws_smithy_http_client::Builder::new()
        .tls_provider(Provider::Rustls(CryptoMode::Ring))
        .build_https();
    let mut loader = aws_config::defaults(BehaviorVersion::v2026_01_12())
        .http_client(http)
        .retry_config(
            RetryConfig::standard()
                .with_max_attempts(MAX_ATTEMPTS)
                .with_initial_backoff(FIRST_BACKOFF)
                .with_max_backoff(MAX_BACKOFF),
        );
    if let Some(region) = region {
        loader = loader.region(Region::new(region));
    }
    if let Some(endpoint) = &endpoint {
        loader = loader.endpoint_url(endpoint);
    }
    if let Some(keys) = keys {
        loader = loader.credentials_provider(keys);
    }
    let config = loader.load().await;
    let Some(region) = config.region().map(ToString::to_string) else {
        return Err(StoreError::fatal(
            "no AWS region is set; write dynamodb://TABLE?region=us-east-1, or set AWS_REGION",
        ));
    };
    // The credentials are fetched now, because the first request would otherwise fail with a
    // timeout, not with an error that names the missing credentials.
    if let Some(provider) = config.credentials_provider() {
        provider.provide_credentials().await.map_err(|error| {
            StoreError::fatal(format!(
                "no AWS credentials were found ({}); set AWS_ACCESS_KEY_ID and \
                 AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
                describe_sources(&error)
            ))
        })?;
    }
    let endpoint = endpoint
        .or_else(|| std::env::var("AWS_ENDPOINT_URL_DYNAMODB").ok())
        .or_else(|| config.endpoint_url().map(str::to_owned));
    Ok((Client::new(&config), region, endpoint))
}

/// Removes the user and the password from the URL of an endpoint, for messages.
fn without_user(endpoint: &str) -> String {
    match (endpoint.split_once("://"), endpoint.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, address))) => format!("{scheme}://{address}"),
        _ => endpoint.to_owned(),
    }
}

/// Rejects table, region and endpoint names that AWS would reject, or that would change the meaning
/// of the shell command in an error message.
fn check(url: &StoreUrl, region: Option<&str>, endpoint: Option<&str>) -> Result<(), Error> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if !(3..=255).contains(&url.address.len()) || !url.address.chars().all(is_name) {
        return Err(url.bad("the name of a table has 3 to 255 letters, digits, `-`, `_` and `.`"));
    }
    if !url.path.is_empty() {
        return Err(url.bad("a path after the name of the table has no meaning"));
    }
    if region.is_some_and(|region| region.is_empty() || !region.chars().all(is_name)) {
        return Err(url.bad("`region` is not a name such as us-east-1"));
    }
    let is_address = |url: &str| {
        (url.starts_with("http://") || url.starts_with("https://"))
            && url.chars().all(|c| is_name(c) || ":/[]".contains(c))
    };
    if endpoint.is_some_and(|endpoint| !is_address(endpoint)) {
        return Err(url.bad("`endpoint` is not an address such as http://127.0.0.1:8000"));
    }
    Ok(())
}

/// Reads a lease from an item of the table. Returns `None` if the key is free.
fn entry(item: &Item) -> Option<Entry> {
    let record = match item.get("record") {
        Some(AttributeValue::B(record)) => record.clone().into_inner(),
        _ => Vec::new(),
    };
    Some(Entry {
        owner: match item.get("owner")? {
            AttributeValue::S(owner) => owner.clone(),
            // The owner in the item is not a text, so another program wrote the item. The key
            // counts as held.
            _ => String::new(),
        },
        token: number(item, "token").unwrap_or(0),
        record,
        expires_in: None,
    })
}

fn text(item: &Item, name: &str) -> Option<String> {
    item.get(name)?.as_s().ok().cloned()
}

fn number(item: &Item, name: &str) -> Option<u64> {
    item.get(name)?.as_n().ok()?.parse().ok()
}

/// Returns the token of the next owner. The counter of a new item starts with the time in
/// microseconds, so tokens increase even if the previous item was deleted.
fn next_token(item: &Item) -> Result<u64, StoreError> {
    if item.contains_key("token") {
        return number(item, "token")
            .and_then(|token| token.checked_add(1))
            .ok_or_else(|| StoreError::fatal("the attribute `token` is not a valid number"));
    }
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    Ok(u64::try_from(now.as_micros()).unwrap_or(1).max(1))
}

/// Returns the TTL in the item of an owner. The value is limited to the range that claims may have,
/// because other programs can write to the table.
fn ttl(item: &Item) -> Duration {
    number(item, "ttl_ms")
        .map_or(DEFAULT_TTL, Duration::from_millis)
        .clamp(MIN_TTL, MAX_TTL)
}

/// Returns the pause until the next read of a lease that may have expired: a tenth of its TTL,
/// within bounds, so that a renewal by a living owner is noticed soon.
fn retry(ttl: Duration, expires_in: Duration) -> Duration {
    (ttl / 10)
        .clamp(Duration::from_millis(50), Duration::from_millis(500))
        .min(expires_in)
}

fn random() -> u64 {
    std::hash::RandomState::new().hash_one(0)
}

fn random_version() -> String {
    format!("{:016x}", random())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connect(url: &str) -> Result<(), String> {
        let url = StoreUrl::parse(url).map_err(|error| error.to_string())?;
        DynamoDb::connect(&url)
            .map(|_| ())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn url_is_checked() {
        let bad = |url: &str| connect(url).unwrap_err();
        assert!(bad("dynamodb://t?region=eu").contains("3 to 255"));
        assert!(bad("dynamodb://tab$le?region=eu").contains("3 to 255"));
        assert!(bad("dynamodb://table/x?region=eu").contains("path"));
        assert!(bad("dynamodb://table?region=a;b").contains("us-east-1"));
        assert!(bad("dynamodb://table?endpoint=$(x)").contains("http://127.0.0.1:8000"));
        assert!(bad("dynamodb://id@table?region=eu").contains("password_file"));
        assert!(bad("dynamodb://table?regin=eu").contains("`regin`"));
        connect("dynamodb://id:secret@table?region=eu").unwrap();
    }

    #[test]
    fn scope_has_the_region_and_the_endpoint_without_password() {
        let scope = |options: &str| {
            let url = format!("dynamodb://id:secret@table?{options}");
            let url = StoreUrl::parse(&url).unwrap();
            let scope = DynamoDb::connect(&url).unwrap().scope();
            super::super::url::identity(&url.shown(), &scope)
        };
        assert_eq!(scope("region=eu"), "dynamodb://table?region=eu");
        assert_eq!(
            scope("endpoint=http://127.0.0.1:8000&region=us"),
            "dynamodb://table?region=us&endpoint=http://127.0.0.1:8000"
        );
        assert_eq!(without_user("http://u:p@h:1"), "http://h:1");
    }

    #[test]
    fn tokens_increase() {
        let mut item = Item::new();
        assert!(next_token(&item).unwrap() > 1_700_000_000_000_000);
        item.insert("token".to_owned(), AttributeValue::N("7".to_owned()));
        assert_eq!(next_token(&item).unwrap(), 8);
        for bad in ["-1", "1e400", "18446744073709551615"] {
            item.insert("token".to_owned(), AttributeValue::N(bad.to_owned()));
            assert!(next_token(&item).is_err(), "{bad}");
        }
    }

    #[test]
    fn ttl_of_another_owner_is_limited() {
        let of = |millis: &str| {
            let value = AttributeValue::N(millis.to_owned());
            ttl(&Item::from([("ttl_ms".to_owned(), value)]))
        };
        assert_eq!(of("0"), MIN_TTL);
        assert_eq!(of("2500"), Duration::from_millis(2500));
        assert_eq!(of("18446744073709551615"), MAX_TTL);
        assert_eq!(of("x"), DEFAULT_TTL);
    }

    #[test]
    fn next_look_is_at_the_expiry_at_the_latest() {
        let ms = Duration::from_millis;
        assert_eq!(retry(ms(1000), ms(900)), ms(100));
        assert_eq!(retry(ms(100_000), ms(90_000)), ms(500));
        assert_eq!(retry(ms(100_000), ms(3)), ms(3));
    }
}
