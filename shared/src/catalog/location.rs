//! Where a catalog store is: an object store and a path in it.

mod s3;

use std::fmt;
use std::sync::Arc;

use object_store::ObjectStore;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use url::Url;

use super::guard::Guard;
use crate::aws::without_secret;
use crate::{Error, ErrorKind, Result};

/// An object store and the path of a SlateDB database in it. Cheap to clone.
#[derive(Clone)]
pub struct Location {
    /// Where the objects are.
    pub store: Arc<dyn ObjectStore>,
    /// Path of the database.
    pub path: Path,
    name: Arc<str>,
}

impl fmt::Debug for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl Location {
    /// A database at `path` of an object store that the caller made.
    pub fn new(store: Arc<dyn ObjectStore>, path: impl Into<Path>) -> Self {
        let path = path.into();
        let name = format!("{store}/{path}").into();
        Self { store, path, name }
    }

    /// The store as SlateDB is given it.
    pub(crate) fn guarded(&self) -> Arc<Guard> {
        Guard::over(&self.store)
    }

    /// The store that a URL names.
    ///
    /// `s3://bucket/path` takes region, credentials and endpoint from the chain of [`crate::aws`]; an `http://` endpoint is
    /// allowed.
    /// `file:///directory` is a directory of this machine and has to exist.
    ///
    /// `InvalidInput` for anything else.
    pub async fn parse(text: &str) -> Result<Self> {
        let invalid = |why: String| invalid(text, &why);
        let url = checked(text)?;
        let path = |url: &Url| Path::from_url_path(url.path()).map_err(|error| invalid(error.to_string()));
        match url.scheme() {
            "s3" => {
                let bucket = url.host_str().filter(|host| !host.is_empty());
                let bucket = bucket.ok_or_else(|| invalid("names no bucket".to_owned()))?;
                let path = path(&url)?;
                let store = s3::bucket(bucket).await.map_err(|error| invalid(error.to_string()))?;
                Ok(Self { store: Arc::new(store), path, name: text.into() })
            }
            "file" => {
                let directory =
                    url.to_file_path().map_err(|()| invalid("is no path of this machine".to_owned()))?;
                // Without this, what a writer was told to be durable is in the page cache alone.
                let store = LocalFileSystem::new_with_prefix(&directory)
                    .map_err(|error| invalid(format!("no such directory ({error})")))?
                    .with_fsync(true);
                Ok(Self { store: Arc::new(store), path: Path::default(), name: text.into() })
            }
            other => Err(invalid(format!("unknown scheme {other}"))),
        }
    }
}

/// `InvalidInput`, without the secret that the URL may hold.
fn invalid(text: &str, why: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, format!("store {}: {why}", without_secret(text)))
        .next("name it as s3://bucket/path or file:///directory")
}

/// The URL, if it may name a store.
fn checked(text: &str) -> Result<Url> {
    let url = Url::parse(text).map_err(|error| invalid(text, &error.to_string()))?;
    if url.query().is_some() || url.fragment().is_some() {
        return Err(invalid(
            text,
            "has a query or a fragment; a directory with ? or # in its name cannot be used",
        ));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(invalid(
            text,
            "holds a user or a secret; credentials come from the environment or a profile",
        ));
    }
    plain_path(text).map_err(|why| invalid(text, why))?;
    Ok(url)
}

/// The region that a bucket is in, as its service says; `None` where that cannot be found out.
pub async fn region_of_bucket(text: &str) -> Option<String> {
    let url = checked(text).ok()?;
    s3::region_of(url.host_str()?).await
}

/// Refuses a path that has more than one spelling: a parser of URLs resolves dots and decodes escapes in silence, and an object
/// store takes both as they are.
fn plain_path(url: &str) -> std::result::Result<(), &'static str> {
    let rest = url.split_once("://").map_or("", |(_, rest)| rest);
    let path = rest.split_once('/').map_or("", |(_, path)| path);
    if path.contains('%') {
        return Err("has an escape or a percent sign in its path; name it as it is, without one");
    }
    let path = path.strip_suffix('/').unwrap_or(path);
    if !path.is_empty() && path.split('/').any(|part| part.is_empty() || part == "." || part == "..") {
        return Err("has an empty part, \".\" or \"..\" in its path");
    }
    Ok(())
}

/// Makes the directory of a `file://` URL, so that a catalog can be created there; nothing for any other URL. `InvalidInput`
/// where it cannot be made.
pub fn make_directory(text: &str) -> Result<()> {
    let url = checked(text)?;
    let directory = Some(url).filter(|url| url.scheme() == "file").and_then(|url| url.to_file_path().ok());
    let Some(directory) = directory else { return Ok(()) };
    make_durably(&directory)
        .map_err(|error| Error::new(ErrorKind::InvalidInput, format!("store {text}: {error}")))
}

/// Makes a directory and those above it, and syncs the names of all that were not there.
fn make_durably(directory: &std::path::Path) -> std::io::Result<()> {
    let missing: Vec<_> = directory.ancestors().take_while(|above| !above.exists()).collect();
    std::fs::create_dir_all(directory)?;
    for parent in missing.into_iter().filter_map(std::path::Path::parent) {
        std::fs::File::open(parent)?.sync_all()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_url_that_names_no_store_is_invalid_input() {
        for text in
            ["", "lake", "gs://b/p", "s3:///p", "file:///does/not/exist", "s3://b/p?x=1", "file://host/x"]
        {
            assert_eq!(Location::parse(text).await.unwrap_err().kind(), ErrorKind::InvalidInput, "{text}");
        }
    }

    #[tokio::test]
    async fn a_secret_in_a_url_is_refused_and_not_repeated() {
        for text in [
            "s3://user:hush@bucket/p",
            "s3://hush@bucket/p",
            "http://user:hush@host/p",
            "file://u:hush@h/x#1",
        ] {
            let error = Location::parse(text).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(!error.to_string().contains("hush"), "{error}");
        }
    }

    #[test]
    fn a_directory_is_made_only_for_a_url_that_can_name_a_store() {
        let root = std::env::temp_dir().join(format!("metashift-location-{}", std::process::id()));
        for odd in ["#1", "?1", "/deeper#", "?"] {
            let error = make_directory(&format!("file://{}{odd}", root.display())).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{odd}");
            assert!(!root.exists(), "{odd}: something was made");
        }
    }

    #[tokio::test]
    async fn a_path_with_more_than_one_spelling_is_refused() {
        for text in [
            "s3://b/x/../y",
            "s3://b/../y",
            "s3://b/./y",
            "s3://b/x/..",
            "s3://b//x",
            "s3://b/x//y",
            "s3://b/x//",
            "s3://b/100%",
            "s3://b/100%25",
            "s3://b/x%2fy",
            "s3://b/%2e%2e/y",
            "file:///tmp/../etc",
            "file:///tmp//x",
        ] {
            let refused = Location::parse(text).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{text}");
            assert!(refused.message().contains("path"), "{text}: {refused}");
        }
        for (text, path) in [("s3://b", ""), ("s3://b/", ""), ("s3://b/x/", "x"), ("s3://b/x y/z", "x y/z")] {
            assert_eq!(Location::parse(text).await.unwrap().path.as_ref(), path, "{text}");
        }
    }

    #[tokio::test]
    async fn an_s3_url_is_bucket_and_path() {
        let location = Location::parse("s3://lake/catalogs/main").await.unwrap();
        assert_eq!(location.path.as_ref(), "catalogs/main");
        assert_eq!(location.to_string(), "s3://lake/catalogs/main");
    }
}
