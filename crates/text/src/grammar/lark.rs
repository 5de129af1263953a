//! Grammars that clients send in Lark's notation, looked at before they are compiled: how long and
//! how nested they are, whether their brackets match, and how long their terminals are once they
//! are written out.

use super::GrammarError;
use std::collections::HashMap;

/// Bytes of a grammar at most.
pub(super) const MAX_BYTES: usize = 64 << 10;
/// Brackets inside brackets.
pub(super) const MAX_NESTING: usize = 24;
/// Bytes of all terminals, each name in them counted as what it stands for.
pub(super) const MAX_WRITTEN_OUT: usize = 1 << 20;

/// Directives that cannot lead around these bounds.
const DIRECTIVES: [&str; 3] = ["ignore", "import", "declare"];

/// A piece of a grammar.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Piece<'a> {
    Name(&'a str),
    Directive(&'a str),
    /// A text or a regular expression, as it is written.
    Literal(&'a str),
    Open,
    Close,
    Newline,
    Other(char),
}

/// Checks one grammar.
pub(super) fn check(lark: &str) -> Result<(), GrammarError> {
    let what = "grammar";
    let refused = |reason: String| Err(GrammarError::Refused { what, reason });
    if lark.len() > MAX_BYTES {
        return Err(GrammarError::TooLarge { what: "bytes", found: lark.len(), most: MAX_BYTES });
    }
    let mut depth = 0usize;
    for piece in pieces(lark) {
        match piece {
            Piece::Open => depth += 1,
            Piece::Close if depth == 0 => {
                return refused("a bracket closes that was not opened".to_owned());
            }
            Piece::Close => depth -= 1,
            Piece::Directive(name) if !DIRECTIVES.contains(&name) => {
                return refused(format!(
                    "it says `%{name}`; of directives `%ignore` and `%import` are taken"
                ));
            }
            _ => {}
        }
        if depth > MAX_NESTING {
            return Err(GrammarError::TooLarge {
                what: "levels of brackets",
                found: depth,
                most: MAX_NESTING,
            });
        }
    }
    if depth > 0 {
        return refused("a bracket is not closed".to_owned());
    }
    let found = written_out(&definitions(lark));
    if found > MAX_WRITTEN_OUT {
        let what = "bytes of terminals when they are written out";
        return Err(GrammarError::TooLarge { what, found, most: MAX_WRITTEN_OUT });
    }
    Ok(())
}

fn is_terminal(name: &str) -> bool {
    name.trim_start_matches('_').starts_with(|c: char| c.is_ascii_uppercase())
}

/// A definition: bytes of its own literals, and the terminals it names.
type Definition<'a> = (usize, Vec<&'a str>);

/// All definitions by name. Where a name is defined twice both count.
fn definitions(lark: &str) -> HashMap<&str, Definition<'_>> {
    let mut found: HashMap<&str, Definition<'_>> = HashMap::new();
    let pieces: Vec<Piece<'_>> = pieces(lark).collect();
    let (mut current, mut line_begins) = ("", true);
    for (i, piece) in pieces.iter().enumerate() {
        match *piece {
            // A name at the beginning of a line is defined there, unless the line goes on with
            // another's definition.
            Piece::Name(name) if line_begins && defines(&pieces[i + 1..]) => current = name,
            Piece::Name(name) if is_terminal(name) => {
                found.entry(current).or_default().1.push(name)
            }
            Piece::Literal(text) => found.entry(current).or_default().0 += text.len(),
            _ => {}
        }
        line_begins = match piece {
            Piece::Newline => true,
            // Marks of rules stand before their names.
            Piece::Other('!' | '?') => line_begins,
            _ => false,
        };
    }
    found
}

