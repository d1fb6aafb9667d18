//! Clients that lie, hang or talk something else, beside one that asks for a page.

use super::*;

const HOUR: Duration = Duration::from_secs(3600);
const SOON: Duration = Duration::from_millis(50);

/// Longer than any step of a test takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server that closes no connection before its client does, while it has places. Each test shortens the limit that it is about.
const PATIENT: Limits = Limits {
    head_within: HOUR,
    answer_within: HOUR,
    rest_within: HOUR,
    connections: 4,
    kept_for: HOUR,
};

/// More than the kernel's buffers hold.
const LARGE: usize = 32 << 20;

const ASKS: &str = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
const ASKS_FOR_LARGE: &str = "GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n";

fn page(request: &Request) -> Page {
    match request.path_and_query().0 {
        "/" => Page::ok("text/plain", "hello\n".into()),
        "/large" => Page::ok("text/plain", "x".repeat(LARGE)),
        _ => Page::text(404, "no such page\n"),
    }
}

/// A running server.
struct Bench {
    address: SocketAddr,
    places: Arc<Places>,
}

impl Bench {
    fn start(limits: Limits) -> Self {
        Self::with(true, limits)
    }

    fn with(only_local: bool, limits: Limits) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let server = Server::new(only_local, limits, page);
        let places = Arc::clone(&server.places);
        std::thread::spawn(move || server.accept_all(|| listener.accept()));
        Self { address, places }
    }

    fn send(&self, request: impl AsRef<[u8]>) -> TcpStream {
        send(self.address, request)
    }

    fn answer_to(&self, request: impl AsRef<[u8]>) -> String {
        answer(&self.send(request))
    }
}

fn send(address: SocketAddr, request: impl AsRef<[u8]>) -> TcpStream {
    let mut client = TcpStream::connect(address).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.write_all(request.as_ref()).unwrap();
    client
}

/// All that the server sends until it ends the connection.
fn answer(mut client: &TcpStream) -> String {
    let mut text = String::new();
    client.read_to_string(&mut text).unwrap();
    text
}

fn head(method: &str, host: &str) -> String {
    format!("{method} / HTTP/1.1\r\nHost: {host}\r\n\r\n")
}

#[test]
fn a_page_is_answered_and_the_connection_ends() {
    let bench = Bench::start(PATIENT);
    let answer = bench.answer_to(ASKS);
    assert_eq!(
        answer,
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 6\r\nConnection: close\r\n\r\nhello\n"
    );
    let large = bench.answer_to(ASKS_FOR_LARGE);
    assert!(large.ends_with('x') && large.len() > LARGE);
}

#[test]
fn an_answer_to_head_has_the_same_head_and_no_body() {
    let bench = Bench::start(PATIENT);
    let whole = bench.answer_to(ASKS);
    let head = bench.answer_to(head("HEAD", "localhost"));
    assert_eq!(whole, head + "hello\n");
}

#[test]
fn other_methods_are_refused() {
    let bench = Bench::start(PATIENT);
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "get"] {
        let answer = bench.answer_to(head(method, "localhost"));
        assert!(answer.starts_with("HTTP/1.1 405 "), "{method}: {answer}");
        assert!(
            answer.contains("\r\nAllow: GET, HEAD\r\n"),
            "{method}: {answer}"
        );
    }
}

