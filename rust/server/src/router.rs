//! From a request to its route and back: paths, methods, ids, bodies, caught panics, HTTP metrics.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Body, Frame, Incoming};
use hyper::header::{ACCEPT, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap};
use hyper::{Method, Request};
use limits::{ApiError, ErrorKind, nearest_name};

use crate::fields::UnknownFields;
use crate::generation::{HeadFacts, is_request_id};
use crate::json::check;
use crate::reply::{Reply, ReplyBody, error_reply, finish, method_not_allowed};
use crate::state::ServerState;
use crate::{chat_route, completions, plain_routes, tokens};

/// Route templates; labels of the HTTP metrics.
const ROUTES: [(&str, &str); 13] = [
    ("/v1/completions", "POST"),
    ("/v1/chat/completions", "POST"),
    ("/v1/models", "GET, HEAD"),
    ("/v1/models/{id}", "GET, HEAD"),
    ("/v1/capabilities", "GET, HEAD"),
    ("/v1/block_audit", "POST"),
    ("/tokenize", "POST"),
    ("/detokenize", "POST"),
    ("/health", "GET, HEAD"),
    ("/ready", "GET, HEAD"),
    ("/version", "GET, HEAD"),
    ("/metrics", "GET, HEAD"),
    ("/ping", "GET, HEAD, POST"),
];
/// Routes whose exchanges are not counted.
const UNCOUNTED: [&str; 5] = ["/metrics", "/health", "/ready", "/ping", "/version"];

/// What a connection knows of its peer.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub SocketAddr);

/// Answers one request; never fails, whatever happens inside.
pub async fn answer(
    state: Arc<ServerState>,
    peer: Peer,
    started: u64,
    request: Request<Incoming>,
) -> Result<Reply, Infallible> {
    let head_read = Instant::now();
    let route = template_of(request.uri().path());
    let method = method_label(request.method());
    let is_head = request.method() == Method::HEAD;
    let (head_id, id_error) = request_id_of(request.headers());
    let body_id = Arc::new(OnceLock::new());
    let mut guard = Guard {
        state: Arc::clone(&state),
        method,
        route,
        head_read,
        request_bytes: 0,
        armed: true,
    };
    guard.request_bytes = content_length(request.headers()).unwrap_or(0);
    let work = async {
        if let Some(error) = id_error {
            return Err(error);
        }
        dispatch(
            &state,
            peer,
            started,
            request,
            (route, head_id.clone(), Arc::clone(&body_id), head_read),
        )
        .await
    };
    let result = CatchUnwind(Box::pin(work)).await;
    let request_id = body_id.get().unwrap_or(&head_id).clone();
    let result = result.unwrap_or_else(|()| {
        tracing::error!(request_id, "a handler panicked");
        Err(ApiError::new(
            ErrorKind::Internal,
            format!("The server failed on request {request_id}."),
        ))
    });
    let mut reply = match result {
        Ok(reply) => reply,
        Err(error) if error.kind == ErrorKind::MethodNotAllowed => {
            method_not_allowed(&error.message, &request_id)
        }
        Err(error) => error_reply(&error, &request_id),
    };
    finish(&mut reply, &request_id);
    if is_head {
        *reply.body_mut() = http_body_util::Empty::new().boxed_unsync();
    }
    Ok(guard.watch(reply))
}

