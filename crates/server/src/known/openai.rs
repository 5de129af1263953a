//! The fields that OpenAI publishes for Chat Completions, Completions and Responses.

use super::{Field, done, harmless, ignored, kinds, refused, within};

/// Of every way to ask for text.
pub(super) const SAMPLING: &[Field] = &[
    done("model", "which model; any name is served by the one that is loaded"),
    done("max_tokens", "the most tokens of an answer"),
    done("max_completion_tokens", "the same under its newer name"),
    done("temperature", "how freely tokens are drawn"),
    done("top_p", "drawing from the likeliest part"),
    done("frequency_penalty", "a penalty on what was said often"),
    done("presence_penalty", "a penalty on what was said"),
    done("logit_bias", "likelier and less likely tokens"),
    done("logprobs", "telling how likely tokens were"),
    done("seed", "drawing the same again"),
    done("stop", "texts that end an answer"),
    done("n", "several answers"),
    done("stream", "an answer as it is written"),
    within("stream_options", STREAM, "what a stream tells"),
    done("user", "who asks; checked and not used"),
];

const STREAM: &[Field] = &[
    done("include_usage", "a last chunk with counts"),
    done("continuous_usage_stats", "counts with every chunk"),
    harmless("include_obfuscation", "padding against eavesdroppers"),
];

/// Of Chat Completions alone.
pub(super) const CHAT: &[Field] = &[
    within("messages", MESSAGE, "the conversation"),
    done("top_logprobs", "how many other tokens are told"),
    kinds("tools", &[("function", TOOL)], "what can be called"),
    kinds(
        "tool_choice",
        &[("function", NAMED_TOOL), ("allowed_tools", ALLOWED)],
        "what is to be called",
    ),
    done("parallel_tool_calls", "more than one call"),
    within("functions", FUNCTION, "tools under their first name"),
    done("function_call", "a choice of tool under its first name"),
    kinds(
        "response_format",
        &[
            ("text", TYPE),
            ("json_object", FORMAT),
            ("json_schema", FORMAT),
            ("regex", FORMAT),
            ("grammar", FORMAT),
        ],
        "what shape an answer has",
    ),
    done("reasoning_effort", "how much is thought"),
    ignored("verbosity", &["\"medium\""], "how long an answer is"),
    refused("audio", &[], "an answer that is spoken"),
    refused("modalities", &["[\"text\"]", "[]"], "an answer that is not text"),
    refused("moderation", &[], "judging what is asked and answered"),
    refused("web_search_options", &[], "searching the web"),
    harmless("prediction", "a draft that makes an answer faster"),
    harmless("metadata", "notes on the request"),
    harmless("store", "keeping the answer at OpenAI; nothing is kept here"),
    harmless("service_tier", "how fast and at what price"),
    harmless("safety_identifier", "who asks"),
    harmless("prompt_cache_key", "which requests begin alike; found out here without it"),
    harmless("prompt_cache_options", "how long beginnings are kept"),
    harmless("prompt_cache_retention", "how long beginnings are kept"),
];

/// Of Completions alone.
pub(super) const COMPLETIONS: &[Field] = &[
    done("prompt", "what is continued"),
    done("echo", "the prompt before its answer"),
    done("suffix", "what comes after the answer"),
    done("best_of", "choosing among more answers than are told"),
];

const TYPE: &[Field] = &[done("type", "what it is")];

/// Of a message in a chat, whoever says it.
const MESSAGE: &[Field] = &[
    done("role", "who says it"),
    kinds("content", &[("text", TEXT), ("refusal", REFUSAL)], "what is said"),
    done("name", "who says it, by name"),
    done("tool_call_id", "which call is answered"),
    kinds("tool_calls", &[("function", CALL), ("custom", CALL)], "what was called"),
    done("function_call", "what was called, in its first form"),
    done("reasoning_content", "what was thought"),
    done("reasoning", "the same under another name"),
    done("refusal", "what was said instead of an answer"),
    refused(
        "prefix",
        &["false"],
        "going on from a message marked so (`continue_final_message` does it)",
    ),
    refused(
        "partial",
        &["false"],
        "going on from a message marked so (`continue_final_message` does it)",
    ),
    ignored("reasoning_details", &[], "what was thought, in a form that only its maker reads"),
    ignored("thinking_blocks", &[], "what was thought, in a form that only its maker reads"),
    harmless("audio", "what was spoken; where it was not written too there is a note"),
    harmless("annotations", "sources of an earlier answer"),
    harmless("cache_control", "where a prompt is cut for the cache"),
    harmless("id", "its number"),
    harmless("phase", "whether it was the last word"),
    harmless("provider_specific_fields", "what another server said of it"),
];

