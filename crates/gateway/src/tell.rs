//! Tokens of an answer as messages of the engine protocol.

use crate::messages::{
    Candidate, Candidates, FinishInfo, GenerateResponse, PromptInfo, ResponseOptions,
    SequenceOutput, StopReason, finish,
};
use server::{ApiError, Ended, Piece};
use tonic::Status;

/// What of an answer is to be told.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    text: bool,
    tokens: bool,
    logprobs: bool,
    candidates: bool,
    prompt: bool,
    /// Tokens that the model ends answers with.
    ends: Vec<u32>,
    /// How far each answer is.
    answers: Vec<Progress>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    last: Option<u32>,
    tokens: u32,
    has_ended: bool,
}

impl Wanted {
    pub(crate) fn new(response: &ResponseOptions, answers: u32, ends: &[u32]) -> Self {
        Self {
            text: response.output_text.unwrap_or(true),
            tokens: response.output_token_ids,
            logprobs: response.output_logprobs,
            candidates: response.output_candidates.is_some(),
            prompt: response.prompt_token_ids,
            ends: ends.to_vec(),
            answers: vec![Progress::default(); answers.max(1) as usize],
        }
    }

    /// The first message.
    pub(crate) fn prompt(&self, prompt: &[u32]) -> GenerateResponse {
        let token_ids = if self.prompt { prompt.to_vec() } else { Vec::new() };
        let info = PromptInfo { num_prompt_tokens: prompt.len() as u32, token_ids };
        GenerateResponse { prompt_info: Some(info), outputs: None }
    }

    /// More of an answer.
    pub(crate) fn piece(&mut self, piece: Piece) -> GenerateResponse {
        let Piece { index, text, tokens, likelihoods, ended } = piece;
        let answer = &mut self.answers[index];
        answer.last = tokens.last().copied().or(answer.last);
        answer.tokens += tokens.len() as u32;
        answer.has_ended = ended.is_some();
        let candidates = |likelihood: &server::Likelihood| {
            let listed = likelihood.top.iter().zip(1..);
            let others = listed.filter(|((id, _), _)| *id != likelihood.token);
            let tokens =
                others.map(|((id, logprob), rank)| Candidate { id: *id, logprob: *logprob, rank });
            Candidates { tokens: tokens.collect() }
        };
        let mut output = SequenceOutput {
            index: index as u32,
            num_tokens: tokens.len() as u32,
            ..SequenceOutput::default()
        };
        if self.logprobs {
            output.logprobs = likelihoods.iter().map(|l| l.logprob).collect();
            output.ranks = likelihoods.iter().map(|l| l.rank as u32).collect();
        }
        if self.candidates {
            output.candidate_tokens = likelihoods.iter().map(candidates).collect();
        }
        output.finish_info = ended.map(|ended| self.finish(ended, self.answers[index]));
        if self.text {
            output.text = text;
        }
        if self.tokens {
            output.token_ids = tokens;
        }
        GenerateResponse { prompt_info: None, outputs: Some(output) }
    }

    fn finish(&self, ended: Ended, answer: Progress) -> FinishInfo {
        let stop_reason = match (ended.stop, answer.last) {
            _ if ended.is_cut => None,
            (Some(stop), _) => Some(StopReason::StopString(stop)),
            (None, Some(token)) if self.ends.contains(&token) => {
                Some(StopReason::EosTokenId(token))
            }
            (None, token) => token.map(StopReason::StopTokenId),
        };
        FinishInfo {
            num_output_tokens: answer.tokens,
            finish_reason: if ended.is_cut { finish::LENGTH } else { finish::STOP },
            stop_reason,
            num_cached_tokens: Some(ended.cached as u32),
        }
    }

    /// The end of answers that were given up because somebody asked for it.
    pub(crate) fn aborted(&self) -> impl Iterator<Item = GenerateResponse> {
        let open = self.answers.iter().enumerate().filter(|(_, answer)| !answer.has_ended);
        open.map(|(index, answer)| {
            let info = FinishInfo {
                num_output_tokens: answer.tokens,
                finish_reason: finish::ABORTED,
                ..FinishInfo::default()
            };
            let outputs = SequenceOutput {
                index: index as u32,
                finish_info: Some(info),
                ..SequenceOutput::default()
            };
            GenerateResponse { prompt_info: None, outputs: Some(outputs) }
        })
    }
}

/// An error as a gateway understands it: what another worker may do better is `UNAVAILABLE`, since
/// gateways try elsewhere then and only then.
pub(crate) fn status(error: &ApiError) -> Status {
    let message = error.to_string();
    match error {
        ApiError::Busy { .. }
        | ApiError::Crowded(_)
        | ApiError::Closing
        | ApiError::NotLoaded { .. }
        | ApiError::DeviceLost => Status::unavailable(message),
        ApiError::NoRoom { .. } => Status::resource_exhausted(message),
        ApiError::Deadline { .. } => Status::deadline_exceeded(message),
        ApiError::Internal(_) => Status::internal(message),
        _ => Status::invalid_argument(message),
    }
}
