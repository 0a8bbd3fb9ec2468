//! One stream of the fake runner: an evaluation or a health call.

use std::future::poll_fn;
use std::sync::Arc;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{PingPong, Reason, RecvStream, SendStream};
use http::{HeaderMap, Request, Response};
use porch_fn_proto::{Chunks, EVALUATE_FUNCTION_PATH, PREFIX_LEN, SHARD_PATHS, frame, peek};
use prost::Message;
use tokio::time::Instant;
use tonic::Code;
use tonic_health::pb::HealthCheckResponse;
use tonic_health::pb::health_check_response::ServingStatus;

use super::wire::Control;
use super::{Answer, HealthAnswer, How, Log, Point, Received, Reply, Shared, lock};

pub(super) struct Stream {
    pub(super) shared: Arc<Shared>,
    pub(super) control: Arc<Control>,
    pub(super) ping: Arc<tokio::sync::Mutex<PingPong>>,
}

/// A call that is not answered yet. Dropping it counts it as abandoned.
struct Call<'a>(&'a Shared);

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.0.log.send_modify(|log| log.abandoned += 1);
    }
}

impl Stream {
    /// Answers one request. The future is dropped when the router cancels the request.
    pub(super) async fn answer(self, request: Request<RecvStream>, mut respond: SendResponse<Bytes>) {
        match request.uri().path() {
            EVALUATE_FUNCTION_PATH => {
                let call = Call(&self.shared);
                if self.evaluate(request, &mut respond).await.is_ok() {
                    std::mem::forget(call);
                }
            }
            "/grpc.health.v1.Health/Check" => drop(self.check(&mut respond)),
            "/grpc.health.v1.Health/Watch" => drop(self.watch(&mut respond).await),
            path => {
                if path.starts_with(SHARD_PATHS) {
                    self.note(|log| log.pod_requests += 1);
                }
                drop(send(&mut respond, Reply::status(Code::Unimplemented, "no such method")));
            }
        }
    }

    fn note(&self, change: impl FnOnce(&mut Log)) {
        self.shared.log.send_modify(change);
    }

    async fn evaluate(
        &self,
        request: Request<RecvStream>,
        respond: &mut SendResponse<Bytes>,
    ) -> Result<(), h2::Error> {
        self.note(|log| log.begun += 1);
        let answer = lock(&self.shared.default_answer).clone();
        if let Answer::Unread(answer) = answer {
            return self.send_answer(*answer, &Bytes::new(), respond).await;
        }
        let (head, body) = request.into_parts();
        let (framed, _) = read_body(body).await?;
        let message = Chunks::from(framed.slice(PREFIX_LEN.min(framed.len())..));
        let peeked = peek(&message).ok();
        let chosen = peeked.as_ref().and_then(|peek| lock(&self.shared.answers).get(&*peek.image).cloned());
        let package = peeked.map(|peek| message.slice(peek.resource_list).contiguous()).unwrap_or_default();
        if message.is_empty() {
            self.note(|log| log.probes += 1);
        } else {
            let received = Received { headers: head.headers, framed, at: Instant::now() };
            self.note(|log| log.calls.push(received));
        }
        self.send_answer(chosen.unwrap_or(answer), &package, respond).await
    }

    async fn send_answer(
        &self,
        mut answer: Answer,
        package: &Bytes,
        respond: &mut SendResponse<Bytes>,
    ) -> Result<(), h2::Error> {
        loop {
            answer = match answer {
                Answer::Held(gate, then) => {
                    tokio::select! {
                        () = gate.wait_open() => *then,
                        // `poll_reset` also returns when the connection is closed.
                        reset = poll_fn(|context| respond.poll_reset(context)) => {
                            return Err(reset.unwrap_or(Reason::CANCEL).into());
                        }
                    }
                }
                Answer::Unread(then) => *then,
                Answer::Echo => return send(respond, Reply::ok(package.clone(), &self.shared.name)),
                Answer::Reply(reply) => return send(respond, reply),
                Answer::Break(point, how) => return self.break_off(point, how, package, respond).await,
            }
        }
    }

