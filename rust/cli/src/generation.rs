//! The sampling defaults in force: the makers', or neutral ones, with what `--override-generation-config` says on top.
//!
//! Does not know which request asks for what.

use limits::{nearest_name, quote};
use model_files::GenerationDefaults;
use serde_json::Value;

use crate::settings::{Refusal, Settings};

/// Keys of the override: (key, smallest, largest value).
const KEYS: &[(&str, f64, f64)] = &[
    ("temperature", 0.0, 2.0),
    ("top_p", 0.0, 1.0),
    ("top_k", -1.0, 2_147_483_647.0),
    ("min_p", 0.0, 1.0),
    ("presence_penalty", -2.0, 2.0),
    ("frequency_penalty", -2.0, 2.0),
    ("repetition_penalty", f64::MIN_POSITIVE, 100.0),
    ("max_new_tokens", 1.0, 16_777_216.0),
];

/// The defaults for requests that name no value.
pub fn defaults(
    settings: &Settings,
    makers: GenerationDefaults,
) -> Result<GenerationDefaults, Refusal> {
    let mut defaults = match settings.text("generation_config") {
        Some("auto") | None => makers,
        Some("none" | "vllm") => GenerationDefaults {
            // The ends of a text are facts of the model, not taste.
            eos_token_ids: makers.eos_token_ids,
            ..GenerationDefaults::default()
        },
        Some(other) => {
            return Err(Refusal(format!(
                "not supported yet: --generation-config from elsewhere ('{}'); auto, none and vllm are",
                quote(other)
            )));
        }
    };
    let text = settings.text("override_generation_config").unwrap_or("{}");
    let Ok(Value::Object(entries)) = serde_json::from_str(text) else {
        return Err(Refusal(
            "--override-generation-config: expected a JSON object".to_string(),
        ));
    };
    for (key, value) in &entries {
        set(&mut defaults, key, value)
            .map_err(|what| Refusal(format!("--override-generation-config: {what}")))?;
    }
    Ok(defaults)
}

fn set(defaults: &mut GenerationDefaults, key: &str, value: &Value) -> Result<(), String> {
    let Some((_, min, max)) = KEYS.iter().find(|(known, _, _)| *known == key) else {
        let hint = nearest_name(key, KEYS.iter().map(|(known, _, _)| *known));
        let hint = hint.map_or(String::new(), |near| format!("; did you mean {near}?"));
        return Err(format!("unknown key '{}'{hint}", quote(key)));
    };
    let number = value.as_f64().ok_or_else(|| format!("{key} is a number"))?;
    if !(*min..=*max).contains(&number) {
        return Err(format!(
            "{key} is {number}, which is not between {min} and {max}"
        ));
    }
    let whole = || value.as_i64().ok_or_else(|| format!("{key} is an integer"));
    match key {
        "temperature" => defaults.temperature = Some(number),
        "top_p" => defaults.top_p = Some(number),
        "top_k" => defaults.top_k = Some(whole()?),
        "min_p" => defaults.min_p = Some(number),
        "presence_penalty" => defaults.presence_penalty = Some(number),
        "frequency_penalty" => defaults.frequency_penalty = Some(number),
        "repetition_penalty" => defaults.repetition_penalty = Some(number),
        _ => defaults.max_new_tokens = Some(whole()? as u64),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(arguments: &[&str]) -> Result<GenerationDefaults, Refusal> {
        let arguments: Vec<String> = arguments.iter().map(|a| a.to_string()).collect();
        let settings = Settings::load(&arguments, &[], |_| unreachable!())?;
        let makers = GenerationDefaults {
            temperature: Some(0.6),
            eos_token_ids: vec![2],
            ..GenerationDefaults::default()
        };
        defaults(&settings, makers)
    }

    #[test]
    fn the_makers_the_neutral_and_the_users_values() {
        assert_eq!(of(&[]).unwrap().temperature, Some(0.6));
        let neutral = of(&["--generation-config", "vllm"]).unwrap();
        assert_eq!(
            (neutral.temperature, neutral.eos_token_ids),
            (None, vec![2])
        );
        let over = of(&[
            "--override-generation-config",
            r#"{"temperature": 0, "top_k": 5}"#,
        ])
        .unwrap();
        assert_eq!((over.temperature, over.top_k), (Some(0.0), Some(5)));
    }

    #[test]
    fn unknown_and_bad_values_are_named() {
        let error = |json| of(&["--override-generation-config", json]).unwrap_err().0;
        assert!(error(r#"{"temprature": 1}"#).contains("did you mean temperature?"));
        assert!(error(r#"{"temperature": 3}"#).contains("not between 0 and 2"));
        assert!(error(r#"{"top_k": 1.5}"#).contains("top_k is an integer"));
        assert!(error(r#"{"top_p": "x"}"#).contains("top_p is a number"));
        assert!(
            of(&["--generation-config", "/x"])
                .unwrap_err()
                .0
                .contains("not supported yet")
        );
    }
}
