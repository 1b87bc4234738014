//! The batches that wait for delivery.

use std::path::{Path, PathBuf};

use crate::batch::Batch;
use crate::data_dir::DataDir;
use crate::disk::RealDisk;
use crate::error::Error;

/// All access to the batches of a data directory.
///
/// ```
/// use spool::{Durability, Options, Record, SpoolManager, Staging, consolidate};
///
/// let data = tempfile::tempdir()?;
/// let staging = Staging::open(data.path().join("_staging"))?;
/// staging.stage(&Record::parse(r#"{"tokens":42}"#)?, Durability::Power)?;
/// staging.close()?;
/// consolidate(data.path(), &Options::default())?;
///
/// let spool = SpoolManager::open(data.path())?;
/// for name in spool.pending()? {
///     let batch = spool.load(&name)?;
///     assert_eq!(batch.records().len(), 1);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct SpoolManager {
    data: DataDir,
}

impl SpoolManager {
    /// Opens a data directory, which is made if need be.
    pub fn open(data: impl AsRef<Path>) -> Result<Self, Error> {
        let data = DataDir::new(data.as_ref());
        data.make(&RealDisk)?;
        Ok(Self { data })
    }

    /// The names of the batches that wait, oldest first. Other files are none of ours.
    pub fn pending(&self) -> Result<Vec<String>, Error> {
        let dir = &self.data.spool;
        let failed = |error| Error::new("list", dir, error);
        let mut names = Vec::new();
        for file in std::fs::read_dir(dir).map_err(failed)? {
            let name = file.map_err(failed)?.file_name();
            names.extend(
                name.to_str()
                    .filter(|name| is_batch(name))
                    .map(str::to_owned),
            );
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Reads a batch and checks all that can be checked of it.
    pub fn load(&self, name: &str) -> Result<Batch, Error> {
        let path = self.path(name);
        let bytes = std::fs::read(&path).map_err(|error| Error::new("read", &path, error))?;
        let batch = Batch::decode(&bytes).and_then(|batch| {
            if batch.file_name() == name {
                Ok(batch)
            } else {
                Err("its name is not that of its records".to_owned())
            }
        });
        batch.map_err(|why| Error::new("use", &path, std::io::Error::other(why)))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.data.spool.join(name)
    }
}

/// `{uuid}-{line}-{key}.json`
fn is_batch(name: &str) -> bool {
    let Some(stem) = name.strip_suffix(".json") else {
        return false;
    };
    let digits = |text: &str, count: usize| {
        text.len() == count && text.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    let parts: Vec<&str> = stem.rsplitn(3, '-').collect();
    matches!(parts[..], [key, line, entry]
        if digits(key, 16) && digits(line, 8) && crate::record::parse_id(entry).is_ok())
}
