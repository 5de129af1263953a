//! Methods of Python's strings that the template engine does not have. Places in a text are counted
//! in characters.

use minijinja::value::Tuple;
use minijinja::{Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat::unknown_method_callback;

/// The widest that a text is padded to.
const MAX_WIDTH: usize = 1 << 16;

/// Calls a method that the engine does not know.
pub(super) fn method(
    state: &mut State,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    match value.as_str().and_then(|text| of_string(text, name, args).transpose()) {
        Some(result) => result,
        // Without a limit it does not matter from which side a text is split.
        None if name == "rsplit" => unknown_method_callback(state, value, "split", args),
        None => unknown_method_callback(state, value, name, args),
    }
}

/// A method of a string; nothing where it is none of these.
fn of_string(text: &str, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let argument = |i: usize| {
        let text = args.get(i).and_then(Value::as_str);
        text.ok_or_else(|| {
            Error::new(ErrorKind::InvalidOperation, format!("{name}: a string is missing"))
        })
    };
    Ok(Some(match name {
        "removeprefix" => text.strip_prefix(argument(0)?).unwrap_or(text).into(),
        "removesuffix" => text.strip_suffix(argument(0)?).unwrap_or(text).into(),
        "index" | "rindex" => {
            let at =
                if name == "index" { text.find(argument(0)?) } else { text.rfind(argument(0)?) };
            let at = at.map(|at| text[..at].chars().count());
            at.ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "substring not found"))?.into()
        }
        "partition" | "rpartition" => {
            let mark = argument(0)?;
            let parts =
                if name == "partition" { text.split_once(mark) } else { text.rsplit_once(mark) };
            let parts = match (parts, name) {
                (Some((before, after)), _) => [before, mark, after],
                (None, "partition") => [text, "", ""],
                (None, _) => ["", "", text],
            };
            Value::from(Tuple::from(parts.map(Value::from)))
        }
        "rsplit" if args.len() == 2 => {
            let most = usize::try_from(args[1].clone()).unwrap_or(usize::MAX - 1);
            let mut parts: Vec<Value> =
                text.rsplitn(most.saturating_add(1), argument(0)?).map(Value::from).collect();
            parts.reverse();
            parts.into()
        }
        "zfill" | "ljust" | "rjust" | "center" => padded(text, name, args)?.into(),
        _ => return Ok(None),
    }))
}

fn padded(text: &str, name: &str, args: &[Value]) -> Result<String, Error> {
    let wrong = |what: &str| Error::new(ErrorKind::InvalidOperation, format!("{name}: {what}"));
    let width = args.first().and_then(|width| i64::try_from(width.clone()).ok());
    let width = usize::try_from(width.ok_or_else(|| wrong("a width is missing"))?).unwrap_or(0);
    if width > MAX_WIDTH {
        return Err(wrong("too wide"));
    }
    let fill = match (name, args.get(1).map(Value::as_str)) {
        ("zfill", _) => "0",
        (_, None) => " ",
        (_, Some(Some(fill))) if fill.chars().count() == 1 => fill,
        _ => return Err(wrong("one character fills")),
    };
    let missing = width.saturating_sub(text.chars().count());
    // Python puts the odd one to the left of a text of odd width, and to the right otherwise.
    let left = match name {
        "ljust" => 0,
        "center" => missing / 2 + (missing & width & 1),
        _ => missing,
    };
    let (sign, digits) = match text.chars().next() {
        Some('+' | '-') if name == "zfill" => text.split_at(1),
        _ => ("", text),
    };
    Ok(format!("{sign}{}{digits}{}", fill.repeat(left), fill.repeat(missing - left)))
}
