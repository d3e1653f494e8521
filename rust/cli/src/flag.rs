//! What one flag of `proa` is: its names, its type, its default, and whether this build has what it asks for.
//!
//! Owns the vocabulary of the flag table and the lookup of a spelling. Does not know where values come from.

use std::collections::HashMap;
use std::sync::LazyLock;

use limits::LIMITS;

use crate::flag_table::{FLAGS, LATER_LIMITS, LIMIT_ALIASES};

/// The heading a flag stands under in `--help`; also says which command reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// The model and where it comes from.
    Model,
    /// Listeners, keys, TLS, CORS.
    Http,
    /// What replies hold and what is logged of requests.
    Replies,
    /// Chat templates, tools, reasoning, grammars.
    Text,
    /// Caps of requests and connections.
    Limits,
    /// Device, memory, threads, kernels.
    Engine,
    /// Batching, caching, speculation.
    Scheduling,
    /// Adapters, media, stores, transfers.
    Extras,
    /// Life of the server: drain, restarts, logs.
    Process,
}

impl Group {
    /// Every group, in the order of the help text.
    pub const ALL: [Group; 9] = [
        Group::Model,
        Group::Http,
        Group::Engine,
        Group::Scheduling,
        Group::Text,
        Group::Replies,
        Group::Limits,
        Group::Process,
        Group::Extras,
    ];

    /// The word that names the group on the command line (`--help limits`).
    pub const fn word(self) -> &'static str {
        match self {
            Group::Model => "model",
            Group::Http => "http",
            Group::Replies => "replies",
            Group::Text => "text",
            Group::Limits => "limits",
            Group::Engine => "engine",
            Group::Scheduling => "scheduling",
            Group::Extras => "extras",
            Group::Process => "process",
        }
    }

    /// Whether `proa engine` reads the flags of this group; the others belong to the front end alone.
    pub const fn belongs_to_engine(self) -> bool {
        matches!(
            self,
            Group::Model | Group::Engine | Group::Scheduling | Group::Extras | Group::Process
        )
    }
}

/// The type of a flag's value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// On or off: `--x`, `--no-x`, `--x=true`.
    Switch,
    /// An integer between the two, ends included; `k m g t` are powers of 1000, `K M G T` of 1024.
    Count(i64, i64),
    /// A decimal number between the two, ends included.
    Number(f64, f64),
    /// One of these words.
    Word(&'static [&'static str]),
    /// Any text, a path included.
    Text,
    /// A JSON object.
    Json,
    /// Any text, given as often as wanted; in the environment separated by commas.
    Texts,
}

/// Whether this build does what a flag asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    /// Yes.
    Built,
    /// Not yet: values other than these, which ask for nothing, end the start.
    Later {
        /// The feature, as the refusal names it.
        what: &'static str,
        /// Values that ask for nothing.
        neutral: &'static [&'static str],
    },
    /// Never: values other than these end the start.
    Refused {
        /// Why, or what to use instead.
        reason: &'static str,
        /// Values that ask for nothing.
        neutral: &'static [&'static str],
    },
}

/// One row of the flag table.
#[derive(Clone, Copy, Debug)]
pub struct Flag {
    /// Name in snake case: the key in a configuration file, and the flag with dashes.
    pub name: &'static str,
    /// Other spellings with their dashes; `--x` here is a full synonym.
    pub aliases: &'static [&'static str],
    /// The heading it stands under.
    pub group: Group,
    /// The type of its value.
    pub kind: Kind,
    /// The default as a person would write it; empty = none.
    pub default: &'static str,
    /// One line for the help text.
    pub help: &'static str,
    /// Whether this build has it.
    pub support: Support,
}

impl Flag {
    /// A built flag without aliases.
    pub const fn new(
        name: &'static str,
        group: Group,
        kind: Kind,
        default: &'static str,
        help: &'static str,
    ) -> Flag {
        Flag {
            name,
            aliases: &[],
            group,
            kind,
            default,
            help,
            support: Support::Built,
        }
    }

