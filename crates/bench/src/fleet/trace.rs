//! Conversations as they are had: agents with long prompts and many turns, chats with few, and
//! system prompts that many share.

use super::Random;
use super::router::Asked;
use clap::ValueEnum;

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Mix {
    /// Coding agents: tools in the prompt, results of calls as questions, hardly a pause
    Agents,
    /// People: short questions, longer answers, pauses to read them
    Chats,
    /// Three chats to one agent
    Mixed,
}

/// Conversations, by when they begin.
#[derive(Clone, Debug)]
pub(super) struct Trace {
    pub(super) talks: Vec<Talk>,
}

#[derive(Clone, Debug)]
pub(super) struct Talk {
    pub(super) begins: f64,
    /// Which system prompt it has, and how long that is.
    pub(super) system: usize,
    pub(super) system_tokens: usize,
    pub(super) turns: Vec<Turn>,
}

/// A question and its answer, in tokens.
#[derive(Clone, Debug)]
pub(super) struct Turn {
    pub(super) question: usize,
    pub(super) answer: usize,
    /// Seconds between the answer and the next question.
    pub(super) pause: f64,
}

/// One kind of conversation: means.
struct Kind {
    /// Different system prompts, and tokens of one.
    systems: usize,
    system: f64,
    turns: f64,
    question: f64,
    answer: f64,
    pause: f64,
}

const AGENT: Kind =
    Kind { systems: 4, system: 6000.0, turns: 12.0, question: 500.0, answer: 150.0, pause: 1.0 };
const CHAT: Kind =
    Kind { systems: 8, system: 600.0, turns: 4.0, question: 80.0, answer: 300.0, pause: 20.0 };

impl Trace {
    /// `rate` conversations begin in a second, for `seconds`.
    pub(super) fn make(
        mix: Mix,
        rate: f64,
        seconds: f64,
        lengths: f64,
        pauses: f64,
        seed: u64,
    ) -> Self {
        let mut random = Random(seed);
        let (mut talks, mut now) = (Vec::new(), 0.0);
        loop {
            now += random.exponential(1.0 / rate);
            if now >= seconds && !talks.is_empty() {
                return Self { talks };
            }
            let is_agent = match mix {
                Mix::Agents => true,
                Mix::Chats => false,
                Mix::Mixed => random.unit() < 0.25,
            };
            let kind = if is_agent { &AGENT } else { &CHAT };
            let which = (random.unit() * kind.systems as f64) as usize;
            // The same prompt has the same length in every conversation.
            let own =
                Random(1000 * kind.systems as u64 + which as u64).about(kind.system * lengths);
            let turns = random.about(kind.turns);
            let turn = |_| Turn {
                question: random.about(kind.question * lengths),
                answer: random.about(kind.answer * lengths),
                pause: random.exponential(kind.pause * pauses),
            };
            talks.push(Talk {
                begins: now,
                system: 100 * usize::from(is_agent) + which,
                system_tokens: own,
                turns: (0..turns).map(turn).collect(),
            });
        }
    }
}

impl Trace {
    /// Lengths of what is new in its prompts: the shortest, the longest and seven between them.
    pub(super) fn lengths(&self) -> Vec<usize> {
        let new = |talk: &Talk| -> Vec<usize> {
            let later = talk.turns.windows(2).map(|two| two[0].answer + two[1].question);
            [talk.prompt(0)].into_iter().chain(later).collect()
        };
        let mut all: Vec<usize> = self.talks.iter().flat_map(new).collect();
        all.sort_unstable();
        (0..=8).map(|i| all[i * (all.len() - 1) / 8]).collect()
    }

    /// Tokens before what is new in a prompt, the median of them.
    pub(super) fn before(&self) -> usize {
        let before = |talk: &Talk| -> Vec<usize> {
            let later = 1..talk.turns.len();
            later.map(|turn| talk.prompt(turn - 1) - talk.turns[turn - 1].question).collect()
        };
        let mut all: Vec<usize> = self.talks.iter().flat_map(before).collect();
        all.sort_unstable();
        all.get(all.len() / 2).copied().unwrap_or(0)
    }

    /// Seconds between two questions to one of so many workers, about.
    pub(super) fn pace(&self, workers: usize) -> f64 {
        let answers: usize = self.talks.iter().map(|talk| talk.turns.len()).sum();
        let lasts =
            |talk: &Talk| talk.begins + talk.turns.iter().map(|turn| turn.pause).sum::<f64>();
        let seconds = self.talks.iter().map(lasts).fold(0.0, f64::max);
        workers as f64 * seconds / answers.max(1) as f64
    }
}

impl Talk {
    /// What is asked in a turn.
    pub(super) fn asked(&self, talk: usize, turn: usize, has_answers: bool) -> Asked {
        Asked {
            talk,
            system: self.system,
            system_tokens: self.system_tokens,
            prompt: self.prompt(turn),
            question: self.turns[turn].question,
            has_answers,
        }
    }

    /// Tokens of the prompt of a turn: all that was said before it, and its question.
    pub(super) fn prompt(&self, turn: usize) -> usize {
        let before: usize = self.turns[..turn].iter().map(|t| t.question + t.answer).sum();
        self.system_tokens + before + self.turns[turn].question
    }
}
