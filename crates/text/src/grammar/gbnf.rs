//! GBNF, the notation of llama.cpp's grammars (`root ::= "yes" | [0-9]+`), brought into Lark's.
//! Rules that do not lead back to themselves become terminals, and so do stretches of such parts
//! inside others: a terminal is matched exactly, whatever its parts share.

use super::GrammarError;
use super::forms::quoted;
use std::collections::HashMap;
use std::fmt::Write;

/// Brackets inside brackets.
const MAX_NESTING: usize = 24;

/// Ways to go on, each a sequence of items.
type Ways = Vec<Vec<Item>>;

/// Something that comes so many times.
#[derive(Debug)]
struct Item {
    node: Node,
    /// The least and, where there is one, the most.
    times: Option<(u32, Option<u32>)>,
}

#[derive(Debug)]
enum Node {
    Text(String),
    /// One character of these ranges, or of none of them.
    Class(bool, Vec<(char, char)>),
    Any,
    Rule(usize),
    Group(Ways),
}

/// Whether a grammar is in this notation.
pub(super) fn is_gbnf(text: &str) -> bool {
    text.contains("::=")
}

/// The same grammar in Lark's notation.
pub(super) fn to_lark(text: &str) -> Result<String, GrammarError> {
    let refused = |reason: String| GrammarError::Refused { what: "grammar", reason };
    let mut reader = Reader { text, at: 0, names: HashMap::new(), rules: Vec::new() };
    reader.read().map_err(|reason| refused(format!("line {}: {reason}", reader.line())))?;
    let Reader { names, rules, .. } = reader;
    let mut sorted: Vec<(&String, usize)> =
        names.iter().map(|(name, place)| (name, *place)).collect();
    sorted.sort_by_key(|(_, place)| *place);
    let defined: Option<Vec<Ways>> = rules.into_iter().collect();
    let Some(rules) = defined else {
        return Err(refused("a rule that is named is not defined".to_owned()));
    };
    let Some((_, root)) = sorted.iter().find(|(name, _)| *name == "root") else {
        return Err(refused("it has no rule `root`".to_owned()));
    };
    let mut writer = Writer { regular: regular(&rules), lark: String::new(), terminals: 0 };
    let start = writer.name(*root);
    let _ = writeln!(writer.lark, "start: {start}");
    for (place, ways) in rules.iter().enumerate() {
        let inline = writer.regular[place];
        let body = writer.ways(ways, inline);
        let name = writer.name(place);
        // Writing to a string cannot fail.
        let _ = writeln!(writer.lark, "{name}: {body}");
    }
    Ok(writer.lark)
}

/// Which rules lead only to such that do not lead back.
fn regular(rules: &[Ways]) -> Vec<bool> {
    let mut users: Vec<Vec<usize>> = vec![Vec::new(); rules.len()];
    let mut unknown = vec![0usize; rules.len()];
    for (place, ways) in rules.iter().enumerate() {
        let mut left: Vec<&Item> = ways.iter().flatten().collect();
        while let Some(item) = left.pop() {
            match &item.node {
                Node::Rule(to) => {
                    users[*to].push(place);
                    unknown[place] += 1;
                }
                Node::Group(ways) => left.extend(ways.iter().flatten()),
                _ => {}
            }
        }
    }
    let mut regular = vec![false; rules.len()];
    let mut ready: Vec<usize> = (0..rules.len()).filter(|place| unknown[*place] == 0).collect();
    while let Some(place) = ready.pop() {
        regular[place] = true;
        for user in &users[place] {
            unknown[*user] -= 1;
            if unknown[*user] == 0 {
                ready.push(*user);
            }
        }
    }
    regular
}

struct Writer {
    regular: Vec<bool>,
    lark: String,
    /// Terminals made of stretches so far.
    terminals: usize,
}

impl Writer {
    fn name(&self, rule: usize) -> String {
        if self.regular[rule] { format!("T{rule}") } else { format!("r{rule}") }
    }

    fn is_regular(&self, item: &Item) -> bool {
        match &item.node {
            Node::Rule(rule) => self.regular[*rule],
            Node::Group(ways) => ways.iter().flatten().all(|item| self.is_regular(item)),
            _ => true,
        }
    }

    /// Ways as Lark has them: `inline` inside a terminal, else with stretches as terminals of their
    /// own.
    fn ways(&mut self, ways: &Ways, inline: bool) -> String {
        let ways: Vec<String> = ways.iter().map(|way| self.way(way, inline)).collect();
        ways.join(" | ")
    }

