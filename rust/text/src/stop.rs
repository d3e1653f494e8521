//! Finds stop strings in a growing text, one byte at a time.
//!
//! Owns the automata (Knuth, Morris, Pratt 1977; one per string). Because every byte advances them once, what is found
//! does not depend on how the text was cut into pieces. Does not know tokens or what is shown.

/// One string and how much of it the text ends with.
#[derive(Clone, Debug)]
struct Automaton {
    pattern: Vec<u8>,
    /// Length of the longest proper border of each prefix.
    borders: Vec<u32>,
    /// Length of the longest prefix of `pattern` that the text ends with.
    matched: usize,
}

impl Automaton {
    fn new(pattern: &str) -> Self {
        let pattern = pattern.as_bytes().to_vec();
        let mut borders = vec![0u32; pattern.len()];
        let mut length = 0usize;
        for at in 1..pattern.len() {
            while length > 0 && pattern[at] != pattern[length] {
                length = borders[length - 1] as usize;
            }
            if pattern[at] == pattern[length] {
                length += 1;
            }
            borders[at] = length as u32;
        }
        Automaton {
            pattern,
            borders,
            matched: 0,
        }
    }

    /// Takes the next byte; true when the text now ends with the pattern.
    fn step(&mut self, byte: u8) -> bool {
        if self.pattern.is_empty() {
            return false;
        }
        while self.matched > 0 && byte != self.pattern[self.matched] {
            self.matched = self.borders[self.matched - 1] as usize;
        }
        if byte == self.pattern[self.matched] {
            self.matched += 1;
        }
        if self.matched < self.pattern.len() {
            return false;
        }
        self.matched = self.borders[self.matched - 1] as usize;
        true
    }
}

/// The stop strings of one choice and how far the text has got into each.
#[derive(Clone, Debug, Default)]
pub(crate) struct StopMatcher {
    automata: Vec<Automaton>,
}

impl StopMatcher {
    /// The strings in the order that decides ties; an empty one matches nowhere (the server refuses it).
    pub(crate) fn new(strings: &[String]) -> Self {
        StopMatcher {
            automata: strings.iter().map(|text| Automaton::new(text)).collect(),
        }
    }

    /// Whether there is nothing to find.
    pub(crate) fn is_empty(&self) -> bool {
        self.automata.is_empty()
    }

    /// Takes the next byte of the text; the index of the first listed string that ends here.
    pub(crate) fn step(&mut self, byte: u8) -> Option<usize> {
        let mut found = None;
        for (index, automaton) in self.automata.iter_mut().enumerate() {
            if automaton.step(byte) && found.is_none() {
                found = Some(index);
            }
        }
        found
    }

    /// How many bytes at the text's end may be the beginning of a stop string.
    pub(crate) fn held_bytes(&self) -> usize {
        self.automata
            .iter()
            .map(|automaton| automaton.matched)
            .max()
            .unwrap_or(0)
    }

    /// Length of string `index` in bytes.
    pub(crate) fn len_of(&self, index: usize) -> usize {
        self.automata[index].pattern.len()
    }
}
