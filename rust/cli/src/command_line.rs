//! Turns the arguments after the command's name into assignments of text to flags.
//!
//! Knows spellings (`--a-b`, `--a_b`, `--x=v`, `--no-x`, aliases) and the flags of other servers; does not read values.

use limits::{nearest_name, quote};

use crate::flag::{self, Flag, Kind, Meaning, Spelling};
use crate::foreign_table::FOREIGN;

/// A flag and the text given for it.
#[derive(Clone, Debug)]
pub struct Assignment {
    /// The flag.
    pub flag: &'static Flag,
    /// How the user wrote it, for messages.
    pub spelled: String,
    /// The text to read a value from.
    pub text: String,
}

/// Reads `arguments` in order; the error is one line.
pub fn parse(arguments: &[String]) -> Result<Vec<Assignment>, String> {
    let mut assignments = Vec::new();
    let mut rest = arguments.iter().peekable();
    let mut flags_ended = false;
    while let Some(argument) = rest.next() {
        if argument == "--" && !flags_ended {
            flags_ended = true;
            continue;
        }
        if flags_ended || !argument.starts_with('-') || argument == "-" {
            assignments.push(positional(argument, &assignments)?);
            continue;
        }
        let (spelled, inline) = match argument.split_once('=') {
            Some((spelled, text)) => (spelled, Some(text.to_string())),
            None => (argument.as_str(), None),
        };
        let known = flag::by_spelling(spelled).ok_or_else(|| unknown(spelled))?;
        let text = match inline {
            Some(text) => text,
            None if takes_no_value(&known) => String::new(),
            None => match rest.next_if(|next| !next.starts_with("--")) {
                Some(text) => text.clone(),
                None => return Err(format!("{spelled} needs a value")),
            },
        };
        assignments.push(Assignment {
            flag: known.flag,
            spelled: spelled.to_string(),
            text: meant(&known, spelled, text, argument.contains('='))?,
        });
    }
    Ok(assignments)
}

fn positional(argument: &str, before: &[Assignment]) -> Result<Assignment, String> {
    if let Some(first) = before
        .iter()
        .find(|a| a.spelled == "MODEL" && a.text != argument)
    {
        return Err(format!(
            "two models: '{}' and '{}'",
            quote(&first.text),
            quote(argument)
        ));
    }
    let flag = flag::by_name("model").expect("the table has a model");
    Ok(Assignment {
        flag,
        spelled: "MODEL".to_string(),
        text: argument.to_string(),
    })
}

fn takes_no_value(known: &Spelling) -> bool {
    match known.meaning {
        Meaning::Fixed(_) => true,
        Meaning::Same => known.flag.kind == Kind::Switch,
        Meaning::Translated(_) => false,
    }
}

/// The text the flag is given, after what the spelling itself says.
fn meant(known: &Spelling, spelled: &str, text: String, inline: bool) -> Result<String, String> {
    match known.meaning {
        Meaning::Same if known.flag.kind == Kind::Switch && !inline => Ok("true".to_string()),
        Meaning::Same => Ok(text),
        Meaning::Fixed(_) if inline => Err(format!("{spelled} takes no value")),
        Meaning::Fixed(value) => Ok(value.to_string()),
        Meaning::Translated(words) => {
            let found = words.iter().find(|(word, _)| *word == text);
            let known = words
                .iter()
                .map(|(word, _)| *word)
                .collect::<Vec<_>>()
                .join(", ");
            found.map(|(_, value)| value.to_string()).ok_or_else(|| {
                format!(
                    "{spelled}: a model is whole on one device here, so '{}' is none of {known}",
                    quote(&text)
                )
            })
        }
    }
}

/// What a flag of another server asks a user of Proa to do instead.
pub fn foreign_reason(spelled: &str) -> Option<&'static str> {
    FOREIGN
        .iter()
        .find(|(name, _)| *name == spelled)
        .map(|(_, reason)| *reason)
}

fn unknown(spelled: &str) -> String {
    let normal = flag::normalised(spelled);
    if let Some(reason) = foreign_reason(&normal) {
        return format!("{spelled} is no flag of Proa: {reason}");
    }
    match nearest_name(&normal, flag::all_spellings()) {
        Some(near) => format!("unknown flag {}; did you mean {near}?", quote(spelled)),
        None => format!("unknown flag {}; see proa --help", quote(spelled)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_foreign_flag_is_one_of_ours() {
        for (name, reason) in FOREIGN {
            assert!(
                flag::by_spelling(name).is_none(),
                "{name} is in both tables"
            );
            for word in reason
                .split([' ', ',', ';'])
                .filter(|word| word.starts_with("--"))
            {
                assert!(flag::by_spelling(word).is_some(), "{name} points at {word}");
            }
        }
    }

    proptest::proptest! {
        #[test]
        fn any_arguments_are_read_or_refused(arguments in proptest::collection::vec("[-=a-z_ ]{0,12}", 0..6)) {
            let _ = parse(&arguments);
        }
    }
}
