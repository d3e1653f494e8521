//! The effective settings: command line over environment over configuration file over defaults.
//!
//! Owns precedence, repeated flags, unknown names and the refusal of what this build lacks. Does not know what a
//! setting does. A name is never accepted and ignored: everything given is either effective or ends the start.

use std::collections::BTreeMap;
use std::fmt;

use limits::{nearest_name, quote};

use crate::command_line::{self, Assignment};
use crate::environment;
use crate::flag::{self, Flag, Kind, Support, TABLE};
use crate::value::{self, Value};
use crate::yaml;

/// Why the start ends with exit code 2, on one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal(pub String);

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Every flag's effective value.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    given: BTreeMap<&'static str, Value>,
    /// Lines for the log: what was skipped on purpose, which of two settings wins.
    pub notes: Vec<String>,
}

impl Settings {
    /// Merges the sources and checks everything that can be checked without the model.
    ///
    /// `variables` is the environment, `read_file` gives the text of the configuration file.
    pub fn load(
        arguments: &[String],
        variables: &[(String, String)],
        read_file: impl Fn(&str) -> Result<String, String>,
    ) -> Result<Settings, Refusal> {
        let from_line = command_line::parse(arguments).map_err(Refusal)?;
        let (from_environment, notes) = environment::assignments(variables).map_err(Refusal)?;
        let mut settings = Settings {
            notes,
            ..Settings::default()
        };
        settings.overlay(from_environment)?;
        settings.overlay(from_line)?;
        if let Some(path) = settings.text("config").map(str::to_string) {
            let mut below = Settings::default();
            below.overlay(file_assignments(&path, &read_file)?)?;
            for (name, value) in below.given {
                settings.given.entry(name).or_insert(value);
            }
        }
        settings.check_combinations()?;
        Ok(settings)
    }

    /// Puts one source over what is there; within a source a flag may stand twice only with one value.
    fn overlay(&mut self, source: Vec<Assignment>) -> Result<(), Refusal> {
        let mut level: BTreeMap<&'static str, (Value, String)> = BTreeMap::new();
        for Assignment {
            flag,
            spelled,
            text,
        } in source
        {
            let refuse = |what: String| Refusal(format!("{spelled}: {what}"));
            let value = value::parse(flag, &text).map_err(refuse)?;
            refuse_unbuilt(flag, &spelled, &value)?;
            match level.get_mut(flag.name) {
                None => {
                    level.insert(flag.name, (value, spelled));
                }
                Some((Value::Texts(all), _)) => {
                    let Value::Texts(more) = value else { continue };
                    all.extend(more);
                }
                Some((first, _)) if *first == value => {}
                Some((_, before)) => {
                    return Err(Refusal(format!(
                        "{before} and {spelled} give {} two values",
                        flag.dashed()
                    )));
                }
            }
        }
        self.given
            .extend(level.into_iter().map(|(name, (value, _))| (name, value)));
        Ok(())
    }

    fn check_combinations(&mut self) -> Result<(), Refusal> {
        if self.count("api_server_count") == Some(0) && !self.switch("headless") {
            return Err(Refusal(
                "--api-server-count: 0 goes with --headless only".to_string(),
            ));
        }
        if self.count("max_model_len") == Some(0) {
            return Err(Refusal(
                "--max-model-len: 0 is below the minimum 1".to_string(),
            ));
        }
        let block_size = self.count("block_size").unwrap_or(1);
        if block_size & (block_size - 1) != 0 {
            return Err(Refusal(format!(
                "--block-size: {block_size} is no power of two"
            )));
        }
        self.kernels()?;
        if self.is_given("kv_cache_memory_bytes") && self.is_given("gpu_memory_utilization") {
            self.notes.push(
                "--kv-cache-memory-bytes overrides --gpu-memory-utilization for the KV cache"
                    .to_string(),
            );
        }
        Ok(())
    }

    /// Whether any source gave this flag.
    pub fn is_given(&self, name: &str) -> bool {
        self.given.contains_key(name)
    }

    /// The names any source gave, in alphabetical order.
    pub fn given_names(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.given.keys().copied()
    }

