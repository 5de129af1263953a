//! What `run -v` and `run --explain` show: rounds, where each token came from, and how long the
//! accepted runs were.

use engine::Round;
use launch::{Answer, Piece};
use std::io::{Result, Write};

/// One line a round.
pub(crate) fn round_line(out: &mut impl Write, number: usize, round: &Round) -> Result<()> {
    let ms = |seconds: f64| seconds * 1e3;
    let Round { drafted, accepted, drafter, draft_s, verify_s, judge_s, commit_s, .. } = round;
    writeln!(
        out,
        "round {number:>4}  {drafter:<6} drafted {drafted:>2}  accepted {accepted:>2}  rows {:>2}  \
         draft {:>6.2} ms  verify {:>6.2} ms  judge {:>5.2} ms  commit {:>5.2} ms",
        drafted + 1,
        ms(*draft_s),
        ms(*verify_s),
        ms(*judge_s),
        ms(*commit_s),
    )
}

/// The colour of a piece's origin: green was drafted and accepted, yellow is the target's own.
pub(crate) fn colour(piece: &Piece<'_>) -> u8 {
    if piece.drafted { 32 } else { 33 }
}

/// A piece of text, in a colour where one is given.
pub(crate) fn write(out: &mut impl Write, text: &str, colour: Option<u8>) -> Result<()> {
    match colour.filter(|_| !text.is_empty()) {
        Some(colour) => write!(out, "\x1b[{colour}m{text}\x1b[0m")?,
        None => out.write_all(text.as_bytes())?,
    }
    out.flush()
}

/// A bar for each acceptance length that occurred.
pub(crate) fn histogram(out: &mut impl Write, answer: &Answer) -> Result<()> {
    let lengths: Vec<usize> = answer.rounds.iter().map(Round::accept_length).collect();
    let Some(&longest) = lengths.iter().max() else { return Ok(()) };
    let counts: Vec<usize> =
        (0..=longest).map(|l| lengths.iter().filter(|&&x| x == l).count()).collect();
    let most = counts.iter().copied().max().unwrap_or(1).max(1);
    writeln!(out, "acceptance length, rounds")?;
    for (length, &count) in counts.iter().enumerate().skip(1).filter(|(_, count)| **count > 0) {
        let bar = "#".repeat((count * 40).div_ceil(most));
        writeln!(out, "{length:>3} {count:>5} {bar}")?;
    }
    let mean = lengths.iter().sum::<usize>() as f64 / lengths.len() as f64;
    writeln!(
        out,
        "mean {mean:.2} over {} rounds; \x1b[32mdrafted\x1b[0m, \x1b[33mthe target's own\x1b[0m",
        lengths.len()
    )
}
