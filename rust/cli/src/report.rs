//! The start-up report: one timed line a phase, the memory ledger, every kernel choice with its reason.
//!
//! Prints what the start found; decides nothing. The same facts stand in `/v1/capabilities`.

use std::time::{Duration, Instant};

use engine_client::EngineStatus;
use wire::{EngineFacts, Map, Value};

/// Times the phases of the front end's own start.
#[derive(Debug)]
pub struct Phases {
    began: Instant,
    last: Instant,
    done: Vec<(&'static str, Duration)>,
}

impl Phases {
    /// Begins the first phase now.
    pub fn begin() -> Phases {
        let now = Instant::now();
        Phases {
            began: now,
            last: now,
            done: Vec::new(),
        }
    }

    /// Ends the running phase under `name`, logs it, and begins the next.
    pub fn end(&mut self, name: &'static str) {
        let now = Instant::now();
        let took = now - self.last;
        self.last = now;
        self.done.push((name, took));
        tracing::info!("start: {name} {:.1} ms", took.as_secs_f64() * 1e3);
    }

    /// Time since the start.
    pub fn total(&self) -> Duration {
        self.began.elapsed()
    }

    /// The phases that have ended, in order, with their times.
    pub fn ended(&self) -> &[(&'static str, Duration)] {
        &self.done
    }
}

/// Logs what an engine said when it became ready.
pub fn log_engine(facts: &EngineFacts, status: &EngineStatus) {
    for line in engine_lines(facts) {
        tracing::info!("{line}");
    }
    if status.starts > 1 {
        tracing::info!("engine: this is start {}", status.starts);
    }
}

fn engine_lines(facts: &EngineFacts) -> Vec<String> {
    let mut lines = Vec::new();
    for entry in &facts.startup {
        lines.extend(startup_line(entry));
    }
    for entry in &facts.kernels {
        lines.extend(kernel_line(entry));
    }
    lines.push(format!(
        "engine: {} (pid {}), context {}, {} blocks of {} tokens in {}, {} rows, {} tokens a step",
        facts.device,
        facts.pid,
        facts.max_model_len,
        facts.num_blocks,
        facts.block_size,
        facts.cache.cache_dtype,
        facts.max_num_seqs,
        facts.max_num_batched_tokens,
    ));
    for (name, capability) in facts.capabilities.iter().filter(|(_, c)| !c.ok) {
        lines.push(format!("without {name}: {}", capability.reason));
    }
    lines
}

fn startup_line(entry: &Map) -> Option<String> {
    if let (Some(Value::Str(phase)), Some(Value::Float(ms))) = (entry.get("phase"), entry.get("ms"))
    {
        return Some(format!("start: {phase} {ms:.1} ms"));
    }
    if let (Some(Value::Str(name)), Some(Value::Int(bytes))) =
        (entry.get("memory"), entry.get("bytes"))
    {
        return Some(format!(
            "memory: {name} {:.1} MiB",
            *bytes as f64 / f64::from(1 << 20)
        ));
    }
    match (entry.get("fact"), entry.get("value")) {
        (Some(Value::Str(name)), Some(value)) => Some(format!("fact: {name} {}", plain(value))),
        _ => None,
    }
}

fn kernel_line(entry: &Map) -> Option<String> {
    let text = |key: &str| match entry.get(key) {
        Some(Value::Str(text)) => Some(text.as_str()),
        _ => None,
    };
    match (text("op"), text("implementation"), text("reason")) {
        (Some(op), Some(chosen), Some(reason)) => Some(format!("kernel {op}: {chosen} ({reason})")),
        _ => text("dtype").map(|dtype| format!("dtype: {dtype}")),
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::Str(text) => text.clone(),
        Value::Int(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::Bool(on) => on.to_string(),
        Value::Nil => "none".to_string(),
        Value::Bin(bytes) => format!("{} bytes", bytes.len()),
        Value::List(items) => items.iter().map(plain).collect::<Vec<_>>().join(", "),
        Value::Map(map) => {
            let entries: Vec<String> = map
                .0
                .iter()
                .map(|(key, value)| format!("{key} {}", plain(value)))
                .collect();
            entries.join(", ")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(entries: &[(&str, Value)]) -> Map {
        entries
            .iter()
            .map(|(key, value)| (*key, value.clone()))
            .collect()
    }

    #[test]
    fn each_kind_of_entry_has_its_line() {
        let phase = map(&[("phase", "weights".into()), ("ms", 12.34.into())]);
        assert_eq!(
            startup_line(&phase).as_deref(),
            Some("start: weights 12.3 ms")
        );
        let memory = map(&[("memory", "kv".into()), ("bytes", (3_i64 << 19).into())]);
        assert_eq!(startup_line(&memory).as_deref(), Some("memory: kv 1.5 MiB"));
        let fact = map(&[("fact", "threads".into()), ("value", 2_i64.into())]);
        assert_eq!(startup_line(&fact).as_deref(), Some("fact: threads 2"));
        let kernel = map(&[
            ("op", "linear".into()),
            ("implementation", "torch".into()),
            ("reason", "cpu".into()),
        ]);
        assert_eq!(
            kernel_line(&kernel).as_deref(),
            Some("kernel linear: torch (cpu)")
        );
        assert_eq!(startup_line(&map(&[("x", true.into())])), None);
    }
}
