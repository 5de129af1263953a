//! The fields that Anthropic publishes for Messages, betas that its clients send included.

use super::{Field, done, harmless, ignored, kinds, refused, within};

/// Of Messages, and of counting their tokens.
pub(super) const MESSAGES: &[Field] = &[
    done("model", "which model; any name is served by the one that is loaded"),
    done("max_tokens", "the most tokens of an answer"),
    within("messages", MESSAGE, "the conversation"),
    kinds("system", &[("text", TEXT)], "what the system says"),
    done("stop_sequences", "texts that end an answer"),
    done("stream", "an answer as it is written"),
    done("temperature", "how freely tokens are drawn"),
    done("top_p", "drawing from the likeliest part"),
    kinds(
        "thinking",
        &[("enabled", THINKING), ("adaptive", THINKING), ("disabled", THINKING)],
        "whether it is thought first",
    ),
    kinds("tools", &[("", TOOL), ("custom", TOOL)], "what can be called"),
    within("tool_choice", CHOICE, "what is to be called"),
    kinds(
        "output_format",
        &[("json_schema", FORMAT)],
        "what shape an answer has, as a beta called it",
    ),
    within("output_config", OUTPUT, "how much is thought, and what shape an answer has"),
    refused("container", &[], "running code"),
    refused("mcp_servers", &["[]"], "calling tools for the model"),
    refused("compaction", &[], "a summary in place of an answer"),
    refused("thread", &[], "a conversation that the server keeps"),
    ignored("context_management", &[], "shortening a conversation that grows too long"),
    harmless("anthropic_version", "which edition of the API, as some clouds ask for it"),
    harmless("betas", "which of its novelties are wanted"),
    harmless("anthropic_beta", "which of its novelties are wanted"),
    harmless("billing_policy", "who pays"),
    harmless("cache_control", "where a prompt is cut for the cache"),
    harmless("fallback_credit_token", "who pays"),
    harmless("diagnostics", "a question about the cache"),
    harmless("inference_geo", "where in the world it is answered"),
    harmless("metadata", "who asks"),
    harmless("service_tier", "how fast and at what price"),
    harmless("speed", "how fast and at what price"),
    harmless("user_profile_id", "who asks"),
    harmless("workspace_id", "who asks"),
];

const MESSAGE: &[Field] = &[
    done("role", "who says it"),
    ignored("output_config", &[], "how much is thought from a system message on"),
    kinds(
        "content",
        &[
            ("text", TEXT),
            ("thinking", THOUGHT),
            ("redacted_thinking", THOUGHT),
            ("tool_use", USE),
            ("tool_result", RESULT),
        ],
        "what is said",
    ),
    done("clear_at", "what the system says for one turn alone"),
    harmless("id", "its number"),
];

const TEXT: &[Field] = &[
    done("type", "what it is"),
    done("text", "the text"),
    harmless("citations", "sources of an earlier answer"),
    harmless("cache_control", "where a prompt is cut for the cache"),
];

const THOUGHT: &[Field] = &[
    done("type", "what it is"),
    done("thinking", "the thought"),
    harmless("signature", "a proof for its maker"),
    harmless("data", "the thought in a form that only its maker reads"),
    harmless("cache_control", "where a prompt is cut for the cache"),
];

const USE: &[Field] = &[
    done("type", "what it is"),
    done("id", "its number"),
    done("name", "which tool"),
    done("input", "what it was given"),
    harmless("caller", "who called"),
    harmless("toolset_name", "the group of the tool"),
    harmless("cache_control", "where a prompt is cut for the cache"),
];

const RESULT: &[Field] = &[
    done("type", "what it is"),
    done("tool_use_id", "which call is answered"),
    done("content", "what the tool gave back"),
    done("is_error", "whether that is an error"),
    harmless("toolset_name", "the group of the tool"),
    harmless("cache_control", "where a prompt is cut for the cache"),
];

const THINKING: &[Field] = &[
    done("type", "whether it is thought first"),
    done("budget_tokens", "an end to thinking; the answer says that there is none"),
    ignored("display", &["\"summarized\""], "thoughts that are not shown"),
    harmless("block_binding", "what becomes of thoughts that were not thought here"),
];

const TOOL: &[Field] = &[
    done("type", "what it is"),
    done("name", "what it is called"),
    done("description", "what it does"),
    done("input_schema", "the schema of its arguments"),
    ignored(
        "strict",
        &["false"],
        "a call that fits its schema; here only one that is asked for does",
    ),
    harmless("eager_input_streaming", "arguments are always told as they are written"),
    harmless("cache_control", "where a prompt is cut for the cache"),
    refused("allowed_callers", &["[\"direct\"]", "[]"], "a call from code"),
    ignored("input_examples", &["[]"], "examples of its arguments"),
    done("defer_loading", "a tool that is told of where it is found"),
];

const CHOICE: &[Field] = &[
    done("type", "whether one must be called"),
    done("name", "which one"),
    done("disable_parallel_tool_use", "no more than one call"),
];

const OUTPUT: &[Field] = &[
    done("effort", "how much is thought"),
    kinds("format", &[("json_schema", FORMAT)], "what shape an answer has"),
    ignored("task_budget", &[], "the most tokens of a task"),
];

const FORMAT: &[Field] = &[done("type", "what it is"), done("schema", "the schema")];
