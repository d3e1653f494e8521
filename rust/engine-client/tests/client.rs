//! The client against scripted engines over real sockets.

use std::sync::Arc;
use std::time::Duration;

use limits::{AbortCause, EndCause, ErrorKind, Finish};
use metrics::{Format, Metrics};
use mock_engine::{Fault, MockConfig, MockEngine, MockHandle, MockRequest, Script};
use proa_engine_client::{
    ClientConfig, Ended, EngineClient, EngineRequest, EngineState, Output, OutputStream,
};

struct Setup {
    client: EngineClient,
    metrics: Arc<Metrics>,
    _engine: MockHandle,
}

async fn setup(config: MockConfig) -> Setup {
    setup_with(
        config,
        ClientConfig {
            heartbeat: Duration::from_millis(200),
            ..ClientConfig::default()
        },
    )
    .await
}

async fn setup_with(config: MockConfig, client_config: ClientConfig) -> Setup {
    let metrics = Arc::new(Metrics::new("proa", "m", "0", "mock").unwrap());
    let client = EngineClient::start(client_config, Arc::clone(&metrics)).unwrap();
    let engine = MockEngine::spawn(config, client.address());
    reach(&client, |state| *state == EngineState::Ready).await;
    Setup {
        client,
        metrics,
        _engine: engine,
    }
}

async fn reach(client: &EngineClient, wanted: impl Fn(&EngineState) -> bool) {
    let mut watch = client.watch();
    let reached = watch.wait_for(|status| wanted(&status.state));
    tokio::time::timeout(Duration::from_secs(20), reached)
        .await
        .expect("the state is reached")
        .unwrap();
}

fn scripted(script: impl Fn(&MockRequest) -> Script + Send + Sync + 'static) -> MockConfig {
    MockConfig {
        script: Arc::new(script),
        ..MockConfig::default()
    }
}

fn request(prompt: &[u32], max_tokens: u32) -> EngineRequest {
    EngineRequest::new(Arc::from(prompt), max_tokens)
}

/// Reads a stream to its end: tokens, logprob values, the end. Panics on anything after the end.
async fn read(stream: &mut OutputStream) -> (Vec<u32>, Vec<f32>, Ended) {
    let (mut ids, mut values) = (Vec::new(), Vec::new());
    loop {
        let next = tokio::time::timeout(Duration::from_secs(20), stream.next())
            .await
            .expect("an output in time");
        match next.expect("an end before the stream is over") {
            Output::Tokens(batch) => {
                values.extend(batch.logprobs.iter().map(|logprobs| logprobs.value));
                ids.extend(batch.ids);
            }
            Output::PromptLogprobs(_) => {}
            Output::End(ended) => {
                assert!(stream.next().await.is_none());
                return (ids, values, *ended);
            }
        }
    }
}

