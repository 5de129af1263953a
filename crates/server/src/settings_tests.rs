//! How fields of a request are read.

use super::*;
use serde_json::json;

fn limits() -> Limits {
    let sampling = Sampling { temperature: 0.7, ..Sampling::default() };
    Limits { sampling, vocab: 100, context: 10, capacity: 8, ends: vec![7], shares: None }
}

fn read(body: Value) -> Result<Settings, String> {
    Settings::read(&Fields::of(body.as_object().unwrap()), &limits()).map_err(ApiError::named)
}

#[test]
fn fields_are_read_over_the_recommendation() {
    let settings = read(json!({
        "temperature": 0, "top_k": -1, "seed": -2, "stop": ["a", "", "b"], "n": 2, "stream": true,
        "logit_bias": {"5": -100}, "stream_options": {"include_usage": true}, "max_tokens": 3,
        "max_completion_tokens": 4, "unknown": [{}], "top_p": null,
    }))
    .unwrap();
    assert_eq!(settings.sampling.temperature, 0.0);
    assert_eq!((settings.sampling.top_k, settings.sampling.seed), (0, u64::MAX - 1));
    assert_eq!(settings.sampling.logit_bias, [(5, -100.0)]);
    assert_eq!(settings.stops, ["a", "b"]);
    assert_eq!((settings.max_tokens, settings.choices), (Some(4), 2));
    assert!(settings.stream && settings.include_usage);
    assert_eq!(read(json!({})).unwrap().sampling.temperature, 0.7);
}

#[test]
fn numbers_and_nothing_are_taken_as_others_take_them() {
    let settings = read(json!({
        "max_tokens": -1, "top_k": 4.0, "n": 2.0, "seed": 7.0, "temperature": 3, "repeat_penalty": 1.5,
        "stop": null, "stream_options": {"include_usage": true},
    }))
    .unwrap();
    assert_eq!((settings.max_tokens, settings.choices), (None, 2));
    assert_eq!((settings.sampling.top_k, settings.sampling.seed), (4, 7));
    assert_eq!((settings.sampling.temperature, settings.sampling.repetition_penalty), (3.0, 1.5));
    assert!(settings.stops.is_empty() && !settings.stream);
    assert_eq!(read(json!({"stop": ""})).unwrap().stops, [""; 0]);
    assert_eq!(read(json!({"n_predict": 9})).unwrap().max_tokens, Some(9));
    assert_eq!(
        read(json!({"max_completion_tokens": -1, "max_tokens": 5})).unwrap().max_tokens,
        Some(5)
    );
    let seeds = [0, 1].map(|_| read(json!({"seed": -1})).unwrap().sampling.seed);
    assert_ne!(seeds[0], seeds[1]);
}

#[test]
fn wrong_values_name_their_field() {
    for (body, field) in [
        (json!({"temperature": 101}), "temperature"),
        (json!({"temperature": "hot"}), "temperature"),
        (json!({"top_p": -0.1}), "top_p"),
        (json!({"top_k": 1.5}), "top_k"),
        (json!({"min_p": 2}), "min_p"),
        (json!({"seed": 0.5}), "seed"),
        (json!({"stop": 3}), "stop"),
        (json!({"stop": ["a", 3]}), "stop[1]"),
        (json!({"stop": vec!["a"; 17]}), "stop"),
        (json!({"stop": "a".repeat(1025)}), "stop[0]"),
        (json!({"n": 0}), "n"),
        (json!({"n": 9}), "n"),
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"max_completion_tokens": -2}), "max_completion_tokens"),
        (json!({"max_tokens": "5"}), "max_tokens"),
        (json!({"repeat_penalty": 0}), "repeat_penalty"),
        (json!({"truncate_prompt_tokens": 0}), "truncate_prompt_tokens"),
        (json!({"skip_special_tokens": 1}), "skip_special_tokens"),
        (json!({"logit_bias": {"100": 0}}), "logit_bias"),
        (json!({"logit_bias": {"x": 0}}), "logit_bias"),
        (json!({"logit_bias": {"5": 101}}), "logit_bias.5"),
        (json!({"presence_penalty": 3}), "presence_penalty"),
        (json!({"frequency_penalty": []}), "frequency_penalty"),
        (json!({"repetition_penalty": 0}), "repetition_penalty"),
        (json!({"logprobs": "yes"}), "logprobs"),
        (json!({"logprobs": 21}), "logprobs"),
        (json!({"logprobs": true, "top_logprobs": 21}), "top_logprobs"),
        (json!({"top_logprobs": 2}), "top_logprobs"),
        (json!({"stream": 1}), "stream"),
        (json!({"stream": true, "stream_options": 1}), "stream_options"),
        (
            json!({"stream": true, "stream_options": {"include_usage": 1}}),
            "stream_options.include_usage",
        ),
        (
            json!({"stream": true, "stream_options": {"continuous_usage_stats": 1}}),
            "stream_options.continuous_usage_stats",
        ),
        (json!({"user": 1}), "user"),
        (json!({"forerun": 1}), "forerun"),
        (json!({"forerun": {"origins": 1}}), "forerun.origins"),
        (json!({"forerun": {"progress": 1}}), "forerun.progress"),
        (json!({"forerun": {"written": -1}}), "forerun.written"),
        (json!({"return_progress": 1}), "return_progress"),
        (json!({"model": {}}), "model"),
        (json!({"stop_token_ids": [100]}), "stop_token_ids[0]"),
        (json!({"stop_token_ids": 3}), "stop_token_ids"),
        (json!({"ignore_eos": 1}), "ignore_eos"),
        (json!({"include_stop_str_in_output": 1}), "include_stop_str_in_output"),
        (json!({"min_tokens": -1}), "min_tokens"),
        (json!({"min_new_tokens": 5, "max_tokens": 4}), "min_new_tokens"),
    ] {
        assert_eq!(read(body.clone()), Err(field.to_owned()), "{body}");
    }
}

#[test]
fn a_job_fits_the_context() {
    let settings = read(json!({"n": 2, "seed": 7})).unwrap();
    let job = settings.job(vec![1; 9], "prompt", 4, &limits()).unwrap();
    assert_eq!((job.room, job.first_choice, job.choices.len()), (1, 4, 2));
    assert_eq!((job.choices[1].choice, job.choices[1].seed), (1, 7));
    assert!(matches!(
        settings.job(vec![1; 10], "prompt", 0, &limits()),
        Err(ApiError::TooLong { tokens: 10, context: 10, .. })
    ));
    assert!(settings.job(Vec::new(), "prompt", 0, &limits()).is_err());

    let kept = |body: Value| read(body).unwrap().job((0..20).collect(), "prompt", 0, &limits());
    assert_eq!(kept(json!({"truncate_prompt_tokens": 3})).unwrap().prompt, [17, 18, 19]);
    let roomy = kept(json!({"truncate_prompt_tokens": -1, "max_tokens": 6})).unwrap();
    assert_eq!((roomy.prompt.as_slice(), roomy.room), ([16, 17, 18, 19].as_slice(), 6));
    assert!(kept(json!({"truncate_prompt_tokens": 30})).is_err());
    assert_eq!(job.ends, [7]);
    let on = read(json!({"ignore_eos": true, "stop_token_ids": [3]})).unwrap();
    assert_eq!(on.job(vec![1], "prompt", 0, &limits()).unwrap().ends, [3]);
}