    fn value(&self, name: &str) -> Option<Value> {
        let flag = flag::by_name(name).unwrap_or_else(|| panic!("no flag {name} in the table"));
        if let Some(value) = self.given.get(name) {
            return Some(value.clone());
        }
        (!flag.default.is_empty())
            .then(|| value::parse(flag, flag.default).expect("defaults are valid, a test says so"))
    }

    /// The value of a switch.
    pub fn switch(&self, name: &str) -> bool {
        matches!(self.value(name), Some(Value::Switch(true)))
    }

    /// The value of a count; None = none given and no default.
    pub fn count(&self, name: &str) -> Option<i64> {
        match self.value(name)? {
            Value::Count(value) => Some(value),
            other => panic!("{name} is no count: {other:?}"),
        }
    }

    /// The value of a number that has a default.
    pub fn number(&self, name: &str) -> f64 {
        match self.value(name) {
            Some(Value::Number(value)) => value,
            other => panic!("{name} is no number with a default: {other:?}"),
        }
    }

    /// The value of a word, a text or JSON; None = none given and no default.
    pub fn text(&self, name: &str) -> Option<&str> {
        match self.given.get(name) {
            Some(Value::Text(value)) => Some(value),
            Some(other) => panic!("{name} is no text: {other:?}"),
            None => {
                let flag =
                    flag::by_name(name).unwrap_or_else(|| panic!("no flag {name} in the table"));
                (!flag.default.is_empty()).then_some(flag.default)
            }
        }
    }

    /// The values of a flag that repeats.
    pub fn texts(&self, name: &str) -> Vec<String> {
        match self.value(name) {
            Some(Value::Texts(values)) => values,
            None => Vec::new(),
            other => panic!("{name} does not repeat: {other:?}"),
        }
    }

    /// The forced kernels, op to implementation.
    pub fn kernels(&self) -> Result<BTreeMap<String, String>, Refusal> {
        let mut kernels = BTreeMap::new();
        for text in self.texts("kernel") {
            let refuse = |what: &str| Refusal(format!("--kernel: {what}, got '{}'", quote(&text)));
            let (op, implementation) = text
                .split_once('=')
                .ok_or_else(|| refuse("expected OP=IMPL"))?;
            if op.is_empty() || implementation.is_empty() {
                return Err(refuse("expected OP=IMPL"));
            }
            let before = kernels.insert(op.to_string(), implementation.to_string());
            if before.is_some_and(|before| before != implementation) {
                return Err(refuse("one op has two implementations"));
            }
        }
        Ok(kernels)
    }

    /// Refuses flags that only the front end reads, for `proa engine`.
    pub fn refuse_front_flags(&self) -> Result<(), Refusal> {
        let foreign = TABLE.iter().find(|flag| {
            self.is_given(flag.name)
                && !flag.group.belongs_to_engine()
                && flag.name != "api_server_count"
        });
        match foreign {
            Some(flag) => Err(Refusal(format!(
                "{} belongs to the front end, not to `proa engine`",
                flag.dashed()
            ))),
            None => Ok(()),
        }
    }
}

fn file_assignments(
    path: &str,
    read_file: impl Fn(&str) -> Result<String, String>,
) -> Result<Vec<Assignment>, Refusal> {
    let refuse = |what: String| Refusal(format!("--config {path}: {what}"));
    let text = read_file(path).map_err(refuse)?;
    let mut assignments = Vec::new();
    for (key, node) in yaml::parse(&text).map_err(refuse)? {
        let spelled = flag::normalised(&format!("--{key}"));
        let flag = match flag::by_name(&key.replace('-', "_")) {
            Some(flag) if flag.name != "config" => flag,
            _ => return Err(refuse(unknown_key(&key))),
        };
        let repeats = flag.kind == Kind::Texts;
        let texts = match node {
            yaml::Node::Scalar(None) => continue,
            yaml::Node::Scalar(Some(text)) => vec![text],
            yaml::Node::List(items) if repeats => items,
            yaml::Node::List(_) => {
                return Err(refuse(format!("{key} takes one value, not a list")));
            }
        };
        for text in texts {
            assignments.push(Assignment {
                flag,
                spelled: format!("--config {path}: {}", spelled.trim_start_matches('-')),
                text,
            });
        }
    }
    Ok(assignments)
}

