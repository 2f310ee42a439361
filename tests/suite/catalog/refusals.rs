//! What no retry helps against ends a command at once, typed, whichever write it meets; what passes is waited for.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::stream::BoxStream;
use metashift::ErrorKind;
use metashift::catalog::driver::Request;
use metashift::catalog::inspect::inspect;
use metashift::catalog::location::Location;
use metashift::catalog::seed::Seed;
use metashift::catalog::units::Registry;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult,
};

use super::support::{PATH, budget, content, copied, dump, environment, finish, migrate, seeded};

type Refusal = fn(&Path) -> Error;

/// A store that refuses every write after some, or every read, or that many writes and no more.
struct Refusing {
    inner: Arc<dyn ObjectStore>,
    refusal: Refusal,
    reads: bool,
    /// Writes that pass first.
    first: AtomicU64,
    /// Writes that are refused then.
    times: AtomicU64,
}

impl Refusing {
    fn writes(inner: &Arc<dyn ObjectStore>, refusal: Refusal, first: u64, times: u64) -> Location {
        Self::at(inner, refusal, false, first, times)
    }

    fn at(inner: &Arc<dyn ObjectStore>, refusal: Refusal, reads: bool, first: u64, times: u64) -> Location {
        let (first, times) = (AtomicU64::new(first), AtomicU64::new(times));
        Location::new(Arc::new(Self { inner: Arc::clone(inner), refusal, reads, first, times }), PATH)
    }

    fn write(&self, to: &Path) -> object_store::Result<()> {
        let less = |left: u64| left.checked_sub(1);
        let passes = self.first.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok();
        if passes || self.reads || self.times.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_err()
        {
            return Ok(());
        }
        Err((self.refusal)(to))
    }
}

impl fmt::Debug for Refusing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("refusing")
    }
}

impl fmt::Display for Refusing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("refusing")
    }
}

