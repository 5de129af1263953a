//! The services: which method leads where, streams of answers, and what gateways are told of the
//! engine.

use crate::ask;
use crate::messages::{
    AbortRequest, Empty, EventSource, EventSources, GenerateRequest, GenerateResponse,
    HealthRequest, HealthResponse, ModelInfo, ParallelismInfo, SequenceOutput, ServerInfo,
};
use crate::tell::{Wanted, status};
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use axum::routing::post;
use prost::Message;
use server::{Door, Told};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::server::Grpc;
use tonic::transport::server::TcpConnectInfo;
use tonic::{Code, Status};
use tonic_prost::ProstCodec;

/// Bytes of a message at most: a prompt of millions of tokens.
const MAX_MESSAGE: usize = 64 << 20;

/// Messages that a slow reader may be behind; then its answer waits in the channel before this one.
const BEHIND: usize = 64;

/// How often somebody who watches the health is told of a change.
const WATCH_EVERY: Duration = Duration::from_millis(200);

/// What gateways are told about this engine beside what the door knows.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    pub(crate) model: String,
    pub(crate) block: u32,
    pub(crate) events: Option<SocketAddr>,
}

/// What all methods work with.
pub(crate) struct Service {
    door: Door,
    facts: Facts,
    /// Tells one process of a worker from the next.
    instance: String,
    /// Answers under way that can be given up, by their request's id.
    running: Mutex<HashMap<String, Vec<oneshot::Sender<()>>>>,
}

type Answers = ReceiverStream<Result<GenerateResponse, Status>>;

impl Service {
    pub(crate) fn new(door: Door, facts: Facts) -> Self {
        let instance = format!("{}-{:?}", std::process::id(), std::time::SystemTime::now());
        Self { door, facts, instance, running: Mutex::default() }
    }

    async fn stream(self: Arc<Self>, request: GenerateRequest) -> Result<Answers, Status> {
        let id = request.request_id.clone();
        let answers = request.sampling.as_ref().map_or(1, |sampling| sampling.num_sequences);
        let response = request.response.clone().unwrap_or_default();
        let told = self.door.complete(ask::body(request)?).await.map_err(|e| status(&e))?;
        // A number of answers that was taken is a sane one.
        let wanted = Wanted::new(&response, answers, self.door.ends());
        let (sender, receiver) = mpsc::channel(BEHIND);
        let (abort, aborted) = oneshot::channel();
        if !id.is_empty() {
            let mut running = self.running();
            // Whoever has ended since then is let go of.
            running.retain(|_, all| {
                all.retain(|abort| !abort.is_closed());
                !all.is_empty()
            });
            running.entry(id).or_default().push(abort);
            drop(running);
            tokio::spawn(tell(told, wanted, sender, Some(aborted)));
        } else {
            tokio::spawn(tell(told, wanted, sender, None));
        }
        Ok(ReceiverStream::new(receiver))
    }

    /// The whole answer in one message.
    async fn whole(self: Arc<Self>, request: GenerateRequest) -> Result<GenerateResponse, Status> {
        if request.sampling.as_ref().is_some_and(|sampling| sampling.num_sequences > 1) {
            let message = "`num_sequences` above 1 needs `GenerateStream`: one message has one";
            return Err(Status::invalid_argument(message));
        }
        let mut answers = self.stream(request).await?.into_inner();
        let (mut prompt_info, mut whole) = (None, SequenceOutput::default());
        while let Some(message) = answers.recv().await {
            let message = message?;
            prompt_info = prompt_info.or(message.prompt_info);
            let Some(piece) = message.outputs else { continue };
            whole.text.push_str(&piece.text);
            whole.num_tokens += piece.num_tokens;
            whole.token_ids.extend(piece.token_ids);
            whole.logprobs.extend(piece.logprobs);
            whole.ranks.extend(piece.ranks);
            whole.candidate_tokens.extend(piece.candidate_tokens);
            whole.finish_info = piece.finish_info;
        }
        Ok(GenerateResponse { prompt_info, outputs: Some(whole) })
    }

