//! Responses: bodies, the headers every answer carries, and the one mapping from errors to status and body.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Frame};
use hyper::header::{
    ALLOW, CONNECTION, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE,
};
use hyper::{Response, StatusCode};
use limits::{ApiError, ErrorKind, ErrorValue};
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::fields::FieldReport;

/// Any response body.
pub type ReplyBody = UnsyncBoxBody<Bytes, Infallible>;
/// A response.
pub type Reply = Response<ReplyBody>;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");
const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");
const INERT_FIELDS: HeaderName = HeaderName::from_static("proa-inert-fields");
const IGNORED_FIELDS: HeaderName = HeaderName::from_static("proa-ignored-fields");
/// Paths named in a header; more are counted.
const MAX_NAMED_FIELDS: usize = 32;

/// A response with a whole body.
pub fn full(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Reply {
    let mut reply = Response::new(Full::new(body.into()).boxed_unsync());
    *reply.status_mut() = status;
    reply
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    reply
}

/// A JSON response.
pub fn json_reply(status: StatusCode, value: &Value) -> Reply {
    full(status, "application/json", value.to_string())
}

/// A body fed by a task; dropping it ends the task, and with it everything the task holds.
struct StreamedBody {
    chunks: mpsc::Receiver<Bytes>,
    task: JoinHandle<()>,
}

impl Body for StreamedBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.chunks
            .poll_recv(context)
            .map(|chunk| chunk.map(|bytes| Ok(Frame::data(bytes))))
    }
}

impl Drop for StreamedBody {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A server-sent event stream whose chunks `task` sends into the channel's other end.
pub fn event_stream(chunks: mpsc::Receiver<Bytes>, task: JoinHandle<()>) -> Reply {
    let mut reply = Response::new(StreamedBody { chunks, task }.boxed_unsync());
    let headers = reply.headers_mut();
    headers.insert(
        CONTENT_TYPE,
        HeaderValue::from_static("text/event-stream; charset=utf-8"),
    );
    headers.insert("cache-control", HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    reply
}

/// The body of an error (http-surface.md 4.1).
pub fn error_body(error: &ApiError, request_id: &str) -> Value {
    let value_of = |value: &ErrorValue| match value {
        ErrorValue::Int(int) => {
            i64::try_from(*int).map_or_else(|_| Value::from(int.to_string()), Value::from)
        }
        ErrorValue::Float(float) => Value::from(*float),
        ErrorValue::Text(text) => Value::from(text.as_str()),
    };
    let mut inner = Map::new();
    inner.insert("message".into(), error.message.as_str().into());
    inner.insert("type".into(), error.kind.error_type().into());
    inner.insert("param".into(), error.param.as_deref().into());
    inner.insert("code".into(), error.code.into());
    inner.insert("request_id".into(), request_id.into());
    for (name, value) in [("limit", &error.limit), ("value", &error.value)] {
        if let Some(value) = value {
            inner.insert(name.into(), value_of(value));
        }
    }
    if let Some(flag) = error.flag {
        inner.insert("flag".into(), flag.into());
    }
    if let Some(ms) = error.retry_after_ms {
        inner.insert("retry_after_ms".into(), ms.into());
    }
    json!({ "error": inner })
}

/// The response of an error.
pub fn error_reply(error: &ApiError, request_id: &str) -> Reply {
    let status =
        StatusCode::from_u16(error.kind.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut reply = json_reply(status, &error_body(error, request_id));
    let headers = reply.headers_mut();
    if let Some(ms) = error.retry_after_ms {
        headers.insert(
            RETRY_AFTER,
            HeaderValue::from(ms.div_ceil(1000).clamp(1, 60)),
        );
        headers.insert(RETRY_AFTER_MS, HeaderValue::from(ms));
    }
    if error.kind.is_final() {
        headers.insert(SHOULD_RETRY, HeaderValue::from_static("false"));
    }
    if error.kind.closes_connection() {
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    if error.kind == ErrorKind::Unauthenticated {
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    reply
}

/// The response to a method that the route does not have.
pub fn method_not_allowed(allowed: &str, request_id: &str) -> Reply {
    let error = ApiError::new(
        ErrorKind::MethodNotAllowed,
        format!("This route allows {allowed}."),
    );
    let mut reply = error_reply(&error, request_id);
    if let Ok(value) = HeaderValue::from_str(allowed) {
        reply.headers_mut().insert(ALLOW, value);
    }
    reply
}

/// Puts on the headers that every answer carries.
pub fn finish(reply: &mut Reply, request_id: &str) {
    if let Ok(value) = HeaderValue::from_str(request_id) {
        reply.headers_mut().insert(REQUEST_ID, value);
    }
}

/// Names fields that did nothing.
pub fn name_fields(reply: &mut Reply, report: &FieldReport) {
    for (header, paths) in [
        (INERT_FIELDS, &report.inert),
        (IGNORED_FIELDS, &report.ignored),
    ] {
        if paths.is_empty() {
            continue;
        }
        let mut text = paths
            .iter()
            .take(MAX_NAMED_FIELDS)
            .map(String::as_str)
            .collect::<Vec<_>>()
            .join(",");
        if paths.len() > MAX_NAMED_FIELDS {
            text.push_str(&format!(",+{}", paths.len() - MAX_NAMED_FIELDS));
        }
        // A client's field name may hold anything; what no header can is shown as '?'.
        let shown: String = text
            .chars()
            .map(|c| if c.is_ascii_graphic() { c } else { '?' })
            .collect();
        if let Ok(value) = HeaderValue::from_str(&shown) {
            reply.headers_mut().insert(header, value);
        }
    }
}
