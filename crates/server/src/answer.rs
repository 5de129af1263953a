//! One answer while it is written: tokens become text that is told.

use crate::job::{
    Delta, Event, EventKind, Finish, Origin, Outcome, Report, SpecReport, Ticket, Timing,
};
use crate::output::OutputParser;
use crate::prefix::Source;
use crate::reading::Reading;
use crate::thought::Thought;
use engine::sampling::Likelihood;
use engine::{Engine, Generation, Round, Sequence, Stowed};
use std::sync::Arc;
use std::time::{Duration, Instant};
use text::{Stream, Tokenizer};

/// Text is told this often at most: a faster model would wake its readers for every token, and they
/// share its processors.
const PACE: Duration = Duration::from_millis(5);

/// What is known of an answer when its prompt has been read.
pub(crate) struct Begun {
    ticket: Arc<Ticket>,
    choice: usize,
    report: Report,
    began: Instant,
}

impl Begun {
    pub(crate) fn of(
        reading: &Reading,
        mode: &'static str,
        draft_device: Option<&str>,
        load_s: f64,
    ) -> Self {
        let ticket = Arc::clone(&reading.ticket);
        let queue_s = reading.began.duration_since(ticket.arrived).as_secs_f64();
        let report = Report {
            seed: ticket.job.choices[reading.choice].seed,
            cached_tokens: reading.cached,
            cached_from: reading.cached_from.map(Source::name),
            spec: SpecReport {
                mode,
                draft_device: draft_device.map(str::to_owned),
                ..SpecReport::default()
            },
            timing: Timing { load_s, queue_s, ..Timing::default() },
            prefill: ticket.job.prefill.clone(),
            ignored: ticket.job.ignored.clone(),
        };
        Self { ticket, choice: reading.choice, report, began: reading.began }
    }

    /// What an answer took that has no tokens.
    pub(crate) fn unwritten(self) -> Outcome {
        let Self { ticket, mut report, began, .. } = self;
        report.timing.prefill_s = began.elapsed().as_secs_f64();
        let (prompt_tokens, cached_tokens) = (ticket.job.asked_tokens(), report.cached_tokens);
        let (finish, stop, completion_tokens, reasoning_tokens) = (Finish::Length, None, 0, 0);
        Outcome {
            finish,
            stop,
            prompt_tokens,
            completion_tokens,
            reasoning_tokens,
            cached_tokens,
            report,
        }
    }
}

/// An answer being written.
pub(crate) struct Answer {
    pub(crate) ticket: Arc<Ticket>,
    /// Which of the ticket's choices.
    pub(crate) choice: usize,
    generation: Generation,
    stream: Stream<Arc<Tokenizer>>,
    parser: Option<OutputParser>,
    /// The prompt and everything the engine has emitted.
    tokens: Vec<u32>,
    /// Tokens of the answer.
    written: usize,
    finish: Finish,
    report: Report,
    first_token: Instant,
    /// When the last tokens came.
    last_tokens: Instant,
    /// What was written and not told yet, and when something was told last.
    untold: Delta,
    told: Option<Instant>,
    thought: Option<Thought>,
}

impl Answer {
    pub(crate) fn new(begun: Begun, generation: Generation, tokenizer: Arc<Tokenizer>) -> Self {
        let Begun { ticket, choice, mut report, began } = begun;
        report.timing.prefill_s = began.elapsed().as_secs_f64();
        let stream = Stream::new(
            Arc::clone(&tokenizer),
            ticket.job.controls,
            ticket.job.stops.iter().cloned(),
        )
        .after(&ticket.job.prompt[ticket.job.told_from()..]);
        let (tokens, parser) = (ticket.job.prompt.clone(), ticket.job.parser.clone());
        let reasoning = ticket.job.reasoning.clone();
        let thought = reasoning.map(|reasoning| Thought::new(reasoning, tokenizer));
        let (finish, first_token) = (Finish::Length, Instant::now());
        Self {
            ticket,
            choice,
            generation,
            stream,
            parser,
            tokens,
            written: 0,
            finish,
            report,
            first_token,
            last_tokens: first_token,
            untold: Delta::default(),
            told: None,
            thought,
        }
    }

    /// Tokens of the prompt and the answer that the state holds.
    pub(crate) fn held_tokens(&self) -> usize {
        self.generation.sequence().committed()
    }

    /// Seconds since its last tokens came; now others have.
    pub(crate) fn since_last(&mut self) -> f64 {
        let now = Instant::now();
        now.duration_since(std::mem::replace(&mut self.last_tokens, now)).as_secs_f64()
    }

