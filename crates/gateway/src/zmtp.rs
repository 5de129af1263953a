//! A ZeroMQ publisher's side of a connection (ZMTP 3.0, no security), as much as subscribers need: a
//! greeting, one READY, and messages. What is subscribed to is not looked at: there is one topic.

use std::io;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A subscriber says who it is and what it wants within this time.
const PATIENCE: Duration = Duration::from_secs(10);

/// Bytes of a frame from a subscriber at most.
const MAX_FRAME: u64 = 64 << 10;

/// A frame has more behind it, or is long, or is a command.
const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// Somebody who has subscribed.
pub(crate) struct Subscriber(TcpStream);

impl Subscriber {
    /// Greets whoever has connected and waits for the first subscription, since what is sent before
    /// it is lost.
    pub(crate) async fn greet(socket: TcpStream) -> io::Result<Self> {
        socket.set_nodelay(true)?;
        let mut subscriber = Self(socket);
        tokio::time::timeout(PATIENCE, subscriber.agree()).await??;
        Ok(subscriber)
    }

    async fn agree(&mut self) -> io::Result<()> {
        let mut greeting = [0; 64];
        (greeting[0], greeting[9], greeting[10]) = (0xff, 0x7f, 3);
        greeting[12..16].copy_from_slice(b"NULL");
        self.0.write_all(&greeting).await?;
        self.0.read_exact(&mut greeting).await?;
        if greeting[0] != 0xff || greeting[10] < 3 || &greeting[12..17] != b"NULL\0" {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut ready = b"\x05READY\x0bSocket-Type".to_vec();
        ready.extend(3u32.to_be_bytes());
        ready.extend(b"PUB");
        self.0.write_all(&frame(COMMAND, &ready)).await?;
        loop {
            let (flags, body) = self.frame().await?;
            if flags & COMMAND == 0 && body.first() == Some(&1) {
                return Ok(());
            }
        }
    }

    async fn frame(&mut self) -> io::Result<(u8, Vec<u8>)> {
        let flags = self.0.read_u8().await?;
        let len = match flags & LONG {
            0 => u64::from(self.0.read_u8().await?),
            _ => self.0.read_u64().await?,
        };
        if len > MAX_FRAME {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut body = vec![0; len as usize];
        self.0.read_exact(&mut body).await?;
        Ok((flags, body))
    }

    /// Sends the parts of a message.
    pub(crate) async fn send(&mut self, parts: &[&[u8]]) -> io::Result<()> {
        let last = parts.len() - 1;
        let frames = parts.iter().enumerate();
        let frames = frames.flat_map(|(i, part)| frame(if i < last { MORE } else { 0 }, part));
        self.0.write_all(&frames.collect::<Vec<u8>>()).await
    }

    /// Ready when the subscriber has hung up. What else it says is let by; nothing is lost where
    /// this is not waited for to the end.
    pub(crate) async fn gone(&mut self) -> io::Result<()> {
        let mut bytes = [0; 512];
        while self.0.read(&mut bytes).await? > 0 {}
        Ok(())
    }
}

fn frame(flags: u8, body: &[u8]) -> Vec<u8> {
    let mut frame = match u8::try_from(body.len()) {
        Ok(short) => vec![flags, short],
        Err(_) => [&[flags | LONG][..], &(body.len() as u64).to_be_bytes()].concat(),
    };
    frame.extend(body);
    frame
}