    fn running(&self) -> MutexGuard<'_, HashMap<String, Vec<oneshot::Sender<()>>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn abort(&self, request: &AbortRequest) {
        let mut running = self.running();
        for id in &request.request_ids {
            for abort in running.remove(id).unwrap_or_default() {
                let _ = abort.send(());
            }
        }
    }

    fn server_info(&self) -> ServerInfo {
        let (context, slots) = (self.door.context() as u64, self.door.slots() as u64);
        ServerInfo {
            engine_version: format!("forerun {}", env!("CARGO_PKG_VERSION")),
            api_version: "vllm".to_owned(),
            instance_id: self.instance.clone(),
            parallelism: Some(ParallelismInfo {
                tensor_parallel_size: 1,
                pipeline_parallel_size: 1,
                data_parallel_size: 1,
                world_size: 1,
                data_parallel_size_local: 1,
            }),
            max_model_len: context as u32,
            kv_block_size: self.facts.block,
            total_kv_blocks: slots * context.div_ceil(u64::from(self.facts.block)),
            max_running_requests: slots,
        }
    }

    fn model_info(&self) -> ModelInfo {
        let (name, aliases) = self.door.names().split_first().unzip();
        ModelInfo {
            model_id: self.facts.model.clone(),
            served_model_name: name.cloned().unwrap_or_default(),
            served_model_aliases: aliases.unwrap_or_default().to_vec(),
            supports_text_input: true,
            supports_token_ids_input: true,
        }
    }

    /// To somebody who has reached this machine as `reached`, which stands for "all addresses":
    /// those would lead whoever asks to itself.
    fn event_sources(&self, reached: Option<IpAddr>) -> EventSources {
        let source = |mut address: SocketAddr| {
            if let Some(reached) = reached.filter(|_| address.ip().is_unspecified()) {
                address.set_ip(reached.to_canonical());
            }
            EventSource {
                transport: "zmq".to_owned(),
                endpoint: format!("tcp://{address}"),
                data_parallel_rank: Some(0),
                encoding: "msgpack".to_owned(),
                schema_version: 1,
            }
        };
        EventSources { sources: self.facts.events.map(source).into_iter().collect() }
    }

    fn health(&self, request: &HealthRequest) -> Result<HealthResponse, Status> {
        if !["", "vllm.Inference", "vllm.Control"].contains(&request.service.as_str()) {
            return Err(Status::not_found(format!("there is no `{}` here", request.service)));
        }
        Ok(HealthResponse { status: if self.door.is_open() { 1 } else { 2 } })
    }

    fn watch(
        self: Arc<Self>,
        request: HealthRequest,
    ) -> ReceiverStream<Result<HealthResponse, Status>> {
        let (sender, receiver) = mpsc::channel(1);
        tokio::spawn(async move {
            let mut told = None;
            while !sender.is_closed() {
                // Who watches a service that is not known yet is told so (3), not refused.
                let now = self.health(&request).map_or(3, |health| health.status);
                if told != Some(now) {
                    told = Some(now);
                    if sender.send(Ok(HealthResponse { status: now })).await.is_err() {
                        return;
                    }
                }
                // The server ends when all streams have, and this one has nothing more to say.
                if !self.door.is_open() {
                    return;
                }
                tokio::time::sleep(WATCH_EVERY).await;
            }
        });
        ReceiverStream::new(receiver)
    }
}

/// Tells an answer until it is whole, its reader has gone or somebody gives it up. With `told` goes
/// the job.
async fn tell(
    mut told: Told,
    mut wanted: Wanted,
    sender: mpsc::Sender<Result<GenerateResponse, Status>>,
    aborted: Option<oneshot::Receiver<()>>,
) {
    let aborted = async {
        // The sender is kept as long as it may be used, so an error is no abort.
        let is_aborted = match aborted {
            Some(aborted) => aborted.await.is_ok(),
            None => false,
        };
        if !is_aborted {
            std::future::pending::<()>().await;
        }
    };
    tokio::pin!(aborted);
    if sender.send(Ok(wanted.prompt(&told.prompt))).await.is_err() {
        return;
    }
    loop {
        let message = tokio::select! {
            piece = told.next() => match piece {
                Some(Ok(piece)) => Ok(wanted.piece(piece)),
                Some(Err(error)) => Err(status(&error)),
                None => return,
            },
            () = sender.closed() => return,
            () = &mut aborted => {
                for message in wanted.aborted() {
                    let _ = sender.send(Ok(message)).await;
                }
                return;
            }
        };
        if sender.send(message).await.is_err() {
            return;
        }
    }
}

