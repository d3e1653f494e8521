//! A tokenizer out of a GGUF header: byte-level vocabularies with merges, SentencePiece vocabularies with scores.
//!
//! Owns what the header leaves unsaid (how text is cut, normalised and merged), so that the ids are those of
//! `transformers` on the same file. Does not know BOS rules.

use std::collections::BTreeMap;

use model_files::Gguf;
use tokenizers::models::bpe::BPE;
use tokenizers::normalizers::{Prepend, Replace, Sequence as NormalizerSequence};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{AddedToken, NormalizerWrapper, PreTokenizerWrapper, SplitDelimiterBehavior};

use crate::TokenizerError;
use crate::byte_alphabet::{byte_of, spell};
use crate::pre_split::{PreSplit, by_name};
use crate::score_merges::merges_from_scores;
use crate::token_table::Spelling;

const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;
const BLANK: &str = "\u{2581}";

/// The parts of a tokenizer, ready to be joined.
pub(crate) struct Built {
    pub(crate) tokenizer: tokenizers::Tokenizer,
    /// The same without the blank put before a text; None when there is none.
    pub(crate) without_prefix: Option<tokenizers::Tokenizer>,
    pub(crate) spelling: Spelling,
    /// Whether a text gets the beginning token when the header does not say.
    pub(crate) adds_bos: bool,
}

/// Builds the tokenizer of `gguf`; `named` are its special tokens by name (`bos_token`, ...).
pub(crate) fn build(
    gguf: &Gguf,
    named: &BTreeMap<String, String>,
) -> Result<Built, TokenizerError> {
    let header = Header::read(gguf)?;
    let mut built = match header.model {
        "gpt2" => byte_level(gguf, &header)?,
        "llama" => sentencepiece(gguf, &header)?,
        other => {
            return Err(TokenizerError::NotSupported(format!(
                "the GGUF vocabulary is of type '{other}' (supported: gpt2, llama)"
            )));
        }
    };
    add_tokens(&mut built.tokenizer, &header, named)?;
    if let Some(bare) = &mut built.without_prefix {
        add_tokens(bare, &header, named)?;
    }
    Ok(built)
}

/// The arrays of the header that every kind of vocabulary has.
struct Header<'a> {
    model: &'a str,
    tokens: &'a [Box<str>],
    kinds: Vec<i64>,
}

impl<'a> Header<'a> {
    fn read(gguf: &'a Gguf) -> Result<Self, TokenizerError> {
        let model = gguf
            .string("tokenizer.ggml.model")?
            .ok_or(TokenizerError::Missing)?;
        let tokens = gguf
            .strings("tokenizer.ggml.tokens")?
            .ok_or(TokenizerError::Missing)?;
        let kinds = gguf.ints("tokenizer.ggml.token_type")?.unwrap_or_default();
        if !kinds.is_empty() && kinds.len() != tokens.len() {
            return Err(TokenizerError::Damaged(format!(
                "{} tokens, but {} token types",
                tokens.len(),
                kinds.len()
            )));
        }
        Ok(Header {
            model,
            tokens,
            kinds,
        })
    }

    fn kind(&self, id: usize) -> i64 {
        self.kinds.get(id).copied().unwrap_or(1)
    }
}

fn file_merges(gguf: &Gguf) -> Result<Option<Vec<(String, String)>>, TokenizerError> {
    let Some(lines) = gguf.strings("tokenizer.ggml.merges")? else {
        return Ok(None);
    };
    let pair = |line: &str| {
        line.split_once(' ')
            .map(|(left, right)| (left.to_owned(), right.to_owned()))
    };
    lines
        .iter()
        .map(|line| {
            pair(line)
                .ok_or_else(|| TokenizerError::Damaged(format!("the merge '{line}' is no pair")))
        })
        .collect::<Result<Vec<_>, _>>()
        .map(Some)
}

fn damaged(error: impl std::fmt::Display) -> TokenizerError {
    TokenizerError::Damaged(error.to_string())
}

fn byte_level(gguf: &Gguf, header: &Header<'_>) -> Result<Built, TokenizerError> {
    let name = gguf.string("tokenizer.ggml.pre")?.unwrap_or("default");
    let split = by_name(name).ok_or_else(|| {
        TokenizerError::NotSupported(format!(
            "its pre-tokenizer '{name}' is not known, so its ids would be wrong"
        ))
    })?;
    let merges = file_merges(gguf)?.ok_or_else(|| {
        TokenizerError::Damaged("a byte-level vocabulary without merges".to_owned())
    })?;
    let vocab: tokenizers::models::bpe::Vocab = header
        .tokens
        .iter()
        .enumerate()
        .map(|(id, token)| {
            // Added tokens are matched in the text and keep their spelling; all others are made of bytes.
            let own = matches!(header.kind(id), CONTROL | USER_DEFINED)
                || token.chars().all(|c| byte_of(c).is_some());
            (
                if own { token.to_string() } else { spell(token) },
                id as u32,
            )
        })
        .collect();
    let bpe = BPE::builder()
        .vocab_and_merges(vocab, merges)
        .build()
        .map_err(damaged)?;
    let mut tokenizer = tokenizers::Tokenizer::new(bpe);
    let pre: PreTokenizerWrapper = match split {
        PreSplit::Gpt2 => ByteLevel::new(false, true, true).into(),
        PreSplit::Pattern(pattern) => {
            let split = Split::new(
                SplitPattern::Regex(pattern.to_owned()),
                SplitDelimiterBehavior::Isolated,
                false,
            )
            .map_err(damaged)?;
            Sequence::new(vec![
                split.into(),
                ByteLevel::new(false, true, false).into(),
            ])
            .into()
        }
    };
    tokenizer.with_pre_tokenizer(Some(pre));
    Ok(Built {
        tokenizer,
        without_prefix: None,
        spelling: Spelling::byte_level(),
        adds_bos: false,
    })
}