    fn way(&mut self, way: &[Item], inline: bool) -> String {
        if way.is_empty() {
            return "\"\"".to_owned();
        }
        if inline {
            return way.iter().map(|item| self.item(item, true)).collect::<Vec<_>>().join(" ");
        }
        let mut parts = Vec::new();
        let mut rest = way;
        while let Some(item) = rest.first() {
            let stretch = rest.iter().take_while(|item| self.is_regular(item)).count();
            if stretch == 0 {
                parts.push(self.item(item, false));
                rest = &rest[1..];
                continue;
            }
            let body = self.way(&rest[..stretch], true);
            let name = format!("S{}", self.terminals);
            self.terminals += 1;
            let _ = writeln!(self.lark, "{name}: {body}");
            parts.push(name);
            rest = &rest[stretch..];
        }
        parts.join(" ")
    }

    fn item(&mut self, item: &Item, inline: bool) -> String {
        let one = match &item.node {
            Node::Text(text) => quoted(text),
            Node::Class(negated, ranges) => class(*negated, ranges),
            Node::Any => "/(?s:.)/".to_owned(),
            Node::Rule(rule) => self.name(*rule),
            Node::Group(ways) => format!("({})", self.ways(ways, inline)),
        };
        match item.times {
            None => one,
            Some((0, None)) => format!("{one}*"),
            Some((1, None)) => format!("{one}+"),
            Some((0, Some(1))) => format!("{one}?"),
            Some((least, None)) => format!("{one}{{{least},}}"),
            Some((least, Some(most))) => format!("{one}{{{least},{most}}}"),
        }
    }
}

fn class(negated: bool, ranges: &[(char, char)]) -> String {
    let mut class = format!("/[{}", if negated { "^" } else { "" });
    for (first, last) in ranges {
        let _ = write!(class, "\\x{{{:x}}}-\\x{{{:x}}}", *first as u32, *last as u32);
    }
    class + "]/"
}

/// Reads a grammar character by character; errors say what was expected.
struct Reader<'a> {
    text: &'a str,
    at: usize,
    /// Where each rule is in `rules`; those that are only named so far have nothing there.
    names: HashMap<String, usize>,
    rules: Vec<Option<Ways>>,
}

type Read<T> = Result<T, String>;

