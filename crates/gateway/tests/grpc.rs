//! A server with the embedded model, asked through gRPC.

#[path = "../src/messages.rs"]
#[allow(dead_code, unreachable_pub)]
mod messages;
mod support;

use axum::http::uri::PathAndQuery;
use messages::*;
use prost::Message;
use server::{Options, Served};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::transport::Channel;
use tonic::{Code, Request, Status, Streaming};
use tonic_prost::ProstCodec;

struct Worker {
    channel: Channel,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<Result<(), server::ServeError>>,
    ends: Vec<u32>,
}

impl Worker {
    async fn start(slots: usize, queue: usize) -> Self {
        Self::serve(vec![support::tiny()], slots, queue).await
    }

    async fn serve(served: Vec<Served>, slots: usize, queue: usize) -> Self {
        let ends = served[0].tokenizer.ends().to_vec();
        let any = "127.0.0.1:0".parse().unwrap();
        let wanted = gateway::Options {
            address: any,
            events: Some("0.0.0.0:0".parse().unwrap()),
            block: 16,
            model: "a-folder".to_owned(),
        };
        let (beside, address, _) = gateway::open(wanted).await.unwrap();
        let options = Options { slots, queue, beside: Some(beside), ..Options::default() };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (stop, stopped) = oneshot::channel();
        let serving = tokio::spawn(server::serve(listener, served, options, async {
            let _ = stopped.await;
        }));
        let channel = Channel::from_shared(format!("http://{address}")).unwrap();
        Self { channel: channel.connect().await.unwrap(), stop, serving, ends }
    }