    /// The same flag under further spellings.
    pub const fn also(self, aliases: &'static [&'static str]) -> Flag {
        Flag { aliases, ..self }
    }

    /// The same flag, of a feature that is not built yet.
    pub const fn later(self, what: &'static str, neutral: &'static [&'static str]) -> Flag {
        let support = Support::Later { what, neutral };
        Flag { support, ..self }
    }

    /// The same flag, of something Proa will not do.
    pub const fn refused(self, reason: &'static str, neutral: &'static [&'static str]) -> Flag {
        let support = Support::Refused { reason, neutral };
        Flag { support, ..self }
    }

    /// The flag with its dashes: `--max-model-len`.
    pub fn dashed(&self) -> String {
        format!("--{}", self.name.replace('_', "-"))
    }

    /// The environment variable that sets it: `PROA_MAX_MODEL_LEN`.
    pub fn variable(&self) -> String {
        format!("PROA_{}", self.name.to_uppercase())
    }
}

/// What a spelling on the command line stands for.
#[derive(Clone, Copy, Debug)]
pub struct Spelling {
    /// The flag.
    pub flag: &'static Flag,
    /// How the value that follows is understood.
    pub meaning: Meaning,
}

/// How a spelling turns what follows it into the flag's value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Meaning {
    /// The value is the flag's.
    Same,
    /// A switch that gives the flag this value; no value follows.
    Fixed(&'static str),
    /// The value is translated word by word; others are refused.
    Translated(&'static [(&'static str, &'static str)]),
}

/// Spellings that are no plain synonyms: (spelling, flag, meaning).
const SPECIAL: &[(&str, &str, Meaning)] = &[
    (
        "--disable-radix-cache",
        "enable_prefix_caching",
        Meaning::Fixed("false"),
    ),
    (
        "--disable-cuda-graph",
        "enforce_eager",
        Meaning::Fixed("true"),
    ),
    ("-ngl", "device", Meaning::Translated(GPU_LAYERS)),
    ("--gpu-layers", "device", Meaning::Translated(GPU_LAYERS)),
    ("--n-gpu-layers", "device", Meaning::Translated(GPU_LAYERS)),
];

/// Proa puts a whole model on one device, so a number of layers in between has no meaning.
const GPU_LAYERS: &[(&str, &str)] = &[
    ("0", "cpu"),
    ("all", "auto"),
    ("-1", "auto"),
    ("auto", "auto"),
];

/// The whole table: the rows of `flag_table`, then one row for each settable limit that has none there.
pub static TABLE: LazyLock<Vec<Flag>> = LazyLock::new(|| {
    let mut table = FLAGS.to_vec();
    for limit in LIMITS.iter().filter(|limit| limit.flag.is_some()) {
        if table.iter().any(|flag| flag.name == limit.name) {
            continue;
        }
        let default: &'static str = match limit.default {
            Some(value) => value.to_string().leak(),
            None => "",
        };
        let kind = Kind::Count(limit.min, limit.max);
        let mut flag = Flag::new(limit.name, Group::Limits, kind, default, limit.doc);
        if let Some((_, aliases)) = LIMIT_ALIASES.iter().find(|(name, _)| *name == limit.name) {
            flag = flag.also(aliases);
        }
        if let Some((_, what)) = LATER_LIMITS.iter().find(|(name, _)| *name == limit.name) {
            flag = flag.later(what, vec![default].leak());
        }
        table.push(flag);
    }
    table
});

static SPELLINGS: LazyLock<HashMap<String, Spelling>> = LazyLock::new(|| {
    let mut spellings = HashMap::new();
    for flag in TABLE.iter() {
        let same = Meaning::Same;
        spellings.insert(
            flag.dashed(),
            Spelling {
                flag,
                meaning: same,
            },
        );
        for alias in flag.aliases {
            spellings.insert(
                alias.to_string(),
                Spelling {
                    flag,
                    meaning: same,
                },
            );
        }
        if flag.kind == Kind::Switch {
            let off = format!("--no-{}", &flag.dashed()[2..]);
            spellings.insert(
                off,
                Spelling {
                    flag,
                    meaning: Meaning::Fixed("false"),
                },
            );
        }
    }
    for (spelled, name, meaning) in SPECIAL {
        let flag = by_name(name).expect("special spellings name flags of the table");
        spellings.insert(
            spelled.to_string(),
            Spelling {
                flag,
                meaning: *meaning,
            },
        );
    }
    spellings
});

/// The flag of this name in snake case.
pub fn by_name(name: &str) -> Option<&'static Flag> {
    TABLE.iter().find(|flag| flag.name == name)
}

/// What a spelling with its dashes stands for; `_` counts as `-` after the leading dashes.
pub fn by_spelling(spelled: &str) -> Option<Spelling> {
    SPELLINGS.get(&normalised(spelled)).copied()
}

/// Every spelling, for "did you mean" hints, in a fixed order.
pub fn all_spellings() -> Vec<&'static str> {
    let mut names: Vec<&'static str> = SPELLINGS.keys().map(String::as_str).collect();
    names.sort_unstable();
    names
}

/// The spelling with dashes inside.
pub fn normalised(spelled: &str) -> String {
    spelled.replace('_', "-")
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::value;

    #[test]
    fn names_and_spellings_are_unique() {
        let mut seen = HashSet::new();
        for flag in TABLE.iter() {
            assert!(seen.insert(flag.dashed()), "{} twice", flag.dashed());
            for alias in flag.aliases {
                assert!(seen.insert(alias.to_string()), "{alias} twice");
            }
        }
        for (spelled, _, _) in SPECIAL {
            assert!(seen.insert(spelled.to_string()), "{spelled} twice");
        }
    }

    #[test]
    fn every_default_and_neutral_value_is_valid() {
        for flag in TABLE.iter() {
            if !flag.default.is_empty() {
                value::parse(flag, flag.default).unwrap_or_else(|e| panic!("{}: {e}", flag.name));
            }
            let (Support::Later { neutral, .. } | Support::Refused { neutral, .. }) = flag.support
            else {
                continue;
            };
            for word in neutral.iter().filter(|word| !word.is_empty()) {
                value::parse(flag, word).unwrap_or_else(|e| panic!("{}: {e}", flag.name));
            }
            if !flag.default.is_empty() {
                assert!(
                    neutral.contains(&flag.default),
                    "{}: the default must be neutral",
                    flag.name
                );
            }
        }
    }

    #[test]
    fn every_limit_with_a_flag_has_a_row() {
        for limit in LIMITS.iter().filter(|limit| limit.flag.is_some()) {
            assert_eq!(
                by_name(limit.name).map(Flag::dashed).as_deref(),
                limit.flag,
                "{}",
                limit.name
            );
        }
        for (name, _) in LIMIT_ALIASES {
            assert!(by_name(name).is_some(), "{name}");
        }
        for (name, _) in LATER_LIMITS {
            assert!(by_name(name).is_some(), "{name}");
        }
    }

    #[test]
    fn underscores_count_as_dashes_and_switches_have_pairs() {
        assert_eq!(
            by_spelling("--max_model_len").unwrap().flag.name,
            "max_model_len"
        );
        let off = by_spelling("--no-enable-prefix-caching").unwrap();
        assert_eq!(off.meaning, Meaning::Fixed("false"));
        assert!(by_spelling("--no-max-model-len").is_none());
    }
}
