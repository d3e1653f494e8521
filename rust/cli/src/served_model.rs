//! Opens what the front end needs of a model: configuration, tokenizer, chat template, sampling defaults.
//!
//! Reads no weights. Every failure is one line that names the file or the flag.

use std::path::Path;
use std::time::Duration;

use chat::{ChatTemplate, ContentFormat, TemplateOptions};
use model_files::{Format, ModelFiles, TemplateSource, open_model, open_model_without_weights};
use server::ServedModel;
use text::Tokenizer;

use crate::report::Phases;
use crate::settings::{Refusal, Settings};
use crate::{fingerprint, generation};

/// Largest template file.
const MAX_TEMPLATE_BYTES: u64 = 1 << 20;

/// Opens the model at `path` for the front end; returns with it what tells its weights from others.
pub fn open(
    settings: &Settings,
    path: &Path,
    phases: &mut Phases,
) -> Result<(ServedModel, [u8; 32]), Refusal> {
    let files = open_files(settings, path)?;
    let identity = fingerprint::weights_identity(&files);
    phases.end("model");
    let tokenizer =
        Tokenizer::from_model(&files).map_err(|error| Refusal(format!("tokenizer: {error}")))?;
    phases.end("tokenizer");
    let template = template(settings, &files)?;
    phases.end("template");
    let defaults = generation::defaults(settings, files.generation)?;
    let model = ServedModel {
        tokenizer,
        template,
        config: files.config,
        defaults,
    };
    Ok((model, identity))
}

fn open_files(settings: &Settings, path: &Path) -> Result<ModelFiles, Refusal> {
    let asked = settings.text("load_format").unwrap_or("auto");
    let files = match asked {
        "dummy" => open_model_without_weights(path),
        _ => open_model(path),
    }
    .map_err(|error| Refusal(error.to_string()))?;
    let fits = match asked {
        "gguf" => files.format == Format::Gguf,
        "safetensors" => files.format == Format::Safetensors,
        _ => true,
    };
    if fits {
        return Ok(files);
    }
    let found = files.format.name();
    Err(Refusal(format!(
        "--load-format {asked}: {} holds {found}",
        path.display()
    )))
}

fn template(settings: &Settings, files: &ModelFiles) -> Result<Option<ChatTemplate>, Refusal> {
    let source = match settings.text("chat_template") {
        Some(path) => Some(template_file(path)?),
        None => files.chat_template.clone(),
    };
    let Some(source) = source else {
        tracing::warn!(
            "the model has no chat template: /v1/chat/completions is refused (give --chat-template FILE)"
        );
        return Ok(None);
    };
    let options = TemplateOptions {
        content_format: match settings.text("chat_template_content_format") {
            Some("string") => Some(ContentFormat::String),
            Some("openai") => Some(ContentFormat::Parts),
            _ => None,
        },
        fuel: settings.count("template_fuel").unwrap_or(0).unsigned_abs(),
        timeout: Duration::from_secs(
            settings
                .count("template_timeout_s")
                .unwrap_or(1)
                .unsigned_abs(),
        ),
        max_output_bytes: settings
            .count("template_output_bytes")
            .unwrap_or(0)
            .unsigned_abs() as usize,
        ..TemplateOptions::default()
    };
    ChatTemplate::compile(&source, &files.tokenizer_facts.special_tokens, options)
        .map(Some)
        .map_err(|error| {
            Refusal(format!(
                "chat template of {}: {error}; give another with --chat-template FILE",
                source.origin
            ))
        })
}

fn template_file(path: &str) -> Result<TemplateSource, Refusal> {
    let refuse = |what: String| Refusal(format!("--chat-template {path}: {what}"));
    let size = std::fs::metadata(path)
        .map_err(|error| refuse(error.to_string()))?
        .len();
    if size > MAX_TEMPLATE_BYTES {
        return Err(refuse(format!(
            "{size} bytes is above the maximum {MAX_TEMPLATE_BYTES}"
        )));
    }
    let text = std::fs::read_to_string(path).map_err(|error| refuse(error.to_string()))?;
    Ok(TemplateSource {
        text,
        tool_use: None,
        origin: "--chat-template",
    })
}
