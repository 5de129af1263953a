//! `forerun bench`, through the program. No test asks for a time to be short: the machine may be
//! busy.

mod compare;
mod flags;
#[allow(dead_code)]
#[path = "../serve/http.rs"]
mod http;
mod measure;
mod pages;
mod parity;
#[allow(dead_code)]
#[path = "../support/program.rs"]
mod program;
