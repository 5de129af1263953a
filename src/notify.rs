//! What a service manager is told: systemd's `sd_notify`, a datagram to the socket that the
//! environment names.

/// Tells the service manager, if there is one, how things are: `READY=1`, `STOPPING=1`.
#[cfg(unix)]
pub(crate) fn notify(state: &str) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET") else { return };
    if let Err(error) = send(&socket, state) {
        tracing::warn!(cause = %error, "the service manager was not told");
    }
}

#[cfg(unix)]
fn send(socket: &std::ffi::OsStr, state: &str) -> std::io::Result<()> {
    #[cfg(target_os = "linux")]
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};
    let address = match socket.as_bytes() {
        // Linux has sockets that are no files.
        #[cfg(target_os = "linux")]
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(socket)?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address)?;
    Ok(())
}

/// There is none elsewhere.
#[cfg(not(unix))]
pub(crate) fn notify(_state: &str) {}