#[async_trait::async_trait]
impl ObjectStore for Refusing {
    async fn put_opts(
        &self,
        to: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> object_store::Result<PutResult> {
        self.write(to)?;
        self.inner.put_opts(to, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        to: &Path,
        options: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        self.write(to)?;
        self.inner.put_multipart_opts(to, options).await
    }

    async fn get_opts(&self, from: &Path, options: GetOptions) -> object_store::Result<GetResult> {
        if self.reads {
            return Err((self.refusal)(from));
        }
        self.inner.get_opts(from, options).await
    }

    fn delete_stream(
        &self,
        from: BoxStream<'static, object_store::Result<Path>>,
    ) -> BoxStream<'static, object_store::Result<Path>> {
        self.inner.delete_stream(from)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> object_store::Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> object_store::Result<()> {
        self.write(to)?;
        self.inner.copy_opts(from, to, options).await
    }
}

fn answered(what: &'static str) -> Error {
    Error::Generic { store: "S3", source: what.into() }
}

fn file(kind: io::ErrorKind) -> Error {
    // As the local store wraps it: an error of its own around the system's.
    Error::Generic {
        store: "LocalFileSystem",
        source: Box::new(io::Error::other(Error::Generic {
            store: "file",
            source: Box::new(io::Error::from(kind)),
        })),
    }
}

/// How stores refuse, what kind of error that is, and what its message says.
fn refusals() -> Vec<(&'static str, Refusal, ErrorKind, &'static str)> {
    vec![
        (
            "403",
            |to| Error::PermissionDenied {
                path: to.to_string(),
                source: "AccessDenied: not authorized to perform s3:PutObject".into(),
            },
            ErrorKind::AccessDenied,
            "s3:PutObject",
        ),
        (
            "401",
            |to| Error::Unauthenticated { path: to.to_string(), source: "no such user".into() },
            ErrorKind::AccessDenied,
            "no such user",
        ),
        (
            "a read-only directory",
            |_| file(io::ErrorKind::ReadOnlyFilesystem),
            ErrorKind::AccessDenied,
            "read-only",
        ),
        (
            "a directory of others",
            |_| file(io::ErrorKind::PermissionDenied),
            ErrorKind::AccessDenied,
            "permission denied",
        ),
        ("a full disk", |_| file(io::ErrorKind::StorageFull), ErrorKind::Unavailable, "no storage space"),
        ("a used-up quota", |_| file(io::ErrorKind::QuotaExceeded), ErrorKind::Unavailable, "quota exceeded"),
        (
            "object lock",
            |_| {
                answered(
                    "Server returned non-2xx status code: 400 Bad Request: <Error><Code>InvalidRequest</Code><Message>Content-MD5 OR x-amz-checksum- HTTP header is required for Put Object requests with Object Lock parameters</Message></Error>",
                )
            },
            ErrorKind::InvalidInput,
            "Object Lock",
        ),
        (
            "another region",
            |_| {
                answered(
                    "Received redirect without LOCATION, this normally indicates an incorrectly configured region",
                )
            },
            ErrorKind::InvalidInput,
            "region",
        ),
        (
            "a name that is none",
            |_| Path::parse("lake//x").map(|_| answered("it is one")).unwrap_or_else(Error::from),
            ErrorKind::InvalidInput,
            "lake//x",
        ),
        (
            "an expired token",
            |_| {
                answered(
                    "Server returned non-2xx status code: 400 Bad Request: <Error><Code>ExpiredToken</Code></Error>",
                )
            },
            ErrorKind::AccessDenied,
            "ExpiredToken",
        ),
    ]
}

/// Far below the fifteen minutes of a single wait.
const PROMPT: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_write_that_no_retry_helps_ends_a_run_at_once_wherever_it_comes_and_the_next_run_goes_on() {
    let seed = Seed { tombstones: 600, ..Seed::small(8) };
    let store = seeded(seed).await;
    let whole = copied(&store).await;
    finish(&whole, 12).await;
    let whole = content(&dump(&whole).await);
    for (what, refusal, kind, text) in refusals() {
        for first in [0, 1, 2, 4, 7] {
            let shared = copied(&store).await;
            let location = Refusing::writes(&shared, refusal, first, u64::MAX);
            let request = Request { checkpoint: first == 4, ..Request::to(12) };
            let ran = tokio::time::timeout(PROMPT, migrate(&location, &request, budget())).await;
            let error = ran.unwrap_or_else(|_| panic!("{what} after {first}: it hangs")).unwrap_err();
            assert_eq!(error.kind(), kind, "{what} after {first} writes: {error}");
            assert!(
                error.message().to_lowercase().contains(&text.to_lowercase()),
                "{what} after {first}: {error}"
            );
            assert!(error.next_step().is_some(), "{what}: {error}");
            finish(&shared, 12).await;
            assert!(content(&dump(&shared).await) == whole, "{what} after {first} writes");
        }
    }
}

#[tokio::test]
async fn a_read_that_no_retry_helps_ends_a_look_at_once() {
    let store = seeded(Seed::small(8)).await;
    for (what, refusal, kind, text) in refusals() {
        let location = Refusing::at(&store, refusal, true, 0, 0);
        let registry = Registry::shipped();
        for counted in [false, true] {
            let (environment, budget) = (environment(), budget());
            let look = inspect(&location, &registry, 12, counted, &environment, &budget);
            let found = tokio::time::timeout(PROMPT, look).await;
            let error = found.unwrap_or_else(|_| panic!("{what}: it hangs")).unwrap_err();
            assert_eq!(error.kind(), kind, "{what}: {error}");
            assert!(error.message().to_lowercase().contains(&text.to_lowercase()), "{what}: {error}");
        }
    }
}

#[tokio::test]
async fn what_passes_is_tried_again() {
    let passing: [Refusal; 3] = [
        |_| answered("Server returned non-2xx status code: 503 Service Unavailable: SlowDown"),
        |_| {
            answered(
                "Server returned non-2xx status code: 400 Bad Request: <Error><Code>RequestTimeout</Code></Error>",
            )
        },
        |_| file(io::ErrorKind::TimedOut),
    ];
    for refusal in passing {
        let store = seeded(Seed::small(8)).await;
        let location = Refusing::writes(&store, refusal, 1, 3);
        assert!(migrate(&location, &Request::to(12), budget()).await.unwrap().done);
    }
}