const TEXT: &[Field] = &[
    done("type", "what it is"),
    done("text", "the text"),
    harmless("annotations", "sources of an earlier answer"),
    harmless("cache_control", "where a prompt is cut for the cache"),
    harmless("prompt_cache_breakpoint", "where a prompt is cut for the cache"),
];

const REFUSAL: &[Field] = &[done("type", "what it is"), done("refusal", "the text")];

const CALL: &[Field] = &[
    within("function", CALLED, "the function"),
    done("custom", "a tool that takes text"),
    done("id", "its number"),
    harmless("type", "only functions are called"),
    harmless("index", "its place in a stream"),
    harmless("extra_content", "what another server keeps of it"),
];

const CALLED: &[Field] = &[done("name", "which function"), done("arguments", "what it was given")];

const TOOL: &[Field] = &[
    done("type", "what it is"),
    within("function", FUNCTION, "the function"),
    ignored("defer_loading", &["false"], "a tool that is looked up; here all are on offer"),
    harmless("cache_control", "where a prompt is cut for the cache"),
];

/// Of a function that can be called.
const FUNCTION: &[Field] = &[
    done("name", "what it is called"),
    done("description", "what it does"),
    done("parameters", "the schema of its arguments"),
    ignored(
        "strict",
        &["false"],
        "a call that fits its schema; here only one that is asked for does",
    ),
];

const NAMED_TOOL: &[Field] = &[
    done("type", "what it is"),
    within("function", &[done("name", "which function")], "the function to call"),
];

const ALLOWED: &[Field] =
    &[done("type", "what it is"), done("allowed_tools", "the tools that may be called")];

const FORMAT: &[Field] = &[
    done("type", "what it is"),
    done("schema", "the schema, where others have it"),
    done("pattern", "the pattern of a `regex`"),
    done("grammar", "the grammar of a `grammar`"),
    done("value", "either, where others have it"),
    within(
        "json_schema",
        &[
            done("schema", "the schema"),
            done("name", "what it is called; checked and not used"),
            done("strict", "an answer always fits its schema"),
            harmless(
                "description",
                "what it is for; a schema's own descriptions are not read either",
            ),
        ],
        "the schema and its name",
    ),
];

/// Of Responses.
pub(super) const RESPONSES: &[Field] = &[
    done("model", "which model; any name is served by the one that is loaded"),
    kinds("input", ITEMS, "the conversation"),
    done("instructions", "what the system says"),
    done("max_output_tokens", "the most tokens of an answer"),
    done("temperature", "how freely tokens are drawn"),
    done("top_p", "drawing from the likeliest part"),
    refused("top_logprobs", &["0"], "telling how likely tokens were"),
    done("stream", "an answer as it is written"),
    harmless("stream_options", "padding against eavesdroppers"),
    kinds(
        "tools",
        &[("function", RESPONSES_TOOL), ("custom", RESPONSES_TOOL), ("namespace", NAMESPACE)],
        "what can be called",
    ),
    kinds(
        "tool_choice",
        &[
            ("function", RESPONSES_NAMED),
            ("custom", RESPONSES_NAMED),
            ("allowed_tools", RESPONSES_ALLOWED),
        ],
        "what is to be called",
    ),
    done("parallel_tool_calls", "more than one call"),
    within("reasoning", REASONING, "how much is thought, and what is told of it"),
    within("text", RESPONSES_TEXT, "what shape an answer has"),
    done("include", "what else is told"),
    done("store", "keeping the answer for later requests"),
    done("previous_response_id", "going on from an answer that was kept"),
    done("conversation", "going on from a conversation that was kept"),
    done("prompt", "a prompt that was kept"),
    done("background", "an answer that is fetched later"),
    done("user", "who asks; checked and not used"),
    refused("context_management", &["[]"], "shortening a conversation that grows too long"),
    refused("moderation", &[], "judging what is asked and answered"),
    within("prompt_cache_options", CACHE, "how long beginnings are kept"),
    harmless("access_programs", "what an account may ask"),
    harmless("image", "how images are read; there are none"),
    harmless("max_tool_calls", "how often tools of the server are used; there are none"),
    harmless("truncation", "what does not fit is refused by name"),
    harmless("metadata", "notes on the request"),
    harmless("service_tier", "how fast and at what price"),
    harmless("safety_identifier", "who asks"),
    harmless("prompt_cache_key", "which requests begin alike; found out here without it"),
    harmless("prompt_cache_retention", "how long beginnings are kept"),
    harmless("client_metadata", "notes on the request"),
];

