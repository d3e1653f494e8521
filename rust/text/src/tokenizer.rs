//! Text to token ids and back.
//!
//! Owns a model's vocabulary, its special tokens and its rule for beginning and end tokens. Does not know chat
//! templates, requests or what a text is for.

use std::path::Path;
use std::sync::Arc;

use limits::{ApiError, ErrorKind};
use model_files::{ModelFiles, TokenizerFacts, TokenizerSource};
use tokenizers::{NormalizerWrapper, PreTokenizerWrapper};

use crate::token_table::{Spelling, TokenTable};
use crate::{TokenizerError, gguf_vocab};

/// Highest id a tokenizer may have; the largest published vocabularies have under a million.
const MAX_ID: u32 = (1 << 24) - 1;

/// A model's tokenizer. Cheap to clone; all methods may be called from many threads at once.
#[derive(Clone)]
pub struct Tokenizer {
    inner: Arc<Inner>,
}

struct Inner {
    encoder: tokenizers::Tokenizer,
    /// `encoder` without the blank it puts before a text; None when it puts none.
    without_prefix: Option<tokenizers::Tokenizer>,
    table: TokenTable,
    special: Vec<bool>,
    strip_start: bool,
    ends: Ends,
    bos_token_id: Option<u32>,
    eos_token_ids: Vec<u32>,
}

/// Who puts special tokens around a text.
enum Ends {
    /// The post-processor of tokenizer.json.
    PostProcessor,
    /// These ids, where the model's files say so.
    Ids {
        before: Option<u32>,
        after: Option<u32>,
    },
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("num_tokens", &self.inner.table.len())
            .finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// Builds the tokenizer of an opened model.
    pub fn from_model(model: &ModelFiles) -> Result<Self, TokenizerError> {
        let (bos, eos) = (model.config.bos_token_id, &model.config.eos_token_ids);
        match &model.tokenizer {
            TokenizerSource::Missing => Err(TokenizerError::Missing),
            TokenizerSource::Json(path) => {
                let json = read(path)?;
                Self::from_json(&json, &model.tokenizer_facts)
                    .map(|tokenizer| tokenizer.with_ends(bos, eos))
            }
            TokenizerSource::Gguf(gguf) => {
                let facts = &model.tokenizer_facts;
                let built = gguf_vocab::build(gguf, &facts.special_tokens)?;
                let id_of =
                    |name: &str| built.tokenizer.token_to_id(facts.special_tokens.get(name)?);
                let ends = Ends::Ids {
                    before: id_of("bos_token").filter(|_| facts.add_bos.unwrap_or(built.adds_bos)),
                    after: id_of("eos_token").filter(|_| facts.add_eos.unwrap_or(false)),
                };
                Self::join(built.tokenizer, built.without_prefix, built.spelling, ends)
                    .map(|tokenizer| tokenizer.with_ends(bos, eos))
            }
        }
    }

    /// Builds a tokenizer from the bytes of a tokenizer.json and the facts beside it.
    pub fn from_json(json: &[u8], facts: &TokenizerFacts) -> Result<Self, TokenizerError> {
        let damaged = |error: tokenizers::Error| TokenizerError::Damaged(error.to_string());
        let mut encoder = parse(json)?;
        // Both belong to batches of training data; a prompt is never cut or padded in silence.
        encoder.with_truncation(None).map_err(damaged)?;
        encoder.with_padding(None);
        let decoder = serde_json::to_value(encoder.get_decoder())
            .map_err(|error| TokenizerError::Damaged(error.to_string()))?;
        let spelling = Spelling::from_decoder(&decoder)?;
        let special = facts
            .special_tokens
            .values()
            .filter(|text| encoder.token_to_id(text).is_some());
        let special: Vec<_> = special
            .map(|text| tokenizers::AddedToken::from(text.as_str(), true))
            .collect();
        let known = encoder.get_added_tokens_decoder();
        let new = special
            .into_iter()
            .filter(|token| !known.values().any(|old| old.content == token.content));
        encoder
            .add_special_tokens(new.collect::<Vec<_>>())
            .map_err(damaged)?;
        let ends = if facts.add_bos.is_some() || facts.add_eos.is_some() {
            let id_of = |name: &str| encoder.token_to_id(facts.special_tokens.get(name)?);
            Ends::Ids {
                before: id_of("bos_token").filter(|_| facts.add_bos == Some(true)),
                after: id_of("eos_token").filter(|_| facts.add_eos == Some(true)),
            }
        } else {
            Ends::PostProcessor
        };
        let without_prefix = without_prefix(&encoder);
        Self::join(encoder, without_prefix, spelling, ends)
    }

