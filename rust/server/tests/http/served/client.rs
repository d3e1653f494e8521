//! The smallest HTTP/1.1 client: one exchange a connection, whatever bytes the test wants to send.

use std::net::SocketAddr;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::PATIENCE;

/// A response.
#[derive(Debug)]
pub struct Answer {
    /// Status code.
    pub status: u16,
    head: String,
    /// The body, without chunk framing.
    pub body: String,
}

/// A request with `Connection: close`.
pub fn request_text(method: &str, path: &str, headers: &[&str], body: &str) -> Vec<u8> {
    let mut text = format!("{method} {path} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n");
    for header in headers {
        text.push_str(header);
        text.push_str("\r\n");
    }
    if !body.is_empty() || method == "POST" {
        text.push_str(&format!("Content-Length: {}\r\n", body.len()));
    }
    text.push_str("\r\n");
    text.push_str(body);
    text.into_bytes()
}

/// Sends `request` and reads the response to its end.
pub async fn exchange(address: SocketAddr, request: &[u8]) -> Answer {
    let mut stream = TcpStream::connect(address).await.unwrap();
    // A server that refuses early may close before all is written; its answer is there nevertheless.
    let _ = stream.write_all(request).await;
    let mut bytes = Vec::new();
    let read = stream.read_to_end(&mut bytes);
    let outcome = tokio::time::timeout(PATIENCE, read)
        .await
        .expect("an answer in time");
    assert!(outcome.is_ok() || !bytes.is_empty(), "{outcome:?}");
    Answer::parse(&bytes)
}

impl Answer {
    fn parse(bytes: &[u8]) -> Answer {
        let text = String::from_utf8_lossy(bytes);
        let (head, body) = text.split_once("\r\n\r\n").expect("a head");
        let status = head[9..12].parse().expect("a status");
        let chunked = head
            .to_ascii_lowercase()
            .contains("transfer-encoding: chunked");
        let body = if chunked {
            unchunk(body.as_bytes())
        } else {
            body.to_owned()
        };
        Answer {
            status,
            head: head.to_owned(),
            body,
        }
    }

    /// A header's value.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    /// The body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// Asserts 200 and gives the body.
    pub fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.body);
        self.json()
    }

    /// Asserts an error, and gives its object.
    pub fn error(&self, status: u16, code: &str) -> Value {
        assert_eq!(self.status, status, "{}", self.body);
        let error = self.json()["error"].take();
        assert_eq!(error["code"], code, "{error}");
        assert_eq!(error["request_id"], self.header("x-request-id").unwrap());
        error
    }

    /// Asserts a whole event stream, and gives its JSON events without the last `[DONE]`.
    pub fn events(&self) -> Vec<Value> {
        assert_eq!(self.status, 200, "{}", self.body);
        assert_eq!(
            self.header("content-type"),
            Some("text/event-stream; charset=utf-8")
        );
        let mut data: Vec<&str> = self
            .body
            .split("\n\n")
            .filter_map(|event| event.strip_prefix("data: "))
            .collect();
        assert_eq!(data.pop(), Some("[DONE]"), "{}", self.body);
        data.into_iter()
            .map(|event| serde_json::from_str(event).expect("an event in JSON"))
            .collect()
    }
}

fn unchunk(mut rest: &[u8]) -> String {
    let mut out = Vec::new();
    while let Some(at) = rest.windows(2).position(|pair| pair == b"\r\n") {
        let size = std::str::from_utf8(&rest[..at]).ok();
        let size = size.and_then(|size| usize::from_str_radix(size.trim(), 16).ok());
        let Some(size) = size.filter(|size| *size > 0 && at + 2 + size <= rest.len()) else {
            break;
        };
        out.extend_from_slice(&rest[at + 2..at + 2 + size]);
        rest = rest.get(at + 2 + size + 2..).unwrap_or(&[]);
    }
    String::from_utf8(out).expect("UTF-8")
}
