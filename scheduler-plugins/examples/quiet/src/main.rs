//! An example of a scheduler for Treeline in WebAssembly: it prefers the candidate
//! with the fewest instances, and among those the one with the most free memory.
//!
//! It reads a question (sched.Ask) as JSON from its standard input and writes an
//! answer (sched.Answer) to its standard output, with nothing but Rust's standard
//! library. See the README beside it for how it is built.

mod json;

use json::Value;
use std::io::{self, Read, Write};

fn main() {
    let mut text = String::new();
    if let Err(e) = io::stdin().read_to_string(&mut text) {
        fail(&format!("read the question: {e}"));
    }
    let ask = match json::parse(&text) {
        Ok(v) => v,
        Err(e) => fail(&format!("the question is no JSON: {e}")),
    };
    let mut ranked: Vec<(f64, f64, String)> = Vec::new();
    for c in ask.get("candidates").items() {
        let load = c.get("load").number();
        let memory = c.get("free").get("memory_mb").number();
        ranked.push((load, memory, c.get("id").text().to_string()));
    }
    // Fewest instances first, then most memory; the id makes the order total.
    ranked.sort_by(|a, b| a.0.total_cmp(&b.0).then(b.1.total_cmp(&a.1)).then(a.2.cmp(&b.2)));

    let mut out = format!("{{\"key\":{},\"ranked\":[", json::quote(ask.get("key").text()));
    for (i, (_, _, id)) in ranked.iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        // More is better, and each is a little worse than the one before it.
        out.push_str(&format!("{{\"id\":{},\"score\":{}}}", json::quote(id), ranked.len() - i));
    }
    out.push_str("]}");
    if let Err(e) = io::stdout().write_all(out.as_bytes()) {
        fail(&format!("write the answer: {e}"));
    }
}

/// What is written to standard error is quoted in the event that names this module.
fn fail(why: &str) -> ! {
    eprintln!("{why}");
    std::process::exit(1)
}

impl Value {
    fn items(&self) -> &[Value] {
        match self {
            Value::Array(items) => items,
            _ => &[],
        }
    }
}