async fn dispatch(
    state: &Arc<ServerState>,
    peer: Peer,
    started: u64,
    request: Request<Incoming>,
    (route, request_id, body_request_id, head_read): (
        Option<&'static str>,
        String,
        Arc<OnceLock<String>>,
        Instant,
    ),
) -> Result<Reply, ApiError> {
    let path = request.uri().path().to_owned();
    check_target(state, &request)?;
    check_headers(state, request.headers())?;
    let Some(route) = route else {
        return Err(unknown_route(&path));
    };
    let allowed = ROUTES
        .iter()
        .find(|(known, _)| *known == route)
        .map_or("", |(_, methods)| methods);
    if !allowed
        .split(", ")
        .any(|method| method == request.method().as_str())
    {
        // The message is the list of methods; the reply is made where the header can be set.
        return Err(ApiError::new(ErrorKind::MethodNotAllowed, allowed));
    }
    if route == "/v1/block_audit" {
        check_admin(peer, request.headers())?;
    }
    let is_post = request.method() == Method::POST;
    let has_json_body = is_post && !matches!(route, "/v1/block_audit" | "/ping");
    let unknown_fields = unknown_fields_of(state, request.headers())?;
    let deadline_ms = deadline_of(state, request.headers())?;
    check_query(request.uri().query(), unknown_fields)?;
    if !has_json_body {
        let accept = request
            .headers()
            .get(ACCEPT)
            .and_then(|value| value.to_str().ok())
            .map(str::to_owned);
        if !read_body(state, request).await?.is_empty() {
            return Err(ApiError::invalid_value("body", "this route takes no body"));
        }
        return match route {
            "/v1/models" => Ok(plain_routes::models(state, started)),
            "/v1/models/{id}" => plain_routes::model(
                state,
                &decode_path(path.trim_start_matches("/v1/models/")),
                started,
            ),
            "/v1/capabilities" => Ok(plain_routes::capabilities(state)),
            "/health" => Ok(plain_routes::health(state)),
            "/version" => Ok(plain_routes::version()),
            "/metrics" => Ok(plain_routes::metrics(state, accept.as_deref())),
            "/v1/block_audit" => plain_routes::block_audit(Arc::clone(state)).await,
            _ => Ok(plain_routes::ready(state)),
        };
    }
    check_media_type(request.headers())?;
    let body = read_body(state, request).await?;
    let head = HeadFacts {
        arrival: Instant::now(),
        head_read,
        request_id,
        body_request_id,
        deadline_ms,
        unknown_fields,
    };
    let body = check(&body, state.config.limits.max_json_depth as usize)?;
    match route {
        "/v1/completions" => completions::handle(Arc::clone(state), body, head).await,
        "/v1/chat/completions" => chat_route::handle(Arc::clone(state), body, head).await,
        "/tokenize" => tokens::tokenize(Arc::clone(state), body, head).await,
        _ => tokens::detokenize(Arc::clone(state), body, head).await,
    }
}

fn template_of(path: &str) -> Option<&'static str> {
    let known = ROUTES
        .iter()
        .map(|(route, _)| *route)
        .find(|route| *route == path);
    known.or_else(|| {
        path.strip_prefix("/v1/models/")
            .filter(|id| !id.is_empty())
            .map(|_| "/v1/models/{id}")
    })
}

fn unknown_route(path: &str) -> ApiError {
    let nearest = nearest_name(path, ROUTES.iter().map(|(route, _)| *route));
    let hint = nearest
        .map(|route| format!(" Did you mean {route}?"))
        .unwrap_or_default();
    ApiError::new(
        ErrorKind::UnknownRoute,
        format!("There is no route {}.{hint}", limits::quote(path)),
    )
}

fn method_label(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::OPTIONS => "OPTIONS",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        _ => "other",
    }
}

fn check_target(state: &ServerState, request: &Request<Incoming>) -> Result<(), ApiError> {
    let length = request
        .uri()
        .path_and_query()
        .map_or(0, |target| target.as_str().len()) as i64;
    let max = state.config.limits.max_uri_bytes;
    if length > max {
        return Err(ApiError::new(
            ErrorKind::UriTooLong,
            format!("The request target has {length} bytes, the limit is {max}."),
        )
        .with_numbers(max, length));
    }
    Ok(())
}

fn check_headers(state: &ServerState, headers: &HeaderMap) -> Result<(), ApiError> {
    let limits = &state.config.limits;
    // A line has its name, its value, a colon, a blank and an end of two bytes.
    let sizes = || {
        headers
            .iter()
            .map(|(name, value)| (name.as_str().len() + value.len() + 4) as i64)
    };
    let refuse = |what: &str, value: i64, max: i64, flag: Option<&'static str>| {
        let message = format!("{what}: {value}, the limit is {max}.");
        let error = ApiError::new(ErrorKind::HeadersTooLarge, message).with_numbers(max, value);
        Err(ApiError { flag, ..error })
    };
    let (count, max) = (headers.len() as i64, limits.max_header_count);
    if count > max {
        return refuse(
            "Too many headers",
            count,
            max,
            limits::MAX_HEADER_COUNT.flag,
        );
    }
    let (all, max) = (sizes().sum(), limits.max_header_bytes);
    if all > max {
        return refuse(
            "Bytes of all headers",
            all,
            max,
            limits::MAX_HEADER_BYTES.flag,
        );
    }
    let (longest, max) = (
        sizes().max().unwrap_or(0),
        limits::MAX_SINGLE_HEADER_BYTES.value(),
    );
    if longest > max {
        return refuse("Bytes of one header", longest, max, None);
    }
    Ok(())
}

