//! Random runs against a scripted engine: one end per stream, and the conservation laws of metrics-and-bench.md 1.8.

use std::sync::Arc;
use std::time::Duration;

use limits::Finish;
use metrics::{Counter, EngineMetrics, Histogram, Metrics};
use mock_engine::{Fault, MockConfig, MockEngine, MockRequest, Script};
use proa_engine_client::{
    ClientConfig, EngineClient, EngineRequest, EngineState, Output, OutputStream, RequestGroup,
};

const CONTEXT: u32 = 2048;

/// SplitMix64: every run can be repeated from its seed.
#[derive(Clone)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// What the engine plays is a function of the prompt.
fn script_of(request: &MockRequest) -> Script {
    let mut random = Random(u64::from(request.prompt_ids[0]));
    let finishes = [
        Finish::MaxTokens,
        Finish::ContextFull,
        Finish::Repetition,
        Finish::Corrupted,
        Finish::Refused,
        Finish::Deadline,
    ];
    let tokens: Vec<u32> = (0..random.below(12))
        .map(|_| random.below(1000) as u32)
        .collect();
    Script {
        tokens,
        tokens_per_step: 1 + random.below(3) as usize,
        finish: finishes[random.below(finishes.len() as u64) as usize],
        cached: random.below(4) as u32,
        delay_steps: random.below(3) as u32,
        preemptions: random.below(3) as u32,
        ..Script::default()
    }
}

/// What a reader saw of its request.
#[derive(Default)]
struct Seen {
    tokens_in_usage: u64,
    without_usage: u64,
    ends: u64,
}

/// Reads a stream as one of several kinds of readers would.
async fn behave(mut stream: OutputStream, mut random: Random) -> Seen {
    let (manner, patience) = (random.below(5), random.below(6) as u32);
    let mut seen = Seen::default();
    let mut read = 0;
    if manner == 0 && patience == 0 {
        seen.without_usage = 1;
        return seen; // gone before the first token
    }
    loop {
        let output = tokio::time::timeout(Duration::from_secs(30), stream.next())
            .await
            .expect("an output in time");
        match output.expect("an end before the stream is over") {
            Output::Tokens(batch) => read += batch.ids.len() as u32,
            Output::PromptLogprobs(_) => {}
            Output::End(ended) => {
                assert!(stream.next().await.is_none(), "something after the end");
                assert_eq!(ended.usage.completion_tokens, read);
                seen.ends += 1;
                seen.tokens_in_usage += u64::from(read);
                return seen;
            }
        }
        if manner == 0 && read > patience {
            seen.without_usage = 1;
            return seen; // gone in the middle
        }
        if manner == 1 && read > patience {
            let kept = read - random.below(u64::from(read)) as u32;
            stream.end_at_stop_string(kept);
            assert!(stream.next().await.is_none(), "something after the end");
            seen.ends += 1;
            seen.tokens_in_usage += u64::from(kept);
            return seen;
        }
    }
}

/// Waits for the engine that was started as number `life`: its context tells it from the one before.
async fn reach_ready(client: &EngineClient, life: u32) {
    let mut watch = client.watch();
    let reached = watch.wait_for(|status| {
        let facts = client.facts();
        status.state == EngineState::Ready
            && facts.is_some_and(|facts| facts.max_model_len == CONTEXT + life)
    });
    tokio::time::timeout(Duration::from_secs(20), reached)
        .await
        .expect("ready in time")
        .unwrap();
}

fn group_of(random: &mut Random) -> Vec<EngineRequest> {
    let n = 1 + random.below(3) as u32;
    let group = RequestGroup::new(n, n);
    (0..n)
        .map(|_| {
            let prompt: Vec<u32> = (0..1 + random.below(9))
                .map(|_| random.below(40_000) as u32)
                .collect();
            EngineRequest {
                group: Arc::clone(&group),
                num_logprobs: random.below(4) as i32 - 1,
                ..EngineRequest::new(Arc::from(prompt), 1 + random.below(15) as u32)
            }
        })
        .collect()
}

fn sum(counters: &[Counter]) -> u64 {
    counters.iter().map(Counter::get).sum()
}