    /// Tells the log what it took so far.
    pub(crate) fn record(&self, outcome: &Outcome) {
        if let Some(record) = &self.ticket.record {
            record.add_answer(outcome, self.choice == 0);
        }
    }

    /// Moves its state to the host's memory, where it waits.
    pub(crate) fn put_away(&mut self, engine: &mut Engine) -> Result<Stowed, engine::Error> {
        engine.put_away(&mut self.generation)
    }

    /// Brings its state back to where passes read it.
    pub(crate) fn bring_back(
        &mut self,
        engine: &mut Engine,
        state: &Stowed,
    ) -> Result<(), engine::Error> {
        engine.bring_back(&mut self.generation, state)
    }

    /// The text and the room it has, for a round.
    pub(crate) fn text(&mut self) -> (&mut Generation, usize) {
        (&mut self.generation, self.ticket.job.room - self.written)
    }

    /// Its turn begins. Its reader has waited for it and may as well wait until there is more than
    /// a token to tell.
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
        let tip = self.generation.tip();
        self.take(&[tip], 0, None, likelihood.as_slice())
    }

    /// Takes what a round emitted; whether the answer has ended with it.
    pub(crate) fn take_round(&mut self, round: &Round) -> bool {
        self.report.add(round);
        self.take(&round.emitted, round.accepted, Some(round.drafted), &round.likelihoods)
    }

    /// The first `accepted` of the tokens were drafted, of `proposed` in a round.
    fn take(
        &mut self,
        emitted: &[u32],
        accepted: usize,
        proposed: Option<usize>,
        likelihoods: &[Likelihood],
    ) -> bool {
        let before = self.written;
        self.tokens.extend(emitted);
        let mut ended = false;
        for (i, &token) in emitted.iter().enumerate() {
            self.written += 1;
            self.untold.tokens += 1;
            let is_end = self.ticket.job.ends.contains(&token);
            if let Some(thought) = self.thought.as_mut().filter(|_| !is_end) {
                thought.take(token);
            }
            let is_told = !is_end || self.ticket.job.include_stop;
            let piece = if is_told { self.stream.push(token) } else { String::new() };
            self.untold.text.push_str(&piece);
            if let Some(parser) = &mut self.parser {
                parser.push(&piece);
            }
            if self.ticket.job.ids {
                self.untold.ids.push(token);
            }
            if self.ticket.job.origins {
                let proposed = proposed.filter(|_| i == 0);
                self.untold.origins.push(Origin {
                    bytes: piece.len(),
                    drafted: i < accepted,
                    proposed,
                });
            }
            if self.stopped().is_some() || is_end {
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
            let rest = self.stream.finish();
            if let Some(parser) = &mut self.parser {
                parser.push(&rest);
                parser.finish();
            }
            self.untold.text.push_str(&rest);
            let stop = self.stream.stopped().filter(|_| self.ticket.job.include_stop);
            self.untold.text.push_str(stop.map_or("", |stop| &self.ticket.job.stops[stop]));
            if self.stopped().is_some() {
                self.finish = Finish::Stop;
            }
        }
        let taken = likelihoods.iter().take(self.written - before);
        let job = &self.ticket.job;
        let told = |l: &&Likelihood| job.tells_ends || !job.ends.contains(&l.token);
        self.untold.likelihoods.extend(taken.filter(told).cloned());
        let due = self.ticket.job.stream && self.told.is_none_or(|told| told.elapsed() >= PACE);
        if ended || due {
            self.tell_text();
        }
        ended
    }

    /// The stop string that has occurred.
    fn stopped(&self) -> Option<usize> {
        self.stream.stopped().or_else(|| self.parser.as_ref()?.stopped())
    }

    fn tell_text(&mut self) {
        if !self.untold.is_empty() {
            let delta = std::mem::take(&mut self.untold);
            self.tell(EventKind::Delta(delta));
            self.told = Some(Instant::now());
        }
    }

    /// Whoever has left does not hear it; the scheduler notices at its next turn.
    pub(crate) fn tell(&self, kind: EventKind) {
        let choice = self.ticket.job.first_choice + self.choice;
        let _ = self.ticket.events.send(Event { choice, kind });
    }

    /// What a whole answer took.
    pub(crate) fn outcome(&self) -> Outcome {
        let mut report = self.report.clone();
        let timing = &mut report.timing;
        timing.decode_s = self.first_token.elapsed().as_secs_f64();
        timing.tokens_per_s = self.written as f64 / timing.decode_s.max(1e-9);
        report.spec.fallback = self.generation.fallback().map(str::to_owned);
        Outcome {
            finish: self.finish,
            stop: self.stopped(),
            prompt_tokens: self.ticket.job.asked_tokens(),
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
