//! `--config FILE`: flags in a TOML file, under their names without the dashes. What the file says
//! becomes arguments in front of the user's own, so there is one way to read a flag, whichever way
//! it comes.
//!
//! ```toml
//! model = "target.gguf"   # for every verb that has the flag
//! [serve]                 # for this verb
//! slots = 8
//! cors = ["https://chat.example"]
//! ```

use anyhow::{Context, Result, bail};
use clap::{Arg, ArgAction, Command};
use std::ffi::OsString;
use std::path::PathBuf;
use toml::{Table, Value};

/// Names less alike than this are no help.
const ALIKE: f64 = 0.7;

/// The arguments of the program, with those of the file that they name.
pub(crate) fn with_file(args: Vec<OsString>, command: &Command) -> Result<Vec<OsString>> {
    let Some((path, at)) = find_verb(&args, command) else { return Ok(args) };
    let Some(verb) = args[at].to_str().and_then(|name| command.find_subcommand(name)) else {
        return Ok(args);
    };
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let table = text.parse::<Table>().with_context(|| path.display().to_string())?;
    let own = &args[at + 1..];
    let flags = flags(&table, command, verb, own).with_context(|| path.display().to_string())?;
    let flags = flags.into_iter().map(OsString::from);
    Ok(args[..=at].iter().cloned().chain(flags).chain(own.iter().cloned()).collect())
}

/// The file that is named and where the verb stands; nothing where either is missing, which is for
/// clap to judge.
fn find_verb(args: &[OsString], command: &Command) -> Option<(PathBuf, usize)> {
    let (mut path, mut verb) = (None, None);
    let mut rest = args.iter().enumerate().skip(1).take_while(|(_, arg)| *arg != "--");
    while let Some((at, arg)) = rest.next() {
        let text = arg.to_str().unwrap_or_default();
        if text == "--config" {
            path = rest.next().map(|(_, path)| PathBuf::from(path));
        } else if let Some(named) = text.strip_prefix("--config=") {
            path = Some(PathBuf::from(named));
        } else if verb.is_none() && command.find_subcommand(text).is_some() {
            verb = Some(at);
        }
    }
    Some((path?, verb?))
}

/// What the file says to `verb`, less what the user's own arguments say.
fn flags(
    table: &Table,
    command: &Command,
    verb: &Command,
    own: &[OsString],
) -> Result<Vec<String>> {
    let mut flags = Vec::new();
    let mut put = |name: &str, value: &Value, arg: &Arg| -> Result<()> {
        let rivals = verb.get_arguments().filter(|other| excludes(verb, arg, other));
        if !std::iter::once(arg).chain(rivals).any(|arg| is_given(arg, own)) {
            flags.extend(spell(name, value, arg)?);
        }
        Ok(())
    };
    for (name, value) in table {
        if let (Value::Table(section), Some(named)) = (value, command.find_subcommand(name)) {
            for (name, value) in section {
                let Some(arg) = find(named, name) else {
                    bail!("`{}.{name}` is no flag{}", named.get_name(), nearest(name, [named]));
                };
                if named.get_name() == verb.get_name() {
                    put(name, value, arg)?;
                }
            }
        } else if let Some(arg) = find(verb, name) {
            // What the verb's own section says is nearer.
            let nearer = table.get(verb.get_name()).and_then(|section| section.get(name));
            if nearer.is_none() {
                put(name, value, arg)?;
            }
        } else if command.get_subcommands().all(|verb| find(verb, name).is_none()) {
            bail!("`{name}` is no flag{}", nearest(name, command.get_subcommands()));
        }
    }
    Ok(flags)
}

/// The flag of that name. A file cannot name a file, nor ask for help.
fn find<'c>(verb: &'c Command, name: &str) -> Option<&'c Arg> {
    verb.get_arguments().find(|arg| arg.get_long() == Some(name)).filter(|arg| is_setting(arg))
}

fn is_setting(arg: &Arg) -> bool {
    let asks = matches!(
        arg.get_action(),
        ArgAction::Help | ArgAction::HelpShort | ArgAction::HelpLong | ArgAction::Version
    );
    !asks && arg.get_long() != Some("config")
}

fn excludes(verb: &Command, arg: &Arg, other: &Arg) -> bool {
    let among = |arg, other: &Arg| {
        verb.get_arg_conflicts_with(arg).iter().any(|a| a.get_id() == other.get_id())
    };
    among(arg, other) || among(other, arg)
}

fn is_given(arg: &Arg, own: &[OsString]) -> bool {
    let long = arg.get_long().map(|long| format!("--{long}"));
    let is_long = |text: &str| {
        let rest = long.as_deref().and_then(|long| text.strip_prefix(long));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
    };
    let is_short = |text: &str| {
        let short = text.strip_prefix('-').and_then(|rest| rest.chars().next());
        short.is_some() && short == arg.get_short()
    };
    let texts = own.iter().take_while(|arg| *arg != "--").filter_map(|arg| arg.to_str());
    texts.into_iter().any(|text| is_long(text) || is_short(text))
}

