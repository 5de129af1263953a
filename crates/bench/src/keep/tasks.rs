//! Tasks whose answer lies somewhere in a long prompt, made by a seed: a sentence or four of them
//! among others, a function among functions, and what a tool gave among what tools gave before.

use serde_json::{Map, Value, json};
use text::{CallEvent, ToolCalls};

/// Kinds of tasks, as `--tasks` names them.
pub(crate) const KINDS: [&str; 4] = ["needle", "needles", "code", "calls"];

/// A question with the place of its answer.
pub(crate) struct Task {
    pub(crate) messages: Vec<Value>,
    pub(crate) tools: Vec<Value>,
    /// Texts of the prompt that the answer follows from.
    pub(crate) evidence: Vec<String>,
    /// What a right answer contains.
    pub(crate) expected: Vec<String>,
    /// Whether it has to be a call of a tool.
    is_call: bool,
}

impl Task {
    /// Whether an answer is right. One that has to be a call is when a tool that is on offer is
    /// called with all that its schema asks for, and what it is about is right too.
    pub(crate) fn is_right(&self, answer: &str) -> bool {
        if !self.is_call {
            return self.expected.iter().all(|part| answer.contains(part));
        }
        let call = first_call(answer, &self.tools);
        let Some((name, arguments)) = call else { return false };
        let tool = self.tools.iter().find(|tool| tool["function"]["name"] == name.as_str());
        let required = tool.and_then(|tool| tool["function"]["parameters"]["required"].as_array());
        let has = |key: &Value| key.as_str().is_some_and(|key| arguments.contains_key(key));
        let told = Value::Object(arguments.clone()).to_string();
        required.is_some_and(|required| required.iter().all(has))
            && self.expected.iter().all(|part| told.contains(part))
    }
}

/// The first whole call of an answer.
fn first_call(answer: &str, tools: &[Value]) -> Option<(String, Map<String, Value>)> {
    let (mut name, mut arguments) = (None, String::new());
    for event in ToolCalls::new(tools).push(answer) {
        match event {
            CallEvent::Begin(begun) => name = Some(begun),
            CallEvent::Arguments(more) => arguments += &more,
            CallEvent::End => return Some((name?, serde_json::from_str(&arguments).ok()?)),
            CallEvent::Text(_) => {}
        }
    }
    None
}

/// Numbers that follow from a seed.
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) as usize % limit
    }

    fn of<'w>(&mut self, words: &[&'w str]) -> &'w str {
        words[self.below(words.len())]
    }
}

const PLACES: [&str; 12] = [
    "harbour",
    "library",
    "observatory",
    "mill",
    "greenhouse",
    "archive",
    "station",
    "bakery",
    "lighthouse",
    "museum",
    "quarry",
    "theatre",
];
const PEOPLE: [&str; 10] =
    ["Ada", "Boris", "Clara", "David", "Elena", "Farid", "Greta", "Hugo", "Irene", "Jonas"];
const DEEDS: [&str; 10] = [
    "walked to",
    "wrote a letter about",
    "painted",
    "talked about",
    "waited in front of",
    "drew a map of",
    "remembered",
    "asked the way to",
    "took a picture of",
    "dreamed of",
];
const TIMES: [&str; 8] = [
    "in the morning",
    "after lunch",
    "before the rain came",
    "on a quiet Sunday",
    "last winter",
    "while the bells rang",
    "at noon",
    "when nobody was there",
];
const VERBS: [&str; 8] = ["load", "merge", "scan", "count", "filter", "rotate", "pack", "resolve"];
const NOUNS: [&str; 10] = [
    "orders", "records", "tokens", "frames", "routes", "scores", "labels", "events", "rows",
    "caches",
];

/// A sentence that matters to nobody.
fn sentence(chance: &mut Chance) -> String {
    let (who, did) = (chance.of(&PEOPLE), chance.of(&DEEDS));
    format!("{who} {did} the {} {}.", chance.of(&PLACES), chance.of(&TIMES))
}

/// A function of some lines, with numbers that no other has.
fn function(chance: &mut Chance, name: &str) -> String {
    let (start, step, limit) =
        (chance.below(900) + 100, chance.below(90) + 10, chance.below(9000) + 1000);
    let items = chance.of(&NOUNS);
    format!(
        "def {name}({items}):\n    total = {start}\n    for item in {items}:\n        \
         total += item * {step}\n        if total > {limit}:\n            break\n    return total"
    )
}

fn name(chance: &mut Chance, taken: &mut Vec<String>) -> String {
    loop {
        let name =
            format!("{}_{}_{}", chance.of(&VERBS), chance.of(&NOUNS), chance.below(900) + 100);
        if !taken.contains(&name) {
            taken.push(name.clone());
            return name;
        }
    }
}

/// A task of that kind over `units` sentences, functions or lines of results, which are as long as
/// the caller makes them many.
pub(crate) fn task(kind: &str, units: usize, chance: &mut Chance) -> Task {
    match kind {
        "needle" => needles(1, units, chance),
        "needles" => needles(4, units, chance),
        "code" => code(units, chance),
        _ => calls(units, chance),
    }
}