    async fn call<Q, A>(&self, path: &'static str, question: Q) -> Result<A, Status>
    where
        Q: Message + Default + 'static,
        A: Message + Default + 'static,
    {
        let mut grpc = tonic::client::Grpc::new(self.channel.clone());
        grpc.ready().await.unwrap();
        let (path, codec) = (PathAndQuery::from_static(path), ProstCodec::<Q, A>::default());
        Ok(grpc.unary(Request::new(question), path, codec).await?.into_inner())
    }

    async fn stream_of<Q, A>(&self, path: &'static str, ask: Q) -> Result<Streaming<A>, Status>
    where
        Q: Message + Default + 'static,
        A: Message + Default + 'static,
    {
        let mut grpc = tonic::client::Grpc::new(self.channel.clone());
        grpc.ready().await.unwrap();
        let (path, codec) = (PathAndQuery::from_static(path), ProstCodec::<Q, A>::default());
        Ok(grpc.server_streaming(Request::new(ask), path, codec).await?.into_inner())
    }

    async fn stream(
        &self,
        question: GenerateRequest,
    ) -> Result<Streaming<GenerateResponse>, Status> {
        self.stream_of("/vllm.Inference/GenerateStream", question).await
    }

    /// Watches the health of a service; the first that is said of it.
    async fn watch(&self, service: &str) -> (i32, Streaming<HealthResponse>) {
        let question = HealthRequest { service: service.to_owned() };
        let mut watch = self.stream_of("/grpc.health.v1.Health/Watch", question).await.unwrap();
        let first: HealthResponse = watch.message().await.unwrap().unwrap();
        (first.status, watch)
    }

    async fn whole(&self, question: GenerateRequest) -> Result<SequenceOutput, Status> {
        let answer: GenerateResponse = self.call("/vllm.Inference/Generate", question).await?;
        Ok(answer.outputs.expect("an answer"))
    }

    async fn health(&self, service: &str) -> Result<i32, Status> {
        let question = HealthRequest { service: service.to_owned() };
        let answer: HealthResponse = self.call("/grpc.health.v1.Health/Check", question).await?;
        Ok(answer.status)
    }
}

/// A prompt as the template would have it, so that it has messages.
const CHAT: &str = "<|im_start|>user\nWrite Python quicksort<|im_end|>\n<|im_start|>assistant\n";

fn ask(prompt: Prompt, tokens: u32) -> GenerateRequest {
    GenerateRequest {
        prompt: Some(prompt),
        temperature: Some(0.9),
        sampling: Some(RandomSampling { seed: Some(5), ..Default::default() }),
        stopping: Some(StoppingCriteria { max_new_tokens: tokens, ..Default::default() }),
        response: Some(ResponseOptions {
            output_token_ids: true,
            prompt_token_ids: true,
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn chat(tokens: u32) -> GenerateRequest {
    ask(Prompt::Text(CHAT.to_owned()), tokens)
}

fn endless() -> GenerateRequest {
    let mut question = chat(3600);
    question.stopping.as_mut().unwrap().ignore_eos = true;
    question
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_goes_on_elsewhere_wherever_it_broke_off() {
    let (one, other) = (Worker::start(2, 8).await, Worker::start(2, 8).await);
    for prompt in [CHAT, "def quicksort(items):\n"] {
        let mut question = ask(Prompt::Text(prompt.to_owned()), 40);
        question.stopping.as_mut().unwrap().ignore_eos = true;
        let mut stream = one.stream(question.clone()).await.unwrap();
        let first = stream.message().await.unwrap().unwrap().prompt_info.expect("of the prompt");
        let (mut tokens, mut text, mut told) = (Vec::new(), String::new(), Vec::new());
        while let Some(message) = stream.message().await.unwrap() {
            let piece = message.outputs.unwrap();
            assert_eq!(piece.num_tokens as usize, piece.token_ids.len());
            tokens.extend(piece.token_ids);
            text.push_str(&piece.text);
            told.push((tokens.len(), text.len()));
        }
        assert_eq!((tokens.len(), first.token_ids.len()), (40, first.num_prompt_tokens as usize));
        for k in 1..tokens.len() {
            let begun = [first.token_ids.as_slice(), &tokens[..k]].concat();
            let mut rest = question.clone();
            rest.prompt = Some(Prompt::TokenIds(TokenIds { ids: begun }));
            rest.stopping.as_mut().unwrap().max_new_tokens = (tokens.len() - k) as u32;
            let rest = other.whole(rest).await.unwrap();
            assert_eq!(rest.token_ids, tokens[k..], "{prompt:?} after {k}");
            // Where text was told, the rest of it follows.
            if let Some((_, bytes)) = told.iter().find(|(count, _)| *count == k) {
                assert_eq!(rest.text, text[*bytes..], "{prompt:?} after {k}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_asked_is_done_or_refused() {
    let worker = Worker::start(2, 8).await;
    let plain = worker.whole(chat(30)).await.unwrap();
    let finish = plain.finish_info.unwrap();
    assert_eq!((finish.num_output_tokens, plain.num_tokens), (30, 30));
    assert_eq!(finish.finish_reason, finish::LENGTH);

    let mut question = chat(60);
    let decoding = DecodingParameters {
        structured: Some(Structured::Choice(Choices {
            choices: ["yes".to_owned(), "no".to_owned()].to_vec(),
        })),
        ..Default::default()
    };
    question.decoding = Some(decoding);
    let chosen = worker.whole(question.clone()).await.unwrap();
    assert!(["yes", "no"].contains(&chosen.text.as_str()), "{}", chosen.text);
    let finish = chosen.finish_info.unwrap();
    assert_eq!(finish.finish_reason, finish::STOP);
    let end = *chosen.token_ids.last().unwrap();
    assert_eq!(finish.stop_reason, Some(StopReason::EosTokenId(end)));
    assert!(worker.ends.contains(&end));
    question.stopping.as_mut().unwrap().ignore_eos = true;
    let contradiction = worker.whole(question).await.unwrap_err();
    assert!(contradiction.message().contains("ignore_eos"), "{contradiction}");

    // The model would end soon where nothing keeps it from it.
    let mut question = ask(Prompt::Text("<|im_start|>assistant\nyes".to_owned()), 50);
    question.decoding = Some(DecodingParameters {
        logit_bias: worker.ends.iter().map(|end| (*end, 100.0)).collect(),
        ..Default::default()
    });
    assert_eq!(worker.whole(question.clone()).await.unwrap().num_tokens, 1);
    question.stopping.as_mut().unwrap().min_new_tokens = 7;
    assert_eq!(worker.whole(question.clone()).await.unwrap().num_tokens, 8);
    question.stopping.as_mut().unwrap().ignore_eos = true;
    assert_eq!(worker.whole(question).await.unwrap().num_tokens, 50);

    let mut question = chat(6);
    let response = question.response.as_mut().unwrap();
    response.output_logprobs = true;
    response.output_candidates = Some(CandidateTokens { select: Some(Select::TopN(3)) });
    let likely = worker.whole(question.clone()).await.unwrap();
    assert_eq!((likely.logprobs.len(), likely.ranks.len()), (6, 6));
    for (i, candidates) in likely.candidate_tokens.iter().enumerate() {
        let best = candidates.tokens.iter().all(|c| c.logprob >= likely.logprobs[i] || c.rank > 0);
        assert!(best && (2..=3).contains(&candidates.tokens.len()));
        assert!(candidates.tokens.iter().all(|c| c.id != likely.token_ids[i]));
    }
    question.response.as_mut().unwrap().output_logprobs = false;
    let others = worker.whole(question).await.unwrap();
    assert_eq!((others.logprobs.len(), others.candidate_tokens.len()), (0, 6));
    assert_eq!(others.candidate_tokens, likely.candidate_tokens);

    // Several answers are told apart; given up, each that is open has an end.
    let mut question = endless();
    question.request_id = "both".to_owned();
    question.sampling.as_mut().unwrap().num_sequences = 2;
    let mut stream = worker.stream(question).await.unwrap();
    let mut seen = [false; 2];
    while seen != [true; 2] {
        let message = stream.message().await.unwrap().unwrap();
        message.outputs.into_iter().for_each(|piece| seen[piece.index as usize] = true);
    }
    let abort = AbortRequest { request_ids: vec!["both".to_owned()] };
    let _: Empty = worker.call("/vllm.Control/Abort", abort).await.unwrap();
    let mut ends = Vec::new();
    while let Some(message) = stream.message().await.unwrap() {
        let piece = message.outputs.unwrap();
        ends.extend(piece.finish_info.map(|info| (piece.index, info.finish_reason)));
    }
    assert_eq!(ends, [(0, finish::ABORTED), (1, finish::ABORTED)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_done_is_named() {
    let worker = Worker::start(1, 1).await;
    let with = |change: &dyn Fn(&mut GenerateRequest)| {
        let mut question = chat(4);
        change(&mut question);
        question
    };
    let kv = |kv: CacheParameters| with(&move |q| q.kv = Some(kv.clone()));
    let refused = [
        (with(&|q| q.media = vec![vec![1]]), "media"),
        (with(&|q| q.lora_name = "x".to_owned()), "lora_name"),
        (with(&|q| q.kv_hints = Some(vec![1])), "kv_hints"),
        (with(&|q| q.engine_reasoning_gate = Some(vec![8, 1])), "engine_reasoning_gate"),
        (with(&|q| q.response.as_mut().unwrap().prompt_logprobs = true), "prompt_logprobs"),
        (
            with(&|q| q.response.as_mut().unwrap().prompt_candidates = Some(vec![8, 1])),
            "prompt_candidates",
        ),
        (
            with(&|q| {
                let select = Some(Select::All(true));
                let response = q.response.as_mut().unwrap();
                response.output_candidates = Some(CandidateTokens { select });
            }),
            "output_candidates",
        ),
        (
            with(&|q| {
                let select = Some(Select::TopN(21));
                let response = q.response.as_mut().unwrap();
                response.output_candidates = Some(CandidateTokens { select });
            }),
            "20",
        ),
        (with(&|q| q.stopping.as_mut().unwrap().thinking_token_budget = Some(0)), "thinking"),
        (
            with(&|q| {
                let bad_words_token_ids = vec![TokenIds { ids: vec![1] }];
                q.decoding = Some(DecodingParameters { bad_words_token_ids, ..Default::default() });
            }),
            "bad_words_token_ids",
        ),
        (kv(CacheParameters { cache_salt: "x".to_owned(), ..Default::default() }), "cache_salt"),
        (kv(CacheParameters { bypass_prefix_cache: true, ..Default::default() }), "bypass"),
        (
            kv(CacheParameters { kv_transfer_params: Some(vec![1]), ..Default::default() }),
            "kv_transfer_params",
        ),
        (
            kv(CacheParameters { ec_transfer_params: Some(vec![1]), ..Default::default() }),
            "ec_transfer_params",
        ),
        (
            with(&|q| {
                let structured = Some(Structured::StructuralTag("x".to_owned()));
                q.decoding = Some(DecodingParameters { structured, ..Default::default() });
            }),
            "structural_tag",
        ),
        (with(&|q| q.prompt = None), "token_ids"),
        (with(&|q| q.prompt = Some(Prompt::TokenIds(TokenIds { ids: vec![1 << 30] }))), "prompt"),
        (with(&|q| q.prompt = Some(Prompt::TokenIds(TokenIds::default()))), "prompt"),
        (with(&|q| q.temperature = Some(-1.0)), "temperature"),
        (with(&|q| q.sampling.as_mut().unwrap().num_sequences = 2), "num_sequences"),
    ];
    let many = with(&|q| q.sampling.as_mut().unwrap().num_sequences = u32::MAX);
    assert_eq!(worker.stream(many).await.unwrap_err().code(), Code::InvalidArgument);
    for (question, name) in refused {
        let status = worker.whole(question).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{name}: {status}");
        assert!(status.message().contains(name), "{name}: {status}");
    }
    let unknown = worker.call::<Empty, Empty>("/vllm.Control/Sleep", Empty {}).await.unwrap_err();
    assert_eq!(unknown.code(), Code::Unimplemented);
    let info: ServerInfo = worker.call("/vllm.Control/GetServerInfo", Empty {}).await.unwrap();
    assert_eq!((info.api_version.as_str(), info.kv_block_size), ("vllm", 16));
    assert_eq!((info.max_model_len, info.max_running_requests), (4096, 1));
    let model: ModelInfo = worker.call("/vllm.Control/GetModelInfo", Empty {}).await.unwrap();
    assert_eq!((model.model_id.as_str(), model.served_model_name.as_str()), ("a-folder", "tiny"));
    assert_eq!(model.served_model_aliases, ["other"]);
    let sources: EventSources =
        worker.call("/vllm.Control/GetKvEventSources", Empty {}).await.unwrap();
    assert!(sources.sources[0].endpoint.starts_with("tcp://127.0.0.1:"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_cannot_be_asked_here_is_refused() {
    let named = |name: &str| GenerateRequest { model: name.to_owned(), ..chat(2) };
    let alone = Worker::start(1, 1).await;
    assert_eq!(alone.whole(named("whatever it is called")).await.unwrap().num_tokens, 2);
    let mut second = support::tiny();
    second.names = vec!["second".to_owned()];
    let worker = Worker::serve(vec![support::tiny(), second], 1, 1).await;
    assert_eq!(worker.whole(named("other")).await.unwrap().num_tokens, 2);
    let refused = worker.whole(named("second")).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    assert!(refused.message().contains("second") && refused.message().contains("tiny"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_and_an_end_send_requests_elsewhere() {
    let worker = Worker::start(1, 0).await;
    assert_eq!(worker.health("vllm.Inference").await.unwrap(), 1);
    assert_eq!(worker.health("nobody").await.unwrap_err().code(), Code::NotFound);
    let (known, mut known_watch) = worker.watch("vllm.Control").await;
    let (unknown, mut unknown_watch) = worker.watch("nobody").await;
    assert_eq!((known, unknown), (1, 3));
    let silence = Duration::from_millis(500);
    let more = tokio::time::timeout(silence, unknown_watch.message()).await;
    assert!(more.is_err(), "the stream stays open: {more:?}");
    let mut question = endless();
    question.request_id = "first".to_owned();
    let mut first = worker.stream(question).await.unwrap();
    assert!(first.message().await.unwrap().unwrap().prompt_info.is_some());
    let full = worker.stream(chat(1)).await.unwrap_err();
    assert_eq!(full.code(), Code::Unavailable, "{full}");

    // Somebody gives the first one up, and there is room again.
    let abort = AbortRequest { request_ids: vec!["first".to_owned()] };
    let _: Empty = worker.call("/vllm.Control/Abort", abort).await.unwrap();
    let mut last = None;
    while let Some(message) = first.message().await.unwrap() {
        last = message.outputs.unwrap().finish_info;
    }
    assert_eq!(last.unwrap().finish_reason, finish::ABORTED);
    let again = async {
        loop {
            match worker.stream(endless()).await {
                Ok(stream) => return stream,
                Err(status) => assert_eq!(status.code(), Code::Unavailable),
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let second = tokio::time::timeout(Duration::from_secs(120), again).await.unwrap();

    let Worker { stop, serving, channel, ends } = worker;
    stop.send(()).unwrap();
    let (stop, _) = oneshot::channel();
    let worker = Worker { channel, stop, serving, ends };
    while worker.health("").await.is_ok_and(|status| status == 1) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let closing = worker.stream(chat(1)).await.unwrap_err();
    assert_eq!(closing.code(), Code::Unavailable, "{closing}");
    assert_eq!(known_watch.message().await.unwrap().unwrap().status, 2);
    assert!(unknown_watch.message().await.unwrap().is_none(), "nothing was to be said");
    // Who leaves is not waited for.
    drop(second);
    let Worker { serving, channel, .. } = worker;
    drop(channel);
    serving.await.unwrap().unwrap();
}
