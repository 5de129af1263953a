//! The content of a message, of whichever API: a string, or parts of which the model reads the
//! text. What it cannot read is refused where the answer hangs on it, and leaves a note where it is
//! history: a client that resends its conversation must be able to go on.

use crate::error::ApiError;
use crate::fields::{Fields, wrong};
use serde_json::Value;

/// What becomes of a part that is not text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unread {
    /// The request is refused: what the user says now, and what the system says.
    Refused,
    /// A note stands in its place: earlier turns, answers, results of tools.
    Noted,
}

/// The text of `content`.
pub(crate) fn read(content: &Value, path: &str, unread: Unread) -> Result<String, ApiError> {
    let parts = match content {
        Value::String(text) => return Ok(text.clone()),
        Value::Array(parts) => parts,
        other => return Err(wrong(path.to_owned(), other, "a string or an array of parts")),
    };
    let mut text = Text::default();
    for (i, part) in parts.iter().enumerate() {
        text.part(&Fields::within(part, format!("{path}[{i}]"))?, unread)?;
    }
    Ok(text.0)
}

/// A note in place of a part or an item of this type.
pub(crate) fn note(kind: &str) -> String {
    let what = match kind {
        "image_url" | "image" | "input_image" | "computer_screenshot" | "image_generation_call" => {
            "an image that this model cannot see"
        }
        "input_audio" | "audio" | "audio_url" | "output_audio" => {
            "audio that this model cannot hear"
        }
        "video_url" | "video" | "input_video" => "a video that this model cannot see",
        "file" | "input_file" | "container_upload" => "a file that this model cannot read",
        "document" => "a document that this model cannot read",
        "compaction" => {
            "an earlier part of the conversation that was put into a form that this model cannot read"
        }
        "item_reference" => "an earlier item that is not kept here",
        _ => return format!("[something of type {} that this model cannot read]", short(kind)),
    };
    format!("[{what}]")
}

/// At most 64 characters of a word that a client chose.
pub(crate) fn short(word: &str) -> String {
    word.chars().take(64).collect()
}

/// Text that grows part by part.
#[derive(Debug, Default)]
pub(crate) struct Text(pub(crate) String);

impl Text {
    /// Reads a part.
    pub(crate) fn part(&mut self, part: &Fields<'_>, unread: Unread) -> Result<(), ApiError> {
        part.required("type")?;
        let kind = part.string("type")?.unwrap_or_default();
        match kind {
            "text" | "input_text" | "output_text" | "reasoning_text" | "summary_text" => {
                part.required("text")?;
                self.0.push_str(part.string("text")?.unwrap_or_default());
            }
            "refusal" => self.0.push_str(part.string("refusal")?.unwrap_or_default()),
            // Thoughts among the parts of an answer: templates leave those of earlier turns out as
            // well.
            "thinking" | "redacted_thinking" | "reasoning" if unread == Unread::Noted => {}
            "document" => match document(part, unread)? {
                Some(text) => self.paragraph(&text),
                None => self.unreadable(part, kind, unread)?,
            },
            "search_result" => {
                let content =
                    part.get("content").map(|content| read(content, &part.path("content"), unread));
                let head = [part.string("title")?, part.string("source")?];
                let head: Vec<&str> = head.into_iter().flatten().collect();
                self.paragraph(&format!(
                    "{}\n{}",
                    head.join(", "),
                    content.transpose()?.unwrap_or_default()
                ));
            }
            "tool_reference" => {
                let name = part.string("tool_name")?.unwrap_or_default();
                self.paragraph(&format!("[the tool {} was found]", short(name)));
            }
            _ => self.unreadable(part, kind, unread)?,
        }
        Ok(())
    }

    /// Text on lines of its own.
    pub(crate) fn paragraph(&mut self, text: &str) {
        if !self.0.is_empty() && !self.0.ends_with('\n') {
            self.0.push('\n');
        }
        self.0.push_str(text);
        self.0.push('\n');
    }

    fn unreadable(
        &mut self,
        part: &Fields<'_>,
        kind: &str,
        unread: Unread,
    ) -> Result<(), ApiError> {
        if unread == Unread::Noted {
            self.paragraph(&note(kind));
            return Ok(());
        }
        if note(kind).starts_with("[something") {
            return Err(part.unlisted("type", "`text`"));
        }
        let path = part.whole_path();
        let message =
            format!("`{path}` is of type `{kind}`: the model that is served reads text only");
        Err(ApiError::field(path, message))
    }
}

/// The text of a document of Anthropic's, where it is one of text.
fn document(part: &Fields<'_>, unread: Unread) -> Result<Option<String>, ApiError> {
    let Some(source) = part.object("source")? else { return Ok(None) };
    let text = match source.string("type")? {
        Some("text") => source.string("data")?.unwrap_or_default().to_owned(),
        Some("content") => read(source.required("content")?, &source.path("content"), unread)?,
        _ => return Ok(None),
    };
    let head = [part.string("title")?, part.string("context")?];
    let head = head.into_iter().flatten().map(|line| format!("{line}\n")).collect::<String>();
    Ok(Some(head + &text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn parts_are_read_noted_or_refused() {
        let image = json!({"type": "image_url", "image_url": {"url": "data:"}});
        let plain =
            |data: &str| json!({"type": "document", "source": {"type": "text", "data": data}});
        let pdf = json!({"type": "document", "source": {"type": "base64", "data": "AA"}});
        let blocks = json!({"type": "document", "title": "T", "source": {"type": "content", "content": "inside"}});
        let found = json!({"type": "search_result", "title": "T", "source": "u", "content": [{"type": "text", "text": "x"}]});
        for (parts, noted, refused) in [
            (json!("as it is"), "as it is", None),
            (
                json!([{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}]),
                "ab",
                None,
            ),
            (
                json!([{"type": "text", "text": "See:"}, image, {"type": "text", "text": "Why?"}]),
                "See:\n[an image that this model cannot see]\nWhy?",
                Some("p[1]"),
            ),
            (
                json!([{"type": "input_audio"}]),
                "[audio that this model cannot hear]\n",
                Some("p[0]"),
            ),
            (json!([{"type": "file"}]), "[a file that this model cannot read]\n", Some("p[0]")),
            (
                json!([{"type": "smell"}]),
                "[something of type smell that this model cannot read]\n",
                Some("p[0].type"),
            ),
            (json!([plain("words")]), "words\n", None),
            (json!([blocks]), "T\ninside\n", None),
            (json!([pdf]), "[a document that this model cannot read]\n", Some("p[0]")),
            (json!([found]), "T, u\nx\n", None),
            (
                json!([{"type": "tool_reference", "tool_name": "f"}]),
                "[the tool f was found]\n",
                None,
            ),
        ] {
            assert_eq!(read(&parts, "p", Unread::Noted).unwrap(), noted, "{parts}");
            let now = read(&parts, "p", Unread::Refused).map_err(ApiError::named);
            assert_eq!(now.err().as_deref(), refused, "{parts}");
        }
    }
}
