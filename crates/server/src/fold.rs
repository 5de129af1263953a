//! System messages where a template takes none, and conversations without a user: brought into a
//! form that every template takes, before it runs.
//!
//! What becomes of a message depends on the messages before it alone, so that a longer conversation
//! begins with the same text as a shorter one, and the prefix cache finds it.

use serde_json::{Value, json};
use text::Manners;

/// Folds messages that are in the template's form.
///
/// - System messages at the beginning become one.
/// - A later one becomes a note at the end of the user's turn, or of the tool's result, that it
///   follows. After an answer it is a turn of the user's own; between a call and its result it
///   waits for the result.
/// - Where the template insists on a user and an answer or a tool's result comes first, an empty
///   turn of the user's is put before it. A system message that stands alone is what there is to
///   answer, so the user says it: beside an empty turn it would be answered with a greeting.
pub(crate) fn fold(messages: Vec<Value>, manners: Manners) -> Vec<Value> {
    let mut folded = if manners.system_anywhere { messages } else { fold_systems(messages) };
    if !manners.needs_user {
        return folded;
    }
    match folded.iter().position(|message| role(message) != "system") {
        Some(at) if role(&folded[at]) != "user" => {
            folded.insert(at, json!({"role": "user", "content": ""}))
        }
        Some(_) => {}
        None => {
            if let Some(last) = folded.last_mut() {
                last["role"] = json!("user");
            }
        }
    }
    folded
}

fn fold_systems(messages: Vec<Value>) -> Vec<Value> {
    let mut folded: Vec<Value> = Vec::with_capacity(messages.len());
    // A turn of notes that stand between a call and its result.
    let mut waiting: Option<Value> = None;
    for message in messages {
        let said = content(&message);
        if role(&message) != "system" {
            let is_result = role(&message) == "tool";
            let notes = waiting.take();
            match (notes, is_result) {
                (Some(notes), true) => {
                    let mut result = message;
                    append(&mut result, &content(&notes));
                    folded.push(result);
                }
                (notes, _) => folded.extend(notes.into_iter().chain([message])),
            }
            continue;
        }
        match folded.last_mut() {
            None => folded.push(message),
            Some(_) if said.is_empty() => {}
            Some(first) if role(first) == "system" => append(first, &said),
            Some(turn) if matches!(role(turn), "user" | "tool") => append(turn, &note(&said)),
            Some(answer) if answer.get("tool_calls").is_some() => match &mut waiting {
                Some(notes) => append(notes, &note(&said)),
                None => waiting = Some(own_turn(&note(&said))),
            },
            Some(_) => folded.push(own_turn(&note(&said))),
        }
    }
    folded.extend(waiting);
    folded
}

fn note(said: &str) -> String {
    format!("<system_note>\n{said}\n</system_note>")
}

fn own_turn(note: &str) -> Value {
    json!({"role": "user", "content": note})
}

/// Adds a paragraph to a message.
fn append(message: &mut Value, paragraph: &str) {
    let said = content(message);
    let blank = if said.is_empty() { "" } else { "\n\n" };
    message["content"] = json!(format!("{said}{blank}{paragraph}"));
}

fn role(message: &Value) -> &str {
    message["role"].as_str().unwrap_or_default()
}

fn content(message: &Value) -> String {
    message["content"].as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STRICT: Manners = Manners { system_anywhere: false, needs_user: true };

    /// Messages written short: `s` system, `u` user, `a` answer, `c` call, `t` tool, each with its
    /// place as its words.
    fn conversation(roles: &str) -> Vec<Value> {
        let message = |(i, role): (usize, char)| {
            let said = i.to_string();
            match role {
                's' => json!({"role": "system", "content": said}),
                'u' => json!({"role": "user", "content": said}),
                'a' => json!({"role": "assistant", "content": said}),
                'c' => {
                    json!({"role": "assistant", "content": said, "tool_calls": [{"function": {"name": "f"}}]})
                }
                _ => json!({"role": "tool", "content": said}),
            }
        };
        roles.chars().enumerate().map(message).collect()
    }

    /// The same back: roles with their words; notes in brackets.
    fn shown(messages: &[Value]) -> String {
        let turn = |message: &Value| {
            let said =
                content(message).replace("<system_note>\n", "[").replace("\n</system_note>", "]");
            format!("{}({})", &role(message)[..1], said.replace("\n\n", " "))
        };
        messages.iter().map(turn).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn conversations_take_the_form_that_a_strict_template_wants() {
        for (said, folded) in [
            ("su", "s(0) u(1)"),
            ("ssu", "s(0 1) u(2)"),
            ("us", "u(0 [1])"),
            ("suss", "s(0) u(1 [2] [3])"),
            ("susu", "s(0) u(1 [2]) u(3)"),
            ("suasu", "s(0) u(1) a(2) u([3]) u(4)"),
            ("uas", "u(0) a(1) u([2])"),
            ("uctst", "u(0) a(1) t(2 [3]) t(4)"),
            ("ucstt", "u(0) a(1) t(3 [2]) t(4)"),
            ("ucsu", "u(0) a(1) u([2]) u(3)"),
            ("ucs", "u(0) a(1) u([2])"),
            ("uu", "u(0) u(1)"),
            ("ua", "u(0) a(1)"),
            ("s", "u(0)"),
            ("ss", "u(0 1)"),
            ("sa", "s(0) u() a(1)"),
            ("au", "u() a(0) u(1)"),
            ("tu", "u() t(0) u(1)"),
            ("sct", "s(0) u() a(1) t(2)"),
        ] {
            assert_eq!(shown(&fold(conversation(said), STRICT)), folded, "{said}");
        }
        // A template that takes all of that gets it as it was said.
        let free = Manners { system_anywhere: true, needs_user: false };
        for said in ["ssu", "suasu", "s", "tu"] {
            assert_eq!(fold(conversation(said), free), conversation(said), "{said}");
        }
    }

    proptest! {
        /// Whatever is said later, the turns before the last one stay as they were.
        #[test]
        fn later_messages_leave_earlier_turns_alone(roles in "[suact]{2,12}", cut in 1_usize..12) {
            let whole = conversation(&roles);
            let cut = cut.min(whole.len() - 1);
            let (short, long) = (fold(whole[..cut].to_vec(), STRICT), fold(whole, STRICT));
            // Only what the user has not answered yet can grow: the last turn, and a system message
            // that stood alone.
            let settled = short.len() - 1;
            prop_assert!(long.len() >= settled);
            prop_assert_eq!(&short[..settled], &long[..settled]);
            for message in &long[1..] {
                prop_assert!(role(message) != "system");
            }
            prop_assert!(long.iter().any(|message| role(message) == "user"));
        }
    }
}