    async fn break_off(
        &self,
        point: Point,
        how: How,
        package: &Bytes,
        respond: &mut SendResponse<Bytes>,
    ) -> Result<(), h2::Error> {
        let reply = Reply::ok(package.clone(), &self.shared.name);
        let sent = match point {
            Point::Start | Point::Headers => Bytes::new(),
            Point::HalfMessage => reply.body.slice(..reply.body.len() / 2),
            Point::Message => reply.body.clone(),
        };
        let mut stream = None;
        if point != Point::Start {
            let mut started = respond.send_response(response(&reply), false)?;
            if !sent.is_empty() {
                started.send_data(sent, false)?;
            }
            stream = Some(started);
        }
        // When the peer answers a ping, it has received everything that was sent before.
        let _ = self.ping.lock().await.ping(h2::Ping::opaque()).await;
        match (how, stream) {
            (How::Cut, _) => self.hold_until_cut().await,
            (How::GoAwayThenCut, _) => {
                self.control.go_away();
                // A graceful shutdown sends two GOAWAY frames, with a round trip between them.
                for _ in 0..2 {
                    let _ = self.ping.lock().await.ping(h2::Ping::opaque()).await;
                }
                self.hold_until_cut().await
            }
            (How::Reset(reason), Some(mut stream)) => {
                stream.send_reset(reason);
                Ok(())
            }
            (How::Reset(reason), None) => {
                respond.send_reset(reason);
                Ok(())
            }
            (How::End, Some(mut stream)) => stream.send_data(Bytes::new(), true),
            (How::End, None) => respond.send_response(response(&reply), true).map(drop),
        }
    }

    /// Cuts the connection. Never returns, because a dropped stream could send `RST_STREAM` first.
    async fn hold_until_cut(&self) -> Result<(), h2::Error> {
        self.control.cut();
        std::future::pending().await
    }

    fn check(&self, respond: &mut SendResponse<Bytes>) -> Result<(), h2::Error> {
        self.note(|log| log.checks += 1);
        let health = *self.shared.health.borrow();
        let reply = Reply { body: health_message(health), ..Reply::ok(Bytes::new(), "") };
        send(respond, reply)
    }

    async fn watch(&self, respond: &mut SendResponse<Bytes>) -> Result<(), h2::Error> {
        self.note(|log| log.watches += 1);
        let mut health = self.shared.health.subscribe();
        if !health.borrow_and_update().has_watch {
            return send(respond, Reply::status(Code::Unimplemented, "no Watch here"));
        }
        let mut stream = respond.send_response(response(&Reply::ok(Bytes::new(), "")), false)?;
        let ends = health.borrow().ends;
        loop {
            let now = *health.borrow_and_update();
            if now.ends != ends {
                stream.send_reset(Reason::NO_ERROR);
                return Ok(());
            }
            stream.send_data(health_message(now), false)?;
            tokio::select! {
                changed = health.changed() => if changed.is_err() { return Ok(()) },
                reset = poll_fn(|context| stream.poll_reset(context)) => return reset.map(drop),
            }
        }
    }
}

fn health_message(health: HealthAnswer) -> Bytes {
    let status = if health.serving { ServingStatus::Serving } else { ServingStatus::NotServing };
    let message = HealthCheckResponse { status: status.into() }.encode_to_vec();
    frame(Chunks::from(Bytes::from(message))).contiguous()
}

fn response(reply: &Reply) -> Response<()> {
    let mut response = Response::new(());
    *response.status_mut() = reply.status;
    *response.headers_mut() = reply.headers.clone();
    response
}

fn send(respond: &mut SendResponse<Bytes>, reply: Reply) -> Result<(), h2::Error> {
    let ends = reply.body.is_empty() && reply.trailers.is_none();
    let mut stream: SendStream<Bytes> = respond.send_response(response(&reply), ends)?;
    if !reply.body.is_empty() {
        stream.send_data(reply.body, reply.trailers.is_none())?;
    }
    match reply.trailers {
        Some(trailers) => stream.send_trailers(trailers),
        None => Ok(()),
    }
}

/// Reads a body and its trailers.
pub async fn read_body(mut body: RecvStream) -> Result<(Bytes, Option<HeaderMap>), h2::Error> {
    let mut read = Vec::new();
    while let Some(data) = body.data().await {
        let data = data?;
        body.flow_control().release_capacity(data.len())?;
        read.extend_from_slice(&data);
    }
    // The stream does not end before its trailers are requested, even if it has none.
    let trailers = body.trailers().await?;
    Ok((read.into(), trailers))
}
