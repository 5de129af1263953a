//! Texts to look at a drafter with: chats with and without thinking, and conversations that go
//! beyond its window, all with the target's own answers.

use super::Args;
use super::examine::TOKENS;
use anyhow::{Result, bail};
use bench::suites::{self, Suite};
use checkpoint::DrafterConfig;
use launch::TextSide;
use std::path::PathBuf;

/// Prompts as tokens.
pub(crate) struct Prompts {
    /// The same chats with thinking and without.
    pub(crate) thinking: Vec<Vec<u32>>,
    pub(crate) not_thinking: Vec<Vec<u32>>,
}

/// Suites whose prompts are chats.
const CHATS: [&str; 3] = ["code", "math", "plan"];
/// What stands before the chats at least: angles that are wrong show with distance.
const LONG: usize = 256;
/// Chats after it.
const TURNS: usize = 2;

impl Prompts {
    /// Prompts of `args`, or the repository's own.
    pub(crate) fn gather(args: &Args, text: &TextSide) -> Result<Self> {
        let count = usize::from(args.texts);
        let chats = |thinking: bool| -> Result<Vec<Vec<u32>>> {
            let suites: Vec<Suite> = match args.prompts.is_empty() {
                true => {
                    let each = count.div_ceil(CHATS.len());
                    let suite = |name: &&str| suites::suite_as(name, each, text, Some(thinking));
                    CHATS.iter().map(suite).collect::<Result<_>>()?
                }
                false => {
                    let file = |path: &PathBuf| suites::file_as(path, count, text, Some(thinking));
                    args.prompts.iter().map(file).collect::<Result<_>>()?
                }
            };
            Ok(suites.into_iter().flat_map(|s| s.prompts).collect())
        };
        Ok(Self { thinking: chats(true)?, not_thinking: chats(false)? })
    }
}

/// Chats after as many tokens of other chats with the target's own answers, `answered`, as fill the
/// drafter's window: [texts][turns].
pub(crate) fn long(
    args: &Args,
    drafter: &DrafterConfig,
    context: usize,
    prompts: &Prompts,
    answered: &[&[u32]],
) -> Result<Vec<Vec<Vec<u32>>>> {
    let chats: Vec<&Vec<u32>> =
        prompts.thinking.iter().zip(&prompts.not_thinking).flat_map(|(a, b)| [a, b]).collect();
    let most = chats.iter().map(|c| c.len()).max().unwrap_or(0);
    let window = drafter.layers.iter().filter_map(|l| l.window).max().unwrap_or(0);
    let wanted = args.length.map_or((window + window / 2).max(LONG), |length| length as usize);
    let room = context.saturating_sub(TURNS * (most + TOKENS));
    if room < 16 {
        bail!("a context of {context} tokens leaves no room to look at the drafter");
    }
    let conversation = |i: usize| {
        let mut before: Vec<u32> = Vec::new();
        for earlier in answered.iter().cycle().skip(5 * i) {
            if before.len() >= wanted.min(room) {
                break;
            }
            before.extend(*earlier);
        }
        before.truncate(room);
        let turn = |t: usize| chats[(i * TURNS + t) % chats.len()].clone();
        let mut turns: Vec<Vec<u32>> = (0..TURNS).map(turn).collect();
        turns[0] = [&before[..], &turns[0]].concat();
        turns
    };
    Ok((0..usize::from(args.texts)).map(conversation).collect())
}
