//! The help text: short and grouped, or everything about a group, a flag or a word.

use crate::environment::VARIABLES;
use crate::flag::{self, Flag, Group, Kind, Support, TABLE};

const INTRODUCTION: &str = "\
proa serve [MODEL] [flags]    serve a GGUF file or a folder with safetensors; without MODEL a small default model
proa check-config [flags]     run the checks of a start, start nothing
proa engine --connect ADDRESS [MODEL] [flags]    the engine alone
proa --version                the version
proa help [WORD]              this text; WORD = a group, a flag, or any word of a help line
";

/// The text for `--help [WORD]`; None if nothing is known under the word.
pub fn text(word: Option<&str>) -> Option<String> {
    let Some(word) = word else {
        return Some(overview());
    };
    let matching = matching_flags(word);
    if matching.is_empty() {
        return None;
    }
    Some(matching.iter().map(|flag| entry(flag)).collect())
}

fn overview() -> String {
    let mut text = String::from(INTRODUCTION);
    text.push_str("\nFlags by group (`proa --help GROUP` explains them):\n");
    for group in Group::ALL {
        let names: Vec<String> = TABLE
            .iter()
            .filter(|flag| flag.group == group && flag.support == Support::Built)
            .map(Flag::dashed)
            .collect();
        if !names.is_empty() {
            text.push_str(&wrapped(group.word(), &names));
        }
    }
    text.push_str("\nEach flag is also a key of --config FILE.yaml and a variable PROA_NAME; the command line wins, then variables.\n");
    for (name, what) in VARIABLES {
        text.push_str(&format!("{name}: {what}\n"));
    }
    text
}

fn matching_flags(word: &str) -> Vec<&'static Flag> {
    let word = flag::normalised(word).to_lowercase();
    let bare = word.trim_start_matches('-');
    if Group::ALL.iter().any(|group| group.word() == bare) {
        return TABLE
            .iter()
            .filter(|flag| flag.group.word() == bare)
            .collect();
    }
    let exact = flag::by_spelling(&word).or_else(|| flag::by_spelling(&format!("--{bare}")));
    if let Some(exact) = exact {
        return vec![exact.flag];
    }
    let holds =
        |flag: &&Flag| flag.dashed().contains(bare) || flag.help.to_lowercase().contains(bare);
    TABLE.iter().filter(holds).collect()
}

fn entry(flag: &Flag) -> String {
    let mut text = format!("{}{}", flag.dashed(), placeholder(flag.kind));
    for alias in flag.aliases {
        text.push_str(&format!(", {alias}"));
    }
    text.push_str(&format!("\n    {}", flag.help));
    match flag.default {
        "" => {}
        default => text.push_str(&format!(" (default {default})")),
    }
    match flag.support {
        Support::Built => {}
        Support::Later { what, .. } => text.push_str(&format!("\n    not supported yet: {what}")),
        Support::Refused { reason, .. } => {
            text.push_str(&format!("\n    other values are refused: {reason}"))
        }
    }
    text.push('\n');
    text
}

fn placeholder(kind: Kind) -> String {
    match kind {
        Kind::Switch => String::new(),
        Kind::Count(..) => " N".to_string(),
        Kind::Number(..) => " X".to_string(),
        Kind::Word(words) => format!(" {}", words.join("|")),
        Kind::Text | Kind::Texts => " TEXT".to_string(),
        Kind::Json => " JSON".to_string(),
    }
}

/// `names` behind `title`, broken at 100 columns.
fn wrapped(title: &str, names: &[String]) -> String {
    const WIDTH: usize = 100;
    let mut text = format!("  {title:<11}");
    let mut column = text.len();
    for name in names {
        if column + name.len() + 1 > WIDTH {
            text.push_str(&format!("\n{:13}", ""));
            column = 13;
        }
        text.push_str(name);
        text.push(' ');
        column += name.len() + 1;
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_overview_is_short_and_names_every_built_flag() {
        let text = text(None).unwrap();
        assert!(text.lines().count() < 60);
        for flag in TABLE.iter().filter(|flag| flag.support == Support::Built) {
            assert!(text.contains(&flag.dashed()), "{}", flag.name);
        }
    }

    #[test]
    fn words_find_groups_flags_and_lines() {
        assert!(super::text(Some("limits")).unwrap().contains("--max-n N"));
        assert!(
            super::text(Some("-c"))
                .unwrap()
                .starts_with("--max-model-len")
        );
        assert!(
            super::text(Some("prefix"))
                .unwrap()
                .contains("--enable-prefix-caching")
        );
        assert!(super::text(Some("zzzz")).is_none());
    }
}
