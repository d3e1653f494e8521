//! Where a model's tokenizer, special tokens and chat template stand.
//!
//! Owns finding them in a directory or a GGUF header. Does not build tokenizers or compile templates.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::ModelError;
use crate::gguf::Gguf;
use crate::json_file::{read_json_if_present, read_text_if_present};

/// What a tokenizer is built from.
#[derive(Clone, Debug)]
pub enum TokenizerSource {
    /// A `tokenizer.json`.
    Json(PathBuf),
    /// The metadata of a GGUF file.
    Gguf(Arc<Gguf>),
    /// The model has none that can be read.
    Missing,
}

/// Facts about the tokenizer that stand beside its vocabulary.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenizerFacts {
    /// Whether a text gets the beginning token; None = the file does not say.
    pub add_bos: Option<bool>,
    /// Whether a text gets the end token; None = the file does not say.
    pub add_eos: Option<bool>,
    /// Special tokens by the name templates know them under (`bos_token`, `eos_token`, ...).
    pub special_tokens: BTreeMap<String, String>,
    /// Ids and texts of added tokens that tokenizer_config.json lists, with whether each is special.
    pub added_tokens: BTreeMap<u32, (String, bool)>,
}

/// A chat template and where it stood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateSource {
    /// The template.
    pub text: String,
    /// The template for requests with tools, where the model has a separate one.
    pub tool_use: Option<String>,
    /// `chat_template.jinja`, `tokenizer_config.json`, `chat_template.json` or `gguf`.
    pub origin: &'static str,
}

const SPECIAL_NAMES: [&str; 7] = [
    "bos_token",
    "eos_token",
    "unk_token",
    "pad_token",
    "sep_token",
    "cls_token",
    "mask_token",
];

/// The text of a special token, written as a string or as an object with `content`.
fn token_text(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value.get("content")?.as_str())
}

/// Facts and template of the tokenizer in `directory`.
pub(crate) fn read_directory(
    directory: &Path,
) -> Result<(TokenizerSource, TokenizerFacts, Option<TemplateSource>), ModelError> {
    let tokenizer = directory.join("tokenizer.json");
    let source = if tokenizer.is_file() {
        TokenizerSource::Json(tokenizer)
    } else {
        TokenizerSource::Missing
    };
    let config_path = directory.join("tokenizer_config.json");
    let config: Map<String, Value> = read_json_if_present(&config_path)?.unwrap_or_default();
    let mut facts = TokenizerFacts {
        add_bos: config.get("add_bos_token").and_then(Value::as_bool),
        add_eos: config.get("add_eos_token").and_then(Value::as_bool),
        ..TokenizerFacts::default()
    };
    if let Some(map) =
        read_json_if_present::<Map<String, Value>>(&directory.join("special_tokens_map.json"))?
    {
        add_special_tokens(&mut facts, &map);
    }
    add_special_tokens(&mut facts, &config);
    if let Some(Value::Object(added)) = config.get("added_tokens_decoder") {
        for (id, entry) in added {
            let special = entry
                .get("special")
                .and_then(Value::as_bool)
                .unwrap_or(false);
            if let (Ok(id), Some(text)) = (id.parse(), token_text(entry)) {
                facts.added_tokens.insert(id, (text.to_owned(), special));
            }
        }
    }
    let template = directory_template(directory, &config_path, &config)?;
    Ok((source, facts, template))
}

fn add_special_tokens(facts: &mut TokenizerFacts, map: &Map<String, Value>) {
    let named = SPECIAL_NAMES
        .iter()
        .filter_map(|name| Some((*name, map.get(*name)?)));
    let extra = match map.get("extra_special_tokens") {
        Some(Value::Object(extra)) => {
            Some(extra.iter().map(|(name, value)| (name.as_str(), value)))
        }
        _ => None,
    };
    for (name, value) in named.chain(extra.into_iter().flatten()) {
        if let Some(text) = token_text(value) {
            facts
                .special_tokens
                .insert(name.to_owned(), text.to_owned());
        }
    }
}

