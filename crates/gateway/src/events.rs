//! Events of blocks on their way to subscribers: vLLM's messages, msgpack inside, three frames each.
//! Whoever subscribes hears first that nothing is held and then all that is, so it does not matter
//! when it comes, or comes back.

use crate::blocks::{Blocks, Event};
use crate::zmtp;
use server::{Change, Tier};
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::broadcast::{self, Receiver};
use tokio::sync::mpsc::UnboundedReceiver;

/// Batches that a slow subscriber may be behind. One that is further behind is hung up on: it
/// connects again and hears all anew.
const BEHIND: usize = 4096;

/// Before connections are taken again where one could not be.
const PAUSE: Duration = Duration::from_millis(100);

type Batch = Arc<Vec<Event>>;

/// Publishes changes to whoever connects, until nobody tells any more.
pub(crate) async fn publish(
    listener: TcpListener,
    size: usize,
    mut changes: UnboundedReceiver<Change>,
) {
    let mut blocks = Blocks::new(size);
    let (sender, _) = broadcast::channel::<Batch>(BEHIND);
    loop {
        tokio::select! {
            // What has happened is in the blocks before somebody is told of all of them.
            biased;
            change = changes.recv() => {
                let Some(change) = change else { return };
                let mut events = blocks.apply(&change);
                while let Ok(change) = changes.try_recv() {
                    events.extend(blocks.apply(&change));
                }
                if !events.is_empty() {
                    // There may be no subscriber.
                    let _ = sender.send(Arc::new(events));
                }
            }
            socket = listener.accept() => {
                let Ok((socket, _)) = socket else {
                    // Files may have run out: others have to end before the next can be taken.
                    tokio::time::sleep(PAUSE).await;
                    continue;
                };
                let (all, batches, size) = (blocks.all(), sender.subscribe(), blocks.size());
                tokio::spawn(async move { drop(tell(socket, all, batches, size).await) });
            }
        }
    }
}

/// Tells one subscriber until it goes or is too far behind.
async fn tell(
    socket: TcpStream,
    all: Vec<Event>,
    mut batches: Receiver<Batch>,
    size: usize,
) -> io::Result<()> {
    let mut subscriber = zmtp::Subscriber::greet(socket).await?;
    let mut number = 0u64;
    let mut events = Arc::new(all);
    loop {
        let batch = encode(&events, size);
        subscriber.send(&[&[], &number.to_be_bytes(), &batch]).await?;
        number += 1;
        events = tokio::select! {
            batch = batches.recv() => batch.map_err(io::Error::other)?,
            end = subscriber.gone() => return end,
        };
    }
}

/// `[time, [event...], rank]`, an event a map.
fn encode(events: &[Event], size: usize) -> Vec<u8> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64());
    let mut out = Pack(vec![0x93, 0xcb]);
    out.0.extend(now.to_be_bytes());
    out.array(events.len());
    for event in events {
        match event {
            Event::Cleared => {
                out.map(1);
                out.named("type", "AllBlocksCleared");
            }
            Event::Stored { tier, parent, hashes, tokens } => {
                out.map(8);
                out.named("type", "BlockStored");
                out.numbers("block_hashes", hashes.iter().copied());
                out.text("parent_block_hash");
                match parent {
                    Some(hash) => out.number(*hash),
                    None => out.nothing(),
                }
                out.numbers("token_ids", tokens.iter().map(|token| u64::from(*token)));
                out.text("block_size");
                out.number(size as u64);
                out.named("medium", medium(*tier));
                // There are none here, but vLLM's own subscribers want to be told so.
                for name in ["lora_id", "lora_name"] {
                    out.text(name);
                    out.nothing();
                }
            }
            Event::Removed { tier, hashes } => {
                out.map(3);
                out.named("type", "BlockRemoved");
                out.numbers("block_hashes", hashes.iter().copied());
                out.named("medium", medium(*tier));
            }
        }
    }
    out.0.push(0x00);
    out.0
}

fn medium(tier: Tier) -> &'static str {
    match tier {
        Tier::Device => "GPU",
        Tier::Host => "CPU",
        Tier::Disk => "DISK",
    }
}

