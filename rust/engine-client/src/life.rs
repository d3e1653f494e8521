//! Whether a ready engine lives: judged by its silence and by how long its step has run (wire.md section 7).

use std::time::{Duration, Instant};

/// Heartbeats without a message after which an engine counts as stale.
const STALE_HEARTBEATS: u32 = 3;
/// Shortest step that counts as stale.
const STALE_STEP: Duration = Duration::from_secs(5);
/// On a CPU a step is stale only beyond this many times the longest one seen.
const LONGEST_STEP_FACTOR: u32 = 4;

/// How an engine looks from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Alive,
    Stale,
    Hung,
}

/// Against what an engine is judged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LifeRules {
    pub heartbeat: Duration,
    pub watchdog: Duration,
    /// Requests are open and no utility call is: such a call has a time-out of its own.
    pub can_hang: bool,
}

/// What was last heard of an engine.
#[derive(Debug)]
pub(crate) struct Pulse {
    last_message: Instant,
    step_age: Duration,
    longest_step: Duration,
    on_cpu: bool,
}

impl Pulse {
    pub fn new(now: Instant) -> Self {
        Pulse {
            last_message: now,
            step_age: Duration::ZERO,
            longest_step: Duration::ZERO,
            on_cpu: false,
        }
    }

    pub fn hear(&mut self, now: Instant) {
        self.last_message = now;
    }

    pub fn set_device(&mut self, device: &str) {
        self.on_cpu = device.starts_with("cpu");
    }

    /// Notes the age of the step now running, 0 between steps. Only a step that has ended tells what is usual: a running
    /// one would excuse itself.
    pub fn note_step_age(&mut self, age: Duration) {
        if age < self.step_age {
            self.longest_step = self.longest_step.max(self.step_age);
        }
        self.step_age = age;
    }

    pub fn judge(&self, now: Instant, rules: LifeRules) -> Verdict {
        let silence = now.saturating_duration_since(self.last_message);
        if rules.can_hang && (silence > rules.watchdog || self.step_age > rules.watchdog) {
            return Verdict::Hung;
        }
        let usual = if self.on_cpu {
            self.longest_step * LONGEST_STEP_FACTOR
        } else {
            Duration::ZERO
        };
        if silence > rules.heartbeat * STALE_HEARTBEATS || self.step_age > STALE_STEP.max(usual) {
            Verdict::Stale
        } else {
            Verdict::Alive
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: LifeRules = LifeRules {
        heartbeat: Duration::from_secs(1),
        watchdog: Duration::from_secs(30),
        can_hang: true,
    };

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn silence_is_stale_then_hung() {
        let start = Instant::now();
        let pulse = Pulse::new(start);
        assert_eq!(pulse.judge(start + seconds(3), RULES), Verdict::Alive);
        assert_eq!(pulse.judge(start + seconds(4), RULES), Verdict::Stale);
        assert_eq!(pulse.judge(start + seconds(31), RULES), Verdict::Hung);
        let idle = LifeRules {
            can_hang: false,
            ..RULES
        };
        assert_eq!(pulse.judge(start + seconds(31), idle), Verdict::Stale);
    }

    #[test]
    fn a_step_that_never_ends_hangs_however_often_it_says_so() {
        for device in ["cpu", "cuda"] {
            let now = Instant::now();
            let mut pulse = Pulse::new(now);
            pulse.set_device(device);
            let verdicts: Vec<_> = (1..=31)
                .map(|age| {
                    pulse.note_step_age(seconds(age));
                    pulse.judge(now, RULES)
                })
                .collect();
            assert_eq!(verdicts[4], Verdict::Alive, "{device}");
            assert_eq!(verdicts[5], Verdict::Stale, "{device}");
            assert_eq!(verdicts[30], Verdict::Hung, "{device}");
        }
    }

    #[test]
    fn long_steps_are_usual_on_a_cpu_once_seen() {
        for (device, verdict) in [("cpu", Verdict::Alive), ("cuda", Verdict::Stale)] {
            let now = Instant::now();
            let mut pulse = Pulse::new(now);
            pulse.set_device(device);
            pulse.note_step_age(seconds(4));
            pulse.note_step_age(seconds(0));
            pulse.note_step_age(seconds(15));
            assert_eq!(pulse.judge(now, RULES), verdict, "{device}");
        }
    }
}