    fn join(
        encoder: tokenizers::Tokenizer,
        without_prefix: Option<tokenizers::Tokenizer>,
        spelling: Spelling,
        ends: Ends,
    ) -> Result<Self, TokenizerError> {
        // The pool of text workers is the only parallelism: a library's own threads would escape its bound.
        tokenizers::parallelism::set_parallelism(false);
        let added = encoder.get_added_tokens_decoder();
        let highest = encoder.get_vocab(true).into_values().max();
        if let Some(id) = highest.filter(|&id| id > MAX_ID) {
            return Err(TokenizerError::Damaged(format!(
                "it has a token with id {id}, above the limit of {MAX_ID}"
            )));
        }
        let num_ids = highest.map_or(0, |id| id as usize + 1);
        let mut table = TokenTable::default();
        let mut special = vec![false; num_ids];
        for id in 0..num_ids as u32 {
            let added = added.get(&id);
            let text = encoder.id_to_token(id).unwrap_or_default();
            table.push(&text, added.is_some(), &spelling);
            special[id as usize] = added.is_some_and(|token| token.special);
        }
        Ok(Tokenizer {
            inner: Arc::new(Inner {
                encoder,
                without_prefix,
                table,
                special,
                strip_start: spelling.strip_start,
                ends,
                bos_token_id: None,
                eos_token_ids: Vec::new(),
            }),
        })
    }

    fn with_ends(mut self, bos: Option<u32>, eos: &[u32]) -> Self {
        // Just built, so nobody else holds it yet.
        if let Some(inner) = Arc::get_mut(&mut self.inner) {
            inner.bos_token_id = bos;
            inner.eos_token_ids = eos.to_vec();
        }
        self
    }

    /// The ids of `text`; with `add_special` the model's own beginning and end tokens are put around it.
    ///
    /// Special tokens spelled out in the text become their ids. Costs time in proportion to the text: call it on a text
    /// worker, never on the async runtime.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, ApiError> {
        let by_processor = add_special && matches!(self.inner.ends, Ends::PostProcessor);
        let mut ids = encode_with(&self.inner.encoder, text, by_processor)?;
        if add_special && let Ends::Ids { before, after } = self.inner.ends {
            if let Some(id) = before {
                ids.insert(0, id);
            }
            ids.extend(after);
        }
        Ok(ids)
    }

    /// The text of `ids`, as a text of its own: where encoding puts a blank before a text, one leading blank goes.
    /// Bytes that are no UTF-8 become U+FFFD; ids without a token give nothing.
    pub fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> String {
        let bytes = self.decode_bytes(ids, skip_special_tokens);
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The true bytes of `ids`, as `decode` puts them together.
    pub fn decode_bytes(&self, ids: &[u32], skip_special_tokens: bool) -> Vec<u8> {
        let shown = ids
            .iter()
            .filter(|&&id| !(skip_special_tokens && self.is_special(id)));
        let mut bytes = Vec::with_capacity(ids.len() * 4);
        for &id in shown {
            bytes.extend_from_slice(self.token_bytes(id));
        }
        if self.inner.strip_start && bytes.first() == Some(&b' ') {
            bytes.remove(0);
        }
        bytes
    }

    /// The bytes that token `id` stands for inside a text; empty for an id without a token.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.inner.table.get(id)
    }

    /// Whether `id` is a special token (left out under `skip_special_tokens`).
    pub fn is_special(&self, id: u32) -> bool {
        self.inner
            .special
            .get(id as usize)
            .copied()
            .unwrap_or(false)
    }

    /// One more than the highest id of the tokenizer. The model's embedding may have more rows: ids are checked against
    /// `ModelConfig::vocab_size`.
    pub fn num_ids(&self) -> u32 {
        self.inner.table.len() as u32
    }

    /// The id of the token spelled `text` in the vocabulary (special tokens as they are written).
    pub fn token_to_id(&self, text: &str) -> Option<u32> {
        self.inner.encoder.token_to_id(text)
    }

    /// The token that begins a text.
    pub fn bos_token_id(&self) -> Option<u32> {
        self.inner.bos_token_id
    }

    /// Every token that ends a turn or a text.
    pub fn eos_token_ids(&self) -> &[u32] {
        &self.inner.eos_token_ids
    }

    /// The token sequences that write `words`: each with and without a leading blank, without repeats.
    pub fn bad_word_sequences(&self, words: &[String]) -> Result<Vec<Vec<u32>>, ApiError> {
        let inside = self
            .inner
            .without_prefix
            .as_ref()
            .unwrap_or(&self.inner.encoder);
        let mut sequences: Vec<Vec<u32>> = Vec::with_capacity(words.len() * 2);
        for word in words {
            let word = word.strip_prefix(' ').unwrap_or(word);
            for text in [word.to_owned(), format!(" {word}")] {
                let ids = encode_with(inside, &text, false)?;
                if !ids.is_empty() && !sequences.contains(&ids) {
                    sequences.push(ids);
                }
            }
        }
        Ok(sequences)
    }
}