fn unknown_key(key: &str) -> String {
    let snake = key.replace('-', "_");
    if let Some(reason) = command_line::foreign_reason(&flag::normalised(&format!("--{key}"))) {
        return format!("{key} is no key of Proa: {reason}");
    }
    let names = TABLE
        .iter()
        .map(|flag| flag.name)
        .filter(|name| *name != "config");
    match nearest_name(&snake, names) {
        Some(near) => format!("unknown key {}; did you mean {near}?", quote(key)),
        None => format!("unknown key {}", quote(key)),
    }
}

/// Refuses a value that asks for something this build lacks, or that Proa will not do.
fn refuse_unbuilt(flag: &Flag, spelled: &str, value: &Value) -> Result<(), Refusal> {
    let (message, neutral) = match flag.support {
        Support::Built => return Ok(()),
        Support::Later { what, neutral } => {
            (format!("not supported yet: {what} ({spelled})"), neutral)
        }
        Support::Refused { reason, neutral } => {
            (format!("{spelled} is refused: {reason}"), neutral)
        }
    };
    let asks_for_nothing = neutral
        .iter()
        .any(|word| value::parse(flag, word).is_ok_and(|nothing| nothing == *value));
    // A count of 0 front ends is the headless engine's, which is checked with its flag.
    let headless_count = flag.name == "api_server_count" && *value == Value::Count(0);
    if asks_for_nothing || headless_count {
        Ok(())
    } else {
        Err(Refusal(message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(
        arguments: &[&str],
        variables: &[(&str, &str)],
        file: &str,
    ) -> Result<Settings, Refusal> {
        let arguments: Vec<String> = arguments.iter().map(|a| a.to_string()).collect();
        let variables: Vec<(String, String)> = variables
            .iter()
            .map(|(k, v)| (k.to_string(), v.to_string()))
            .collect();
        Settings::load(&arguments, &variables, |_| Ok(file.to_string()))
    }

    fn refusal(arguments: &[&str]) -> String {
        load(arguments, &[], "").expect_err(&arguments.join(" ")).0
    }

    #[test]
    fn command_line_beats_environment_beats_file_beats_default() {
        let file = "port: 3\nmax-num-seqs: 3\nblock_size: 32\n";
        let settings = load(
            &["--port", "1", "--config", "x.yaml"],
            &[("PROA_PORT", "2"), ("PROA_MAX_NUM_SEQS", "2")],
            file,
        )
        .unwrap();
        assert_eq!(settings.count("port"), Some(1));
        assert_eq!(settings.count("max_num_seqs"), Some(2));
        assert_eq!(settings.count("block_size"), Some(32));
        assert_eq!(settings.count("max_logprobs"), Some(20));
    }

    #[test]
    fn unknown_names_end_the_start_with_the_nearest() {
        assert_eq!(
            refusal(&["--max-model-length", "1"]),
            "unknown flag --max-model-length; did you mean --max-model-len?"
        );
        let error = load(&[], &[("PROA_MAX_NUM_SEQ", "1")], "").unwrap_err().0;
        assert_eq!(
            error,
            "unknown environment variable PROA_MAX_NUM_SEQ; did you mean PROA_MAX_NUM_SEQS?"
        );
        let error = load(&["--config", "c"], &[], "max_num_seq: 1")
            .unwrap_err()
            .0;
        assert_eq!(
            error,
            "--config c: unknown key max_num_seq; did you mean max_num_seqs?"
        );
        assert!(refusal(&["--zzzzzzzz"]).starts_with("unknown flag --zzzzzzzz"));
    }

    #[test]
    fn one_flag_has_one_value() {
        let error = refusal(&["--max-model-len", "1k", "-c", "2k"]);
        assert_eq!(
            error,
            "--max-model-len and -c give --max-model-len two values"
        );
        assert!(load(&["--max-model-len", "1k", "-c", "1000"], &[], "").is_ok());
        assert!(
            refusal(&["--enable-prefix-caching", "--disable-radix-cache"]).contains("two values")
        );
        assert!(refusal(&["a.gguf", "--model", "b.gguf"]).contains("two values"));
        let settings = load(&["--host", "::1", "--host=127.0.0.1"], &[], "").unwrap();
        assert_eq!(settings.texts("host"), ["::1", "127.0.0.1"]);
    }

    #[test]
    fn what_is_not_built_is_refused_by_name_unless_it_asks_for_nothing() {
        assert_eq!(
            refusal(&["--api-key", "s"]),
            "not supported yet: API keys (--api-key)"
        );
        assert_eq!(
            refusal(&["-tp", "2"]),
            "not supported yet: more than one device (-tp)"
        );
        assert!(refusal(&["--trust-remote-code"]).contains("no code of a model is run"));
        assert!(refusal(&["--max-tools", "3"]).contains("not supported yet: tool calling"));
        assert!(refusal(&["--api-server-count", "2"]).contains("one process with many threads"));
        assert!(refusal(&["--api-server-count", "0"]).contains("--headless"));
        for neutral in [
            &["-tp", "1"][..],
            &["--no-enable-lora"],
            &["--max-tools", "128"],
            &["--jinja"],
            &["--spec-tokens=0"],
        ] {
            assert!(load(neutral, &[], "").is_ok(), "{neutral:?}");
        }
        let error = load(&[], &[("VLLM_API_KEY", "s")], "").unwrap_err().0;
        assert_eq!(error, "not supported yet: API keys (VLLM_API_KEY)");
    }

    #[test]
    fn flags_of_other_servers_get_a_reason() {
        assert!(refusal(&["--max-total-tokens", "5"]).contains("--kv-cache-memory-bytes"));
        assert!(refusal(&["--n_predict=5"]).contains("--max-output-tokens"));
    }

    #[test]
    fn values_are_checked() {
        assert_eq!(
            refusal(&["--port", "70000"]),
            "--port: 70000 is above the maximum 65535"
        );
        assert_eq!(
            refusal(&["--block-size", "24"]),
            "--block-size: 24 is no power of two"
        );
        assert_eq!(refusal(&["--port"]), "--port needs a value");
        assert_eq!(refusal(&["--port", "--host"]), "--port needs a value");
        assert!(refusal(&["--dtype", "bf16"]).contains("is none of auto"));
        assert!(refusal(&["--kernel", "rms_norm"]).contains("OP=IMPL"));
        assert!(refusal(&["--enable-prefix-caching=maybe"]).contains("expected true or false"));
        assert!(refusal(&["-ngl", "12"]).contains("-ngl"));
        assert_eq!(
            load(&["-ngl", "0"], &[], "").unwrap().text("device"),
            Some("cpu")
        );
        assert_eq!(
            load(&["-c", "-1"], &[], "").unwrap().count("max_model_len"),
            Some(-1)
        );
    }

    #[test]
    fn service_links_are_skipped_with_a_note() {
        let links = [
            ("PROA_PORT", "tcp://10.0.0.1:8000"),
            ("PROA_SERVICE_HOST", "10.0.0.1"),
            ("PROA_PORT_8000_TCP", "x"),
        ];
        let settings = load(&[], &links, "").unwrap();
        assert_eq!(settings.count("port"), Some(8000));
        assert_eq!(settings.notes.len(), 3);
        assert!(
            load(&[], &[("PROA_TEST_ANYTHING", "1")], "")
                .unwrap()
                .notes
                .is_empty()
        );
    }

    #[test]
    fn the_engine_command_refuses_flags_of_the_front_end() {
        let settings = load(&["--port", "1"], &[], "").unwrap();
        assert!(
            settings
                .refuse_front_flags()
                .unwrap_err()
                .0
                .contains("--port")
        );
        assert!(
            load(&["--dtype", "float32"], &[], "")
                .unwrap()
                .refuse_front_flags()
                .is_ok()
        );
    }
}
