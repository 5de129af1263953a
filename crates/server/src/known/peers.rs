//! Fields that no publisher of an API knows and clients send all the same, because vLLM, SGLang,
//! llama.cpp, OpenRouter or a model's maker has them; and our own.

use super::{Field, done, harmless, ignored, refused, within};

/// Fields that are handed on as they are where a request is translated into a chat.
pub(crate) const PASSED: [&str; 8] = [
    "top_k",
    "min_p",
    "seed",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "chat_template_kwargs",
];

/// What an answer is and what ends it, in any of the APIs.
pub(super) const EXTENSIONS: &[Field] = &[
    done("min_tokens", "the least tokens of an answer"),
    done("min_new_tokens", "the same as SGLang calls it"),
    done("ignore_eos", "no end before the limit"),
    done("stop_token_ids", "tokens that end an answer"),
    done("include_stop_str_in_output", "the stop as part of the answer"),
    done("bad_words", "words that are not said"),
    done("allowed_token_ids", "the only tokens that are said"),
    done("guided_json", "an answer that fits a schema"),
    done("guided_json_object", "an answer that is an object"),
    done("guided_regex", "an answer that fits a pattern"),
    done("guided_choice", "an answer out of a list"),
    done("guided_grammar", "an answer that fits a grammar"),
    within("structured_outputs", STRUCTURED, "any of these"),
    done("json_schema", "an answer that fits a schema"),
    done("regex", "an answer that fits a pattern"),
    done("ebnf", "an answer that fits a grammar"),
    done("grammar", "an answer that fits a grammar"),
];

const STRUCTURED: &[Field] = &[
    done("json", "an answer that fits a schema"),
    done("json_object", "an answer that is an object"),
    done("regex", "an answer that fits a pattern"),
    done("choice", "an answer out of a list"),
    done("grammar", "an answer that fits a grammar"),
    refused("structural_tag", &[], "shapes between tags"),
    refused("whitespace_pattern", &[], "white space as a pattern says"),
    refused(
        "disable_additional_properties",
        &["false"],
        "schemas read more strictly than they are written",
    ),
    refused("disable_any_whitespace", &["true"], "white space anywhere; JSON has one spacing here"),
    harmless("disable_fallback", "there is one library that holds an answer to its shape"),
];

/// The same as a table, for the translated APIs.
pub(super) const TRANSLATED: &[Field] = &[
    done("top_k", "drawing from so many of the likeliest"),
    done("min_p", "drawing from what is likely enough"),
    done("seed", "drawing the same again"),
    done("repetition_penalty", "a factor against what was said"),
    done("presence_penalty", "a penalty on what was said"),
    done("frequency_penalty", "a penalty on what was said often"),
    done("logit_bias", "likelier and less likely tokens"),
    done("chat_template_kwargs", "variables of the template"),
];

/// Ours.
pub(super) const OURS: &[Field] = &[within(
    "forerun",
    &[
        done("origins", "which tokens were drafted"),
        done("progress", "how much of the prompt has been read"),
        done("prefill_keep", "what is kept of a long prompt, 1 for all of it"),
        done("written", "how many of the prompt's last tokens the answer has already"),
    ],
    "what is told of how the answer came about",
)];

/// Of these, what the translated APIs have too.
pub(super) const KEEP: &[Field] = &[within(
    "forerun",
    &[done("prefill_keep", "what is kept of a long prompt, 1 for all of it")],
    "how a long prompt is read",
)];

/// How tokens are drawn and what ends an answer, of chats and completions.
pub(super) const SAMPLING: &[Field] = &[
    done("top_k", "drawing from so many of the likeliest"),
    done("min_p", "drawing from what is likely enough"),
    done("repetition_penalty", "a factor against what was said"),
    done("repeat_penalty", "the same as llama.cpp calls it"),
    done("n_predict", "the most tokens of an answer, as llama.cpp calls it"),
    done("return_progress", "how much of the prompt has been read, as llama.cpp calls it"),
    done("prompt_logprobs", "how likely the prompt was"),
    done("truncate_prompt_tokens", "the end of a prompt that is too long"),
    done("skip_special_tokens", "control tokens as part of the answer"),
    harmless("guided_decoding_backend", "which library holds an answer to its shape"),
    harmless("spaces_between_special_tokens", "these tokenizers put none there"),
];

