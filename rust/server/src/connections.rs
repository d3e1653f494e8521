//! How many connections are open, in all and by peer address, and the answer to one too many.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use limits::{ApiError, ErrorKind, LimitValues};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::reply::error_body;
use crate::router::generated_id;

/// Time a refused client has to read its answer and to close.
const FAREWELL: Duration = Duration::from_secs(2);

/// Open connections.
#[derive(Debug, Default)]
pub struct Connections {
    by_peer: Mutex<HashMap<IpAddr, u64>>,
}

/// One open connection; its end gives the place back.
#[derive(Debug)]
pub struct Place {
    connections: Arc<Connections>,
    peer: IpAddr,
}

impl Connections {
    /// A place for a connection from `peer`.
    ///
    /// # Errors
    /// `TooManyConnections` when a cap is reached.
    pub fn enter(self: &Arc<Self>, peer: IpAddr, limits: &LimitValues) -> Result<Place, ApiError> {
        let peer = peer.to_canonical();
        let mut by_peer = self.by_peer.lock().unwrap_or_else(PoisonError::into_inner);
        let all: u64 = by_peer.values().sum();
        refuse_above(all, limits.max_connections, "--max-connections")?;
        if let Some(max) = limits.max_connections_per_ip {
            let own = by_peer.get(&peer).copied().unwrap_or(0);
            refuse_above(own, max, "--max-connections-per-ip")?;
        }
        *by_peer.entry(peer).or_insert(0) += 1;
        Ok(Place {
            connections: Arc::clone(self),
            peer,
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let lock = self.connections.by_peer.lock();
        let mut by_peer = lock.unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = by_peer.get_mut(&self.peer) {
            *count -= 1;
            if *count == 0 {
                by_peer.remove(&self.peer);
            }
        }
    }
}

fn refuse_above(open: u64, max: i64, flag: &'static str) -> Result<(), ApiError> {
    if open < max.unsigned_abs() {
        return Ok(());
    }
    let message = format!("Too many connections are open: the limit is {max} ({flag}).");
    let error = ApiError::new(ErrorKind::TooManyConnections, message).with_flag(flag);
    Err(ApiError {
        limit: Some(max.into()),
        ..error
    })
}

/// Tells a client why its connection is closed.
pub async fn refuse(mut stream: TcpStream, error: ApiError) {
    let id = generated_id();
    let body = error_body(&error, &id).to_string();
    let text = format!(
        "HTTP/1.1 {} Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
         x-request-id: {id}\r\nconnection: close\r\n\r\n{body}",
        error.kind.status(),
        body.len()
    );
    let farewell = async {
        stream.write_all(text.as_bytes()).await?;
        stream.shutdown().await?;
        // Closing over unread bytes would reset the connection, and the answer with it.
        let mut rest = [0; 1024];
        while stream.read(&mut rest).await? > 0 {}
        std::io::Result::Ok(())
    };
    // A client that does not even take its refusal has nothing more to be told.
    let _ = tokio::time::timeout(FAREWELL, farewell).await;
}