/// The value of one series.
fn series(metrics: &Metrics, name: &str) -> f64 {
    let text = metrics.render(Format::Prometheus);
    let line = text
        .lines()
        .find(|line| line.starts_with(&format!("{name} ")))
        .unwrap_or_else(|| panic!("no series {name}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

fn engine_series(metrics: &Metrics, name: &str, labels: &str) -> f64 {
    let extra = if labels.is_empty() {
        String::new()
    } else {
        format!(",{labels}")
    };
    series(
        metrics,
        &format!("proa:{name}{{model_name=\"m\",engine=\"0\"{extra}}}"),
    )
}

#[tokio::test]
async fn a_request_gets_its_tokens_and_one_end() {
    let setup = setup(MockConfig::default()).await;
    let mut stream = setup.client.submit(request(&[7, 8, 9], 5)).unwrap();
    let (ids, _, ended) = read(&mut stream).await;
    assert_eq!(ids, [7, 8, 9, 7, 8]);
    assert_eq!(
        (ended.finish, ended.cause),
        (Finish::MaxTokens, EndCause::MaxTokens)
    );
    assert_eq!(
        (ended.usage.prompt_tokens, ended.usage.completion_tokens),
        (3, 5)
    );
    assert_eq!(ended.error, None);
}

#[tokio::test]
async fn non_finite_logprobs_and_rank_zero_arrive_as_sent() {
    let setup = setup(scripted(|_| Script {
        logprobs: vec![f32::NAN, f32::NEG_INFINITY, -2.5],
        ranks: vec![0, 3, 1],
        ..Script::of([4, 5, 6])
    }))
    .await;
    let mut stream = setup
        .client
        .submit(EngineRequest {
            num_logprobs: 2,
            ..request(&[1], 3)
        })
        .unwrap();
    let (ids, values, ended) = read(&mut stream).await;
    assert_eq!(ids, [4, 5, 6]);
    assert!(values[0].is_nan() && values[1] == f32::NEG_INFINITY && values[2] == -2.5);
    assert_eq!(ended.error, None);
}

#[tokio::test]
async fn eos_and_other_stop_ids_have_their_own_causes() {
    let setup = setup(scripted(|_| Script::of([4, 2, 3]))).await;
    let eos = EngineRequest {
        stop_ids: vec![2, 3],
        eos_ids: Arc::from([2]),
        ..request(&[1], 9)
    };
    let (ids, _, ended) = read(&mut setup.client.submit(eos.clone()).unwrap()).await;
    assert_eq!(
        (ids, ended.cause, ended.stop_token),
        (vec![4, 2], EndCause::Eos, Some(2))
    );
    let user = EngineRequest {
        eos_ids: Arc::from([]),
        ..eos
    };
    let (_, _, ended) = read(&mut setup.client.submit(user).unwrap()).await;
    assert_eq!(ended.cause, EndCause::StopToken);
}

#[tokio::test]
async fn dropping_a_stream_aborts_and_late_rows_are_counted_apart() {
    let setup = setup(MockConfig {
        step_delay: Duration::from_millis(2),
        ..MockConfig::default()
    })
    .await;
    let mut stream = setup.client.submit(request(&[1, 2], 100_000)).unwrap();
    assert!(matches!(stream.next().await, Some(Output::Tokens(_))));
    drop(stream);
    assert_eq!(setup.client.num_open(), 0);
    assert_eq!(
        engine_series(
            &setup.metrics,
            "request_ended_total",
            "cause=\"client_gone\""
        ),
        1.0
    );
    // The engine forgets it: a later request runs alone, and running falls back to 0.
    read(&mut setup.client.submit(request(&[1], 1)).unwrap()).await;
    let mut audit = setup
        .client
        .utility("block_audit", wire::Map::default())
        .await
        .unwrap();
    let wire::Value::Map(map) = std::mem::take(&mut audit) else {
        panic!("{audit:?}")
    };
    assert_eq!(map.get("held"), Some(&wire::Value::Int(0)));
}

#[tokio::test]
async fn an_early_end_by_the_reader_is_the_only_end() {
    let setup = setup(MockConfig {
        step_delay: Duration::from_millis(2),
        ..MockConfig::default()
    })
    .await;
    let mut stream = setup.client.submit(request(&[1, 2], 1000)).unwrap();
    stream.next().await;
    let ended = stream.end(AbortCause::StopString);
    assert_eq!(ended.cause, EndCause::StopString);
    assert!(ended.usage.completion_tokens >= 1);
    assert!(stream.next().await.is_none());
    drop(stream);
    assert_eq!(
        engine_series(
            &setup.metrics,
            "request_success_total",
            "finished_reason=\"stop\""
        ),
        1.0
    );
    assert_eq!(
        engine_series(
            &setup.metrics,
            "request_success_total",
            "finished_reason=\"abort\""
        ),
        0.0
    );
}

#[tokio::test]
async fn a_bad_row_harms_its_request_only() {
    let config = MockConfig {
        faults: vec![Fault::BadRow(2)],
        step_delay: Duration::from_millis(5),
        ..MockConfig::default()
    };
    let setup = setup(config).await;
    let requests = (0..8).map(|i| request(&[10 + i], 6)).collect();
    let mut streams = setup.client.submit_all(requests).unwrap();
    let mut failed = 0;
    for (i, stream) in streams.iter_mut().enumerate() {
        let (ids, _, ended) = read(stream).await;
        match ended.error {
            None => assert_eq!(ids, vec![10 + i as u32; 6]),
            Some(error) => {
                assert_eq!(error.kind, ErrorKind::Internal);
                failed += 1;
            }
        }
    }
    assert_eq!(failed, 1);
    assert_eq!(
        engine_series(
            &setup.metrics,
            "wire_bad_frames_total",
            "side=\"front_end\",reason=\"columns\""
        ),
        1.0
    );
}

#[tokio::test]
async fn an_unreadable_step_ends_what_was_open_and_nothing_later() {
    let config = MockConfig {
        faults: vec![Fault::Garbage(2)],
        step_delay: Duration::from_millis(5),
        ..MockConfig::default()
    };
    let setup = setup(config).await;
    let (_, _, ended) = read(&mut setup.client.submit(request(&[1], 50)).unwrap()).await;
    assert_eq!(
        ended.error.map(|error| error.kind),
        Some(ErrorKind::Internal)
    );
    let (ids, _, _) = read(&mut setup.client.submit(request(&[1], 3)).unwrap()).await;
    assert_eq!(ids, [1, 1, 1]);
}

#[tokio::test]
async fn falling_counters_drop_the_snapshot_and_keep_the_rows() {
    let config = MockConfig {
        faults: vec![Fault::StatsBackwards(3)],
        ..MockConfig::default()
    };
    let setup = setup(config).await;
    let (ids, _, ended) = read(&mut setup.client.submit(request(&[1], 6)).unwrap()).await;
    assert_eq!((ids.len(), ended.error), (6, None));
    assert_eq!(
        engine_series(
            &setup.metrics,
            "wire_bad_frames_total",
            "side=\"front_end\",reason=\"stats_backwards\""
        ),
        1.0
    );
}

#[tokio::test]
async fn a_full_queue_refuses_all_or_nothing() {
    let config = MockConfig {
        max_num_seqs: 1,
        step_delay: Duration::from_millis(20),
        ..MockConfig::default()
    };
    let client_config = ClientConfig {
        max_queued_requests: 3,
        heartbeat: Duration::from_millis(200),
        ..ClientConfig::default()
    };
    let setup = setup_with(config, client_config).await;
    let mut first = setup.client.submit(request(&[1], 500)).unwrap();
    first.next().await; // it runs: the queue is empty again
    let waiting = setup
        .client
        .submit_all(vec![request(&[2], 1), request(&[3], 1)])
        .unwrap();
    let error = setup
        .client
        .submit_all(vec![request(&[4], 1), request(&[5], 1)])
        .unwrap_err();
    assert_eq!(
        (error.kind, error.flag),
        (ErrorKind::QueueFull, Some("--max-num-queued-reqs"))
    );
    assert_eq!(setup.client.queued().0, 2);
    drop(setup.client.submit(request(&[6], 1)).unwrap());
    drop(waiting);
    assert_eq!(setup.client.queued(), (0, 0));
}

#[tokio::test]
async fn a_deadline_that_the_engine_misses_is_kept_by_the_client() {
    let setup = setup(scripted(|_| Script {
        delay_steps: u32::MAX,
        ..Script::of([1])
    }))
    .await;
    let deadline = std::time::Instant::now() + Duration::from_millis(30);
    let mut stream = setup
        .client
        .submit(EngineRequest {
            deadline: Some(deadline),
            ..request(&[1], 5)
        })
        .unwrap();
    let (_, _, ended) = read(&mut stream).await;
    assert_eq!(ended.cause, EndCause::Deadline);
}

#[tokio::test]
async fn a_slow_reader_gets_everything_in_few_batches() {
    let config = ClientConfig {
        max_stream_queue: 4,
        ..ClientConfig::default()
    };
    let setup = setup_with(MockConfig::default(), config).await;
    let mut stream = setup.client.submit(request(&[3], 2000)).unwrap();
    // Whoever reads late finds few batches, however many steps it took.
    let mut other = setup.client.submit(request(&[4], 2000)).unwrap();
    read(&mut other).await;
    let (mut sizes, mut ended) = (Vec::new(), false);
    while let Some(output) = stream.next().await {
        match output {
            Output::Tokens(batch) => sizes.push(batch.ids.len()),
            Output::PromptLogprobs(_) => panic!("nobody asked"),
            Output::End(_) => ended = true,
        }
    }
    assert!(ended && sizes.iter().sum::<usize>() == 2000);
    assert!(sizes[..3] == [1, 1, 1] && sizes[3] > 1000, "{sizes:?}");
}

#[tokio::test]
async fn utility_calls_are_answered_or_refused_by_kind() {
    let setup = setup(MockConfig::default()).await;
    assert_eq!(
        setup
            .client
            .utility("is_paused", wire::Map::default())
            .await,
        Ok(wire::Value::Bool(false))
    );
    let error = setup
        .client
        .utility("fly", wire::Map::default())
        .await
        .unwrap_err();
    assert_eq!(error.kind, ErrorKind::NotSupported);
}

#[tokio::test]
async fn before_ready_requests_are_refused_with_the_phase() {
    let metrics = Arc::new(Metrics::new("proa", "m", "0", "mock").unwrap());
    let client = EngineClient::start(ClientConfig::default(), metrics).unwrap();
    let error = client.submit(request(&[1], 1)).unwrap_err();
    assert_eq!(
        (error.kind, error.code),
        (ErrorKind::EngineUnavailable, "model_loading")
    );
    let loading = vec![("weights", Duration::from_millis(300))];
    let _engine = MockEngine::spawn(
        MockConfig {
            loading,
            ..MockConfig::default()
        },
        client.address(),
    );
    reach(
        &client,
        |state| matches!(state, EngineState::Loading { phase, .. } if phase == "weights"),
    )
    .await;
    reach(&client, |state| *state == EngineState::Ready).await;
}

#[tokio::test]
async fn a_vocabulary_below_the_tokenizers_is_refused() {
    let metrics = Arc::new(Metrics::new("proa", "m", "0", "mock").unwrap());
    let config = ClientConfig {
        tokenizer_vocab_size: 1001,
        ..ClientConfig::default()
    };
    let client = EngineClient::start(config, metrics).unwrap();
    let _engine = MockEngine::spawn(
        MockConfig {
            vocab_size: 1000,
            ..MockConfig::default()
        },
        client.address(),
    );
    reach(&client, |state| matches!(state, EngineState::Failed(_))).await;
    let EngineState::Failed(fatal) = client.status().state else {
        panic!("failed")
    };
    assert_eq!(fatal.exit_code(), 2);
    assert!(
        fatal.message().contains("1000") && fatal.message().contains("1001"),
        "{}",
        fatal.message()
    );
}

#[tokio::test]
async fn another_major_version_is_refused_naming_both() {
    let metrics = Arc::new(Metrics::new("proa", "m", "0", "mock").unwrap());
    let client = EngineClient::start(ClientConfig::default(), metrics).unwrap();
    let protocol_major = wire::PROTOCOL_MAJOR + 1;
    let config = MockConfig {
        protocol_major,
        ..MockConfig::default()
    };
    let _engine = MockEngine::spawn(config, client.address());
    reach(&client, |state| matches!(state, EngineState::Failed(_))).await;
    let EngineState::Failed(fatal) = client.status().state else {
        panic!("failed")
    };
    assert_eq!(fatal.exit_code(), 2);
    for version in [protocol_major, wire::PROTOCOL_MAJOR] {
        assert!(fatal.message().contains(&version.to_string()));
    }
}

#[tokio::test]
async fn series_of_an_engine_appear_with_its_ready_at_0() {
    let registry = Arc::new(Metrics::new("proa", "m", "0", "mock").unwrap());
    let client = EngineClient::start(ClientConfig::default(), Arc::clone(&registry)).unwrap();
    let text = registry.render(Format::Prometheus);
    assert!(text.contains("proa:engine_up{") && !text.contains("proa:generation_tokens_total"));
    let config = MockConfig {
        max_model_len: 3000,
        ..MockConfig::default()
    };
    let _engine = MockEngine::spawn(config, client.address());
    reach(&client, |state| *state == EngineState::Ready).await;
    assert_eq!(engine_series(&registry, "engine_up", ""), 1.0);
    assert_eq!(
        engine_series(&registry, "request_prompt_tokens_bucket", "le=\"3000.0\""),
        0.0
    );
}

#[tokio::test]
async fn tokens_behind_a_stop_string_are_waste() {
    let setup = setup(scripted(|_| Script {
        tokens_per_step: 4,
        ..Script::of([1, 2, 3, 4, 5, 6, 7, 8])
    }))
    .await;
    let mut stream = setup.client.submit(request(&[1], 9)).unwrap();
    stream.next().await;
    let made = stream.end_at_stop_string(2).usage.completion_tokens;
    assert_eq!(
        engine_series(&setup.metrics, "wasted_tokens_total", "cause=\"past_stop\""),
        f64::from(made - 2)
    );
}

#[tokio::test]
async fn silence_is_stale_and_passes() {
    let config = MockConfig {
        faults: vec![Fault::Freeze(2, Duration::from_millis(1500))],
        step_delay: Duration::from_millis(5),
        ..MockConfig::default()
    };
    let setup = setup(config).await;
    let mut stream = setup.client.submit(request(&[1], 4)).unwrap();
    reach(&setup.client, |state| *state == EngineState::Stale).await;
    reach(&setup.client, |state| *state == EngineState::Ready).await;
    let (ids, _, ended) = read(&mut stream).await;
    assert_eq!((ids.len(), ended.error), (4, None));
}

#[tokio::test]
async fn conservation_laws_hold_after_a_mixed_run() {
    let setup = setup(MockConfig {
        step_delay: Duration::from_micros(500),
        ..MockConfig::default()
    })
    .await;
    let (mut kept, mut generated) = (0.0, 0.0);
    for round in 0..40_u32 {
        let mut stream = setup
            .client
            .submit(request(&[round + 1, 2], 1 + round % 7))
            .unwrap();
        match round % 4 {
            0 => drop(stream),
            1 => {
                stream.next().await;
                generated += f64::from(stream.end(AbortCause::StopString).usage.completion_tokens);
                kept += 1.0;
            }
            _ => {
                generated += read(&mut stream).await.0.len() as f64;
                kept += 1.0;
            }
        }
    }
    let m = &setup.metrics;
    let get = |name: &str| engine_series(m, name, "");
    assert_eq!(get("num_requests_open"), 0.0);
    assert_eq!(get("request_accepted_total"), 40.0);
    let reasons = ["stop", "length", "abort", "error", "repetition"];
    let by_reason: f64 = reasons
        .iter()
        .map(|r| {
            engine_series(
                m,
                "request_success_total",
                &format!("finished_reason=\"{r}\""),
            )
        })
        .sum();
    assert_eq!(by_reason, 40.0);
    assert!(kept == 30.0 && get("generation_tokens_total") >= generated);
    for histogram in [
        "e2e_request_latency_seconds",
        "request_queue_time_seconds",
        "request_generation_tokens",
        "request_time_per_output_token_seconds",
    ] {
        assert_eq!(get(&format!("{histogram}_count")), 40.0, "{histogram}");
    }
    assert_eq!(
        get("request_generation_tokens_sum"),
        get("generation_tokens_total")
    );
    assert_eq!(
        get("iteration_tokens_total_sum"),
        get("generation_tokens_total")
            + engine_series(
                m,
                "prompt_tokens_by_source_total",
                "source=\"local_compute\""
            )
    );
    assert!(
        (get("inter_token_latency_seconds_sum") - get("request_decode_time_seconds_sum")).abs()
            < 1e-9
    );
}