impl Reader<'_> {
    fn line(&self) -> usize {
        1 + self.text[..self.at].matches('\n').count()
    }

    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += c.len_utf8();
        Some(c)
    }

    fn take(&mut self, text: &str) -> bool {
        let found = self.text[self.at..].starts_with(text);
        self.at += if found { text.len() } else { 0 };
        found
    }

    /// Skips spaces and comments, and line ends where they mean nothing.
    fn space(&mut self, lines: bool) {
        while let Some(c) = self.peek() {
            match c {
                '#' => {
                    let rest = &self.text[self.at..];
                    self.at += rest.find('\n').unwrap_or(rest.len());
                }
                ' ' | '\t' | '\r' => self.at += 1,
                '\n' if lines => self.at += 1,
                _ => return,
            }
        }
    }

    fn read(&mut self) -> Read<()> {
        self.space(true);
        while self.peek().is_some() {
            let name = self.name().ok_or("the name of a rule was expected")?;
            let place = self.place(name);
            self.space(false);
            if !self.take("::=") {
                return Err("`::=` was expected".to_owned());
            }
            self.space(true);
            let ways = self.ways(0)?;
            self.rules[place] = Some(ways);
            if !matches!(self.peek(), None | Some('\n')) {
                return Err("the end of a line was expected".to_owned());
            }
            self.space(true);
        }
        Ok(())
    }

    fn name(&mut self) -> Option<String> {
        let rest = &self.text[self.at..];
        let end = rest
            .find(|c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '_')
            .unwrap_or(rest.len());
        self.at += end;
        (end > 0).then(|| rest[..end].to_owned())
    }

    fn place(&mut self, name: String) -> usize {
        let next = self.rules.len();
        let place = *self.names.entry(name).or_insert(next);
        if place == next {
            self.rules.push(None);
        }
        place
    }

    fn ways(&mut self, depth: usize) -> Read<Ways> {
        if depth > MAX_NESTING {
            return Err(format!("at most {MAX_NESTING} brackets inside each other are taken"));
        }
        let mut ways = vec![self.way(depth)?];
        loop {
            // A line may begin with the next way.
            let before = self.at;
            self.space(true);
            if !self.take("|") {
                self.at = if depth > 0 { self.at } else { before };
                return Ok(ways);
            }
            self.space(true);
            ways.push(self.way(depth)?);
        }
    }

    fn way(&mut self, depth: usize) -> Read<Vec<Item>> {
        let mut items = Vec::new();
        loop {
            self.space(depth > 0);
            let node = match self.peek() {
                Some('"') => self.literal()?,
                Some('[') => self.class()?,
                Some('(') => {
                    self.next();
                    let ways = self.ways(depth + 1)?;
                    if !self.take(")") {
                        return Err("`)` was expected".to_owned());
                    }
                    Node::Group(ways)
                }
                Some('.') => {
                    self.next();
                    Node::Any
                }
                Some('<' | '!') => return Err("tokens (`<...>`) are not taken".to_owned()),
                _ => match self.name() {
                    Some(name) => Node::Rule(self.place(name)),
                    None => return Ok(items),
                },
            };
            self.space(false);
            let times = self.times()?;
            items.push(Item { node, times });
        }
    }

    fn times(&mut self) -> Read<Option<(u32, Option<u32>)>> {
        let times = match self.peek() {
            Some('*') => (0, None),
            Some('+') => (1, None),
            Some('?') => (0, Some(1)),
            Some('{') => {
                self.next();
                let least = self.number()?.ok_or("a number was expected after `{`")?;
                let most = if self.take(",") { self.number()? } else { Some(least) };
                if most.is_some_and(|most| most < least) {
                    return Err(format!("the most of `{{{least},...}}` is less than the least"));
                }
                if self.peek() != Some('}') {
                    return Err("`}` was expected".to_owned());
                }
                (least, most)
            }
            _ => return Ok(None),
        };
        self.next();
        Ok(Some(times))
    }

    fn number(&mut self) -> Read<Option<u32>> {
        self.space(false);
        let rest = &self.text[self.at..];
        let digits = &rest[..rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len())];
        self.at += digits.len();
        self.space(false);
        if digits.is_empty() {
            return Ok(None);
        }
        let number =
            digits.parse::<i32>().map_err(|_| format!("{digits} is too large a number"))?;
        Ok(Some(number.unsigned_abs()))
    }

    fn literal(&mut self) -> Read<Node> {
        self.next();
        let mut text = String::new();
        loop {
            match self.next() {
                None | Some('\n') => return Err("a text is not closed".to_owned()),
                Some('"') => return Ok(Node::Text(text)),
                Some('\\') => text.push(self.escaped()?),
                Some(c) => text.push(c),
            }
        }
    }

    fn class(&mut self) -> Read<Node> {
        self.next();
        let negated = self.take("^");
        let mut ranges = Vec::new();
        while !self.take("]") {
            let first = self.character()?;
            let is_range = self.peek() == Some('-') && !self.text[self.at..].starts_with("-]");
            let last = if is_range {
                self.next();
                self.character()?
            } else {
                first
            };
            if last < first {
                return Err("a range of characters ends before it begins".to_owned());
            }
            ranges.push((first, last));
        }
        match ranges.is_empty() {
            true if negated => Ok(Node::Any),
            true => Err("`[]` has no characters".to_owned()),
            false => Ok(Node::Class(negated, ranges)),
        }
    }

    fn character(&mut self) -> Read<char> {
        match self.next() {
            None | Some('\n') => Err("`]` was expected".to_owned()),
            Some('\\') => self.escaped(),
            Some(c) => Ok(c),
        }
    }

    fn escaped(&mut self) -> Read<char> {
        let unknown = || "an escape that is not known".to_owned();
        let digits = match self.next().ok_or_else(unknown)? {
            'n' => return Ok('\n'),
            'r' => return Ok('\r'),
            't' => return Ok('\t'),
            c @ ('\\' | '"' | '[' | ']' | '-' | '^' | '/') => return Ok(c),
            'x' => 2,
            'u' => 4,
            'U' => 8,
            _ => return Err(unknown()),
        };
        let rest = &self.text[self.at..];
        let hex = rest.get(..digits).ok_or_else(unknown)?;
        let code = u32::from_str_radix(hex, 16).ok().and_then(char::from_u32);
        self.at += digits;
        code.ok_or_else(|| "an escape that is no character".to_owned())
    }
}