/// Admin routes without keys: loopback peers that no proxy stands before.
fn check_admin(peer: Peer, headers: &HeaderMap) -> Result<(), ApiError> {
    let proxied = headers.contains_key("forwarded") || headers.contains_key("x-forwarded-for");
    if peer.0.ip().to_canonical().is_loopback() && !proxied {
        return Ok(());
    }
    Err(ApiError::new(
        ErrorKind::Forbidden,
        "This route answers only on this machine: no admin key is configured.",
    ))
}

fn invalid_header(name: &str, reason: &str) -> ApiError {
    ApiError::new(
        ErrorKind::InvalidHeader,
        format!("Invalid header {name}: {reason}."),
    )
    .with_param(format!("header.{name}"))
}

fn unknown_fields_of(state: &ServerState, headers: &HeaderMap) -> Result<UnknownFields, ApiError> {
    match headers
        .get("proa-unknown-fields")
        .map(|value| value.as_bytes())
    {
        None => Ok(state.config.unknown_fields),
        Some(b"report") => Ok(UnknownFields::Report),
        Some(b"error") => Ok(UnknownFields::Error),
        Some(_) => Err(invalid_header(
            "Proa-Unknown-Fields",
            "it is 'error' or 'report'",
        )),
    }
}

fn deadline_of(state: &ServerState, headers: &HeaderMap) -> Result<Option<u64>, ApiError> {
    let Some(value) = headers.get("proa-deadline-ms") else {
        return Ok(None);
    };
    let max = state.config.limits.max_deadline_s.unsigned_abs() * 1000;
    let number = value
        .to_str()
        .ok()
        .and_then(|text| text.parse::<u64>().ok())
        .filter(|ms| (1..=max).contains(ms));
    number.map(Some).ok_or_else(|| {
        invalid_header(
            "Proa-Deadline-Ms",
            &format!("it is an integer from 1 to {max}"),
        )
    })
}

/// Unknown query parameters follow the rules of unknown fields; `api-version` is inert anywhere.
fn check_query(query: Option<&str>, unknown: UnknownFields) -> Result<(), ApiError> {
    let names = query
        .unwrap_or("")
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| pair.split('=').next().unwrap_or(pair));
    for name in names.filter(|name| *name != "api-version") {
        if unknown == UnknownFields::Error {
            return Err(ApiError::unknown_field(&format!("query.{name}"), None));
        }
    }
    Ok(())
}

fn check_media_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let refuse = |name: &str, reason: &str| {
        Err(
            ApiError::new(ErrorKind::UnsupportedMediaType, format!("{reason}."))
                .with_param(format!("header.{name}")),
        )
    };
    let value = headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or("")
        .to_ascii_lowercase();
    let mut parts = value.split(';').map(str::trim);
    let media = parts.next().unwrap_or("");
    let is_json = media == "application/json"
        || (media.starts_with("application/") && media.ends_with("+json"));
    if !is_json {
        return refuse("Content-Type", "The body must be application/json");
    }
    if parts.any(|part| {
        part.strip_prefix("charset=")
            .is_some_and(|charset| charset.trim_matches('"') != "utf-8")
    }) {
        return refuse("Content-Type", "The charset must be utf-8");
    }
    match headers.get(CONTENT_ENCODING).map(|value| value.as_bytes()) {
        None | Some(b"identity") => Ok(()),
        Some(_) => refuse("Content-Encoding", "Compressed bodies are not accepted"),
    }
}

fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

async fn read_body(state: &ServerState, request: Request<Incoming>) -> Result<Bytes, ApiError> {
    let limits = &state.config.limits;
    let max = limits.max_body_bytes;
    let too_large = |bytes: u64| {
        let message =
            format!("The body has {bytes} bytes or more, the limit is {max} (--max-body-bytes).");
        ApiError::new(ErrorKind::BodyTooLarge, message)
            .with_numbers(max, bytes)
            .with_flag("--max-body-bytes")
    };
    if let Some(bytes) = content_length(request.headers()).filter(|bytes| *bytes > max as u64) {
        return Err(too_large(bytes));
    }
    let idle = Duration::from_secs(limits.body_idle_timeout_s as u64);
    let body = collect(Limited::new(request.into_body(), max as usize), idle);
    let total = Duration::from_secs(limits.body_timeout_s as u64);
    match tokio::time::timeout(total, body).await {
        Ok(Ok(Some(bytes))) => Ok(bytes),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large(max as u64 + 1)),
        Ok(Err(_)) => Err(ApiError::new(
            ErrorKind::ClientClosed,
            "The body ended too early.",
        )),
        Ok(Ok(None)) | Err(_) => Err(ApiError::new(
            ErrorKind::RequestTimeout,
            "The body did not arrive in time.",
        )
        .with_code("body_timeout")),
    }
}

