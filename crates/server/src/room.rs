//! Making room where the memory for the state of texts runs short: what is kept of earlier prompts
//! goes first, then the youngest answer waits in the host's memory and goes on later with the same
//! bits, and until it has come back nobody new is let in. Only a text that does not fit alone ends.

use crate::answer::Answer;
use crate::disk::Disk;
use crate::error::ApiError;
use crate::failure::Failure;
use crate::scheduler::{Scheduler, Work};
use engine::Stowed;

/// Rounds of others after which an answer that had to make way tries to come back.
const TRY_AFTER: usize = 64;

/// An answer whose state waits in the host's memory.
pub(crate) struct Away {
    pub(crate) answer: Answer,
    state: Stowed,
    /// Texts that were under way when it left; with fewer there may be room again.
    company: usize,
    /// Rounds of others since then.
    rounds: usize,
}

/// The text that is out of room does not fit beside nothing.
pub(crate) fn too_large(tokens: usize) -> ApiError {
    ApiError::NoRoom { tokens }
}

impl Scheduler {
    /// Lets go of the state that was kept of an earlier prompt and used longest ago; no, where
    /// there is none.
    pub(crate) fn drop_kept(&mut self) -> bool {
        // What waits to be written down holds memory as well.
        let dropped = self.disk.as_mut().is_some_and(Disk::drop_unsaved)
            || self.cache.make_way(&mut self.engine);
        self.note_cache();
        dropped
    }

    /// Lets go of something, so that what was short of room can be tried again; no, where nothing
    /// is left that could make way.
    pub(crate) fn make_way(&mut self, work: &mut Work) -> bool {
        if self.drop_kept() {
            return true;
        }
        if work.busy_slots() < 2 {
            return false;
        }
        let company = work.busy_slots();
        let Some(mut answer) = work.answers.take_youngest(|answer| answer.ticket.arrived) else {
            return false;
        };
        match answer.put_away(&mut self.engine) {
            Ok(state) => {
                tracing::info!(texts = company, "an answer waits for room in the host's memory");
                work.away.push_back(Away { answer, state, company, rounds: 0 });
                true
            }
            Err(error) => {
                tracing::warn!(cause = %error, "an answer could not be put away");
                self.note(&Failure::Engine(error));
                work.answers.push(answer);
                false
            }
        }
    }

    /// Brings back who had to make way, the longest away first, where there may be room again.
    pub(crate) fn bring_back(&mut self, work: &mut Work) {
        while let Some(mut away) = work.away.pop_front() {
            let busy = work.busy_slots();
            let is_due = busy == 0 || busy < away.company - 1 || away.rounds >= TRY_AFTER;
            if !is_due || busy >= self.slots {
                work.away.push_front(away);
                return;
            }
            let failed = match away.answer.bring_back(&mut self.engine, &away.state) {
                Ok(()) => {
                    work.answers.push(away.answer);
                    continue;
                }
                Err(error) => Failure::Engine(error),
            };
            self.note(&failed);
            if self.lost.is_some() {
                work.away.push_front(away);
                return;
            }
            if failed.is_out_of_memory() && self.drop_kept() {
                work.away.push_front(away);
                continue;
            }
            if busy == 0 && !self.drop_kept() {
                let tokens = away.answer.held_tokens();
                away.answer.fail(too_large(tokens));
                continue;
            }
            away.rounds = 0;
            work.away.push_front(away);
            if busy > 0 {
                return;
            }
        }
    }
}

impl Away {
    /// Others had a round.
    pub(crate) fn wait(&mut self) {
        self.rounds += 1;
    }
}
