//! How a server is put to work: TLS, a file of flags, and a service manager that waits for it.

#[path = "serve/http.rs"]
#[allow(dead_code)]
mod http;
#[path = "serve/logged.rs"]
#[allow(dead_code)]
mod logged;

use http::Server;
use logged::Logged;
use serde_json::json;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use tokio_rustls::rustls::pki_types::{CertificateDer, pem::PemObject};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

/// Runs a command that must fail; what it says.
fn refused(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_forerun")).args(args).output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{message}");
    message
}

/// A certificate for `localhost` and its key, in files.
fn certificate(folder: &Path, name: &str) -> (PathBuf, PathBuf) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (certificate, key) =
        (folder.join(format!("{name}.pem")), folder.join(format!("{name}.key")));
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    (certificate, key)
}

/// Sends a request over TLS and reads the response to its end.
fn over_tls(address: &str, trusted: &Path, request: &str) -> std::io::Result<String> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(trusted).unwrap()).unwrap();
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap();
    let mut config = config.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let client = ClientConnection::new(Arc::new(config), "localhost".try_into().unwrap()).unwrap();
    let socket = TcpStream::connect(address)?;
    socket.set_read_timeout(Some(Duration::from_secs(120)))?;
    let mut stream = StreamOwned::new(client, socket);
    stream.write_all(request.as_bytes())?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    assert_eq!(stream.conn.alpn_protocol(), Some(b"http/1.1".as_slice()));
    Ok(text)
}

#[test]
fn connections_are_encrypted() {
    let folder = tempfile::tempdir().unwrap();
    let (mine, key) = certificate(folder.path(), "mine");
    let (other, other_key) = certificate(folder.path(), "other");
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    let logged = Logged::start(&[
        "--tls-cert",
        &path(&mine),
        "--tls-key",
        &path(&key),
        "--log-level",
        "debug",
    ]);
    let address = &logged.server.address;
    let body = json!({"prompt": "def f(", "max_tokens": 4, "stream": true}).to_string();
    let request = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let answer = over_tls(address, &mine, &request).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.contains("data: [DONE]"), "{answer}");
    assert!(over_tls(address, &other, &request).is_err(), "a certificate that was not trusted");
    // Whoever does not encrypt gets nothing, and does no harm.
    let mut plain = logged.server.send("GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n");
    let mut bytes = Vec::new();
    let _ = plain.read_to_end(&mut bytes);
    assert!(!bytes.starts_with(b"HTTP/"), "{bytes:?}");
    logged.wait_for("no TLS connection");
    let request = "GET /health HTTP/1.0\r\nhost: localhost\r\n\r\n";
    assert!(over_tls(address, &mine, request).unwrap().starts_with("HTTP/1.0 200 OK"));

    let serve = |certificate: &Path, key: &Path| {
        refused(&[
            "serve",
            "--port",
            "0",
            "--tls-cert",
            &path(certificate),
            "--tls-key",
            &path(key),
        ])
    };
    let absent = folder.path().join("absent");
    assert!(serve(&absent, &key).contains("absent"));
    assert!(serve(&key, &key).contains("there is no certificate in it"));
    assert!(serve(&mine, &mine).contains("mine.pem"));
    let message = serve(&mine, &other_key);
    assert!(message.contains("mine.pem") && message.contains("other.key"), "{message}");
}

#[test]
fn a_file_has_flags() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("forerun.toml");
    let file = path.to_str().unwrap();
    std::fs::write(
        &path,
        "ctx = 256\nthreads = 1\ntemp = 0.0 # of `run`\n[serve]\nport = 0\nserved-model-name = ['a', 'b']\n\
         log-level = 'off'\nprefix-cache = 16\n[run]\nctx = 128\n",
    )
    .unwrap();
    let start = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forerun"));
        command.args(args);
        Logged::start_as(command)
    };
    let names = |server: &Server| {
        let list = server.get("/v1/models", "").json();
        let models = list["data"].as_array().unwrap().iter();
        models
            .map(|model| format!("{} {}", model["id"], model["max_model_len"]))
            .collect::<Vec<_>>()
    };
    let logged = start(&["serve", "--config", file]);
    assert_eq!(names(&logged.server), ["\"a\" 256", "\"b\" 256"]);
    assert_eq!(logged.text(), "");
    let config = format!("--config={file}");
    let logged = start(&[&config, "serve", "--ctx", "512", "--served-model-name", "c"]);
    assert_eq!(names(&logged.server), ["\"c\" 512"]);

    let long = "word ".repeat(150);
    let message = refused(&["run", "--config", file, &long]);
    assert!(message.contains("128"), "{message}");
    std::fs::write(&path, "[serve]\nslotz = 3\n").unwrap();
    let message = refused(&["serve", "--config", file]);
    assert!(
        message.contains("forerun.toml: `serve.slotz` is no flag: the nearest is `slots`"),
        "{message}"
    );
    std::fs::write(&path, "slots = \n").unwrap();
    assert!(refused(&["serve", "--config", file]).contains("forerun.toml"));
    assert!(refused(&["serve", "--config", "/no/such/file"]).contains("/no/such/file"));
}

#[cfg(target_os = "linux")]
#[test]
fn a_service_manager_is_told() {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let name = format!("forerun-test-{}", std::process::id());
    let abstract_name = SocketAddr::from_abstract_name(&name).unwrap();
    for (socket, variable) in [
        (UnixDatagram::bind(&path).unwrap(), path.to_str().unwrap().to_owned()),
        (UnixDatagram::bind_addr(&abstract_name).unwrap(), format!("@{name}")),
    ] {
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let hear = || {
            let mut bytes = [0; 64];
            let length = socket.recv(&mut bytes).expect("a message");
            String::from_utf8_lossy(&bytes[..length]).into_owned()
        };
        let mut command = Command::new(env!("CARGO_BIN_EXE_forerun"));
        command.args(["serve", "--port", "0", "--threads", "1"]).env("NOTIFY_SOCKET", &variable);
        let mut logged = Logged::start_as(command);
        assert_eq!(hear(), "READY=1");
        assert_eq!(logged.server.get("/ready", "").status, 200);
        let id = logged.server.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
        assert_eq!(hear(), "STOPPING=1");
        assert!(logged.server.child.wait().unwrap().success());
    }
}

#[test]
fn a_port_that_is_taken_is_said_before_any_model_is_looked_at() {
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = other.local_addr().unwrap().port().to_string();
    let message = refused(&["serve", "--port", &port, "--model", "nothing.gguf"]);
    assert!(message.contains(&format!("listening on 127.0.0.1 port {port}: ")), "{message}");
    assert!(message.contains("give another `--port`"), "{message}");
}
