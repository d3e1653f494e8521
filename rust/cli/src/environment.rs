//! Every environment variable Proa reads, and how `PROA_NAME` sets the flag of that name.
//!
//! An unknown `PROA_*` variable ends the start like an unknown flag. What Kubernetes sets for a service called `proa` is
//! skipped with a line in the log; `PROA_TEST_*` belongs to the tests.

use limits::{nearest_name, quote};

use crate::command_line::Assignment;
use crate::flag::{self, Flag, Kind, TABLE};

/// Variables that are no flags: (name, what it does).
pub const VARIABLES: &[(&str, &str)] = &[
    (
        "PROA_CACHE_DIR",
        "folder of the downloaded default model; default $XDG_CACHE_HOME/proa or ~/.cache/proa",
    ),
    (
        "PROA_COMMIT",
        "read when Proa is built: the commit that /metrics and /version name",
    ),
];

/// The variable of another server that would leave a server open if it were skipped.
const FOREIGN_KEY: &str = "VLLM_API_KEY";

/// What the environment sets, and lines for the log about what was skipped. Empty values ask for nothing.
pub fn assignments(
    variables: &[(String, String)],
) -> Result<(Vec<Assignment>, Vec<String>), String> {
    let mut found = Vec::new();
    let mut notes = Vec::new();
    for (name, text) in variables {
        let is_ours = name.starts_with("PROA_") && !name.starts_with("PROA_TEST_");
        if !(is_ours || name == FOREIGN_KEY) || VARIABLES.iter().any(|(known, _)| known == name) {
            continue;
        }
        if is_service_link(name, text) {
            notes.push(format!("{name} looks like a service link and is skipped"));
            continue;
        }
        let flag = flag_of(name).ok_or_else(|| unknown(name))?;
        if text.is_empty() {
            continue;
        }
        let texts = match flag.kind {
            Kind::Texts => text.split(',').map(str::trim).collect(),
            _ => vec![text.as_str()],
        };
        for text in texts {
            found.push(Assignment {
                flag,
                spelled: name.clone(),
                text: text.to_string(),
            });
        }
    }
    Ok((found, notes))
}

fn flag_of(variable: &str) -> Option<&'static Flag> {
    if variable == FOREIGN_KEY {
        return flag::by_name("api_key");
    }
    TABLE.iter().find(|flag| flag.variable() == variable)
}

fn is_service_link(name: &str, text: &str) -> bool {
    name.starts_with("PROA_SERVICE_")
        || name.starts_with("PROA_PORT_")
        || (name == "PROA_PORT" && text.starts_with("tcp://"))
}

fn unknown(name: &str) -> String {
    let known: Vec<String> = TABLE.iter().map(Flag::variable).collect();
    let others = VARIABLES.iter().map(|(name, _)| *name);
    match nearest_name(name, known.iter().map(String::as_str).chain(others)) {
        Some(near) => format!(
            "unknown environment variable {}; did you mean {near}?",
            quote(name)
        ),
        None => format!("unknown environment variable {}", quote(name)),
    }
}