fn check_laws(m: &EngineMetrics, seen: &Seen, num_groups: u64) {
    let accepted = m.request_accepted.get();
    assert_eq!(m.num_requests_open.get(), 0.0);
    assert_eq!(seen.ends + seen.without_usage, accepted);
    assert_eq!(sum(&m.request_success), accepted, "law 1");
    assert_eq!(sum(&m.request_ended), accepted, "law 2");
    let ended: [&Histogram; 11] = [
        &m.e2e_request_latency,
        &m.request_queue_time,
        &m.request_prefill_time,
        &m.request_decode_time,
        &m.request_inference_time,
        &m.request_time_per_output_token,
        &m.request_prompt_tokens,
        &m.request_generation_tokens,
        &m.request_params_max_tokens,
        &m.request_prefill_kv_computed_tokens,
        &m.request_num_preemptions,
    ];
    for histogram in ended {
        assert_eq!(histogram.count(), accepted, "law 2");
    }
    assert_eq!(m.request_params_n.count(), num_groups);
    assert_eq!(m.request_max_num_generation_tokens.count(), num_groups);

    let generated = m.generation_tokens.get();
    let told = seen.tokens_in_usage + m.wasted("past_stop").get();
    assert_eq!(m.request_generation_tokens.raw_sum(), generated, "law 3");
    assert!(
        if seen.without_usage == 0 {
            told == generated
        } else {
            told <= generated
        },
        "law 3"
    );

    let by_source = &m.prompt_tokens_by_source;
    let cached = m.prompt_tokens_cached.get();
    assert_eq!(m.prompt_tokens.get(), sum(by_source), "law 4");
    assert_eq!(cached, by_source[1].get() + by_source[2].get(), "law 4");
    assert_eq!(cached, sum(&m.prompt_tokens_cached_by_source), "law 4");
    let computed = by_source[0].get();
    assert_eq!(m.iteration_tokens.raw_sum(), generated + computed, "law 5");
    let decode = m.request_decode_time.raw_sum();
    assert_eq!(m.inter_token_latency.raw_sum(), decode, "law 6");
    let prefill = m.request_prefill_time.raw_sum();
    assert_eq!(
        m.request_inference_time.raw_sum(),
        prefill + decode,
        "law 7"
    );
    let preempted = m.num_preemptions.get();
    assert_eq!(m.request_num_preemptions.raw_sum(), preempted, "law 8");
}

async fn run(seed: u64, faults: Vec<Fault>) {
    let mut random = Random(seed);
    let registry = Arc::new(Metrics::new("proa", "m", "0", "mock").unwrap());
    let client = EngineClient::start(ClientConfig::default(), Arc::clone(&registry)).unwrap();
    let config = MockConfig {
        script: Arc::new(script_of),
        max_num_seqs: 1 + random.below(16) as u32,
        step_delay: Duration::from_micros(random.below(300)),
        ..MockConfig::default()
    };
    let lives = 1 + u32::from(faults.iter().any(|fault| matches!(fault, Fault::Fail(_))));
    let (mut seen, mut num_groups) = (Seen::default(), 0);
    let mut engine = None;
    for life in 0..lives {
        drop(engine.take());
        let play = MockConfig {
            max_model_len: CONTEXT + life,
            faults: if life == 0 {
                faults.clone()
            } else {
                Vec::new()
            },
            ..config.clone()
        };
        engine = Some(MockEngine::spawn(play, client.address()));
        reach_ready(&client, life).await;
        let mut readers = Vec::new();
        for _ in 0..25 {
            // Refused only when the engine has died: the rest of this life is empty.
            let Ok(streams) = client.submit_all(group_of(&mut random)) else {
                break;
            };
            num_groups += 1;
            for stream in streams {
                readers.push(tokio::spawn(behave(stream, Random(random.next()))));
            }
            tokio::task::yield_now().await;
        }
        for reader in readers {
            let one = reader.await.unwrap();
            seen.ends += one.ends;
            seen.without_usage += one.without_usage;
            seen.tokens_in_usage += one.tokens_in_usage;
        }
    }
    // Answered behind all that was sent before: what was late has come.
    client
        .utility("is_paused", wire::Map::default())
        .await
        .unwrap();
    assert_eq!((client.num_open(), client.queued()), (0, (0, 0)));
    check_laws(&registry.engine(0), &seen, num_groups);
    drop(engine);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_stream_has_one_end_and_the_laws_hold() {
    for seed in 0..12 {
        run(seed, Vec::new()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_laws_hold_across_the_failure_of_an_engine() {
    for seed in 100..108 {
        run(seed, vec![Fault::Fail(1 + seed % 7)]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_laws_hold_when_rows_and_messages_are_bad() {
    for seed in 200..206 {
        let (row, message) = (Fault::BadRow(2 + seed % 3), Fault::Garbage(6 + seed % 5));
        run(seed, vec![row, message]).await;
    }
}
