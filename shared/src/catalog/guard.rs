//! A layer under SlateDB that ends its retries for what no retry helps against.
//!
//! SlateDB asks again without end for whatever its object store answers, but for a few conditions: a refused write, a full
//! disk and a read-only directory would be fifteen minutes of silence. Here they become errors that it does not repeat, and
//! those that write are told to whoever waits, since SlateDB writes in the background.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::sync::Arc;

use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error as ObjectError, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, UploadPart,
};
use slatedb_common::retry::NonRetryable;
use tokio::sync::watch;

use crate::{Error, ErrorKind};

/// Why no retry helps: what kind of error it is, and what to do next.
pub(crate) type Lasting = (ErrorKind, &'static str);

const ALLOW: Lasting = (
    ErrorKind::AccessDenied,
    "allow it to these credentials or this user, or use others; then run the same command again: it resumes",
);
const SPACE: Lasting =
    (ErrorKind::Unavailable, "make space there, then run the same command again: it resumes");
const RULES: Lasting = (
    ErrorKind::InvalidInput,
    "see what the bucket asks for (region, object lock, encryption), then run the same command again: it resumes",
);
const PLACE: Lasting =
    (ErrorKind::InvalidInput, "this place cannot hold the objects of a store; choose another");

const NAMES: Lasting = (
    ErrorKind::InvalidInput,
    "an object below the store has a name that no software of its makes (an empty part, \"..\"): move it away, then run the same command again",
);

/// Whether an error of the object store comes again however often it is asked.
pub(crate) fn lasting(error: &ObjectError) -> Option<Lasting> {
    if let ObjectError::PermissionDenied { .. } | ObjectError::Unauthenticated { .. } = error {
        return Some(ALLOW);
    }
    // A name with an empty part or a dot makes every listing of its folder fail.
    if let ObjectError::InvalidPath { .. } = error {
        return Some(NAMES);
    }
    let mut source: Option<&(dyn StdError + 'static)> = Some(error);
    while let Some(cause) = source {
        if let Some(found) = cause.downcast_ref::<io::Error>().and_then(of_files) {
            return Some(found);
        }
        source = cause.source();
    }
    // The client keeps the status of an answer to itself; its text is all there is.
    let text = error.to_string();
    if text.contains("Received redirect without LOCATION") {
        return Some(RULES);
    }
    let status = ["status code: 400", "status code: 301", "status code: 405"];
    if !status.iter().any(|status| text.contains(status)) {
        return None;
    }
    let passing = ["RequestTimeout", "InternalError", "SlowDown"];
    let expired = ["ExpiredToken", "InvalidToken", "TokenRefreshRequired"];
    if passing.iter().any(|code| text.contains(code)) {
        None
    } else if expired.iter().any(|code| text.contains(code)) {
        Some(ALLOW)
    } else {
        Some(RULES)
    }
}

fn of_files(error: &io::Error) -> Option<Lasting> {
    match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => Some(ALLOW),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Some(SPACE),
        io::ErrorKind::FileTooLarge | io::ErrorKind::NotADirectory | io::ErrorKind::InvalidFilename => {
            Some(PLACE)
        }
        _ => None,
    }
}

/// The store of a database, as SlateDB is given it.
pub(crate) struct Guard {
    inner: Arc<dyn ObjectStore>,
    failure: watch::Sender<Option<Error>>,
}

/// Tells of the first write that no retry helps.
pub(crate) type Failure = watch::Receiver<Option<Error>>;

impl Guard {
    pub(crate) fn over(inner: &Arc<dyn ObjectStore>) -> Arc<Self> {
        Arc::new(Self { inner: Arc::clone(inner), failure: watch::Sender::new(None) })
    }

    pub(crate) fn failure(&self) -> Failure {
        self.failure.subscribe()
    }

    fn wrote(&self, to: &Path, error: ObjectError) -> ObjectError {
        wrote(&self.failure, to, error)
    }
}

/// An error of a write: told to whoever waits if no retry helps.
fn wrote(failure: &watch::Sender<Option<Error>>, to: &Path, error: ObjectError) -> ObjectError {
    if let Some((kind, next)) = lasting(&error) {
        let told = Error::new(kind, format!("writing {to}: {error}")).next(next);
        failure.send_if_modified(|failure| {
            let first = failure.is_none();
            failure.get_or_insert(told);
            first
        });
    }
    ended(error)
}

/// The error as SlateDB repeats it or not.
fn ended(error: ObjectError) -> ObjectError {
    if lasting(&error).is_none() {
        return error;
    }
    ObjectError::Generic { store: "catalog", source: Box::new(NonRetryable(Box::new(error))) }
}

/// The error that was wrapped, if it is one of those.
pub(crate) fn unwrapped(error: &ObjectError) -> &ObjectError {
    let ObjectError::Generic { source, .. } = error else { return error };
    source.downcast_ref::<NonRetryable>().and_then(|wrapped| wrapped.0.downcast_ref()).unwrap_or(error)
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.inner, f)
    }
}

impl fmt::Display for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.inner, f)
    }
}

#[async_trait::async_trait]
impl ObjectStore for Guard {
    async fn put_opts(
        &self,
        to: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult, ObjectError> {
        self.inner.put_opts(to, payload, options).await.map_err(|error| self.wrote(to, error))
    }

    async fn put_multipart_opts(
        &self,
        to: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>, ObjectError> {
        let upload =
            self.inner.put_multipart_opts(to, options).await.map_err(|error| self.wrote(to, error))?;
        Ok(Box::new(Upload { upload, to: to.clone(), failure: self.failure.clone() }))
    }

    async fn get_opts(&self, from: &Path, options: GetOptions) -> Result<GetResult, ObjectError> {
        self.inner.get_opts(from, options).await.map_err(ended)
    }

    fn delete_stream(
        &self,
        from: BoxStream<'static, Result<Path, ObjectError>>,
    ) -> BoxStream<'static, Result<Path, ObjectError>> {
        self.inner.delete_stream(from).map_err(ended).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta, ObjectError>> {
        self.inner.list(prefix).map_err(ended).boxed()
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta, ObjectError>> {
        self.inner.list_with_offset(prefix, offset).map_err(ended).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult, ObjectError> {
        self.inner.list_with_delimiter(prefix).await.map_err(ended)
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<(), ObjectError> {
        self.inner.copy_opts(from, to, options).await.map_err(|error| self.wrote(to, error))
    }
}

/// An upload in parts under the same layer.
struct Upload {
    upload: Box<dyn MultipartUpload>,
    to: Path,
    failure: watch::Sender<Option<Error>>,
}

impl fmt::Debug for Upload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.upload, f)
    }
}

impl Upload {
    fn guard(&self) -> impl Fn(ObjectError) -> ObjectError + use<> {
        let (to, failure) = (self.to.clone(), self.failure.clone());
        move |error| wrote(&failure, &to, error)
    }
}

#[async_trait::async_trait]
impl MultipartUpload for Upload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let (part, wrote) = (self.upload.put_part(data), self.guard());
        Box::pin(async move { part.await.map_err(wrote) })
    }

    async fn complete(&mut self) -> Result<PutResult, ObjectError> {
        let wrote = self.guard();
        self.upload.complete().await.map_err(wrote)
    }

    async fn abort(&mut self) -> Result<(), ObjectError> {
        self.upload.abort().await.map_err(ended)
    }
}
