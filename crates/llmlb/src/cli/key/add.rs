//! `llmlb key add`: creates a key and prints its secret.

use super::args::Add;
use super::{Keys, failure, new_secret, print_secret, shown};
use crate::cli::exit::{self, Failure};
use crate::cli::output;
use crate::config::{self, Budget, KeyLimits, KeyRights, MAX_KEYS};
use crate::keys::NotAdded;

pub(super) fn add(args: &Add, keys: &Keys, quiet: bool) -> Result<u8, Failure> {
    let name = &args.name;
    keys.reject_declared(name, "choose another name, or change the key in that file")?;
    let rights = rights(args)?;
    let secret = new_secret()?;
    let changed = keys.store.add("key add", rights, &secret);
    let path = shown(&keys.store.path());
    let is_first = match changed.map_err(|error| failure(&error))? {
        Ok(is_first) => is_first,
        Err(NotAdded::Exists) => {
            let message = format!("{path} has an API key `{name}` already");
            let rotate = keys.command(&format!("rotate {name}"));
            return Err(Failure::new(exit::FAILED, message)
                .hint(format!("print a new secret for it: {rotate}")));
        }
        Err(NotAdded::Full) => {
            let message = format!("{path} has {MAX_KEYS} API keys, as many as it may have");
            let revoke = keys.command("revoke NAME");
            return Err(
                Failure::new(exit::FAILED, message).hint(format!("revoke unused ones: {revoke}"))
            );
        }
    };
    print_secret(&secret)?;
    if !quiet {
        output::message(&format!(
            "created the API key `{name}`; its secret is shown only now"
        ));
        if is_first && keys.declared.is_empty() {
            output::message(
                "this is the first key: all clients of servers with this data directory now need one",
            );
        }
        output::hint(
            "clients send the secret as `Authorization: Bearer SECRET`, or in `x-api-key`",
        );
    }
    Ok(exit::DONE)
}

fn rights(args: &Add) -> Result<KeyRights, Failure> {
    let models = match args.models.as_slice() {
        [] => None,
        names => {
            let models = config::model_patterns(names);
            Some(models.map_err(|why| Failure::new(exit::USAGE, format!("--models: {why}")))?)
        }
    };
    let budget = args.budget_tokens.zip(args.per);
    Ok(KeyRights {
        name: args.name.clone(),
        team: args.team.clone(),
        models,
        limits: KeyLimits {
            requests_per_minute: args.rpm,
            tokens_per_minute: args.tpm,
            concurrency: args.concurrency,
            budget: budget.map(|(tokens, per)| Budget { tokens, per }),
        },
        expires: args.expires,
        is_admin: args.admin,
    })
}