/// As much msgpack as events need.
struct Pack(Vec<u8>);

impl Pack {
    /// Of up to 15 pairs.
    fn map(&mut self, pairs: u8) {
        self.0.push(0x80 | pairs);
    }

    fn array(&mut self, len: usize) {
        self.0.push(0xdd);
        self.0.extend((len as u32).to_be_bytes());
    }

    /// Of up to 31 bytes.
    fn text(&mut self, text: &str) {
        self.0.push(0xa0 | text.len() as u8);
        self.0.extend(text.as_bytes());
    }

    fn number(&mut self, number: u64) {
        self.0.push(0xcf);
        self.0.extend(number.to_be_bytes());
    }

    fn nothing(&mut self) {
        self.0.push(0xc0);
    }

    fn named(&mut self, name: &str, value: &str) {
        self.text(name);
        self.text(value);
    }

    fn numbers(&mut self, name: &str, numbers: impl ExactSizeIterator<Item = u64>) {
        self.text(name);
        self.array(numbers.len());
        numbers.for_each(|number| self.number(number));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// A subscriber as ZMTP 3.0 describes it, byte by byte.
    struct Peer(TcpStream);

    impl Peer {
        async fn connect(address: std::net::SocketAddr) -> Self {
            let mut socket = TcpStream::connect(address).await.unwrap();
            let mut greeting = [0; 64];
            socket.read_exact(&mut greeting).await.unwrap();
            assert_eq!((greeting[0], greeting[9], greeting[10]), (0xff, 0x7f, 3));
            assert_eq!(&greeting[12..17], b"NULL\0");
            socket.write_all(&greeting).await.unwrap();
            let mut peer = Self(socket);
            let (flags, ready) = peer.frame().await;
            assert_eq!(
                (flags, ready.as_slice()),
                (4, b"\x05READY\x0bSocket-Type\0\0\0\x03PUB".as_slice())
            );
            peer.0.write_all(b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03SUB").await.unwrap();
            peer.0.write_all(b"\x00\x01\x01").await.unwrap();
            peer
        }

        async fn frame(&mut self) -> (u8, Vec<u8>) {
            let flags = self.0.read_u8().await.unwrap();
            let len = match flags & 2 {
                0 => u64::from(self.0.read_u8().await.unwrap()),
                _ => self.0.read_u64().await.unwrap(),
            };
            let mut body = vec![0; len as usize];
            self.0.read_exact(&mut body).await.unwrap();
            (flags & !2, body)
        }

        /// The number and the events of the next message, past the time.
        async fn message(&mut self) -> (u64, Vec<u8>) {
            let (topic, number) = (self.frame().await, self.frame().await);
            let (flags, body) = self.frame().await;
            assert_eq!((topic, number.0, flags), ((1, Vec::new()), 1, 0));
            assert_eq!(body[..2], [0x93, 0xcb]);
            (u64::from_be_bytes(number.1.try_into().unwrap()), body[10..].to_vec())
        }
    }

    /// `[event...], 0`.
    fn events(of: &[Event]) -> Vec<u8> {
        encode(of, 2)[10..].to_vec()
    }

    #[tokio::test]
    async fn subscribers_hear_all_whenever_they_come() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, changes) = tokio::sync::mpsc::unbounded_channel();
        tokio::spawn(publish(listener, 2, changes));
        let mut early = Peer::connect(address).await;
        assert_eq!(early.message().await, (0, events(&[Event::Cleared])));
        let tokens: Box<[u32]> = (0..600).collect();
        let change = Change::Moved { tokens, from: None, to: Some(Tier::Device) };
        let told = Blocks::new(2).apply(&change);
        sender.send(change).unwrap();
        let (number, heard) = early.message().await;
        assert_eq!((number, &heard), (1, &events(&told)));
        assert_eq!(heard[..6], [0xdd, 0, 0, 0, 1, 0x88]);
        assert!(heard.windows(4).any(|bytes| bytes == b"\xa3GPU") && heard.ends_with(&[0]));
        let mut late = Peer::connect(address).await;
        let (number, heard) = late.message().await;
        assert_eq!((number, &heard[..5]), (0, [0xdd, 0, 0, 1, 45].as_slice()));
    }
}