/// How a SentencePiece vocabulary puts a blank before a text.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Prefix {
    /// Not at all.
    Never,
    /// Before the first piece of a text.
    First,
    /// Before every piece between special tokens.
    Every,
}

fn sentencepiece(gguf: &Gguf, header: &Header<'_>) -> Result<Built, TokenizerError> {
    let architecture = gguf.string("general.architecture")?.unwrap_or_default();
    let is_gemma = architecture.starts_with("gemma");
    let wants_prefix = gguf
        .boolean("tokenizer.ggml.add_space_prefix")?
        .unwrap_or(!is_gemma);
    let prefix = match (wants_prefix, architecture) {
        (false, _) => Prefix::Never,
        (true, "phi3") => Prefix::Every,
        (true, _) => Prefix::First,
    };
    // Gemma's files hold runs of blanks as blanks, while its texts are made of U+2581.
    let respelled = |token: &str| -> String {
        let is_blanks = is_gemma && !token.is_empty() && token.bytes().all(|byte| byte == b' ');
        if is_blanks {
            BLANK.repeat(token.len())
        } else {
            token.to_owned()
        }
    };
    let tokens: Vec<String> = header.tokens.iter().map(|token| respelled(token)).collect();
    let merges = sentencepiece_merges(gguf, &tokens, is_gemma)?;
    let unknown = gguf
        .uint("tokenizer.ggml.unknown_token_id")?
        .and_then(|id| tokens.get(usize::try_from(id).ok()?));
    let vocab: tokenizers::models::bpe::Vocab = tokens
        .iter()
        .zip(0..)
        .map(|(token, id)| (token.clone(), id))
        .collect();
    let mut builder = BPE::builder()
        .vocab_and_merges(vocab, merges)
        .fuse_unk(true)
        .byte_fallback(true);
    if let Some(unknown) = unknown.filter(|_| is_gemma) {
        builder = builder.unk_token(unknown.clone());
    }
    let mut tokenizer = tokenizers::Tokenizer::new(builder.build().map_err(damaged)?);
    let without_prefix = match prefix {
        Prefix::Never => None,
        Prefix::First | Prefix::Every => {
            let mut bare = tokenizer.clone();
            set_blanks(&mut bare, Prefix::Never)?;
            Some(bare)
        }
    };
    set_blanks(&mut tokenizer, prefix)?;
    let spelling = Spelling::sentencepiece(prefix != Prefix::Never);
    Ok(Built {
        tokenizer,
        without_prefix,
        spelling,
        adds_bos: true,
    })
}

/// The merges of a SentencePiece vocabulary: those of the header, else those that its scores imply.
fn sentencepiece_merges(
    gguf: &Gguf,
    tokens: &[String],
    is_gemma: bool,
) -> Result<Vec<(String, String)>, TokenizerError> {
    if let Some(merges) = file_merges(gguf)? {
        return Ok(merges);
    }
    let scores = gguf
        .floats("tokenizer.ggml.scores")?
        .filter(|scores| scores.len() == tokens.len())
        .ok_or_else(|| {
            TokenizerError::Damaged("a vocabulary without a score for every token".to_owned())
        })?;
    let views: Vec<&str> = tokens.iter().map(String::as_str).collect();
    // Gemma's scores do not follow its merges; the order of its vocabulary does.
    let order: Vec<f32> = if is_gemma {
        (0..tokens.len()).map(|id| -(id as f32)).collect()
    } else {
        scores
    };
    Ok(merges_from_scores(&views, &order))
}

/// Makes `tokenizer` turn blanks into U+2581 and put one before a text as `prefix` says.
fn set_blanks(tokenizer: &mut tokenizers::Tokenizer, prefix: Prefix) -> Result<(), TokenizerError> {
    if prefix == Prefix::First {
        let pre: PreTokenizerWrapper =
            Metaspace::new('\u{2581}', PrependScheme::First, false).into();
        tokenizer.with_pre_tokenizer(Some(pre));
        return Ok(());
    }
    let mut steps: Vec<NormalizerWrapper> = Vec::new();
    if prefix == Prefix::Every {
        steps.push(Prepend::new(BLANK.to_owned()).into());
    }
    steps.push(Replace::new(" ", BLANK).map_err(damaged)?.into());
    tokenizer
        .with_normalizer(Some(NormalizerSequence::new(steps)))
        .map_err(damaged)?;
    Ok(())
}

/// Adds the tokens that are found whole in a text: control and named ones as special, user-defined ones as ordinary.
fn add_tokens(
    tokenizer: &mut tokenizers::Tokenizer,
    header: &Header<'_>,
    named: &BTreeMap<String, String>,
) -> Result<(), TokenizerError> {
    let of_kind = |kind: i64| {
        let tokens = header
            .tokens
            .iter()
            .enumerate()
            .filter(move |(id, _)| header.kind(*id) == kind);
        tokens.map(|(_, token)| token.as_ref())
    };
    let special: Vec<AddedToken> = of_kind(CONTROL)
        .chain(named.values().map(String::as_str))
        .filter(|token| !token.is_empty() && tokenizer.token_to_id(token).is_some())
        .map(|token| AddedToken::from(token, true).normalized(false))
        .collect();
    tokenizer.add_special_tokens(special).map_err(damaged)?;
    let user: Vec<AddedToken> = of_kind(USER_DEFINED)
        .filter(|token| !token.is_empty() && tokenizer.token_to_id(token).is_some())
        .map(|token| AddedToken::from(token, false).normalized(false))
        .collect();
    tokenizer.add_tokens(user).map_err(damaged)?;
    Ok(())
}
