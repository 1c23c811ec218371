//! As much of JSON (RFC 8259) as a scheduler needs, so that the example has no
//! dependency. A real one would take a crate.

pub enum Value {
    Null,
    Bool,
    Number(f64),
    Text(String),
    Array(Vec<Value>),
    Object(Vec<(String, Value)>),
}

static NULL: Value = Value::Null;

impl Value {
    /// A member of an object; null if there is none.
    pub fn get(&self, key: &str) -> &Value {
        match self {
            Value::Object(members) => members.iter().find(|(k, _)| k == key).map_or(&NULL, |(_, v)| v),
            _ => &NULL,
        }
    }

    /// A number's value; 0 for anything else.
    pub fn number(&self) -> f64 {
        match self {
            Value::Number(n) => *n,
            _ => 0.0,
        }
    }

    /// A string's text; empty for anything else.
    pub fn text(&self) -> &str {
        match self {
            Value::Text(s) => s,
            _ => "",
        }
    }
}

pub fn parse(text: &str) -> Result<Value, String> {
    let mut p = Parser { text: text.as_bytes(), at: 0 };
    let v = p.value(0)?;
    p.space();
    if p.at != p.text.len() {
        return Err(format!("something follows at byte {}", p.at));
    }
    Ok(v)
}

pub fn quote(s: &str) -> String {
    let mut out = String::from("\"");
    for c in s.chars() {
        match c {
            '"' | '\\' => {
                out.push('\\');
                out.push(c);
            }
            c if (c as u32) < 0x20 => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

struct Parser<'a> {
    text: &'a [u8],
    at: usize,
}

impl Parser<'_> {
    fn space(&mut self) {
        while self.at < self.text.len() && b" \t\r\n".contains(&self.text[self.at]) {
            self.at += 1;
        }
    }

    fn peek(&self) -> u8 {
        self.text.get(self.at).copied().unwrap_or(0)
    }

    fn expect(&mut self, word: &str) -> Result<(), String> {
        if self.text[self.at..].starts_with(word.as_bytes()) {
            self.at += word.len();
            return Ok(());
        }
        Err(format!("want {word} at byte {}", self.at))
    }

    fn value(&mut self, depth: usize) -> Result<Value, String> {
        if depth > 64 {
            return Err("nested too deeply".to_string());
        }
        self.space();
        match self.peek() {
            b'{' => self.object(depth),
            b'[' => self.array(depth),
            b'"' => Ok(Value::Text(self.string()?)),
            b't' => self.expect("true").map(|_| Value::Bool),
            b'f' => self.expect("false").map(|_| Value::Bool),
            b'n' => self.expect("null").map(|_| Value::Null),
            _ => self.number(),
        }
    }

    fn object(&mut self, depth: usize) -> Result<Value, String> {
        self.expect("{")?;
        let mut members = Vec::new();
        loop {
            self.space();
            if self.peek() == b'}' {
                self.at += 1;
                return Ok(Value::Object(members));
            }
            if !members.is_empty() {
                self.expect(",")?;
                self.space();
            }
            let key = self.string()?;
            self.space();
            self.expect(":")?;
            members.push((key, self.value(depth + 1)?));
        }
    }

    fn array(&mut self, depth: usize) -> Result<Value, String> {
        self.expect("[")?;
        let mut items = Vec::new();
        loop {
            self.space();
            if self.peek() == b']' {
                self.at += 1;
                return Ok(Value::Array(items));
            }
            if !items.is_empty() {
                self.expect(",")?;
            }
            items.push(self.value(depth + 1)?);
        }
    }

    fn number(&mut self) -> Result<Value, String> {
        let from = self.at;
        while self.at < self.text.len() && b"+-.eE0123456789".contains(&self.text[self.at]) {
            self.at += 1;
        }
        let digits = std::str::from_utf8(&self.text[from..self.at]).unwrap_or("");
        digits.parse().map(Value::Number).map_err(|_| format!("want a value at byte {from}"))
    }

    fn string(&mut self) -> Result<String, String> {
        self.expect("\"")?;
        let mut out = Vec::new();
        loop {
            match self.peek() {
                b'"' => {
                    self.at += 1;
                    return String::from_utf8(out).map_err(|e| e.to_string());
                }
                b'\\' => {
                    self.at += 1;
                    let c = self.escaped()?;
                    out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
                }
                _ if self.at >= self.text.len() => return Err("a string without an end".to_string()),
                c => {
                    out.push(c);
                    self.at += 1;
                }
            }
        }
    }

    fn escaped(&mut self) -> Result<char, String> {
        let c = self.peek();
        self.at += 1;
        Ok(match c {
            b'"' | b'\\' | b'/' => c as char,
            b'n' => '\n',
            b't' => '\t',
            b'r' => '\r',
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'u' => {
                let high = self.hex()?;
                if (0xd800..0xdc00).contains(&high) {
                    self.expect("\\u")?;
                    let low = self.hex()?;
                    let code = 0x10000 + ((high - 0xd800) << 10) + low.wrapping_sub(0xdc00);
                    return Ok(char::from_u32(code).unwrap_or('\u{fffd}'));
                }
                char::from_u32(high).unwrap_or('\u{fffd}')
            }
            _ => return Err(format!("a strange escape at byte {}", self.at)),
        })
    }

    fn hex(&mut self) -> Result<u32, String> {
        let digits = self.text.get(self.at..self.at + 4).and_then(|d| std::str::from_utf8(d).ok());
        self.at += 4;
        digits.and_then(|d| u32::from_str_radix(d, 16).ok()).ok_or_else(|| "want 4 hexadecimal digits".to_string())
    }
}
