//! Whose requests are answered: on a loopback address only those that were sent to it by name. A
//! page elsewhere whose name was made to point here (DNS rebinding) sends its own name.

use std::net::IpAddr;

/// Whether a `Host` header names this machine: `localhost` or a loopback address, with any port.
pub(crate) fn is_local(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) && !name.ends_with(':') => {
            name
        }
        _ => host,
    };
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(&name);
    name == "localhost"
        || name.ends_with(".localhost")
        || address.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::is_local;

    #[test]
    fn only_this_machine_is_local() {
        for host in [
            "localhost",
            "LOCALHOST:80",
            "127.0.0.1:8000",
            "127.1.2.3",
            "[::1]:8000",
            "[::1]",
            "a.localhost",
        ] {
            assert!(is_local(host), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "evil.example:8000",
            "127.0.0.1.evil.example",
            "localhost.evil",
            "10.0.0.1",
            ":80",
        ] {
            assert!(!is_local(host), "{host}");
        }
    }
}