/// The whole body; None when the client was silent for longer than `idle`.
async fn collect(
    mut body: Limited<Incoming>,
    idle: Duration,
) -> Result<Option<Bytes>, Box<dyn std::error::Error + Send + Sync>> {
    let mut bytes = BytesMut::new();
    loop {
        match tokio::time::timeout(idle, body.frame()).await {
            Err(_) => return Ok(None),
            Ok(None) => return Ok(Some(bytes.freeze())),
            Ok(Some(frame)) => {
                if let Some(data) = frame?.data_ref() {
                    bytes.extend_from_slice(data);
                }
            }
        }
    }
}

/// An id of 32 hex digits.
pub fn generated_id() -> String {
    let mut bytes = [0_u8; 16];
    // Without random bytes ids repeat, and no more: the engine's own keys do not depend on them.
    let _ = getrandom::fill(&mut bytes);
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// `X-Request-Id`, or 32 generated hex digits.
fn request_id_of(headers: &HeaderMap) -> (String, Option<ApiError>) {
    match headers.get("x-request-id") {
        None => (generated_id(), None),
        Some(value) => match value.to_str() {
            Ok(id) if is_request_id(id) => (id.to_owned(), None),
            _ => (
                generated_id(),
                Some(invalid_header(
                    "X-Request-Id",
                    "it has 1 to 256 visible ASCII characters",
                )),
            ),
        },
    }
}

/// Percent-decodes a path segment; what is no valid escape stays.
fn decode_path(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let escaped = (bytes[at] == b'%')
            .then(|| text.get(at + 1..at + 3))
            .flatten()
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        out.push(escaped.unwrap_or(bytes[at]));
        at += if escaped.is_some() { 3 } else { 1 };
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// A future whose panics become an error.
struct CatchUnwind<F>(Pin<Box<F>>);

impl<F: Future> Future for CatchUnwind<F> {
    type Output = Result<F::Output, ()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match std::panic::catch_unwind(AssertUnwindSafe(|| self.0.as_mut().poll(context))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
            Err(_) => Poll::Ready(Err(())),
        }
    }
}

/// Counts an exchange when its last byte has been handed over, or when the client leaves before that.
struct Guard {
    state: Arc<ServerState>,
    method: &'static str,
    route: Option<&'static str>,
    head_read: Instant,
    request_bytes: u64,
    armed: bool,
}

impl Guard {
    fn watch(mut self, reply: Reply) -> Reply {
        let guard = Guard {
            state: Arc::clone(&self.state),
            armed: true,
            ..self
        };
        self.armed = false;
        let status = reply.status().as_u16();
        reply.map(|body| {
            CountedBody {
                body,
                guard,
                status,
                bytes: 0,
                done: false,
            }
            .boxed_unsync()
        })
    }

    fn count(&mut self, status: u16, response_bytes: u64) {
        if std::mem::take(&mut self.armed)
            && !self.route.is_some_and(|route| UNCOUNTED.contains(&route))
        {
            let handler = self.route.unwrap_or("none");
            let bytes = (self.request_bytes, response_bytes);
            self.state.metrics.http.observe(
                self.method,
                handler,
                status,
                self.head_read.elapsed(),
                bytes,
            );
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.count(499, 0);
    }
}

struct CountedBody {
    body: ReplyBody,
    guard: Guard,
    status: u16,
    bytes: u64,
    done: bool,
}

impl Body for CountedBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let frame = std::task::ready!(Pin::new(&mut self.body).poll_frame(context));
        match &frame {
            Some(Ok(frame)) => self.bytes += frame.data_ref().map_or(0, |data| data.len() as u64),
            _ => self.done = true,
        }
        self.done |= self.body.is_end_stream();
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        self.body.size_hint()
    }
}

impl Drop for CountedBody {
    fn drop(&mut self) {
        // An empty body is over before it is polled.
        let done = self.done || self.body.is_end_stream();
        let status = if done { self.status } else { 499 };
        let bytes = self.bytes;
        self.guard.count(status, bytes);
    }
}
