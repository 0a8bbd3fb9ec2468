//! Go's wording for quoted strings, exit states and system errors.
//!
//! Error texts reach Porch and can be committed to git, so they must equal those of Porch's own
//! function runner, a Go program.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

/// Quotes `text` like Go's `strconv.Quote`, which `%q` uses.
pub fn go_quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            '\x07' => quoted.push_str("\\a"),
            '\x08' => quoted.push_str("\\b"),
            '\x0c' => quoted.push_str("\\f"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\x0b' => quoted.push_str("\\v"),
            c if is_print(c) => quoted.push(c),
            c => {
                let code = u32::from(c);
                // Writing to a String cannot fail.
                let _ = match code {
                    ..=0x7f => write!(quoted, "\\x{code:02x}"),
                    0x80..=0xffff => write!(quoted, "\\u{code:04x}"),
                    _ => write!(quoted, "\\U{code:08x}"),
                };
            }
        }
    }
    quoted.push('"');
    quoted
}

/// Go's `unicode.IsPrint`: letters, marks, numbers, punctuation, symbols and the ASCII space.
///
/// `str::escape_debug` of the standard library uses the same table, but escapes a combining mark at
/// the beginning of a text. Therefore this function puts another character before `c`.
fn is_print(c: char) -> bool {
    if c.is_ascii() {
        return c.is_ascii_graphic() || c == ' ';
    }
    ['x', c].iter().collect::<String>().escape_debug().count() == 2
}

/// Describes the end of a process like Go's `os.ProcessState`: `exit status 1`, `signal: killed`.
pub fn go_exit_text(status: ExitStatus) -> String {
    let mut text = match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(number)) => format!("signal: {}", signal_name(number)),
        (None, None) => "exit status unknown".to_owned(),
    };
    if status.core_dumped() {
        text.push_str(" (core dumped)");
    }
    text
}

/// The operating system's text for `error` as in Go: lower case and without the number.
pub fn go_os_error(error: &std::io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    text.to_ascii_lowercase()
}

/// Go's names for the signals that can end a process on Linux. The numbers are those of amd64 and
/// arm64. The other signals below 32 only stop or continue a process, or are ignored.
fn signal_name(number: i32) -> Cow<'static, str> {
    let name = match number {
        1 => "hangup",
        2 => "interrupt",
        3 => "quit",
        4 => "illegal instruction",
        5 => "trace/breakpoint trap",
        6 => "aborted",
        7 => "bus error",
        8 => "floating point exception",
        9 => "killed",
        10 => "user defined signal 1",
        11 => "segmentation fault",
        12 => "user defined signal 2",
        13 => "broken pipe",
        14 => "alarm clock",
        15 => "terminated",
        16 => "stack fault",
        24 => "CPU time limit exceeded",
        25 => "file size limit exceeded",
        26 => "virtual timer expired",
        27 => "profiling timer expired",
        29 => "I/O possible",
        30 => "power failure",
        31 => "bad system call",
        _ => return format!("signal {number}").into(),
    };
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_as_strconv_quote_does() {
        for (text, quoted) in [
            ("", r#""""#),
            ("gcr.io/kpt-fn/set-namespace:v0.4.1", r#""gcr.io/kpt-fn/set-namespace:v0.4.1""#),
            ("a\"b\\c", r#""a\"b\\c""#),
            ("\x07\x08\x0c\n\r\t\x0b", r#""\a\b\f\n\r\t\v""#),
            ("\0\x1b\x7f", r#""\x00\x1b\x7f""#),
            ("'é☺😀", "\"'é☺😀\""),
            ("a\u{301}\u{301}", "\"a\u{301}\u{301}\""),
            ("\u{80}\u{a0}\u{ad}\u{200b}\u{2028}\u{feff}", r#""\u0080\u00a0\u00ad\u200b\u2028\ufeff""#),
            ("\u{e000}\u{10ffff}", r#""\ue000\U0010ffff""#),
        ] {
            assert_eq!(go_quote(text), quoted);
        }
    }

    #[test]
    fn exit_states_read_as_in_go() {
        for (wait_status, text) in [
            (0, "exit status 0"),
            (1 << 8, "exit status 1"),
            (255 << 8, "exit status 255"),
            (9, "signal: killed"),
            (15, "signal: terminated"),
            (0x0b | 0x80, "signal: segmentation fault (core dumped)"),
            (31, "signal: bad system call"),
            (34, "signal: signal 34"),
        ] {
            assert_eq!(go_exit_text(ExitStatus::from_raw(wait_status)), text);
        }
    }

    #[test]
    fn system_errors_read_as_in_go() {
        for (number, text) in
            [(2, "no such file or directory"), (8, "exec format error"), (13, "permission denied")]
        {
            assert_eq!(go_os_error(&std::io::Error::from_raw_os_error(number)), text);
        }
    }
}
