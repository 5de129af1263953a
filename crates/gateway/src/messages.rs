//! Messages of `vllm.Inference`, `vllm.Control` and `grpc.health.v1`, as far as they are spoken
//! here: names and numbers are the protocol's (its versions 0.3 to 0.6). What is not done is listed
//! all the same, so that it can be refused; a field that no version has is skipped, as protobuf
//! does. Structures without a fixed form are kept as bytes: they are only ever refused.

use prost::{Message, Oneof};
use std::collections::HashMap;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct GenerateRequest {
    #[prost(string, tag = "1")]
    pub(crate) request_id: String,
    #[prost(string, tag = "2")]
    pub(crate) model: String,
    #[prost(oneof = "Prompt", tags = "3, 4")]
    pub(crate) prompt: Option<Prompt>,
    #[prost(float, optional, tag = "5")]
    pub(crate) temperature: Option<f32>,
    #[prost(message, optional, tag = "6")]
    pub(crate) sampling: Option<RandomSampling>,
    #[prost(message, optional, tag = "7")]
    pub(crate) decoding: Option<DecodingParameters>,
    #[prost(message, optional, tag = "8")]
    pub(crate) stopping: Option<StoppingCriteria>,
    #[prost(message, optional, tag = "9")]
    pub(crate) response: Option<ResponseOptions>,
    #[prost(message, optional, tag = "10")]
    pub(crate) kv: Option<CacheParameters>,
    #[prost(uint32, tag = "11")]
    pub(crate) truncate_prompt_tokens: u32,
    #[prost(bytes = "vec", repeated, tag = "14")]
    pub(crate) media: Vec<Vec<u8>>,
    #[prost(string, tag = "15")]
    pub(crate) lora_name: String,
    #[prost(bytes = "vec", optional, tag = "17")]
    pub(crate) kv_hints: Option<Vec<u8>>,
    #[prost(bytes = "vec", optional, tag = "18")]
    pub(crate) engine_reasoning_gate: Option<Vec<u8>>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum Prompt {
    #[prost(string, tag = "3")]
    Text(String),
    #[prost(message, tag = "4")]
    TokenIds(TokenIds),
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TokenIds {
    #[prost(uint32, repeated, tag = "1")]
    pub(crate) ids: Vec<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RandomSampling {
    #[prost(uint32, tag = "1")]
    pub(crate) num_sequences: u32,
    #[prost(uint32, optional, tag = "2")]
    pub(crate) top_k: Option<u32>,
    #[prost(float, optional, tag = "3")]
    pub(crate) top_p: Option<f32>,
    #[prost(float, optional, tag = "4")]
    pub(crate) min_p: Option<f32>,
    #[prost(int64, optional, tag = "5")]
    pub(crate) seed: Option<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct DecodingParameters {
    #[prost(float, tag = "1")]
    pub(crate) presence_penalty: f32,
    #[prost(float, tag = "2")]
    pub(crate) frequency_penalty: f32,
    #[prost(float, tag = "3")]
    pub(crate) repetition_penalty: f32,
    #[prost(map = "uint32, float", tag = "4")]
    pub(crate) logit_bias: HashMap<u32, f32>,
    #[prost(uint32, repeated, tag = "5")]
    pub(crate) allowed_token_ids: Vec<u32>,
    #[prost(oneof = "Structured", tags = "6, 7, 8, 9, 10, 11")]
    pub(crate) structured: Option<Structured>,
    #[prost(message, repeated, tag = "12")]
    pub(crate) bad_words_token_ids: Vec<TokenIds>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum Structured {
    #[prost(string, tag = "6")]
    Json(String),
    #[prost(string, tag = "7")]
    Regex(String),
    #[prost(message, tag = "8")]
    Choice(Choices),
    #[prost(string, tag = "9")]
    Grammar(String),
    #[prost(bool, tag = "10")]
    JsonObject(bool),
    #[prost(string, tag = "11")]
    StructuralTag(String),
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Choices {
    #[prost(string, repeated, tag = "1")]
    pub(crate) choices: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct StoppingCriteria {
    #[prost(uint32, tag = "1")]
    pub(crate) max_new_tokens: u32,
    #[prost(uint32, tag = "2")]
    pub(crate) min_new_tokens: u32,
    #[prost(uint32, repeated, tag = "3")]
    pub(crate) stop_token_ids: Vec<u32>,
    #[prost(string, repeated, tag = "4")]
    pub(crate) stop_strings: Vec<String>,
    #[prost(bool, tag = "5")]
    pub(crate) include_stop_strings: bool,
    #[prost(bool, tag = "6")]
    pub(crate) ignore_eos: bool,
    #[prost(int64, optional, tag = "7")]
    pub(crate) thinking_token_budget: Option<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ResponseOptions {
    #[prost(bool, tag = "1")]
    pub(crate) prompt_token_ids: bool,
    #[prost(bool, tag = "2")]
    pub(crate) prompt_logprobs: bool,
    #[prost(bytes = "vec", optional, tag = "3")]
    pub(crate) prompt_candidates: Option<Vec<u8>>,
    #[prost(bool, optional, tag = "4")]
    pub(crate) output_text: Option<bool>,
    #[prost(bool, tag = "5")]
    pub(crate) output_token_ids: bool,
    #[prost(bool, tag = "6")]
    pub(crate) output_logprobs: bool,
    #[prost(message, optional, tag = "7")]
    pub(crate) output_candidates: Option<CandidateTokens>,
    #[prost(bool, optional, tag = "8")]
    pub(crate) skip_special_tokens: Option<bool>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct CandidateTokens {
    #[prost(oneof = "Select", tags = "1, 2, 3")]
    pub(crate) select: Option<Select>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum Select {
    #[prost(uint32, tag = "1")]
    TopN(u32),
    #[prost(message, tag = "2")]
    TokenIds(TokenIds),
    #[prost(bool, tag = "3")]
    All(bool),
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct CacheParameters {
    #[prost(bool, tag = "1")]
    pub(crate) bypass_prefix_cache: bool,
    #[prost(string, tag = "2")]
    pub(crate) cache_salt: String,
    #[prost(bytes = "vec", optional, tag = "3")]
    pub(crate) kv_transfer_params: Option<Vec<u8>>,
    #[prost(bytes = "vec", optional, tag = "4")]
    pub(crate) ec_transfer_params: Option<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct GenerateResponse {
    /// In the first response alone.
    #[prost(message, optional, tag = "1")]
    pub(crate) prompt_info: Option<PromptInfo>,
    #[prost(message, optional, tag = "2")]
    pub(crate) outputs: Option<SequenceOutput>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PromptInfo {
    #[prost(uint32, tag = "1")]
    pub(crate) num_prompt_tokens: u32,
    #[prost(uint32, repeated, tag = "2")]
    pub(crate) token_ids: Vec<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SequenceOutput {
    #[prost(uint32, tag = "1")]
    pub(crate) index: u32,
    #[prost(string, tag = "2")]
    pub(crate) text: String,
    #[prost(uint32, tag = "3")]
    pub(crate) num_tokens: u32,
    #[prost(uint32, repeated, tag = "4")]
    pub(crate) token_ids: Vec<u32>,
    #[prost(float, repeated, tag = "5")]
    pub(crate) logprobs: Vec<f32>,
    #[prost(uint32, repeated, tag = "6")]
    pub(crate) ranks: Vec<u32>,
    #[prost(message, repeated, tag = "7")]
    pub(crate) candidate_tokens: Vec<Candidates>,
    #[prost(message, optional, tag = "8")]
    pub(crate) finish_info: Option<FinishInfo>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Candidates {
    #[prost(message, repeated, tag = "1")]
    pub(crate) tokens: Vec<Candidate>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Candidate {
    #[prost(uint32, tag = "1")]
    pub(crate) id: u32,
    #[prost(float, tag = "2")]
    pub(crate) logprob: f32,
    #[prost(uint32, tag = "3")]
    pub(crate) rank: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct FinishInfo {
    #[prost(uint32, tag = "1")]
    pub(crate) num_output_tokens: u32,
    #[prost(int32, tag = "2")]
    pub(crate) finish_reason: i32,
    #[prost(oneof = "StopReason", tags = "3, 4, 5")]
    pub(crate) stop_reason: Option<StopReason>,
    #[prost(uint32, optional, tag = "9")]
    pub(crate) num_cached_tokens: Option<u32>,
}

/// Why an answer ended.
pub(crate) mod finish {
    pub(crate) const LENGTH: i32 = 1;
    pub(crate) const STOP: i32 = 2;
    pub(crate) const ABORTED: i32 = 3;
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum StopReason {
    #[prost(uint32, tag = "3")]
    StopTokenId(u32),
    #[prost(uint32, tag = "4")]
    EosTokenId(u32),
    #[prost(string, tag = "5")]
    StopString(String),
}

/// Of questions that say nothing, and of answers that say no more than that they came.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Empty {}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ServerInfo {
    #[prost(string, tag = "1")]
    pub(crate) engine_version: String,
    #[prost(string, tag = "2")]
    pub(crate) api_version: String,
    #[prost(string, tag = "3")]
    pub(crate) instance_id: String,
    #[prost(message, optional, tag = "4")]
    pub(crate) parallelism: Option<ParallelismInfo>,
    #[prost(uint32, tag = "5")]
    pub(crate) max_model_len: u32,
    #[prost(uint32, tag = "6")]
    pub(crate) kv_block_size: u32,
    #[prost(uint64, tag = "7")]
    pub(crate) total_kv_blocks: u64,
    #[prost(uint64, tag = "8")]
    pub(crate) max_running_requests: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ParallelismInfo {
    #[prost(uint32, tag = "1")]
    pub(crate) tensor_parallel_size: u32,
    #[prost(uint32, tag = "2")]
    pub(crate) pipeline_parallel_size: u32,
    #[prost(uint32, tag = "3")]
    pub(crate) data_parallel_size: u32,
    #[prost(uint64, tag = "6")]
    pub(crate) world_size: u64,
    #[prost(uint32, tag = "7")]
    pub(crate) data_parallel_size_local: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ModelInfo {
    #[prost(string, tag = "1")]
    pub(crate) model_id: String,
    #[prost(string, tag = "2")]
    pub(crate) served_model_name: String,
    #[prost(string, repeated, tag = "3")]
    pub(crate) served_model_aliases: Vec<String>,
    #[prost(bool, tag = "20")]
    pub(crate) supports_text_input: bool,
    #[prost(bool, tag = "21")]
    pub(crate) supports_token_ids_input: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct AbortRequest {
    #[prost(string, repeated, tag = "1")]
    pub(crate) request_ids: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct EventSources {
    #[prost(message, repeated, tag = "1")]
    pub(crate) sources: Vec<EventSource>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct EventSource {
    #[prost(string, tag = "1")]
    pub(crate) transport: String,
    #[prost(string, tag = "2")]
    pub(crate) endpoint: String,
    #[prost(uint32, optional, tag = "5")]
    pub(crate) data_parallel_rank: Option<u32>,
    #[prost(string, tag = "6")]
    pub(crate) encoding: String,
    #[prost(uint32, tag = "7")]
    pub(crate) schema_version: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct HealthRequest {
    #[prost(string, tag = "1")]
    pub(crate) service: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct HealthResponse {
    /// 1 where requests are taken, 2 where not.
    #[prost(int32, tag = "1")]
    pub(crate) status: i32,
}