fn directory_template(
    directory: &Path,
    config_path: &Path,
    config: &Map<String, Value>,
) -> Result<Option<TemplateSource>, ModelError> {
    if let Some(text) = read_text_if_present(&directory.join("chat_template.jinja"))? {
        let tool_use =
            read_text_if_present(&directory.join("additional_chat_templates/tool_use.jinja"))?;
        return Ok(Some(TemplateSource {
            text,
            tool_use,
            origin: "chat_template.jinja",
        }));
    }
    if let Some(value) = config.get("chat_template").filter(|value| !value.is_null()) {
        return json_template(config_path, value, "tokenizer_config.json");
    }
    let path = directory.join("chat_template.json");
    match read_json_if_present::<Map<String, Value>>(&path)?
        .and_then(|mut map| map.remove("chat_template"))
    {
        Some(value) => json_template(&path, &value, "chat_template.json"),
        None => Ok(None),
    }
}

/// A template as a string, or as a list of named templates.
fn json_template(
    path: &Path,
    value: &Value,
    origin: &'static str,
) -> Result<Option<TemplateSource>, ModelError> {
    let wrong = || {
        ModelError::config(
            path,
            "chat_template",
            "must be a string or a list of {name, template}",
        )
    };
    if let Some(text) = value.as_str() {
        return Ok(Some(TemplateSource {
            text: text.to_owned(),
            tool_use: None,
            origin,
        }));
    }
    let mut named = BTreeMap::new();
    for entry in value.as_array().ok_or_else(wrong)? {
        let name = entry
            .get("name")
            .and_then(Value::as_str)
            .ok_or_else(wrong)?;
        let text = entry
            .get("template")
            .and_then(Value::as_str)
            .ok_or_else(wrong)?;
        named.insert(name, text);
    }
    Ok(named.get("default").map(|text| TemplateSource {
        text: (*text).to_owned(),
        tool_use: named.get("tool_use").map(|text| (*text).to_owned()),
        origin,
    }))
}

/// Facts and template of the tokenizer in a GGUF header.
pub(crate) fn read_gguf(
    gguf: &Arc<Gguf>,
) -> Result<(TokenizerSource, TokenizerFacts, Option<TemplateSource>), ModelError> {
    let tokens = gguf.strings("tokenizer.ggml.tokens")?;
    let mut facts = TokenizerFacts {
        add_bos: gguf.boolean("tokenizer.ggml.add_bos_token")?,
        add_eos: gguf.boolean("tokenizer.ggml.add_eos_token")?,
        ..TokenizerFacts::default()
    };
    let names = [
        ("bos_token", "bos_token_id"),
        ("eos_token", "eos_token_id"),
        ("unk_token", "unknown_token_id"),
        ("pad_token", "padding_token_id"),
        ("sep_token", "seperator_token_id"), // The format's own spelling.
        ("cls_token", "cls_token_id"),
        ("mask_token", "mask_token_id"),
    ];
    for (name, key) in names {
        let id = gguf.uint(&format!("tokenizer.ggml.{key}"))?;
        let text = id.and_then(|id| tokens?.get(usize::try_from(id).ok()?));
        if let Some(text) = text {
            facts
                .special_tokens
                .insert(name.to_owned(), text.to_string());
        }
    }
    let template = match gguf.string("tokenizer.chat_template")? {
        None => None,
        Some(text) => Some(TemplateSource {
            text: text.to_owned(),
            tool_use: gguf
                .string("tokenizer.chat_template.tool_use")?
                .map(str::to_owned),
            origin: "gguf",
        }),
    };
    let source = if tokens.is_some() {
        TokenizerSource::Gguf(gguf.clone())
    } else {
        TokenizerSource::Missing
    };
    Ok((source, facts, template))
}