/// The library's tokenizer out of tokenizer.json; its parser panics on some damaged files.
fn parse(json: &[u8]) -> Result<tokenizers::Tokenizer, TokenizerError> {
    let damaged = |reason: String| TokenizerError::Damaged(reason);
    serde_json::from_slice::<serde::de::IgnoredAny>(json)
        .map_err(|error| damaged(error.to_string()))?;
    match std::panic::catch_unwind(|| tokenizers::Tokenizer::from_bytes(json)) {
        Ok(Ok(tokenizer)) => Ok(tokenizer),
        Ok(Err(error)) => Err(damaged(error.to_string())),
        Err(_) => Err(damaged(
            "its parts do not have the form of a tokenizer".to_owned(),
        )),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, TokenizerError> {
    std::fs::read(path).map_err(|source| {
        TokenizerError::Model(model_files::ModelError::Io {
            path: path.to_owned(),
            source,
        })
    })
}

fn encode_with(
    encoder: &tokenizers::Tokenizer,
    text: &str,
    add_special: bool,
) -> Result<Vec<u32>, ApiError> {
    match encoder.encode_fast(text, add_special) {
        Ok(encoding) => Ok(encoding.get_ids().to_vec()),
        Err(error) => Err(ApiError::new(
            ErrorKind::InvalidValue,
            format!("The text cannot be tokenised: {error}."),
        )),
    }
}

/// `encoder` without the blank that it puts before a text; None when it puts none.
fn without_prefix(encoder: &tokenizers::Tokenizer) -> Option<tokenizers::Tokenizer> {
    let mut bare = encoder.clone();
    let mut changed = false;
    if let Some(PreTokenizerWrapper::Metaspace(metaspace)) = encoder.get_pre_tokenizer() {
        let mut metaspace = metaspace.clone();
        metaspace.set_prepend_scheme(tokenizers::pre_tokenizers::metaspace::PrependScheme::Never);
        bare.with_pre_tokenizer(Some(PreTokenizerWrapper::from(metaspace)));
        changed = true;
    }
    if let Some(NormalizerWrapper::Sequence(steps)) = encoder.get_normalizer() {
        let kept: Vec<NormalizerWrapper> = steps
            .as_ref()
            .iter()
            .filter(|step| !matches!(step, NormalizerWrapper::Prepend(_)))
            .cloned()
            .collect();
        if kept.len() < steps.as_ref().len() {
            let kept = tokenizers::normalizers::Sequence::new(kept);
            changed |= bare.with_normalizer(Some(kept)).is_ok();
        }
    }
    changed.then_some(bare)
}