/// Whether a colon comes before the line is over.
fn defines(rest: &[Piece<'_>]) -> bool {
    rest.iter()
        .take_while(|piece| **piece != Piece::Newline)
        .any(|piece| *piece == Piece::Other(':'))
}

/// Bytes of all definitions with the terminals they name put in. Terminals that name each other in
/// a circle are none, which the compiler says.
fn written_out(definitions: &HashMap<&str, Definition<'_>>) -> usize {
    let mut sizes: HashMap<&str, usize> = HashMap::new();
    let mut total = 0usize;
    for start in definitions.keys() {
        // Names to look at, and whether those they name have been.
        let mut left = vec![(*start, false)];
        while let Some((name, is_ready)) = left.pop() {
            let Some((own, names)) = definitions.get(name) else { continue };
            if is_ready {
                let inner = names.iter().filter_map(|name| sizes.get(name));
                let size = inner.fold(*own, |sum, size| sum.saturating_add(*size));
                sizes.insert(name, size);
            } else if !sizes.contains_key(name) {
                // Nothing stands in while it is on the way, so circles end.
                sizes.insert(name, 0);
                left.push((name, true));
                left.extend(
                    names
                        .iter()
                        .filter(|name| !sizes.contains_key(*name))
                        .map(|name| (*name, false)),
                );
            }
        }
        total = total.saturating_add(sizes.get(start).copied().unwrap_or(0));
    }
    total
}

/// The grammar piece by piece, without spaces and comments.
fn pieces(lark: &str) -> impl Iterator<Item = Piece<'_>> {
    let mut rest = lark;
    std::iter::from_fn(move || {
        loop {
            let (piece, length) = piece(rest)?;
            rest = &rest[length..];
            if piece.is_some() {
                return piece;
            }
        }
    })
}

/// The piece that a text begins with, if it is one, and its length.
fn piece(text: &str) -> Option<(Option<Piece<'_>>, usize)> {
    let name_length = |text: &str| {
        text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '-')
            .unwrap_or(text.len())
    };
    let first = text.chars().next()?;
    let after = &text[first.len_utf8()..];
    Some(match first {
        // A comment, up to the end of its line.
        '#' | '/' if first == '#' || after.starts_with('/') => {
            (None, text.find('\n').unwrap_or(text.len()))
        }
        ' ' | '\t' | '\r' => (None, 1),
        '\n' => (Some(Piece::Newline), 1),
        '"' | '/' => {
            let length = 1 + literal_length(after, first);
            (Some(Piece::Literal(&text[..length])), length)
        }
        '%' => {
            let length = name_length(after);
            (Some(Piece::Directive(&after[..length])), 1 + length)
        }
        '(' | '[' | '{' => (Some(Piece::Open), 1),
        ')' | ']' | '}' => (Some(Piece::Close), 1),
        c if c.is_ascii_alphabetic() || c == '_' => {
            let length = name_length(text);
            (Some(Piece::Name(&text[..length])), length)
        }
        c => (Some(Piece::Other(c)), c.len_utf8()),
    })
}

/// Bytes up to and with the mark that ends a literal.
fn literal_length(text: &str, mark: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == mark => return at + 1,
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(lark: &str) -> Option<String> {
        check(lark).err().map(|error| error.to_string())
    }

    #[test]
    fn grammars_in_use_are_taken() {
        let sums = "?start: sum\n?sum: product\n | sum \"+\" product -> add // more\nproduct: atom (\"*\" atom)*\n\
            atom: NUMBER | \"(\" sum \")\" # a bracket (\nNUMBER: /[0-9(]+/ | \"]\" \n%import common.WS\n%ignore WS\n";
        assert_eq!(refused(sums), None);
    }

    #[test]
    fn each_bound_is_named() {
        for (lark, word) in [
            ("start: \"x\"".repeat(7000), "bytes"),
            (format!("start: {}\"x\"{}", "(".repeat(25), ")".repeat(25)), "levels of brackets"),
            ("start: (\"x\"".to_owned(), "not closed"),
            ("start: \"x\"\n} more".to_owned(), "not opened"),
            ("start: %json {\"type\": \"string\"}".to_owned(), "%json"),
            ("start: %lark { start: \"x\" }".to_owned(), "%lark"),
            ("%llguidance {}\nstart: \"x\"".to_owned(), "%llguidance"),
        ] {
            let reason = refused(&lark).unwrap_or_else(|| panic!("{lark} is taken"));
            assert!(reason.contains(word), "{reason}");
        }
    }

    #[test]
    fn terminals_are_counted_as_they_are_written_out() {
        let doubled: String = (0..30).map(|i| format!("T{i}: T{} T{}\n", i + 1, i + 1)).collect();
        let doubled = format!("start: T0\n{doubled}T30: \"x\"\n");
        assert!(
            refused(&doubled).is_some_and(|reason| reason.contains("written out")),
            "{doubled}"
        );
        let circle = "start: A\nA: B \"x\"\nB: A\n";
        assert_eq!(refused(circle), None);
        let many: String = (0..10_000).map(|i| format!("T{i} ")).collect();
        assert_eq!(refused(&format!("start: A\nA: {many}\n")), None);
        let row: String = (0..3000).map(|i| format!("T{i}: T{}\n", i + 1)).collect();
        assert_eq!(refused(&format!("start: T0\n{row}T3000: \"x\"\n")), None);
    }
}
