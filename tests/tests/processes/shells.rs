//! The completion scripts, sourced by the shells that read them.

use porch_fn_tests::process::{Sandbox, binary};

/// Words of a command line before the cursor, and a completion that the shell must offer.
const CASES: [(&str, &str); 4] = [
    ("porch-fn ev", "eval"),
    ("porch-fn eval --im", "--image"),
    ("porch-fn porch-config gen", "generate"),
    ("porch-fn porch-config generate --functionconfig-t", "--functionconfig-tags"),
];

/// Calls the function that the script registers, like bash does when a user presses Tab.
const BASH: &str = r#"
eval "$("$1" completion bash)"
read -ra COMP_WORDS <<<"$2"
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
handler=$(complete -p porch-fn | sed 's/.*-F \([^ ]*\) .*/\1/')
"$handler" porch-fn "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\n' "${COMPREPLY[@]}"
"#;

/// Types the words and Tab into an interactive zsh on a terminal, and prints what appears.
const ZSH: &str = r#"
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell "PS1=; autoload -Uz compinit; compinit -u -D; source <('$1' completion zsh); print READ''Y"
zpty -r shell out '*READY*'
zpty -n -w shell "$2"$'\t'
zpty -r shell out "*$3*"
print -r -- $out
zpty -d shell
"#;

const FISH: &str = "$argv[1] completion fish | source; complete -C $argv[2]";

async fn offers(shell: &str, arguments: &[&str]) {
    let sandbox = Sandbox::new();
    let program = binary("porch-fn").display().to_string();
    for (typed, expected) in CASES {
        let words = [arguments, &[&program, typed, expected]].concat();
        // The limit of `run` ends a shell that never offers the word.
        let ended = sandbox.run(shell, words, b"").await;
        let (stdout, stderr) =
            (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
        assert!(
            stdout.split_whitespace().any(|word| word.trim_end_matches('=').ends_with(expected)),
            "{shell}: {typed}<TAB> offers {stdout}{stderr}"
        );
    }
}

#[tokio::test]
#[ignore = "needs the built binaries and bash; tests/run runs it"]
async fn bash_completes_commands_and_flags() {
    offers("bash", &["-c", BASH, "bash"]).await;
}

#[tokio::test]
#[ignore = "needs the built binaries and zsh; tests/run runs it"]
async fn zsh_completes_commands_and_flags() {
    offers("zsh", &["-f", "-c", ZSH, "zsh"]).await;
}

#[tokio::test]
#[ignore = "needs the built binaries and fish; tests/run runs it"]
async fn fish_completes_commands_and_flags() {
    offers("fish", &["-N", "-c", FISH]).await;
}