fn needles(count: usize, units: usize, chance: &mut Chance) -> Task {
    let mut lines: Vec<String> = (0..units).map(|_| sentence(chance)).collect();
    let first = chance.below(PLACES.len());
    let places: Vec<&str> = (0..count).map(|i| PLACES[(first + i) % PLACES.len()]).collect();
    let (mut evidence, mut expected) = (Vec::new(), Vec::new());
    for place in &places {
        let code = (chance.below(90_000) + 10_000).to_string();
        let line = format!("The access code of the {place} is {code}.");
        lines.insert(chance.below(lines.len() + 1), line.clone());
        evidence.push(line);
        expected.push(code);
    }
    let asked = places.join(", the ");
    let text = format!(
        "{}\n\nWhat is the access code of the {asked}? Answer with the code alone, one a line.",
        lines.join(" ")
    );
    let messages = vec![json!({"role": "user", "content": text})];
    Task { messages, tools: Vec::new(), evidence, expected, is_call: false }
}

fn code(units: usize, chance: &mut Chance) -> Task {
    let mut taken = Vec::new();
    let names: Vec<String> = (0..units.max(1)).map(|_| name(chance, &mut taken)).collect();
    let functions: Vec<String> = names.iter().map(|name| function(chance, name)).collect();
    let asked = chance.below(functions.len());
    let text = format!(
        "```python\n{}\n```\n\nShow me `{}` as it is above.",
        functions.join("\n\n\n"),
        names[asked]
    );
    let lines = functions[asked].lines().map(|line| line.trim().to_owned()).collect();
    let messages = vec![json!({"role": "user", "content": text})];
    let evidence = vec![functions[asked].clone()];
    Task { messages, tools: Vec::new(), evidence, expected: lines, is_call: false }
}

/// A tool of one text argument.
fn tool(name: &str, about: &str, argument: &str) -> Value {
    json!({"type": "function", "function": {"name": name, "description": about,
        "parameters": {"type": "object", "properties": {argument: {"type": "string"}},
            "required": [argument]}}})
}

fn calls(units: usize, chance: &mut Chance) -> Task {
    let tools = vec![
        tool("read_file", "The text of a file.", "path"),
        tool("delete_file", "Removes a file.", "path"),
        tool("list_folder", "The files of a folder.", "path"),
    ];
    let folder = chance.of(&NOUNS);
    let mut taken = Vec::new();
    let mut listed: Vec<(String, String)> = (0..units.max(2))
        .map(|_| {
            let path = format!("src/{folder}/{}.py", name(chance, &mut taken));
            let about = format!("{}, {} lines, tests pass", sentence(chance), chance.below(900));
            (path, about)
        })
        .collect();
    let broken = chance.below(listed.len());
    listed[broken].1 = "marked as obsolete by its owner, may be deleted".to_owned();
    let lines: Vec<String> =
        listed.iter().map(|(path, about)| format!("{path}: {about}")).collect();
    let call = |id: &str, path: &str| {
        json!({"role": "assistant", "content": "", "tool_calls": [{"id": id, "type": "function",
            "function": {"name": "list_folder", "arguments": {"path": path}}}]})
    };
    let messages = vec![
        json!({"role": "system", "content": "You work on files with the tools on offer."}),
        json!({"role": "user", "content": "Delete the one file that is marked as obsolete."}),
        call("a", &format!("src/{folder}")),
        json!({"role": "tool", "tool_call_id": "a", "content": lines.join("\n")}),
        call("b", "tests"),
        json!({"role": "tool", "tool_call_id": "b", "content": "there are no files in it"}),
    ];
    let path = listed[broken].0.clone();
    Task {
        messages,
        tools,
        evidence: vec![lines[broken].clone()],
        expected: vec![path],
        is_call: true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_makes_the_same_tasks_and_their_answers_lie_in_them() {
        for kind in KINDS {
            let of = |seed| task(kind, 40, &mut Chance::new(seed));
            let (one, same, other) = (of(5), of(5), of(6));
            assert_eq!(one.messages, same.messages);
            assert_ne!(one.messages, other.messages);
            let texts: Vec<&str> =
                one.messages.iter().filter_map(|message| message["content"].as_str()).collect();
            for part in &one.evidence {
                assert_eq!(texts.join("\n").matches(part.as_str()).count(), 1, "{kind}: {part}");
            }
        }
    }

    #[test]
    fn right_answers_are_told_from_wrong_ones() {
        let of = |kind| task(kind, 10, &mut Chance::new(1));
        for kind in ["needle", "needles", "code"] {
            let task = of(kind);
            assert!(task.is_right(&task.evidence.join("\n")));
            assert!(!task.is_right("I do not know."));
        }
        let task = of("calls");
        let call = |name: &str, key: &str, path: &str| {
            let call = json!({"name": name, "arguments": {key: path}});
            format!("<tool_call>{call}</tool_call>")
        };
        let path = &task.expected[0];
        assert!(task.is_right(&call("delete_file", "path", path)));
        assert!(!task.is_right(&call("delete_file", "path", "src/other.py")));
        assert!(!task.is_right(&call("delete_file", "file", path)));
        assert!(!task.is_right(&call("remove", "path", path)));
        assert!(!task.is_right(path));
    }
}
