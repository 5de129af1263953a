//! One answer on its way: first a prompt that is read chunk by chunk, then tokens that become text.

use crate::job::{Event, Finish, News, Outcome, Report, Said, SpecReport, Ticket, Timing};
use crate::thought::Thought;
use engine::sampling::Likelihood;
use engine::{Generation, Round, Sequence};
use std::sync::Arc;
use std::time::{Duration, Instant};
use text::{Controls, Stream, Tokenizer};

/// A state is kept each time so many tokens of a prompt have been read.
const KEEP_EVERY: usize = 4096;

/// Text is told this often at most: a faster model would wake its readers for every token, and they share its processors.
const PACE: Duration = Duration::from_millis(5);

/// A prompt being read.
pub(crate) struct Reading {
    pub(crate) ticket: Arc<Ticket>,
    /// Which of the ticket's choices.
    pub(crate) choice: usize,
    pub(crate) sequence: Sequence,
    cached: usize,
    /// Numbers of tokens after which the state is worth keeping, ascending.
    marks: Vec<usize>,
    began: Instant,
}

impl Reading {
    /// `opening` is the token that begins a message.
    pub(crate) fn new(
        ticket: Arc<Ticket>,
        choice: usize,
        sequence: Sequence,
        cached: usize,
        opening: Option<u32>,
    ) -> Self {
        let mut marks = marks(&ticket.job.prompt, opening);
        if ticket.job.choices.len() > 1 {
            marks.push(ticket.job.prompt.len() - 1);
            marks.dedup();
        }
        Self { ticket, choice, sequence, cached, marks, began: Instant::now() }
    }

    /// Where the next chunk ends: after `limit` tokens, at the next mark or at the end of the prompt.
    pub(crate) fn chunk_end(&self, limit: usize) -> usize {
        let read = self.sequence.committed();
        let mark = self.marks.iter().copied().find(|m| *m > read);
        (read + limit).min(mark.unwrap_or(usize::MAX)).min(self.ticket.job.prompt.len())
    }

    /// Whether the state is one worth keeping.
    pub(crate) fn at_mark(&self) -> bool {
        self.marks.contains(&self.sequence.committed())
    }
}

/// Places in a prompt that later prompts are likely to share: the end of the first message (a system prompt with
/// tools), the beginnings of the last two (the next turn, another try at the last one), and every 4096 tokens. A
/// prompt without messages is kept whole but for its last token.
fn marks(prompt: &[u32], opening: Option<u32>) -> Vec<usize> {
    let last = prompt.len() - 1;
    let messages: Vec<usize> = (1..prompt.len()).filter(|i| Some(prompt[*i]) == opening).collect();
    let mut marks: Vec<usize> = (KEEP_EVERY..=last).step_by(KEEP_EVERY).collect();
    marks.extend(messages.first());
    marks.extend(&messages[messages.len().saturating_sub(2)..]);
    if messages.is_empty() && last > 0 {
        marks.push(last);
    }
    marks.sort_unstable();
    marks.dedup();
    marks
}

/// What is known of an answer when its prompt has been read.
pub(crate) struct Begun {
    ticket: Arc<Ticket>,
    choice: usize,
    report: Report,
    began: Instant,
}

impl Begun {
    pub(crate) fn of(reading: &Reading, mode: &'static str, load_s: f64) -> Self {
        let ticket = Arc::clone(&reading.ticket);
        let queue_s = reading.began.duration_since(ticket.arrived).as_secs_f64();
        let report = Report {
            seed: ticket.job.choices[reading.choice].seed,
            cached_tokens: reading.cached,
            spec: SpecReport { mode, ..SpecReport::default() },
            timing: Timing { load_s, queue_s, ..Timing::default() },
        };
        Self { ticket, choice: reading.choice, report, began: reading.began }
    }
}

/// An answer being written.
pub(crate) struct Answer {
    pub(crate) ticket: Arc<Ticket>,
    /// Which of the ticket's choices.
    pub(crate) choice: usize,
    generation: Generation,
    stream: Stream<Arc<Tokenizer>>,
    tokenizer: Arc<Tokenizer>,
    /// The prompt and everything the engine has emitted.
    tokens: Vec<u32>,
    /// Tokens of the answer.
    written: usize,
    finish: Finish,
    report: Report,
    first_token: Instant,
    /// What was written and not told yet, and when something was told last.
    untold: Said,
    told: Option<Instant>,
    thought: Option<Thought>,
}

impl Answer {
    pub(crate) fn new(begun: Begun, generation: Generation, tokenizer: Arc<Tokenizer>) -> Self {
        let Begun { ticket, choice, mut report, began } = begun;
        report.timing.prefill_s = began.elapsed().as_secs_f64();
        let stream = Stream::new(Arc::clone(&tokenizer), Controls::Hide, ticket.job.stops.iter().cloned());
        let tokens = ticket.job.prompt.clone();
        let reasoning = ticket.job.reasoning.clone();
        let thought = reasoning.map(|reasoning| Thought::new(reasoning, Arc::clone(&tokenizer)));
        let (finish, first_token) = (Finish::Length, Instant::now());
        Self {
            ticket,
            choice,
            generation,
            stream,
            tokenizer,
            tokens,
            written: 0,
            finish,
            report,
            first_token,
            untold: Said::default(),
            told: None,
            thought,
        }
    }