/// The paths of all methods that are known; any other one is answered as not implemented.
pub(crate) fn routes(service: Arc<Service>) -> tonic::service::Routes {
    type Shared = State<Arc<Service>>;
    let app = axum::Router::new()
        .route(
            "/vllm.Inference/GenerateStream",
            post(|State(service): Shared, request: Request| async move {
                streamed(request, move |asked| service.clone().stream(asked)).await
            }),
        )
        .route(
            "/vllm.Inference/Generate",
            post(|State(service): Shared, request: Request| async move {
                unary(request, move |asked| service.clone().whole(asked)).await
            }),
        )
        .route(
            "/vllm.Control/Abort",
            post(|State(service): Shared, request: Request| async move {
                let abort = move |asked: AbortRequest| {
                    service.abort(&asked);
                    std::future::ready(Ok(Empty {}))
                };
                unary(request, abort).await
            }),
        )
        .route("/vllm.Control/GetServerInfo", told(|service, _| service.server_info()))
        .route("/vllm.Control/GetModelInfo", told(|service, _| service.model_info()))
        .route("/vllm.Control/GetKvEventSources", told(Service::event_sources))
        .route(
            "/grpc.health.v1.Health/Check",
            post(|State(service): Shared, request: Request| async move {
                let check = move |asked: HealthRequest| std::future::ready(service.health(&asked));
                unary(request, check).await
            }),
        )
        .route(
            "/grpc.health.v1.Health/Watch",
            post(|State(service): Shared, request: Request| async move {
                let watch = move |asked: HealthRequest| {
                    std::future::ready(Ok(service.clone().watch(asked)))
                };
                streamed(request, watch).await
            }),
        )
        .fallback(|request: Request| async move {
            let message = format!("{} is not done here", request.uri().path());
            Status::new(Code::Unimplemented, message).into_http::<Body>()
        })
        .with_state(service);
    tonic::service::Routes::from(app)
}

/// A method that is asked nothing, and knows the address that it was asked at.
fn told<A>(answer: fn(&Service, Option<IpAddr>) -> A) -> axum::routing::MethodRouter<Arc<Service>>
where
    A: Message + Default + 'static,
{
    post(move |State(service): State<Arc<Service>>, request: Request| async move {
        let connection = request.extensions().get::<TcpConnectInfo>();
        let reached = connection.and_then(|info| info.local_addr()).map(|address| address.ip());
        unary(request, move |_: Empty| std::future::ready(Ok(answer(&service, reached)))).await
    })
}

/// Reads one message and answers with one.
async fn unary<Q, A, F>(request: Request, mut answer: impl FnMut(Q) -> F + Send) -> Response
where
    Q: Message + Default + 'static,
    A: Message + Default + 'static,
    F: Future<Output = Result<A, Status>> + Send,
{
    let method = tower::service_fn(move |asked: tonic::Request<Q>| {
        let answer = answer(asked.into_inner());
        async move { answer.await.map(tonic::Response::new) }
    });
    let grpc = Grpc::new(ProstCodec::<A, Q>::default());
    let response = grpc.max_decoding_message_size(MAX_MESSAGE).unary(method, request).await;
    response.map(Body::new)
}

/// Reads one message and answers with many.
async fn streamed<Q, A, S, F>(request: Request, mut answer: impl FnMut(Q) -> F + Send) -> Response
where
    Q: Message + Default + 'static,
    A: Message + Default + 'static,
    S: Stream<Item = Result<A, Status>> + Send + 'static,
    F: Future<Output = Result<S, Status>> + Send,
{
    let method = tower::service_fn(move |asked: tonic::Request<Q>| {
        let answer = answer(asked.into_inner());
        async move { answer.await.map(tonic::Response::new) }
    });
    let grpc = Grpc::new(ProstCodec::<A, Q>::default());
    let response =
        grpc.max_decoding_message_size(MAX_MESSAGE).server_streaming(method, request).await;
    response.map(Body::new)
}
