//! The front end process's own series, read from /proc at scrape time.

use std::fs;

use crate::text::TextWriter;

/// Clock ticks a second in /proc on Linux.
const TICKS_PER_SECOND: f64 = 100.0;

pub(crate) fn write(writer: &mut TextWriter) {
    let mut put = |name: &str, kind: &str, help: &str, value: f64| {
        let name = writer.family(name, kind, help, false);
        writer.sample(&name, "", value);
    };
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The program's name may hold blanks and parentheses: fields are counted behind the last one.
    let fields: Vec<&str> = stat
        .rsplit_once(')')
        .map_or("", |(_, rest)| rest)
        .split_whitespace()
        .collect();
    let field = |number: usize| {
        fields
            .get(number - 3)
            .and_then(|text| text.parse::<f64>().ok())
            .unwrap_or(0.0)
    };
    put(
        "process_cpu_seconds_total",
        "counter",
        "User and system CPU time.",
        (field(14) + field(15)) / TICKS_PER_SECOND,
    );
    put(
        "process_resident_memory_bytes",
        "gauge",
        "Resident memory.",
        resident_bytes(),
    );
    put(
        "process_virtual_memory_bytes",
        "gauge",
        "Virtual memory.",
        field(23),
    );
    put(
        "process_start_time_seconds",
        "gauge",
        "Start, Unix time.",
        boot_time() + field(22) / TICKS_PER_SECOND,
    );
    let open = fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count());
    put(
        "process_open_fds",
        "gauge",
        "Open descriptors.",
        open as f64,
    );
    put(
        "process_max_fds",
        "gauge",
        "Largest number of descriptors.",
        max_fds(),
    );
}

fn resident_bytes() -> f64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .and_then(|rest| rest.split_whitespace().next());
    kib.and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0) * 1024.0
}

fn boot_time() -> f64 {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    stat.lines()
        .find_map(|line| line.strip_prefix("btime "))
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(0.0)
}

fn max_fds() -> f64 {
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))
        .unwrap_or("");
    line.split_whitespace()
        .next()
        .and_then(|text| text.parse().ok())
        .unwrap_or(f64::INFINITY)
}
