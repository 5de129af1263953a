//! Texts to look at a drafter with: chats with and without thinking, and texts that go beyond its window, each gone on
//! with by the target itself.

use super::Args;
use crate::bench::suites::{self, Suite};
use crate::loading::TextSide;
use anyhow::{Result, bail};
use checkpoint::DrafterConfig;
use std::path::PathBuf;

/// Prompts as tokens.
pub(crate) struct Prompts {
    /// The same chats with thinking and without; nothing where the model has no template.
    pub(crate) thinking: Vec<Vec<u32>>,
    pub(crate) not_thinking: Vec<Vec<u32>>,
    /// Beyond the window where there is one.
    pub(crate) long: Vec<Vec<u32>>,
}

/// Suites whose prompts are chats.
const CHATS: [&str; 3] = ["code", "math", "plan"];
/// What a long prompt has at least: angles that are wrong show with distance.
const LONG: usize = 768;

impl Prompts {
    /// Prompts of `args`, or the repository's own.
    pub(crate) fn gather(
        args: &Args,
        drafter: &DrafterConfig,
        context: usize,
        text: &TextSide,
    ) -> Result<Self> {
        let count = usize::from(args.texts);
        let chats = |thinking: bool| -> Result<Vec<Vec<u32>>> {
            if text.template.is_none() && args.prompts.is_empty() {
                return Ok(Vec::new());
            }
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
        let (thinking, not_thinking) = (chats(true)?, chats(false)?);
        let window = drafter.layers.iter().filter_map(|l| l.window).max().unwrap_or(0);
        let wanted = args.length.map_or((2 * window).max(LONG), |length| length as usize);
        let room = context.saturating_sub(super::examine::TOKENS);
        if room < 16 {
            bail!("a context of {context} tokens leaves no room to look at the drafter");
        }
        let length = wanted.min(room);
        let own: Vec<Vec<u32>> = thinking.iter().filter(|p| p.len() > length).cloned().collect();
        let long = match own.is_empty() {
            true => long(&thinking, count, length, text)?,
            false => own,
        };
        Ok(Self { thinking, not_thinking, long })
    }
}

/// Prompts of `length` tokens: text that ends anywhere, and every other one with a chat at its end.
fn long(chats: &[Vec<u32>], count: usize, length: usize, text: &TextSide) -> Result<Vec<Vec<u32>>> {
    let source = suites::suite("long", usize::MAX, text)?;
    let prompt = |i: usize| {
        let chat: &[u32] = match (i % 2, chats.len()) {
            (0, n) if n > 0 => &chats[i / 2 % n],
            _ => &[],
        };
        let before = length.saturating_sub(chat.len());
        let texts = source.prompts.iter().cycle().skip(i).flatten().copied();
        texts.take(before).chain(chat.iter().copied()).collect()
    };
    Ok((0..count).map(prompt).collect())
}
