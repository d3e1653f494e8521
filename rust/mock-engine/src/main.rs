//! The scripted engine as a process: reads `--config-fd 3` as an engine does, and its play from `PROA_TEST_MOCK` (JSON:
//! `step_delay_us`, `tokens_per_step`, `vocab_size`, `max_num_seqs`, `die_at_step`, `fail_at_step`,
//! `freeze_at_step`, `freeze_ms`, `long_step`, `long_step_ms`, `refuses_start`).

use std::fs;
use std::process::exit;
use std::sync::Arc;
use std::time::Duration;

use proa_mock_engine::{Fault, MockConfig, MockEngine, Script};
use serde_json::Value;

fn main() {
    let document =
        fs::read_to_string("/proc/self/fd/3").expect("a configuration document at descriptor 3");
    let document: Value = serde_json::from_str(&document).expect("a JSON document");
    let play: Value = std::env::var("PROA_TEST_MOCK").map_or(Value::Null, |text| {
        serde_json::from_str(&text).expect("PROA_TEST_MOCK is JSON")
    });
    let number =
        |name: &str, default: u64| play.get(name).and_then(Value::as_u64).unwrap_or(default);
    let tokens_per_step = number("tokens_per_step", 1) as usize;
    let mut faults = Vec::new();
    if let Some(step) = play.get("die_at_step").and_then(Value::as_u64) {
        faults.push(Fault::Die(step));
    }
    if let Some(step) = play.get("fail_at_step").and_then(Value::as_u64) {
        faults.push(Fault::Fail(step));
    }
    if let Some(step) = play.get("long_step").and_then(Value::as_u64) {
        let lasts = Duration::from_millis(number("long_step_ms", 1000));
        faults.push(Fault::LongStep(step, lasts));
    }
    if let Some(step) = play.get("freeze_at_step").and_then(Value::as_u64) {
        faults.push(Fault::Freeze(
            step,
            Duration::from_millis(number("freeze_ms", 1000)),
        ));
    }
    let config = MockConfig {
        vocab_size: number("vocab_size", 49_152) as u32,
        max_num_seqs: number("max_num_seqs", 256) as u32,
        step_delay: Duration::from_micros(number("step_delay_us", 0)),
        faults,
        refuses_start: play
            .get("refuses_start")
            .and_then(Value::as_str)
            .map(str::to_owned),
        script: Arc::new(move |request| Script {
            tokens_per_step,
            ..Script::echo(request)
        }),
        ..MockConfig::default()
    };
    let address = document
        .get("connect")
        .and_then(Value::as_str)
        .expect("an address to connect to");
    exit(MockEngine::run_process(config, address));
}
