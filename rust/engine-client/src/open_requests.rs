//! All open requests by key, and how many of them are queued.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use limits::{ApiError, ErrorKind};

use crate::record::SharedRecord;

/// Open requests. Queued = accepted keys without a first-scheduled stamp, so the limits on them are exact.
#[derive(Debug, Default)]
pub(crate) struct OpenRequests {
    table: Mutex<Table>,
}

/// The table under its lock.
#[derive(Debug, Default)]
pub(crate) struct Table {
    records: HashMap<u64, SharedRecord>,
    queued: HashMap<u64, u32>,
    queued_tokens: usize,
    next_key: u64,
}

/// Limits in force at one admission.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueLimits {
    pub requests: usize,
    pub tokens: usize,
}

impl OpenRequests {
    pub fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// Whether `count` more requests of `tokens` prompt tokens in all may queue; the error says which limit they pass.
    pub fn check_room(
        &self,
        count: usize,
        tokens: usize,
        limits: QueueLimits,
    ) -> Result<(), (ApiError, &'static str)> {
        let full = |what: &str, limit: usize, value: usize, flag, reason| {
            let message = format!(
                "The queue is full: {value} {what} would wait, the limit is {limit} ({flag})."
            );
            let error = ApiError::new(ErrorKind::QueueFull, message).with_numbers(limit, value);
            Err((
                ApiError {
                    flag: Some(flag),
                    ..error
                },
                reason,
            ))
        };
        let requests = self.queued.len() + count;
        if requests > limits.requests {
            return full(
                "requests",
                limits.requests,
                requests,
                "--max-num-queued-reqs",
                "max_num_queued_reqs",
            );
        }
        // One request always may wait alone, however long: the context bounds it.
        let waiting = self.queued_tokens + tokens;
        if waiting > limits.tokens && self.queued_tokens > 0 {
            return full(
                "prompt tokens",
                limits.tokens,
                waiting,
                "--max-num-queued-tokens",
                "max_num_queued_tokens",
            );
        }
        Ok(())
    }

    pub fn draw_key(&mut self) -> u64 {
        self.next_key += 1;
        self.next_key
    }

    pub fn insert(&mut self, record: SharedRecord) {
        let tokens = record.request.prompt_ids.len() as u32;
        self.queued_tokens += tokens as usize;
        self.queued.insert(record.key, tokens);
        self.records.insert(record.key, record);
    }

    pub fn get(&self, key: u64) -> Option<&SharedRecord> {
        self.records.get(&key)
    }

    pub fn leave_queue(&mut self, key: u64) {
        if let Some(tokens) = self.queued.remove(&key) {
            self.queued_tokens -= tokens as usize;
        }
    }

    pub fn remove(&mut self, key: u64) -> Option<SharedRecord> {
        self.leave_queue(key);
        self.records.remove(&key)
    }

    pub fn take_all(&mut self) -> Vec<SharedRecord> {
        self.queued.clear();
        self.queued_tokens = 0;
        self.records.drain().map(|(_, record)| record).collect()
    }

    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Queued requests and their prompt tokens.
    pub fn queued(&self) -> (usize, usize) {
        (self.queued.len(), self.queued_tokens)
    }
}
