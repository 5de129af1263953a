//! How `run` and `chat` show an answer: thinking apart from it, and a closing line that says how
//! fast it came and what drafting was worth.

use engine::{Round, Spec};
use launch::{Answer, Piece, Running};
use std::io::{BufWriter, IsTerminal, Result, Stderr, Write};
use std::time::Instant;
use text::{Parts, Reasoning};

/// Part of the time of an answer that may go into measuring plain decoding afterwards.
const SHARE: f64 = 0.1;
/// Seconds that always may: the first rounds of one row after wider ones are slower than the rest.
const UNNOTICED: f64 = 0.02;
/// Rounds that are measured at most: in as many tokens an anchor is folded once.
const ROUNDS: usize = 32;

/// Writes an answer as it comes. On a terminal thinking is dim; elsewhere it goes to standard
/// error, so that a file or a program gets the answer alone.
pub(crate) struct Telling<O: Write> {
    out: BufWriter<O>,
    aside: BufWriter<Stderr>,
    reasoning: Reasoning,
    is_terminal: bool,
    /// Whether the answer has begun, and whether anything was thought before it.
    answered: bool,
    thought: bool,
}

impl<O: Write> Telling<O> {
    /// For an answer to `prompt`, as the template wrote it.
    pub(crate) fn new(out: O, prompt: &str) -> Self {
        let is_terminal = std::io::stdout().is_terminal();
        let reasoning = Reasoning::new(prompt);
        let (out, aside) = (BufWriter::new(out), BufWriter::new(std::io::stderr()));
        Self { out, aside, reasoning, is_terminal, answered: false, thought: false }
    }

    /// Writes the next piece, in a colour where one is given. A round's tokens come all at once, so
    /// they are given away with its last, which was not drafted: a call of the system for each costs
    /// a tiny model a twelfth of its time.
    pub(crate) fn push(&mut self, piece: &Piece<'_>, colour: Option<u8>) -> Result<()> {
        let parts = self.reasoning.push(piece.text);
        self.show(&parts, colour)?;
        if piece.drafted { Ok(()) } else { self.flush() }
    }

    /// Writes what was held back, and ends the line.
    pub(crate) fn finish(&mut self) -> Result<()> {
        let rest = self.reasoning.finish();
        self.show(&rest, None)?;
        if self.thought && !self.answered && !self.is_terminal {
            writeln!(self.aside)?;
        }
        writeln!(self.out)?;
        self.flush()
    }

    fn flush(&mut self) -> Result<()> {
        self.aside.flush()?;
        self.out.flush()
    }

    fn show(&mut self, parts: &Parts, colour: Option<u8>) -> Result<()> {
        if !parts.reasoning.is_empty() {
            self.thought = true;
            match (self.is_terminal, colour) {
                (true, Some(colour)) => {
                    write!(self.out, "\x1b[2;{colour}m{}\x1b[0m", parts.reasoning)?
                }
                (true, None) => write!(self.out, "\x1b[2m{}\x1b[0m", parts.reasoning)?,
                (false, _) => self.aside.write_all(parts.reasoning.as_bytes())?,
            }
        }
        if !parts.content.is_empty() {
            if self.thought && !self.answered {
                match self.is_terminal {
                    true => write!(self.out, "\n\n")?,
                    false => writeln!(self.aside)?,
                }
            }
            self.answered = true;
            match colour {
                Some(colour) => write!(self.out, "\x1b[{colour}m{}\x1b[0m", parts.content)?,
                None => self.out.write_all(parts.content.as_bytes())?,
            }
        }
        Ok(())
    }
}

/// Tokens per second of decoding; the first token came with the prompt.
pub(crate) fn rate(given: &Answer) -> f64 {
    (given.ids.len() - 1) as f64 / given.decode_s.max(1e-9)
}

/// The closing line: tokens, their rate, how many a round gave, and how that compares with plain
/// decoding, of which some rounds are measured at the end of the same text.
pub(crate) fn closing_line(running: &mut Running, prompt: &[u32], given: &Answer) -> String {
    let mut line = format!("{} tokens, {:.0} a second", given.ids.len(), rate(given));
    let drafted: usize = given.rounds.iter().map(|round| round.drafted).sum();
    if drafted == 0 {
        return line;
    }
    let accepted: usize = given.rounds.iter().map(|round| round.accepted).sum();
    let length: usize = given.rounds.iter().map(Round::accept_length).sum();
    let length = length as f64 / given.rounds.len() as f64;
    line += &format!("; {accepted} of {drafted} drafts stood, {length:.1} tokens a round");
    let times = plain_seconds(running, prompt, given).map(|seconds| rate(given) * seconds);
    // A round takes no less than a plain one: where more comes out than its tokens, the machine was
    // busy while those were measured, and nothing is said.
    if let Some(times) = times.filter(|times| *times <= length) {
        line += &format!("; about {times:.1} times plain decoding, by the time of its rounds");
    }
    line
}

/// Seconds of a round without drafts, the mean of some after the text's end, on a copy of its state:
/// measured as what it is compared with, on a machine as busy. Nothing where it fails.
fn plain_seconds(running: &mut Running, prompt: &[u32], given: &Answer) -> Option<f64> {
    let all: Vec<u32> = prompt.iter().chain(&given.ids).copied().collect();
    let spec = running.engine.spec();
    let engine = &mut running.engine;
    let mut text = [engine.rehearsal(given.sequence.clone(), &all).ok()?];
    engine.set_spec(Spec::Off);
    let (start, mut rounds) = (Instant::now(), Vec::new());
    while rounds.len() < ROUNDS
        && start.elapsed().as_secs_f64() < UNNOTICED.max(SHARE * given.decode_s)
        && let Ok(round) = engine.rehearse(&mut text, 1, false)
    {
        rounds.push(round.round_s);
    }
    engine.set_spec(spec);
    (!rounds.is_empty()).then(|| rounds.iter().sum::<f64>() / rounds.len() as f64)
}
