//! Texts that were encoded before. A conversation is sent again with every turn, and its tokens up
//! to the last name of a control token that both have are the same: names cut a text, and nothing
//! behind one changes what stands before it.

use super::Tokenizer;
use std::sync::{Arc, Mutex, PoisonError};

/// Texts at most, whatever room there is: each is looked at for every new one.
const MOST: usize = 1024;

/// Rendered templates and their tokens, so that a text which begins as an earlier one is encoded
/// from there on. It has a budget of bytes; the oldest go.
#[derive(Debug, Default)]
pub struct Beginnings {
    most: usize,
    /// The newest last.
    texts: Mutex<Vec<Arc<Encoded>>>,
}

/// A text with its tokens.
#[derive(Debug, Default)]
pub(super) struct Encoded {
    text: String,
    mark: Option<char>,
    pub(super) ids: Vec<u32>,
    /// Where names of control and user-defined tokens end: in the text, and among its tokens.
    pub(super) cuts: Vec<(usize, usize)>,
}

impl Encoded {
    fn bytes(&self) -> usize {
        let cuts = self.cuts.len() * size_of::<(usize, usize)>();
        self.text.len() + self.ids.len() * size_of::<u32>() + cuts
    }

    /// The last cut that a text has as well. Where a name stands may depend on the `reach` bytes
    /// behind its beginning, where a longer one could have been.
    fn shared(&self, text: &str, mark: Option<char>, reach: usize) -> Option<(usize, usize)> {
        let same = if self.mark == mark { same(&self.text, text) } else { 0 };
        let known = self.cuts.partition_point(|(end, _)| end + reach <= same);
        self.cuts[..known].last().copied()
    }
}

/// Bytes that two texts begin with alike.
fn same(one: &str, other: &str) -> usize {
    /// Compared at a time, as memory is.
    const CHUNK: usize = 256;
    let (one, other) = (one.as_bytes(), other.as_bytes());
    let chunks = one.chunks_exact(CHUNK).zip(other.chunks_exact(CHUNK));
    let start = CHUNK * chunks.take_while(|(a, b)| a == b).count();
    let rest = one[start..].iter().zip(&other[start..]);
    start + rest.take_while(|(a, b)| a == b).count()
}

impl Beginnings {
    /// Of so many bytes at most.
    pub fn new(most: usize) -> Self {
        Self { most, texts: Mutex::default() }
    }

    /// Bytes it takes.
    pub fn bytes(&self) -> usize {
        self.texts().iter().map(|text| text.bytes()).sum()
    }

    fn texts(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Encoded>>> {
        self.texts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The tokens of a rendered template, as [`Tokenizer::encode`] or, where texts in it were
    /// marked, [`Tokenizer::encode_marked`] gives them.
    pub fn encode(&self, tokenizer: &Tokenizer, text: &str, mark: Option<char>) -> Vec<u32> {
        let reach = tokenizer.longest_name;
        let texts = self.texts().clone();
        let cuts = texts.iter().map(|known| (known.shared(text, mark, reach), known));
        let best = cuts.filter_map(|(cut, known)| Some((cut?, known))).max_by_key(|(cut, _)| *cut);
        let mut encoded = Encoded { text: text.to_owned(), mark, ..Encoded::default() };
        if let Some(((end, count), known)) = best {
            encoded.ids.extend(&known.ids[..count]);
            encoded.cuts.extend(known.cuts.iter().take_while(|cut| cut.0 <= end));
        }
        tokenizer.encode_on(text, mark, &mut encoded);
        let ids = encoded.ids.clone();
        // A conversation that has grown takes the place of what it was.
        let former = best.filter(|((end, _), known)| 2 * end > known.text.len());
        self.keep(encoded, former.map(|(_, known)| known));
        ids
    }

    fn keep(&self, encoded: Encoded, former: Option<&Arc<Encoded>>) {
        let bytes = encoded.bytes();
        if encoded.cuts.is_empty() || bytes > self.most {
            return;
        }
        let mut texts = self.texts();
        texts.retain(|text| former.is_none_or(|former| !Arc::ptr_eq(text, former)));
        texts.push(Arc::new(encoded));
        let mut sum: usize = texts.iter().map(|text| text.bytes()).sum();
        let mut count = texts.len();
        let over = texts.iter().take_while(|text| {
            let is_over = sum > self.most || count > MOST;
            sum -= if is_over { text.bytes() } else { 0 };
            count -= usize::from(is_over);
            is_over
        });
        let over = over.count();
        texts.drain(..over);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Specials;

    fn tokenizer() -> Tokenizer {
        let json = include_bytes!("../../tests/fixtures/tokenizer.json");
        Tokenizer::from_json_bytes(json).expect("the fixture loads")
    }

    const FIRST: &str = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n";

    #[test]
    fn what_was_encoded_before_is_not_encoded_again() {
        let (tokenizer, beginnings) = (tokenizer(), Beginnings::new(1 << 20));
        let ids = beginnings.encode(&tokenizer, FIRST, None);
        // Were it encoded again, nobody would find this.
        let mut forged = Arc::into_inner(beginnings.texts().pop().expect("kept")).expect("alone");
        forged.ids[1] = 77;
        beginnings.texts().push(Arc::new(forged));
        let next = format!("{FIRST}Hi<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n");
        let more = beginnings.encode(&tokenizer, &next, None);
        assert_eq!((more[0], more[1]), (ids[0], 77));
        assert_eq!(more[2..], tokenizer.encode(&next, Specials::Parse)[2..]);
        // Marks make it another text, and it has taken the former's place.
        assert_eq!(beginnings.encode(&tokenizer, FIRST, Some('\u{fdd0}')), ids);
        assert_eq!(beginnings.texts().len(), 2);
    }

    #[test]
    fn it_keeps_to_its_budget_and_the_oldest_goes() {
        let tokenizer = tokenizer();
        let text = |i: usize| format!("<|im_start|>{i}{}<|im_end|>", "x".repeat(1000));
        let beginnings = Beginnings::new(40_000);
        for i in 0..60 {
            beginnings.encode(&tokenizer, &text(i), None);
            assert!(beginnings.bytes() <= 40_000, "{} bytes", beginnings.bytes());
        }
        let kept: Vec<String> = beginnings.texts().iter().map(|kept| kept.text.clone()).collect();
        assert!(kept.len() > 2 && *kept == (60 - kept.len()..60).map(text).collect::<Vec<_>>());
        // Short ones are not many more.
        let many = Beginnings::new(1 << 30);
        (0..MOST + 100).for_each(|i| drop(many.encode(&tokenizer, &text(i)[..40], None)));
        assert_eq!(many.texts().len(), MOST);
        let none = Beginnings::new(0);
        none.encode(&tokenizer, FIRST, None);
        assert_eq!(none.bytes(), 0);
    }
}
