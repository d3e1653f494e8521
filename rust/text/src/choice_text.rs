//! The text of one choice while its tokens arrive: detokenisation, stop strings, and what may be shown when.
//!
//! Two texts run here. The *matched* text has every token in it, special ones too; stop strings are found in it. The
//! *shown* text leaves special tokens out when asked to. Text that may be the beginning of a stop string is held back.
//! Nothing depends on how tokens are grouped into calls. Does not know why a choice ends for other reasons.

use std::ops::Range;

use crate::Tokenizer;
use crate::stop::StopMatcher;
use crate::utf8_stream::Utf8Stream;

/// How the text of a choice is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextOptions {
    /// Stop strings, none of them empty; of two that end at the same place the first listed counts.
    pub stop: Vec<String>,
    /// Keep the stop string, or the stop token's text, at the end.
    pub include_stop: bool,
    /// Leave special tokens out of what is shown.
    pub skip_special_tokens: bool,
    /// Matches that would end the choice with fewer tokens are passed over.
    pub min_tokens: u32,
}

impl Default for TextOptions {
    fn default() -> Self {
        TextOptions {
            stop: Vec::new(),
            include_stop: false,
            skip_special_tokens: true,
            min_tokens: 0,
        }
    }
}

/// What one token did to a choice's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenEffect {
    /// Code points of the shown text before this token, counted from the choice's first; characters begun by an
    /// earlier token and completed by this one count as this token's.
    pub text_offset: u32,
    /// The index in `TextOptions::stop` of the string that ended the choice with this token. Nothing may be pushed
    /// afterwards, and all shown text is out.
    pub stop: Option<usize>,
}

/// The text of one choice. `push` every token in order, then `push_end_token` or `finish`.
#[derive(Clone, Debug)]
pub struct ChoiceText {
    tokenizer: Tokenizer,
    options: TextOptions,
    utf8: Utf8Stream,
    matcher: StopMatcher,
    num_tokens: u32,
    /// Matched text that is not out yet.
    held: String,
    /// Parts of `held` that are not shown, in order, in bytes of `held`.
    hidden: Vec<Range<usize>>,
    /// Code points of all shown text, held or out.
    shown_chars: u32,
    ended: bool,
}

impl ChoiceText {
    /// The text of a choice before its first token.
    pub fn new(tokenizer: Tokenizer, options: TextOptions) -> Self {
        ChoiceText {
            tokenizer,
            matcher: StopMatcher::new(&options.stop),
            options,
            utf8: Utf8Stream::default(),
            num_tokens: 0,
            held: String::new(),
            hidden: Vec::new(),
            shown_chars: 0,
            ended: false,
        }
    }

    /// Takes the next token; appends to `out` what may be shown now.
    pub fn push(&mut self, id: u32, out: &mut String) -> TokenEffect {
        let special = self.tokenizer.is_special(id);
        self.take(id, special && self.options.skip_special_tokens, out)
    }

    /// Takes a token that ended the choice in the engine (an end token or a stop token id) and ends the text.
    ///
    /// The token's own text is shown only under `include_stop`, and then like any other token's. It takes part in the
    /// search for stop strings: a string that ends inside it is reported.
    pub fn push_end_token(&mut self, id: u32, out: &mut String) -> TokenEffect {
        let special = self.tokenizer.is_special(id);
        let hidden = !self.options.include_stop || (special && self.options.skip_special_tokens);
        let effect = self.take(id, hidden, out);
        self.finish(out);
        effect
    }

    /// Ends the text without a further token: an incomplete character becomes one U+FFFD and all that was held comes
    /// out. Does nothing after a stop string.
    pub fn finish(&mut self, out: &mut String) {
        if self.ended {
            return;
        }
        self.ended = true;
        let start = self.held.len();
        self.utf8.finish(&mut self.held);
        self.count_shown(start);
        self.release(self.held.len(), out);
    }

    /// Whether a stop string was found or the text was finished.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Number of tokens taken.
    pub fn num_tokens(&self) -> u32 {
        self.num_tokens
    }

    fn take(&mut self, id: u32, hide: bool, out: &mut String) -> TokenEffect {
        let mut effect = TokenEffect {
            text_offset: self.shown_chars,
            stop: None,
        };
        debug_assert!(!self.ended, "a token after the end of its choice");
        if self.ended {
            return effect;
        }
        self.num_tokens += 1;
        let start = self.held.len();
        // The tokenizer is borrowed apart from `self`: cloning it is a reference count.
        let tokenizer = self.tokenizer.clone();
        if hide || tokenizer.is_special(id) {
            // A special token's text is whole: a character left open before it will never be completed.
            self.utf8.finish(&mut self.held);
        }
        let own = self.held.len();
        self.utf8.push(tokenizer.token_bytes(id), &mut self.held);
        if hide {
            // The open end of a hidden token, which only an odd stop token has, is dropped with it.
            self.utf8 = Utf8Stream::default();
            if own < self.held.len() {
                self.hidden.push(own..self.held.len());
            }
        }
        self.count_shown(start);
        effect.stop = self.search(start);
        match effect.stop {
            Some(index) => self.end_at_stop(index, out),
            None => self.release(self.held.len() - self.matcher.held_bytes(), out),
        }
        effect
    }

    /// Feeds the text from byte `start` of `held` to the matcher. On an accepted match `held` is cut behind it.
    fn search(&mut self, start: usize) -> Option<usize> {
        if self.matcher.is_empty() {
            return None;
        }
        let counts = self.num_tokens >= self.options.min_tokens;
        for at in start..self.held.len() {
            if let Some(index) = self.matcher.step(self.held.as_bytes()[at])
                && counts
            {
                self.held.truncate(at + 1);
                return Some(index);
            }
        }
        None
    }

    /// `held` ends with stop string `index`: shows what precedes it, and the string itself if it is wanted.
    fn end_at_stop(&mut self, index: usize, out: &mut String) {
        self.ended = true;
        let cut = self.held.len() - self.matcher.len_of(index);
        self.release(cut, out);
        if self.options.include_stop {
            out.push_str(&self.options.stop[index]);
        }
        self.held.clear();
        self.hidden.clear();
    }

    /// Moves the first `end` bytes of `held` out, without their hidden parts.
    fn release(&mut self, end: usize, out: &mut String) {
        let mut from = 0;
        for range in &self.hidden {
            if range.start >= end {
                break;
            }
            out.push_str(&self.held[from..range.start.max(from)]);
            from = range.end.min(end);
        }
        out.push_str(&self.held[from..end]);
        self.held.drain(..end);
        self.hidden.retain_mut(|range| {
            *range = range.start.saturating_sub(end)..range.end.saturating_sub(end);
            range.start < range.end
        });
    }

    /// Counts the shown characters of `held` from byte `start` on.
    fn count_shown(&mut self, start: usize) {
        let hidden: usize = self
            .hidden
            .iter()
            .filter(|range| range.start >= start)
            .map(|range| self.held[range.clone()].chars().count())
            .sum();
        self.shown_chars += (self.held[start..].chars().count() - hidden) as u32;
    }
}
