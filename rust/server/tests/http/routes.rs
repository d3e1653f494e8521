//! Heads, bodies, routes, probes, admission and ends, over real sockets (http-surface.md sections 0, 4, 6 and 8).

use std::time::Duration;

use limits::LimitValues;
use mock_engine::{MockConfig, Script};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::served::{
    PATIENCE, Served, Wishes, completion, echoing, engine, exchange, request_text, start,
};

const JSON: &str = "Content-Type: application/json";

/// An engine whose steps take long enough for a test to look in between; requests get a thousand tokens.
fn slow() -> MockConfig {
    MockConfig {
        step_delay: Duration::from_millis(10),
        ..engine(|_| Script::of(vec![97; 1000]))
    }
}

async fn slow_server(wishes: Wishes) -> Served {
    start(Wishes {
        engine: Some(slow()),
        ..wishes
    })
    .await
}

/// Opens a stream of a thousand tokens and reads until its first event is there.
async fn open_stream(served: &Served) -> TcpStream {
    let mut stream = TcpStream::connect(served.address).await.unwrap();
    let body = completion(r#""max_tokens":1000,"stream":true"#);
    let request = request_text("POST", "/v1/completions", &[JSON], &body);
    stream.write_all(&request).await.unwrap();
    let mut seen = Vec::new();
    while !seen.windows(6).any(|six| six == b"data: ") {
        let mut piece = [0; 1024];
        let count = stream.read(&mut piece).await.unwrap();
        assert!(count > 0, "{}", String::from_utf8_lossy(&seen));
        seen.extend_from_slice(&piece[..count]);
    }
    stream
}

async fn rest_of(mut stream: TcpStream) -> String {
    let mut rest = Vec::new();
    tokio::time::timeout(PATIENCE, stream.read_to_end(&mut rest))
        .await
        .expect("the stream ends in time")
        .unwrap();
    String::from_utf8_lossy(&rest).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn paths_and_methods() {
    let served = echoing().await;
    let answer = served.get("/v1/completions").await;
    answer.error(405, "method_not_allowed");
    assert_eq!(answer.header("allow"), Some("POST"));
    let error = served
        .post("/v1/completion", "{}")
        .await
        .error(404, "unknown_url");
    assert!(
        error["message"]
            .as_str()
            .unwrap()
            .contains("/v1/completions")
    );
    served.get("/health/").await.error(404, "unknown_url");
    let head = exchange(served.address, &request_text("HEAD", "/v1/models", &[], "")).await;
    assert_eq!((head.status, head.body.as_str()), (200, ""));
    assert!(head.header("x-request-id").is_some());
    let long = format!("/{}", "a".repeat(9000));
    served.get(&long).await.error(414, "uri_too_long");
    let error = served
        .get("/v1/models?foo=1")
        .await
        .error(400, "unknown_parameter");
    assert_eq!(error["param"], "query.foo");
    served.get("/v1/models?api-version=1").await.ok();
    let body = request_text("GET", "/health", &[], "x");
    exchange(served.address, &body)
        .await
        .error(400, "invalid_value");
}

#[tokio::test(flavor = "multi_thread")]
async fn heads_that_are_refused() {
    let served = echoing().await;
    for headers in [
        &["Content-Type: text/plain"][..],
        &[],
        &["Content-Type: application/json; charset=latin1"],
        &[JSON, "Content-Encoding: gzip"],
    ] {
        let request = request_text("POST", "/v1/completions", headers, r#"{"prompt":"a"}"#);
        exchange(served.address, &request)
            .await
            .error(415, "unsupported_media_type");
    }
    for header in [
        "X-Request-Id: a b",
        "Proa-Unknown-Fields: maybe",
        "Proa-Deadline-Ms: 0",
        "Proa-Deadline-Ms: soon",
    ] {
        let request = request_text(
            "POST",
            "/v1/completions",
            &[JSON, header],
            r#"{"prompt":"a"}"#,
        );
        let error = exchange(served.address, &request)
            .await
            .error(400, "invalid_header");
        let name = header.split(':').next().unwrap();
        assert_eq!(error["param"], format!("header.{name}"));
    }
    let request = "POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nContent-Length: 10000000\r\n\r\n";
    let answer = exchange(served.address, request.as_bytes()).await;
    answer.error(413, "body_too_large");
    assert_eq!(answer.header("connection"), Some("close"));
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_that_are_no_json() {
    let served = echoing().await;
    let deep = format!(
        "{{\"prompt\":{}1{}}}",
        "[".repeat(100_000),
        "]".repeat(100_000)
    );
    for body in [
        r#"{"prompt":"a","prompt":"b"}"#,
        r#"{"prompt":"\ud800"}"#,
        "\u{FEFF}{\"prompt\":\"a\"}",
        r#"{"prompt":"a"} x"#,
        r#"{"prompt":"a""#,
        "[]",
        " ",
        &deep,
    ] {
        for path in [
            "/v1/completions",
            "/v1/chat/completions",
            "/tokenize",
            "/detokenize",
        ] {
            let answer = served.post(path, body).await;
            assert_eq!(answer.status, 400, "{path}: {}", answer.body);
        }
    }
    served
        .post("/v1/completions", &deep)
        .await
        .error(400, "invalid_json");
    let mut request = request_text("POST", "/v1/completions", &[JSON], r#"{"prompt":"ab"}"#);
    let at = request.len() - 3;
    request[at] = 0xFF;
    exchange(served.address, &request)
        .await
        .error(400, "invalid_json");
}

#[tokio::test(flavor = "multi_thread")]
async fn models_probes_and_capabilities() {
    let served = echoing().await;
    let list = served.get("/v1/models").await.ok();
    assert_eq!(
        (&list["object"], &list["data"][0]["id"]),
        (&json!("list"), &json!("m"))
    );
    for path in ["/v1/models/alias/of-m", "/v1/models/alias%2Fof-m"] {
        assert_eq!(served.get(path).await.ok()["id"], "alias/of-m");
    }
    served
        .get("/v1/models/x")
        .await
        .error(404, "model_not_found");
    assert_eq!(served.get("/health").await.ok()["status"], "ready");
    served.get("/ready").await.ok();
    assert_eq!(served.get("/version").await.ok()["api"], 1);
    served.complete("").await.ok();
    let metrics = served.get("/metrics").await;
    assert_eq!(metrics.status, 200);
    assert!(metrics.body.contains("# TYPE"));
    let capabilities = served.get("/v1/capabilities").await.ok();
    let fields = &capabilities["routes"]["/v1/completions"]["fields"];
    assert_eq!(fields["temperature"]["class"], "honoured", "{fields}");
    assert_eq!(fields["suffix"]["class"], "refused");
    assert_eq!(fields["prompt_cache_key"]["class"], "inert");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_block_audit_answers_this_machine_only() {
    let served = echoing().await;
    let proxied = request_text(
        "POST",
        "/v1/block_audit",
        &["X-Forwarded-For: 10.0.0.1"],
        "",
    );
    exchange(served.address, &proxied)
        .await
        .error(403, "insufficient_role");
    let audit = served.post("/v1/block_audit", "").await.ok();
    assert_eq!(audit["engines"][0]["engine"], 0);
    served
        .post("/v1/block_audit", "{}")
        .await
        .error(400, "invalid_value");
}

#[tokio::test(flavor = "multi_thread")]
async fn before_the_engine_is_ready() {
    let served = start(Wishes {
        engine: None,
        ..Wishes::default()
    })
    .await;
    let answer = served.complete("").await;
    let error = answer.error(503, "model_loading");
    assert!(answer.header("retry-after").is_some() && error["retry_after_ms"].is_u64());
    assert_eq!(served.get("/ready").await.status, 503);
    assert_eq!(served.get("/health").await.ok()["status"], "starting");
    served.get("/v1/models").await.ok();
    served.get("/v1/capabilities").await.ok();
    served.post("/tokenize", r#"{"prompt":"a"}"#).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_refuses() {
    let config = MockConfig {
        max_num_seqs: 1,
        ..slow()
    };
    let served = start(Wishes {
        engine: Some(config),
        max_queued: 2,
        ..Wishes::default()
    })
    .await;
    let running = open_stream(&served).await;
    let answer = served.complete(r#""n":3"#).await;
    let error = answer.error(429, "queue_full");
    let seconds: u64 = answer.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=60).contains(&seconds) && error["retry_after_ms"].is_u64());
    drop(running);
    served.idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_leave_end_their_requests() {
    let config = MockConfig {
        max_num_seqs: 2,
        ..slow()
    };
    let served = start(Wishes {
        engine: Some(config),
        ..Wishes::default()
    })
    .await;
    let streams = [open_stream(&served).await, open_stream(&served).await];
    // Two more wait for a row, one of them without a stream.
    let mut waiting = Vec::new();
    for stream in ["true", "false"] {
        let body = completion(&format!("\"max_tokens\":1000,\"stream\":{stream}"));
        let mut socket = TcpStream::connect(served.address).await.unwrap();
        let request = request_text("POST", "/v1/completions", &[JSON], &body);
        socket.write_all(&request).await.unwrap();
        waiting.push(socket);
    }
    while served.state.engine.num_open() < 4 {
        tokio::task::yield_now().await;
    }
    drop(waiting);
    drop(streams);
    served.idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deadlines() {
    let served = slow_server(Wishes::default()).await;
    let body = served
        .complete(r#""max_tokens":1000,"deadline_ms":300"#)
        .await
        .ok();
    let choice = &body["choices"][0];
    assert_eq!(
        (&choice["finish_reason"], &choice["stop_reason"]),
        (&json!("abort"), &json!("deadline"))
    );
    let late = MockConfig {
        step_delay: Duration::from_millis(10),
        ..engine(|_| Script {
            delay_steps: 1000,
            ..Script::of([97])
        })
    };
    let served = start(Wishes {
        engine: Some(late),
        ..Wishes::default()
    })
    .await;
    let answer = served.complete(r#""deadline_ms":50"#).await;
    answer.error(504, "deadline_exceeded");
    assert_eq!(answer.header("x-should-retry"), Some("false"));
    served.idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_refuses_new_requests_and_ends_old_ones_whole() {
    let short = MockConfig {
        step_delay: Duration::from_millis(10),
        ..engine(|_| Script::of(vec![97; 40]))
    };
    let mut served = start(Wishes {
        engine: Some(short),
        ..Wishes::default()
    })
    .await;
    let stream = open_stream(&served).await;
    served.signal();
    while !served.state.is_draining() {
        tokio::task::yield_now().await;
    }
    let answer = served.complete("").await;
    answer.error(503, "shutting_down");
    assert_eq!(
        (answer.header("retry-after"), answer.header("connection")),
        (Some("1"), Some("close"))
    );
    assert_eq!(served.get("/ready").await.status, 503);
    let rest = rest_of(stream).await;
    assert!(
        rest.contains("\"length\"") && rest.contains("data: [DONE]"),
        "{rest}"
    );
    served.ended().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_without_time_ends_streams_with_an_error() {
    let mut served = slow_server(Wishes {
        shutdown_timeout: Duration::ZERO,
        ..Wishes::default()
    })
    .await;
    let stream = open_stream(&served).await;
    served.signal();
    let rest = rest_of(stream).await;
    assert!(
        rest.contains("\"shutting_down\"") && rest.contains("data: [DONE]"),
        "{rest}"
    );
    served.ended().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_in_force_are_the_ones_configured() {
    let limits = LimitValues {
        max_n: 4,
        max_body_bytes: 64,
        ..LimitValues::default()
    };
    let served = start(Wishes {
        limits,
        ..Wishes::default()
    })
    .await;
    let error = served
        .complete(r#""n":5"#)
        .await
        .error(400, "integer_above_max_value");
    assert_eq!(error["limit"], 4);
    let long = format!(r#""prompt":"{}""#, "a".repeat(64));
    served.complete(&long).await.error(413, "body_too_large");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_too_many_and_a_body_that_stalls() {
    let limits = LimitValues {
        max_connections: 1,
        body_idle_timeout_s: 1,
        ..LimitValues::default()
    };
    let served = start(Wishes {
        limits,
        ..Wishes::default()
    })
    .await;
    let mut first = TcpStream::connect(served.address).await.unwrap();
    let head = "POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{";
    first.write_all(head.as_bytes()).await.unwrap();
    let error = served
        .get("/health")
        .await
        .error(503, "too_many_connections");
    assert_eq!(
        (&error["limit"], &error["flag"]),
        (&json!(1), &json!("--max-connections"))
    );
    let stalled = rest_of(first).await;
    assert!(
        stalled.starts_with("HTTP/1.1 408") && stalled.contains("body_timeout"),
        "{stalled}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn heads_that_are_too_large() {
    let served = echoing().await;
    let names: Vec<String> = (0..101).map(|at| format!("X-{at}: y")).collect();
    let long = format!("X-Long: {}", "a".repeat(9000));
    let four: Vec<String> = (0..5)
        .map(|at| format!("X-{at}: {}", "a".repeat(8000)))
        .collect();
    for headers in [names, vec![long], four] {
        let headers: Vec<&str> = headers.iter().map(String::as_str).collect();
        let answer = exchange(
            served.address,
            &request_text("GET", "/health", &headers, ""),
        )
        .await;
        answer.error(431, "headers_too_large");
        assert_eq!(answer.header("connection"), Some("close"));
    }
}