    /// Tokens of the prompt and the answer that the state holds.
    pub(crate) fn held_tokens(&self) -> usize {
        self.generation.sequence().committed()
    }

    /// The text and the room it has, for a round.
    pub(crate) fn text(&mut self) -> (&mut Generation, usize) {
        (&mut self.generation, self.ticket.job.room - self.written)
    }

    /// Its turn begins. Its reader has waited for it and may as well wait until there is more than a token to tell.
    pub(crate) fn begin_turn(&mut self) {
        self.told = self.told.map(|_| Instant::now());
    }

    /// Its turn ends: what was written is told, because nothing more will be for a while.
    pub(crate) fn end_turn(&mut self) {
        if self.ticket.job.stream {
            self.tell_text();
        }
    }

    /// Takes the token that was drawn when the prompt ended; whether the answer has ended with it.
    pub(crate) fn take_first(&mut self, likelihood: Option<Likelihood>) -> bool {
        let anchor = self.generation.anchor();
        self.take(&[anchor], 0, likelihood.as_slice())
    }

    /// Takes what a round emitted; whether the answer has ended with it.
    pub(crate) fn take_round(&mut self, round: &Round) -> bool {
        self.report.add(round);
        self.take(&round.emitted, round.stood, &round.likelihoods)
    }

    /// The first `stood` of the tokens were drafted.
    fn take(&mut self, emitted: &[u32], stood: usize, likelihoods: &[Likelihood]) -> bool {
        let before = self.written;
        self.tokens.extend(emitted);
        let mut ended = false;
        for (i, &token) in emitted.iter().enumerate() {
            self.written += 1;
            self.untold.tokens += 1;
            if let Some(thought) = &mut self.thought
                && !self.tokenizer.is_end(token)
            {
                thought.take(token);
            }
            let piece = self.stream.push(token);
            self.untold.text.push_str(&piece);
            if self.ticket.job.origins {
                self.untold.origins.push((piece.len(), i < stood));
            }
            if self.stream.stopped().is_some() || self.tokenizer.is_end(token) {
                self.finish = Finish::Stop;
                ended = true;
                break;
            }
            if self.written >= self.ticket.job.room {
                ended = true;
                break;
            }
        }
        if ended {
            self.untold.text.push_str(&self.stream.finish());
        }
        let taken = likelihoods.iter().take(self.written - before);
        self.untold.likelihoods.extend(taken.filter(|l| !self.tokenizer.is_end(l.token)).cloned());
        let due = self.ticket.job.stream && self.told.is_none_or(|told| told.elapsed() >= PACE);
        if ended || due {
            self.tell_text();
        }
        ended
    }

    fn tell_text(&mut self) {
        if !self.untold.is_empty() {
            let said = std::mem::take(&mut self.untold);
            self.tell(News::Text(said));
            self.told = Some(Instant::now());
        }
    }

    /// Whoever has left does not hear it; the scheduler notices at its next turn.
    pub(crate) fn tell(&self, news: News) {
        let choice = self.ticket.job.first_choice + self.choice;
        let _ = self.ticket.events.send(Event { choice, news });
    }

    /// What a whole answer took.
    pub(crate) fn outcome(&self) -> Outcome {
        let mut report = self.report.clone();
        let timing = &mut report.timing;
        timing.decode_s = self.first_token.elapsed().as_secs_f64();
        timing.tokens_per_s = self.written as f64 / timing.decode_s.max(1e-9);
        report.spec.fallback = self.generation.fallback();
        Outcome {
            finish: self.finish,
            stop: self.stream.stopped(),
            prompt_tokens: self.ticket.job.prompt.len(),
            completion_tokens: self.written,
            reasoning_tokens: self.thought.as_ref().map_or(0, Thought::tokens),
            cached_tokens: report.cached_tokens,
            report,
        }
    }

    /// The state the answer left, and the tokens that led to it.
    pub(crate) fn into_state(self) -> (Vec<u32>, Sequence) {
        let (mut tokens, sequence) = (self.tokens, self.generation.into_sequence());
        tokens.truncate(sequence.committed());
        (tokens, sequence)
    }
}

#[cfg(test)]
mod tests {
    use super::marks;

    #[test]
    fn states_are_kept_where_prompts_part() {
        // Four messages of three tokens, each begun by 9.
        let chat = [9, 1, 2, 9, 3, 4, 9, 5, 6, 9, 7, 8];
        assert_eq!(marks(&chat, Some(9)), [3, 6, 9]);
        assert_eq!(marks(&chat[..6], Some(9)), [3]);
        assert_eq!(marks(&chat[..3], Some(9)), [2]);
        assert_eq!(marks(&[5], Some(9)), [0; 0]);
        assert_eq!(marks(&[5, 6, 7], None), [2]);
        let long = vec![1; 10_000];
        assert_eq!(marks(&long, Some(9)), [4096, 8192, 9999]);
    }
}
