//! Listening, and ending.

use std::sync::Arc;
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::TcpListener;
use wire::ShutdownMode;

use crate::connections::{Connections, refuse};
use crate::router::{Peer, answer};
use crate::state::{ServerState, unix_now};

/// Time between two tries to accept after an error (of too many descriptors, say).
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Time the engine has to end when nothing is open any more.
const ENGINE_EXIT: Duration = Duration::from_secs(3);

/// Serves until `shutdown` is done, then drains: new requests get 503, open ones have the shutdown timeout (or until
/// `hurry` is done), then the engine is ended.
pub async fn serve(
    listener: TcpListener,
    state: Arc<ServerState>,
    shutdown: impl Future<Output = ()>,
    hurry: impl Future<Output = ()>,
) {
    let started = unix_now();
    let graceful = GracefulShutdown::new();
    let connections = Arc::new(Connections::default());
    let mut builder = auto::Builder::new(TokioExecutor::new());
    configure(&mut builder, &state);
    let mut shutdown = std::pin::pin!(shutdown);
    let mut hurry = std::pin::pin!(hurry);
    let mut draining = false;
    let deadline = tokio::time::sleep(Duration::MAX);
    let mut deadline = std::pin::pin!(deadline);
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => {
                    let place = match connections.enter(peer.ip(), &state.config.limits) {
                        Ok(place) => place,
                        Err(error) => {
                            tokio::spawn(refuse(stream, error));
                            continue;
                        }
                    };
                    // Small chunks must not wait for more of them.
                    if let Err(error) = stream.set_nodelay(true) {
                        tracing::debug!("set_nodelay: {error}");
                    }
                    let state = Arc::clone(&state);
                    let service = service_fn(move |request| answer(Arc::clone(&state), Peer(peer), started, request));
                    let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service).into_owned();
                    let connection = graceful.watch(connection);
                    tokio::spawn(async move {
                        let _place = place;
                        if let Err(error) = connection.await {
                            tracing::debug!("connection: {error}");
                        }
                    });
                }
                Err(error) => {
                    tracing::warn!("accept: {error}");
                    tokio::time::sleep(ACCEPT_PAUSE).await; // nothing to wait for but descriptors
                }
            },
            () = &mut shutdown, if !draining => {
                draining = true;
                state.start_draining();
                deadline.as_mut().reset(tokio::time::Instant::now() + state.config.shutdown_timeout);
                tracing::info!("draining: {} requests are open", state.engine.num_open());
            }
            () = state_is_idle(&state), if draining => break,
            () = &mut deadline, if draining => break,
            () = &mut hurry, if draining => break,
        }
    }
    // What is still open ends with an error that its client can see.
    state.engine.shutdown(ShutdownMode::Now, ENGINE_EXIT).await;
    let closed = tokio::time::timeout(ENGINE_EXIT, graceful.shutdown()).await;
    if closed.is_err() {
        tracing::warn!("some connections did not close in time");
    }
}

fn configure(builder: &mut auto::Builder<TokioExecutor>, state: &ServerState) {
    let limits = &state.config.limits;
    let header_timeout = Duration::from_secs(limits.header_timeout_s as u64);
    let mut http1: auto::Http1Builder<'_, TokioExecutor> = builder.http1();
    http1
        .timer(TokioTimer::new())
        .header_read_timeout(header_timeout)
        // Above the cap, so that the router can say what is wrong; hyper's own 431 has no body.
        .max_headers(2 * limits.max_header_count as usize + 100);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.max_http2_streams as u32)
        .max_header_list_size(limits.max_header_bytes as u32)
        .max_pending_accept_reset_streams(limits::MAX_HTTP2_PENDING_RESETS.value() as usize);
}

/// Done when no request is open; looked at every few milliseconds, only while draining.
async fn state_is_idle(state: &ServerState) {
    let mut ticks = tokio::time::interval(Duration::from_millis(20));
    loop {
        ticks.tick().await;
        if state.engine.num_open() == 0 {
            return;
        }
    }
}