#[test]
fn foreign_names_are_refused_on_a_loopback_address_alone() {
    let bench = Bench::start(PATIENT);
    for request in [
        head("GET", "example.org"),
        head("POST", "example.org"),
        "GET / HTTP/1.0\r\n\r\n".into(),
    ] {
        let answer = bench.answer_to(&request);
        assert!(answer.starts_with("HTTP/1.1 403 "), "{request}: {answer}");
    }
    let open = Bench::with(false, PATIENT);
    let answer = open.answer_to(head("GET", "example.org"));
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

#[test]
fn bodies_are_neither_waited_for_nor_made_room_for() {
    let bench = Bench::start(Limits {
        rest_within: SOON,
        connections: 12,
        ..PATIENT
    });
    let announced = [10, 1 << 40, u64::MAX];
    let clients: Vec<_> = announced
        .into_iter()
        .cycle()
        .take(12)
        .map(|bytes| {
            bench.send(format!(
                "GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: {bytes}\r\n\r\n"
            ))
        })
        .collect();
    for client in &clients {
        let answer = answer(client);
        assert!(answer.ends_with("\r\n\r\nhello\n"), "{answer}");
    }
}

#[test]
fn a_body_that_comes_does_not_take_the_answer_back() {
    let bench = Bench::start(PATIENT);
    let body = "x".repeat(20_000);
    let answer = bench.answer_to(ASKS.to_owned() + &body);
    assert!(answer.ends_with("\r\n\r\nhello\n"), "{answer}");
}

#[test]
fn pipelined_requests_are_not_answered() {
    let bench = Bench::start(PATIENT);
    let answer = bench.answer_to(ASKS.repeat(3));
    assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{answer}");
}

#[test]
fn a_request_that_is_none_is_told_so() {
    let bench = Bench::start(PATIENT);
    let requests: [&[u8]; 6] = [
        // The beginning of TLS.
        b"\x16\x03\x01\x02\x00\x01",
        b"hello\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: example.org\r\n\r\n",
    ];
    for request in requests {
        let answer = bench.answer_to(request);
        assert!(
            answer.starts_with("HTTP/1.1 400 "),
            "{}: {answer}",
            request.escape_ascii()
        );
    }
    let client = bench.send("GET / HTTP/1.1\r\n");
    client.shutdown(Shutdown::Write).unwrap();
    let answer = answer(&client);
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
}

#[test]
fn a_head_that_is_too_long_is_told_so() {
    let bench = Bench::start(PATIENT);
    for headers in [
        format!("X: {}", "x".repeat(40_000)),
        "x".repeat(40_000),
        "X: x\r\n".repeat(200),
    ] {
        let begin = "GET / HTTP/1.1\r\nHost: localhost\r\n";
        let answer = bench.answer_to(begin.to_owned() + &headers);
        assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
    }
}

#[test]
fn a_head_without_an_end_is_given_up() {
    let bench = Bench::start(Limits {
        head_within: SOON,
        ..PATIENT
    });
    for begin in ["", "GET", "GET / HTTP/1.1\r\nHost: localhost\r\n"] {
        assert_eq!(bench.answer_to(begin), "");
    }
    // A byte now and then gives it no more time. It would take these bytes minutes to be too many.
    let mut client = bench.send("GET / HTTP/1.1\r\nX: ");
    client.set_read_timeout(Some(SOON)).unwrap();
    let mut is_open = true;
    while is_open {
        let _ = client.write_all(b"x");
        is_open = match client.read(&mut [0]) {
            Ok(count) => {
                assert_eq!(count, 0, "it was answered");
                false
            }
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
        };
    }
}

#[test]
fn silent_clients_keep_no_others_out() {
    let bench = Bench::start(Limits {
        kept_for: SOON,
        ..PATIENT
    });
    let many = 0..2 * PATIENT.connections;
    let _silent: Vec<_> = many.map(|_| bench.send("GET / HTTP/1.1\r\n")).collect();
    let answer = bench.answer_to(ASKS);
    assert!(answer.ends_with("\r\n\r\nhello\n"), "{answer}");
}

#[test]
fn clients_that_ask_and_do_not_read_keep_no_others_out() {
    let bench = Bench::start(Limits {
        kept_for: SOON,
        ..PATIENT
    });
    let asks = ASKS_FOR_LARGE.repeat(100);
    let many = 0..2 * PATIENT.connections;
    let _deaf: Vec<_> = many.map(|_| bench.send(&asks)).collect();
    let answer = bench.answer_to(ASKS);
    assert!(answer.ends_with("\r\n\r\nhello\n"), "{answer}");
}

#[test]
fn a_client_that_reads_a_byte_now_and_then_is_given_up() {
    let bench = Bench::start(Limits {
        answer_within: SOON,
        ..PATIENT
    });
    let mut client = bench.send(ASKS_FOR_LARGE);
    let mut byte = [0];
    // From now on it has a place, or has had one.
    let _ = client.read_exact(&mut byte);
    let begun = Instant::now();
    while bench.places.taken() > 0 {
        assert!(begun.elapsed() < PATIENCE, "it still has its place");
        let _ = client.read_exact(&mut byte);
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn errors_of_accept_are_waited_out_until_one_is_final() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let client = send(listener.local_addr().unwrap(), ASKS);
    let server = Server::new(true, PATIENT, page);
    let mut outcomes = [
        Some(Errno::MFILE),
        Some(Errno::CONNABORTED),
        None,
        Some(Errno::NOBUFS),
        Some(Errno::BADF),
    ]
    .into_iter();
    let error = server.accept_all(|| match outcomes.next().unwrap() {
        Some(errno) => Err(errno.into()),
        None => listener.accept(),
    });
    assert_eq!(error.raw_os_error(), Some(Errno::BADF.raw_os_error()));
    let answer = answer(&client);
    assert!(answer.ends_with("\r\n\r\nhello\n"), "{answer}");
}

#[test]
fn foreign_names_of_the_loopback_address_are_told_apart() {
    for host in [
        "127.0.0.1",
        "127.0.0.1:9778",
        "localhost",
        "localhost:9778",
        "[::1]",
        "[::1]:9778",
    ] {
        assert!(is_local(host), "{host}");
    }
    for host in [
        "",
        "example.org",
        "example.org:9778",
        "localhost.example.org",
        "192.0.2.1:9778",
        "[::1].example.org",
    ] {
        assert!(!is_local(host), "{host}");
    }
}
