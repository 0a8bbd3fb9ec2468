//! A descriptor that is open in a sandbox's first process may lead out of it. An image reaches it by
//! any word that this process resolves (CVE-2024-21626). So each word of an image leads through each
//! number, up to the machine's root and down into a marked folder.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use futures_util::{StreamExt as _, stream};
use porch_fn_tests::image::layout::{LayerOf, Layout, config};
use porch_fn_tests::image::{Layer, libraries, serve};
use porch_fn_tests::image_user::{ImageUser, Up};
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::time::timeout;

use super::super::INPUT;
use super::programs;

/// What the marked folder's files and programs print.
const MARK: &str = "of-the-machine";
/// What a loader of the machine says about a program that does not exist.
const LOADED: &str = "error while loading shared libraries";
/// What the images' own files print.
const OWN: &str = "of-the-image";
/// From every folder of these tests it is less far to the machine's root.
const UP: &str = "/../../../../../../../../../..";
/// The function's program: it reads and writes in its working directory.
const LOOK: &str = "cat secret >&2; : > new-file; cat passwd >&2; echo $HOME >&2; exit 1";
const AT_ONCE: usize = 8;

/// A folder of the machine that no sandbox may reach, and the images that try to.
struct Outside {
    folder: PathBuf,
    layout: Layout,
    names: Vec<String>,
}

/// The numbers to try. The images of each part are in one archive.
fn parts() -> Vec<Vec<u32>> {
    const PART: usize = 16;
    let all = std::env::var("PORCH_FN_TEST_DESCRIPTORS").is_ok_and(|which| which == "all");
    let numbers: Vec<_> = if all { (0..=1023).collect() } else { (0..=31).chain([1023]).collect() };
    numbers.chunks(PART).map(<[u32]>::to_vec).collect()
}

fn users_and_parts() -> impl Iterator<Item = (ImageUser, Vec<u32>)> {
    parts().into_iter().flat_map(|part| ImageUser::all().into_iter().map(move |user| (user, part.clone())))
}

// === impl Outside ===

impl Outside {
    fn new(user: &ImageUser) -> Self {
        let secret = format!("secret {MARK}\n");
        let passwd = format!("outsider:x:4242:4242::/{MARK}:/bin/sh\n");
        let folder = user.sandbox().path("home/outside");
        for (name, content) in [("secret", secret), ("passwd", passwd), ("tool", tool())] {
            let file = user.sandbox().write(&format!("home/outside/{name}"), content);
            fs::set_permissions(file, fs::Permissions::from_mode(0o755)).unwrap();
        }
        // A program that needs nothing of an image: its loader lies beside it.
        for (_, path) in libraries("/bin/sh").chain([(String::new(), "/usr/bin/tee".to_owned())]) {
            fs::copy(&path, folder.join(base_name(&path))).unwrap();
        }
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
        Self { folder, layout: Layout::default(), names: Vec::new() }
    }

    /// A path from a link of /proc to a file in the folder.
    fn through(&self, link: &str, file: &str) -> String {
        format!("{link}{UP}{}/{file}", self.folder.display())
    }

    fn image(&mut self, name: &str, layers: &[LayerOf], fields: &[(&str, Value)]) {
        let mut config = config(&["/look"]);
        for (field, value) in fields {
            config[field] = value.clone();
        }
        self.layout.image(name, layers, &config);
        self.names.push(name.to_owned());
    }

    /// Images with the layers of a base, for each word that a first process resolves.
    fn images_of(&mut self, base: &LayerOf, what: &str, links: [String; 3]) {
        let [direct, of_devices, of_first] = links;
        let folder = self.through(&of_devices, "");
        let words = Layer::new()
            .symlink("linked-folder", folder.trim_end_matches('/'))
            .symlink("linked-program", &self.through(&of_first, "tool"))
            .file("script", 0o755, format!("#!{}\n", self.through(&direct, "tool")).as_bytes())
            .symlink("etc/passwd", &self.through(&of_first, "passwd"));
        let layers = [base.clone(), self.layout.layer(words)];
        for (word, field, value) in [
            ("folder", "WorkingDir", json!(self.through(&direct, ""))),
            ("linked-folder", "WorkingDir", json!("/linked-folder")),
            ("first-folder", "WorkingDir", json!(self.through(&of_first, ""))),
            ("program", "Entrypoint", json!([self.through(&direct, "tool")])),
            ("linked-program", "Entrypoint", json!(["/linked-program"])),
            ("script", "Entrypoint", json!(["/script"])),
            ("user", "User", json!("outsider")),
        ] {
            self.image(&format!("x/{what}-{word}:v1"), &layers, &[(field, value)]);
        }
    }

    /// One image for each word and number.
    fn all_images(&mut self, numbers: &[u32]) {
        let inside = Layer::new().file("inside/secret", 0o644, format!("secret {OWN}\n").as_bytes());
        let base = self.layout.layer(programs().script("look", LOOK));
        let own = [base.clone(), self.layout.layer(inside)];
        self.image("x/own:v1", &own, &[("WorkingDir", json!("/inside"))]);
        for number in numbers {
            let links = ["/proc/self/fd/", "/dev/fd/", "/proc/1/fd/"].map(|link| format!("{link}{number}"));
            self.images_of(&base, &number.to_string(), links);
        }
        for link in ["cwd", "root", "exe"] {
            let links =
                ["/proc/self/", "/proc/thread-self/", "/proc/1/"].map(|start| format!("{start}{link}"));
            self.images_of(&base, link, links);
        }
        // All numbers in one variable PATH.
        let mut path = "PATH=/bin".to_owned();
        for number in numbers {
            for link in ["/proc/self/fd/", "/dev/fd/", "/proc/1/fd/"] {
                let _ = write!(path, ":{}", self.through(&format!("{link}{number}"), ""));
            }
        }
        let fields = [("Env", json!([path])), ("Entrypoint", json!(["tool"]))];
        self.image("x/path:v1", std::slice::from_ref(&base), &fields);
    }