/// Of chats alone.
pub(super) const CHAT: &[Field] = &[
    done("chat_template_kwargs", "variables of the template"),
    done("add_generation_prompt", "whether the model's turn is begun"),
    done("continue_final_message", "going on from the last message"),
    done("enable_thinking", "whether it is thought first"),
    within("thinking", THINKING, "whether it is thought first, as DeepSeek says it"),
    within("reasoning", REASONING, "how much is thought, as OpenRouter says it"),
    done("thinking_budget", "an end to thinking after so many tokens"),
    done("thinking_token_budget", "the same as vLLM calls it"),
    refused("include_reasoning", &["true"], "hiding thoughts"),
    refused("echo", &["false"], "the last message before the answer"),
    refused("add_special_tokens", &["false"], "a token before what the template says"),
    refused("chat_template", &[], "a template of the request's own"),
    refused("documents", &["[]"], "documents beside the conversation"),
    refused("reasoning_format", &["\"auto\"", "\"deepseek\""], "thoughts in another place"),
    refused("separate_reasoning", &["true"], "thoughts as part of the answer"),
    refused("reasoning_in_content", &["false"], "thoughts as part of the answer"),
    refused("parse_tool_calls", &["true"], "calls as part of the text"),
    refused("enable_search", &["false"], "searching the web"),
    refused("plugins", &["[]"], "what another server does before the model"),
    ignored("reasoning_budget", &["-1"], "an end to thinking"),
    ignored("reasoning_budget_tokens", &["-1"], "an end to thinking"),
    ignored("verbose", &["false"], "telling how the answer came about"),
    ignored("safe_prompt", &["false"], "a caution before the conversation"),
    harmless("stream_reasoning", "thoughts are always told as they are written"),
    harmless("thinking_forced_open", "the prompt says so itself"),
    harmless("mm_processor_kwargs", "how images are read; there are none"),
    harmless("media_io_kwargs", "how images are read; there are none"),
    harmless("vl_high_resolution_images", "how images are read; there are none"),
];

const THINKING: &[Field] = &[
    done("type", "whether it is thought first"),
    ignored("budget_tokens", &[], "an end to thinking"),
    harmless("clear_thinking", "earlier thoughts are as the template has them"),
];

const REASONING: &[Field] = &[
    done("effort", "how much is thought"),
    done("enabled", "whether it is thought first"),
    refused("exclude", &["false"], "hiding thoughts"),
    ignored("max_tokens", &[], "an end to thinking"),
    ignored("summary", &[], "thoughts told in short"),
];

/// Of completions alone.
pub(super) const COMPLETIONS: &[Field] = &[
    done("response_format", "what shape an answer has"),
    done("add_special_tokens", "the token that begins a text"),
    refused("prompt_embeds", &[], "a prompt that is no text"),
    refused("input_prefix", &[], "filling in"),
    refused("input_suffix", &[], "filling in"),
    refused("input_extra", &[], "filling in"),
];

/// What would change an answer and is not done, wherever it is asked.
pub(super) const REFUSED: &[Field] = &[
    refused("use_beam_search", &["false"], "searching for the likeliest answer"),
    refused("length_penalty", &["1"], "favouring long answers in a search"),
    refused("early_stopping", &["false"], "the end of a search"),
    refused("logits_processors", &["[]"], "code of the request's own"),
    refused("custom_logit_processor", &[], "code of the request's own"),
    refused("custom_params", &[], "what code of the request's own reads"),
    refused("vllm_xargs", &["{}"], "what an extension of vLLM reads"),
    refused("extra_args", &["{}"], "what an extension of vLLM reads"),
    refused("kv_transfer_params", &["{}"], "reading a prompt elsewhere"),
    refused("ec_transfer_params", &["{}"], "reading images elsewhere"),
    refused("session_params", &["{}"], "a conversation that the server keeps"),
    refused("lora", &["[]"], "an adapter for one request"),
    refused("lora_path", &[], "an adapter for one request"),
    refused("lora_request", &[], "an adapter for one request"),
    refused("logprob_token_ids", &["[]"], "likelihoods of chosen tokens"),
    refused("return_hidden_states", &["false"], "telling hidden states"),
    refused("return_routed_experts", &["false"], "telling which experts were chosen"),
    refused("return_tokens_as_token_ids", &["false"], "tokens told by number"),
    refused("return_token_ids", &["false"], "tokens told by number"),
    refused("return_tokens", &["false"], "tokens told by number"),
    refused("truncation_side", &["\"left\""], "cutting a prompt at its end"),
    refused(
        "no_stop_trim",
        &["false"],
        "the stop as part of the answer (`include_stop_str_in_output` does it)",
    ),
    refused("stop_regex", &["[]", "\"\""], "stopping at a pattern"),
    refused("structural_tag", &[], "shapes between tags"),
    refused("guided_whitespace_pattern", &[], "white space as a pattern says"),
    refused("grammar_lazy", &["false"], "a grammar that begins later"),
    refused("grammar_triggers", &["[]"], "a grammar that begins later"),
    refused("n_indent", &["0"], "a line's least indentation"),
    refused("mirostat", &["0"], "sampling to a perplexity"),
    refused("dynatemp_range", &["0"], "a temperature that changes"),
    refused("dry_multiplier", &["0"], "a penalty on repeated runs of tokens"),
    refused("xtc_probability", &["0"], "leaving out the likeliest tokens"),
    refused("typical_p", &["1"], "drawing what is typical"),
    refused("tfs_z", &["1"], "drawing without the tail"),
    refused("top_a", &["0"], "drawing from what is likely enough beside the likeliest"),
    refused("top_n_sigma", &["-1", "0"], "drawing from what is likely enough by deviations"),
    refused("adaptive_target", &["-1"], "sampling to a probability"),
    refused("smoothing_factor", &["0"], "a smoother distribution"),
    refused("min_keep", &["0", "1"], "a least number of tokens to draw from"),
    refused("penalize_nl", &["false"], "a penalty on new lines"),
    refused("repetition_detection", &[], "an end to answers that repeat themselves"),
    refused("t_max_predict_ms", &["0", "-1"], "an answer's limit in time"),
    refused("n_probs", &["0"], "likelihoods under this name (`logprobs` has them)"),
    refused("post_sampling_probs", &["false"], "likelihoods after sampling"),
    refused("response_fields", &["[]"], "choosing what is told"),
    refused("image_data", &["[]"], "reading images"),
    refused("transforms", &["[]"], "shortening a conversation"),
];