/// A flag as on a command line.
fn spell(name: &str, value: &Value, arg: &Arg) -> Result<Vec<String>> {
    let one = |value: &Value| match value {
        Value::String(text) => Ok(format!("--{name}={text}")),
        Value::Integer(number) => Ok(format!("--{name}={number}")),
        Value::Float(number) => Ok(format!("--{name}={number}")),
        Value::Boolean(yes) => Ok(format!("--{name}={yes}")),
        other => bail!("`{name}` is {}, a string or a number was expected", kind(other)),
    };
    match (arg.get_action(), value) {
        (ArgAction::SetTrue, Value::Boolean(true)) => Ok(vec![format!("--{name}")]),
        (ArgAction::SetTrue, Value::Boolean(false)) => Ok(Vec::new()),
        (ArgAction::SetTrue, other) => {
            bail!("`{name}` is {}, true or false was expected", kind(other))
        }
        (ArgAction::Append, Value::Array(values)) => values.iter().map(one).collect(),
        (_, value) => Ok(vec![one(value)?]),
    }
}

fn kind(value: &Value) -> String {
    match value {
        Value::Array(_) => "a list".to_owned(),
        Value::Table(_) => "a table".to_owned(),
        Value::String(_) => "a string".to_owned(),
        Value::Datetime(_) => "a time".to_owned(),
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::Boolean(yes) => yes.to_string(),
    }
}

/// Says which name was likely meant.
fn nearest<'c>(name: &str, verbs: impl IntoIterator<Item = &'c Command>) -> String {
    let args = verbs.into_iter().flat_map(Command::get_arguments).filter(|arg| is_setting(arg));
    let alike = args.filter_map(Arg::get_long).map(|long| (strsim::jaro_winkler(name, long), long));
    match alike.max_by(|a, b| a.0.total_cmp(&b.0)) {
        Some((alike, long)) if alike >= ALIKE => format!(": the nearest is `{long}`"),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command() -> Command {
        let flag = |name: &'static str| Arg::new(name).long(name);
        let serve = Command::new("serve")
            .arg(flag("slots").short('s'))
            .arg(flag("model"))
            .arg(flag("cors").action(ArgAction::Append))
            .arg(flag("no-auth").action(ArgAction::SetTrue))
            .arg(flag("api-key-file").conflicts_with("no-auth"));
        let run =
            Command::new("run").arg(flag("model")).arg(flag("raw").action(ArgAction::SetTrue));
        let mut command = Command::new("forerun").subcommand(serve).subcommand(run);
        command.build();
        command
    }

    fn read(file: &str, own: &[&str]) -> Result<String, String> {
        let command = command();
        let own: Vec<OsString> = own.iter().map(OsString::from).collect();
        let table = file.parse::<Table>().unwrap();
        let flags = flags(&table, &command, command.find_subcommand("serve").unwrap(), &own);
        // In which order a file's flags come makes no difference.
        let sorted = |mut flags: Vec<String>| {
            flags.sort();
            flags.join(" ")
        };
        flags.map(sorted).map_err(|error| error.to_string())
    }

    #[test]
    fn a_file_becomes_flags() {
        let file = "slots = 4\nmodel = 'a b'\ncors = ['x', 'y']\nno-auth = true\nraw = true";
        assert_eq!(read(file, &[]).unwrap(), "--cors=x --cors=y --model=a b --no-auth --slots=4");
        assert_eq!(read("no-auth = false", &[]).unwrap(), "");
        let sections = "model = 'all'\n[serve]\nmodel = 'mine'\n[run]\nmodel = 'other'";
        assert_eq!(read(sections, &[]).unwrap(), "--model=mine");
    }

    #[test]
    fn the_command_line_wins() {
        let file = "slots = 4\nmodel = 'm'\ncors = ['x']";
        assert_eq!(read(file, &["--slots", "2", "--cors=z"]).unwrap(), "--model=m");
        assert_eq!(read(file, &["-s2"]).unwrap(), "--cors=x --model=m");
        assert_eq!(read(file, &["--", "--slots"]).unwrap(), "--cors=x --model=m --slots=4");
        assert_eq!(read("no-auth = true", &["--api-key-file", "k"]).unwrap(), "");
        assert_eq!(read("api-key-file = 'k'", &["--no-auth"]).unwrap(), "");
    }

    #[test]
    fn what_no_flag_is_called_is_named() {
        assert_eq!(
            read("slotz = 4", &[]).unwrap_err(),
            "`slotz` is no flag: the nearest is `slots`"
        );
        assert_eq!(read("[serve]\nraw = true", &[]).unwrap_err(), "`serve.raw` is no flag");
        assert_eq!(read("config = 'x'", &[]).unwrap_err(), "`config` is no flag");
        assert_eq!(
            read("api_key_file = 'x'", &[]).unwrap_err(),
            "`api_key_file` is no flag: the nearest is `api-key-file`"
        );
        assert_eq!(
            read("slots = [1]", &[]).unwrap_err(),
            "`slots` is a list, a string or a number was expected"
        );
        assert_eq!(
            read("no-auth = 1", &[]).unwrap_err(),
            "`no-auth` is 1, true or false was expected"
        );
        assert_eq!(read("[serv]\nslots = 1", &[]).unwrap_err(), "`serv` is no flag");
    }
}