    /// Images that have no layer of their own: nothing covers what a number leads to.
    fn images_without_layers(&mut self, numbers: &[u32]) {
        let loader = libraries("/bin/sh").map(|(_, path)| base_name(&path).to_owned());
        let loader = loader.into_iter().find(|name| name.starts_with("ld-")).expect("a loader");
        for number in numbers {
            let link = format!("/proc/self/fd/{number}");
            let program = ("Entrypoint", json!([self.through(&link, &loader), "/none"]));
            self.image(&format!("x/{number}-empty-program:v1"), &[], &[program]);
            let command = json!([loader, "--library-path", ".", "./tee", format!("new-{number}")]);
            let folder = self.through(&link, "");
            let path = ("Env", json!([format!("PATH={folder}")]));
            let fields = [("WorkingDir", json!(folder)), path, ("Entrypoint", command)];
            self.image(&format!("x/{number}-empty-folder:v1"), &[], &fields);
        }
    }

    /// Panics with all images that have reached the folder.
    fn check(&self, outputs: &[(String, String)]) {
        let reached = outputs.iter().filter(|(name, output)| {
            output.contains(MARK) || name.contains("empty") && output.contains(LOADED)
        });
        let (names, texts): (Vec<_>, Vec<_>) = reached.cloned().unzip();
        let files = fs::read_dir(&self.folder).unwrap().map(|file| file.unwrap().file_name());
        let new: Vec<_> = files.filter(|name| name.as_encoded_bytes().starts_with(b"new-")).collect();
        assert!(
            names.is_empty() && new.is_empty(),
            "{} images: {}\nnew files: {new:?}\n{}",
            names.len(),
            names.join(" "),
            texts.first().map_or("", String::as_str)
        );
        let own = outputs.iter().find(|(name, _)| name == "x/own:v1").unwrap();
        assert!(own.1.contains(OWN), "the images' program sees nothing: {}", own.1);
    }
}

fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

/// A program of the machine. It needs only a shell, which may be the image's.
fn tool() -> String {
    format!("#!/bin/sh\n: > \"${{0%/*}}/new-file\"\necho \"program {MARK}\" >&2\nexit 1\n")
}

/// Runs the images by a command of this user, and returns the name and outputs of each.
async fn run_all(names: &[String], command: impl Fn(&str) -> Command) -> Vec<(String, String)> {
    let runs = names.iter().map(|name| {
        let mut command = command(&format!("example.com/{name}"));
        async move {
            let ended = timeout(porch_fn_tests::process::PATIENCE, command.output()).await;
            let ended = ended.unwrap_or_else(|_| panic!("{name} did not end")).unwrap();
            assert!(!ended.status.success(), "{name}: {ended:?}");
            let text = String::from_utf8_lossy(&[ended.stdout, ended.stderr].concat()).into_owned();
            (name.clone(), text)
        }
    });
    stream::iter(runs).buffer_unordered(AT_ONCE).collect().await
}

/// Images whose names belong to no registry, because they are imported.
async fn imported(user: &ImageUser, numbers: &[u32]) -> Outside {
    let mut outside = Outside::new(user);
    outside.all_images(numbers);
    let mut archive = Layout::default();
    std::mem::swap(&mut archive, &mut outside.layout);
    let archive = archive.with_prefix("example.com/").archive();
    user.import_archive(&archive).await;
    outside
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn cve_2024_21626_no_word_of_an_image_leads_out() {
    for (user, numbers) in users_and_parts() {
        let outside = imported(&user, &numbers).await;
        let outputs = run_all(&outside.names, |image| {
            let mut command = user.command(user.program());
            command.args(["run", image]).stdin(Stdio::null());
            command
        });
        outside.check(&outputs.await);
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn cve_2024_21626_what_the_caller_has_open_leads_nowhere() {
    for (user, numbers) in users_and_parts() {
        let outside = imported(&user, &numbers).await;
        let open = (3..=40).chain([250]).fold(String::new(), |open, number| open + &format!(" {number}<."));
        let script = format!("cd \"$1\"; exec{open}; cd /; exec \"$0\" run \"$2\" <\"$3\"");
        let runs = async |names: &[String], stdin: &Path| {
            run_all(names, |image| {
                let mut command = user.command("bash");
                command.args(["-c", &script]).arg(user.program()).arg(&outside.folder).arg(image).arg(stdin);
                command
            })
            .await
        };
        let mut outputs = runs(&outside.names, Path::new("/dev/null")).await;
        // A folder as standard input may also be refused.
        let of_stdin = outside.names.iter().filter(|name| name.starts_with("x/0-")).cloned();
        outputs.extend(runs(&of_stdin.collect::<Vec<_>>(), &outside.folder).await);
        outside.check(&outputs);
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn cve_2024_21626_no_word_leads_out_of_a_pod() {
    for (user, numbers) in users_and_parts() {
        let mut outside = Outside::new(&user);
        outside.all_images(&numbers);
        outside.images_without_layers(&numbers);
        let registry = serve(outside.layout.clone()).await;
        let up = Up::start(&user, &["--", "--pod-ttl=1s", "--scan-interval=1s"]).await;
        let client = up.client();
        let calls = outside.names.iter().map(async |name| {
            let answer = client.call(&format!("{registry}/{name}"), INPUT).await;
            let log = String::from_utf8_lossy(&answer.log).into_owned();
            (name.clone(), log + &answer.message)
        });
        let outputs: Vec<_> = stream::iter(calls).buffer_unordered(AT_ONCE).collect().await;
        outside.check(&outputs);
    }
}