/// What is not done and no answer hangs on; the answer says that it was not.
pub(super) const IGNORED: &[Field] = &[
    ignored("samplers", &[], "the order in which candidates are left out"),
    ignored("repeat_last_n", &["-1"], "how far back a penalty looks; here over the whole text"),
    ignored("timings_per_token", &["false"], "times with every chunk"),
    ignored("models", &["[]"], "other models to try"),
    ignored("fallbacks", &["[]"], "other models to try"),
    ignored("preserved_tokens", &["[]"], "control tokens that are shown"),
    ignored("cache_salt", &[], "who may share a cached beginning; here all do"),
    ignored("extra_key", &[], "who may share a cached beginning; here all do"),
];

/// What cannot change an answer.
pub(super) const HARMLESS: &[Field] = &[
    harmless("priority", "who is served first"),
    harmless("request_id", "the request's number"),
    harmless("rid", "the request's number"),
    harmless("session_id", "which requests belong together"),
    harmless("trace", "which requests belong together"),
    harmless("cache_prompt", "keeping beginnings; always done"),
    harmless("n_cache_reuse", "how beginnings are kept"),
    harmless("id_slot", "where it is computed"),
    harmless("data_parallel_rank", "where it is computed"),
    harmless("bootstrap_host", "where it is computed"),
    harmless("bootstrap_port", "where it is computed"),
    harmless("bootstrap_room", "where it is computed"),
    harmless("backend_sampling", "where tokens are drawn"),
    harmless("provider", "where it is computed"),
    harmless("route", "where it is computed"),
    harmless("keep_alive", "how long a model stays loaded"),
    harmless("usage", "counts are always told"),
    harmless("n_keep", "what is kept of a text that is cut; none is"),
    harmless("n_discard", "what goes of a text that is cut; none is"),
    harmless("mirostat_tau", "nothing without `mirostat`"),
    harmless("mirostat_eta", "nothing without `mirostat`"),
    harmless("dynatemp_exponent", "nothing without `dynatemp_range`"),
    harmless("dry_base", "nothing without `dry_multiplier`"),
    harmless("dry_allowed_length", "nothing without `dry_multiplier`"),
    harmless("dry_penalty_last_n", "nothing without `dry_multiplier`"),
    harmless("dry_sequence_breakers", "nothing without `dry_multiplier`"),
    harmless("xtc_threshold", "nothing without `xtc_probability`"),
    harmless("adaptive_decay", "nothing without `adaptive_target`"),
    harmless("smoothing_curve", "nothing without `smoothing_factor`"),
    harmless("speculative.n_max", "how far is drafted; answers do not depend on it"),
    harmless("speculative.n_min", "how far is drafted; answers do not depend on it"),
    harmless("speculative.p_min", "how far is drafted; answers do not depend on it"),
];

/// Of `/tokenize`, as vLLM and llama.cpp have it.
pub(super) const TOKENIZE: &[Field] = &[
    done("prompt", "the text"),
    done("content", "the text under another name"),
    done("messages", "a chat, as the template has it"),
    done("tools", "what can be called in it"),
    done("add_special_tokens", "the token that begins a text"),
    refused("add_special", &["true"], "the same under another name (`add_special_tokens` does it)"),
    done("chat_template_kwargs", "variables of the template"),
    done("reasoning_effort", "how much is thought"),
    done("enable_thinking", "whether it is thought first"),
    within("thinking", THINKING, "whether it is thought first"),
    within("reasoning", REASONING, "how much is thought"),
    done("add_generation_prompt", "whether the model's turn is begun"),
    done("continue_final_message", "going on from the last message"),
    refused("chat_template", &[], "a template of the request's own"),
    done("return_token_strs", "the text of each token"),
    refused("with_pieces", &["false"], "the text of each token"),
    refused("parse_special", &["true"], "control tokens read as text"),
    harmless("model", "which model; there is one"),
    harmless("mm_processor_kwargs", "how images are read; there are none"),
];

/// Of `/detokenize`.
pub(super) const DETOKENIZE: &[Field] =
    &[done("tokens", "the tokens"), harmless("model", "which model; there is one")];
