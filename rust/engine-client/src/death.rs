//! When a dead engine is started again, and when it is given up.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Deaths older than this are forgotten.
const WINDOW: Duration = Duration::from_secs(600);
const LONGEST_BACKOFF: Duration = Duration::from_secs(30);

/// Counts deaths within ten minutes: 1, 2, 4 ... 30 s of backoff, then the end.
#[derive(Debug)]
pub(crate) struct DeathPolicy {
    max_restarts: u32,
    deaths: VecDeque<Instant>,
}

impl DeathPolicy {
    pub fn new(max_restarts: u32) -> Self {
        DeathPolicy {
            max_restarts,
            deaths: VecDeque::new(),
        }
    }

    /// Notes a death; the time to wait before the next start, or None when it was one too many.
    pub fn on_death(&mut self, now: Instant) -> Option<Duration> {
        while self
            .deaths
            .front()
            .is_some_and(|old| now.saturating_duration_since(*old) > WINDOW)
        {
            self.deaths.pop_front();
        }
        self.deaths.push_back(now);
        let deaths = self.deaths.len() as u32;
        (deaths <= self.max_restarts).then(|| {
            let seconds = 1_u64.checked_shl(deaths - 1).unwrap_or(u64::MAX);
            Duration::from_secs(seconds).min(LONGEST_BACKOFF)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_and_ends() {
        let mut policy = DeathPolicy::new(6);
        let start = Instant::now();
        let waits: Vec<_> = (0..7)
            .map(|_| policy.on_death(start).map(|wait| wait.as_secs()))
            .collect();
        assert_eq!(
            waits,
            [Some(1), Some(2), Some(4), Some(8), Some(16), Some(30), None]
        );
    }

    #[test]
    fn old_deaths_are_forgotten() {
        let mut policy = DeathPolicy::new(1);
        let start = Instant::now();
        assert_eq!(policy.on_death(start), Some(Duration::from_secs(1)));
        let later = start + WINDOW + Duration::from_secs(1);
        assert_eq!(policy.on_death(later), Some(Duration::from_secs(1)));
        assert_eq!(policy.on_death(later), None);
    }
}