const CACHE: &[Field] = &[
    refused("prewarm", &["false"], "reading a prompt without an answer"),
    harmless("mode", "who finds out which requests begin alike"),
    harmless("ttl", "how long beginnings are kept"),
    harmless("comparison_response_id", "a question about the cache"),
];

const REASONING: &[Field] = &[
    done("effort", "how much is thought"),
    done("summary", "thoughts told in short"),
    done("generate_summary", "thoughts told in short, under its first name"),
    ignored(
        "context",
        &["\"auto\""],
        "which earlier thoughts are shown to the model; its template decides",
    ),
    refused("mode", &["\"standard\""], "thinking in another way"),
];

const RESPONSES_TEXT: &[Field] = &[
    kinds(
        "format",
        &[("text", TYPE), ("json_object", TYPE), ("json_schema", RESPONSES_FORMAT)],
        "what shape an answer has",
    ),
    ignored("verbosity", &["\"medium\""], "how long an answer is"),
];

const RESPONSES_FORMAT: &[Field] = &[
    done("type", "what it is"),
    done("schema", "the schema"),
    done("name", "what it is called; checked and not used"),
    harmless("strict", "an answer always fits its schema"),
    harmless("description", "what it is for; a schema's own descriptions are not read either"),
];

const RESPONSES_TOOL: &[Field] = &[
    done("type", "what it is"),
    done("name", "what it is called"),
    done("description", "what it does"),
    done("parameters", "the schema of its arguments"),
    done("format", "the form of what it is given"),
    ignored(
        "strict",
        &["false"],
        "a call that fits its schema; here only one that is asked for does",
    ),
    harmless("output_schema", "the schema of what it gives back"),
    harmless("allowed_callers", "who calls; here only the model does"),
    ignored("async", &["false"], "a call that is not waited for"),
    ignored("defer_loading", &["false"], "a tool that is looked up; here all are on offer"),
];

const NAMESPACE: &[Field] = &[
    done("type", "what it is"),
    done("name", "the group's name"),
    done("description", "what its tools do"),
    kinds(
        "tools",
        &[("function", RESPONSES_TOOL), ("custom", RESPONSES_TOOL)],
        "what can be called",
    ),
];

const RESPONSES_NAMED: &[Field] = &[
    done("type", "what it is"),
    done("name", "which function"),
    done("namespace", "the group of the tool"),
];

const RESPONSES_ALLOWED: &[Field] = &[
    done("type", "what it is"),
    done("mode", "whether one must be called"),
    done("tools", "the tools that may be called"),
];

/// Of what has been said. Items of other types are what a server did; where they are read says what
/// becomes of them.
const ITEMS: &[(&str, &[Field])] = &[
    ("message", ITEM),
    ("user", ITEM),
    ("assistant", ITEM),
    ("system", ITEM),
    ("developer", ITEM),
    ("function_call", ITEM_CALL),
    ("function_call_output", ITEM_RESULT),
    ("custom_tool_call", ITEM_CALL),
    ("custom_tool_call_output", ITEM_RESULT),
    ("reasoning", ITEM_THOUGHT),
];

const ITEM: &[Field] = &[
    done("type", "what it is"),
    done("role", "who says it"),
    done("content", "what is said"),
    harmless("id", "its number"),
    harmless("status", "whether it is whole"),
    harmless("phase", "whether it was the last word"),
];

const ITEM_CALL: &[Field] = &[
    done("type", "what it is"),
    done("call_id", "its number"),
    done("name", "which tool"),
    done("arguments", "what it was given"),
    done("input", "what it was given, as text"),
    harmless("id", "its number as an item"),
    harmless("status", "whether it is whole"),
    harmless("async", "whether it was waited for"),
    harmless("caller", "who called"),
    done("namespace", "the group of the tool"),
];

const ITEM_RESULT: &[Field] = &[
    done("type", "what it is"),
    done("call_id", "which call is answered"),
    done("output", "what the tool gave back"),
    harmless("id", "its number as an item"),
    harmless("name", "which tool; the call says it"),
    harmless("namespace", "the group of the tool"),
    harmless("status", "whether it is whole"),
    harmless("caller", "who called"),
];

const ITEM_THOUGHT: &[Field] = &[
    done("type", "what it is"),
    done("content", "what was thought"),
    harmless("summary", "the same in short"),
    harmless("id", "its number"),
    harmless("status", "whether it is whole"),
    harmless("encrypted_content", "the same sealed; read where it was sealed here"),
];
